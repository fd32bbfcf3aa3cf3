/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  The launcher and its one-shot workers.
 *
 * The launcher is connected to no database.  It goes round those that have a
 * ledger, or may have one, and starts a worker for one at a time: a session of
 * at most a second of work.  Nothing is resident in a user's database, so DROP,
 * RENAME and TEMPLATE wait that second at most.
 *
 * A pass over a ledger may take several sessions; where it stands is in shared
 * memory (databases.c).  After a whole pass a database rests for naptime, or until
 * something is due that the pass has seen or a commit has told of since, but
 * for twenty times what the walk took at least: looking through a large ledger
 * costs a twentieth of a core at most.
 *
 * A ledger that was made since the start of the server, and that nobody has used
 * yet, may be on its way out of a dump, its rules and its history still to come:
 * it is left alone until the first call.
 *
 * A worker locks the extension for the length of each transaction and checks
 * again that it is there: DROP EXTENSION waits for a batch, or the worker finds
 * nothing to do.  What goes wrong in a database is said in the log once, kept
 * for the view worker_status, and tried again after a longer rest; the other
 * databases are served meanwhile.
 *
 * Standby: the launcher starts when recovery ends.  Binary upgrade: it is not
 * registered.  After a crash the postmaster starts it again; workers are
 * forgotten, and their databases' turn comes again.  SIGTERM is die() in both,
 * so a fast shutdown waits for nothing.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/worker.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "worker.h"
#include "access.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "catalog/pg_extension.h"
#include "clock.h"
#include "commands/dbcommands.h"
#include "commands/extension.h"
#include "counters.h"
#include "databases.h"
#include "maintenance.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "place.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "repeats.h"
#include "role.h"
#include "settings.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "table.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/varlena.h"
#include "utils/wait_event.h"

#define SESSION_WORK USECS_PER_SEC	/* of one worker */
#define REST_FACTOR 20			/* rest at least so many times the pass */
#define LEAST_REST USECS_PER_SEC
#define UNUSED_FACTOR 10		/* naptimes between looks at an unused
								 * database */
#define MOST_REST USECS_PER_DAY /* of a database that lets no worker in */
#define LOCK_TIMEOUT_MS "1000"
#define UNUSED "nobody has used the ledger since it was made or restored: passes begin with the first call about an action"

bool		idem_worker_enabled = true;
char	   *idem_worker_databases = NULL;
int			idem_worker_naptime = 10;

/*-------------------------------------------------------------------------
 * What both kinds have in common, and registering
 *-------------------------------------------------------------------------
 */

/* the one place that fills the struct */
static void
fill_worker(BackgroundWorker *worker, const char *function, const char *type)
{
	memset(worker, 0, sizeof(*worker));
	worker->bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker->bgw_start_time = BgWorkerStart_RecoveryFinished;
	snprintf(worker->bgw_library_name, sizeof(worker->bgw_library_name), "%s", "idem_action");
	snprintf(worker->bgw_function_name, sizeof(worker->bgw_function_name), "%s", function);
	snprintf(worker->bgw_name, BGW_MAXLEN, "%s", type);
	snprintf(worker->bgw_type, BGW_MAXLEN, "%s", type);
}

static void
override(const char *name, const char *value)
{
	SetConfigOption(name, value, PGC_SUSET, PGC_S_OVERRIDE);
}

/* before connecting, which is a transaction too */
static void
set_up(void)
{
	/* of PostgreSQL 17 on: it would end a process of ours by FATAL */
	if (GetConfigOption("transaction_timeout", true, false) != NULL)
		override("transaction_timeout", "0");
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
}

/* only while shared_preload_libraries are loaded */
void
idem_worker_init(void)
{
	BackgroundWorker worker;

	if (IsBinaryUpgrade)
		return;
	fill_worker(&worker, "idem_launcher_main", "idem_action launcher");
	worker.bgw_restart_time = 10;
	RegisterBackgroundWorker(&worker);
}

/*-------------------------------------------------------------------------
 * The launcher
 *-------------------------------------------------------------------------
 */

/* idem_action.databases: names as they are, quoted where they need it */
bool
idem_worker_check_databases(char **value, void **extra, GucSource source)
{
	List	   *names;

	if (SplitGUCList(pstrdup(*value), ',', &names))
		return true;
	GUC_check_errdetail("It is not a list of names separated by commas.");
	return false;
}

/* whether it names the database, or nothing at all */
bool
idem_worker_is_to_serve(const char *name)
{
	List	   *names;
	ListCell   *lc;

	if (!SplitGUCList(pstrdup(idem_worker_databases), ',', &names))
		return false;
	foreach(lc, names)
	{
		if (strcmp(lfirst(lc), name) == 0)
			return true;
	}
	return names == NIL;
}

/* the databases there are, and the ones to serve, as OIDs in the caller's
 * context */
static List *
list_databases(List **all)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *databases = NIL;
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database database = (Form_pg_database) GETSTRUCT(tuple);
		MemoryContext old;

		old = MemoryContextSwitchTo(context);
		*all = lappend_oid(*all, database->oid);
		MemoryContextSwitchTo(old);

		/* an invalid one is left over by a DROP DATABASE that was broken off */
		if (database->datistemplate || !database->datallowconn ||
			database->datconnlimit == -2 ||
			!idem_worker_is_to_serve(NameStr(database->datname)))
			continue;
		old = MemoryContextSwitchTo(context);
		databases = lappend_oid(databases, database->oid);
		MemoryContextSwitchTo(old);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	return databases;
}

/*
 * Whether a connection to the database would wait for a lock, as while its
 * renaming is not committed: the others must not wait for that.
 */
static bool
is_locked(Oid dbid)
{
	MemoryContext context = CurrentMemoryContext;
	LOCKTAG		tag;
	bool		locked;

	StartTransactionCommand();
	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, dbid, 0);
	locked = LockAcquire(&tag, RowExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL;
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	return locked;
}

static int64
naptimes_from_now(int n)
{
	return idem_clock_monotonic() + n * idem_worker_naptime * USECS_PER_SEC;
}

/*
 * The worker puts it right, unless it cannot even connect.  The server then says
 * why each time, so the next time comes later and later; once somebody else gets
 * in and uses the ledger, at once.
 */
static void
expect_nothing(Oid dbid)
{
	IdemDatabase database;
	int64		now = idem_clock_monotonic();
	int64		rest;

	(void) idem_database_get(dbid, &database);
	rest = (naptimes_from_now(UNUSED_FACTOR) - now) << Min(database.refused, 20);
	idem_database_expect(dbid, now + Min(rest, MOST_REST));
}

/* runs a worker in the database and waits for its end; false without a slot */
static bool
serve(Oid dbid)
{
	BackgroundWorker worker;
	BackgroundWorkerHandle *handle;

	fill_worker(&worker, "idem_worker_main", "idem_action worker");
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_main_arg = ObjectIdGetDatum(dbid);
	worker.bgw_notify_pid = MyProcPid;
	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
	{
		if (!idem_databases_no_worker_slot(true))
			ereport(LOG,
					(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
					 errmsg("idem_action found no free background worker slot"),
					 errhint("Raise max_worker_processes; no pass begins until a slot is free.")));
		return false;
	}
	(void) idem_databases_no_worker_slot(false);
	(void) WaitForBackgroundWorkerShutdown(handle);
	return true;
}

/* when those are served that shared memory has no room for */
static int64 turn_of_others = 0;

/* milliseconds until the database's turn; 0: now */
static long
milliseconds_until_turn(Oid dbid)
{
	IdemDatabase database;
	int64		now = idem_clock_monotonic();
	int64		turn;

	turn = idem_database_get(dbid, &database) || !database.at_start ? database.next_pass : turn_of_others;
	if (database.due != 0)
		turn = Min(turn, Max(database.due, database.rest_until));
	if (turn <= now)
		return 0;
	return (turn - now) / 1000 + 1;
}

/* the databases to serve; shared memory is told of those there are */
static List *
look_round(void)
{
	List	   *all = NIL;
	List	   *to_serve = list_databases(&all);

	idem_databases_are(all);
	idem_counters_keep_only(all);
	return to_serve;
}

/*
 * One round; returns how long to sleep until somebody's turn.  That is looked up
 * at the end: while it waits for a worker the launcher is deaf to what is due.
 */
static long
go_round(void)
{
	long		nap = idem_worker_naptime * 1000L;
	List	   *to_serve = look_round();
	ListCell   *lc;

	foreach(lc, to_serve)
	{
		CHECK_FOR_INTERRUPTS();
		if (milliseconds_until_turn(lfirst_oid(lc)) > 0 ||
			is_locked(lfirst_oid(lc)))
			continue;
		expect_nothing(lfirst_oid(lc));
		if (!serve(lfirst_oid(lc)))
		{
			idem_database_connected(lfirst_oid(lc), naptimes_from_now(1));
			break;
		}
	}
	if (turn_of_others <= idem_clock_monotonic())
		turn_of_others = naptimes_from_now(1);
	foreach(lc, to_serve)
		nap = Min(nap, milliseconds_until_turn(lfirst_oid(lc)));
	/* a pass that goes on leaves a moment for those who wait for the database */
	return Max(nap, 100);
}

void
idem_launcher_main(Datum arg)
{
	MemoryContext round_context;

	set_up();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	idem_databases_launcher_started();
	round_context = AllocSetContextCreate(TopMemoryContext, "idem_action round",
										  ALLOCSET_DEFAULT_SIZES);
	/* where the worker is off, too: which databases are there from the start */
	(void) look_round();
	for (;;)
	{
		long		nap = idem_worker_naptime * 1000L;

		if (ConfigReloadPending)
		{
			int			naptime = idem_worker_naptime;

			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			if (idem_worker_naptime < naptime)
				idem_databases_hurry(naptimes_from_now(1));
		}
		if (idem_worker_enabled)
		{
			MemoryContextSwitchTo(round_context);
			nap = go_round();
			MemoryContextReset(round_context);
		}
		/* a wait for a worker may have eaten the latch of a reload */
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 ConfigReloadPending ? 0 : nap, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

/*-------------------------------------------------------------------------
 * A worker
 *-------------------------------------------------------------------------
 */

/* the extension, locked against being dropped until the end of the transaction */
static bool
lock_extension(void)
{
	Oid			extension = get_extension_oid("idem_action", true);

	if (!OidIsValid(extension))
		return false;
	LockDatabaseObject(ExtensionRelationId, extension, 0, AccessShareLock);
	return get_extension_oid("idem_action", true) == extension;
}

/* a promotion, or a recovery to an older moment: said once since the start */
static void
say_timeline(IdemDatabase *database)
{
	TimeLineID	left = idem_left_timeline();

	if (left != 0 && left != database->said_timeline)
		ereport(LOG,
				(errmsg("the timeline of the ledger in \"%s\" has changed from %u",
						get_database_name(MyDatabaseId), left),
				 errdetail("The last commits before the promotion or the recovery may be lost, and what they allowed may have been done."),
				 errhint("If so, call idem.after_restore(); if not, idem.acknowledge_timeline().")));
	database->said_timeline = left;
}

/* a transaction of the worker's; false where there is no ledger, ended already */
static bool
begin(IdemOwner *self)
{
	bool		found;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	found = lock_extension();
	PopActiveSnapshot();
	if (found)
	{
		pgstat_report_activity(STATE_RUNNING, "idem_action maintenance");
		idem_owner_enter(self);
	}
	else
		CommitTransactionCommand();
	return found;
}

static void
commit(const IdemOwner *self)
{
	idem_owner_leave(self);
	CommitTransactionCommand();
	pgstat_report_stat(true);
	pgstat_report_activity(STATE_IDLE, NULL);
}

/* one batch, in the ledger there is, InvalidOid for none; false where it may not */
static bool
run_batch(IdemDatabase *database, IdemPass *pass, Oid *ledger, bool *more)
{
	IdemOwner	self;
	bool		may;

	*ledger = InvalidOid;
	if (!begin(&self))
		return false;
	*ledger = idem_relation_oid("idem_actions");
	may = database->at_start || database->ledger == *ledger;
	if (may)
	{
		if (strcmp(database->problem, UNUSED) == 0)
			database->problem[0] = '\0';
		say_timeline(database);
		*more = idem_maintenance_batch(pass, IDEM_BATCH);
	}
	commit(&self);
	return may;
}

/* some at least, and no more of them than fit in the session */
static void
write_repeats(int64 until)
{
	IdemOwner	self;
	bool		more = true;

	while (more && begin(&self))
	{
		more = idem_repeats_write();
		commit(&self);
		more &= idem_clock_monotonic() < until;
	}
}

/* once a pass: the names of roles as they are now */
static void
refresh_roles(void)
{
	IdemOwner	self;

	if (begin(&self))
	{
		idem_roles_refresh();
		commit(&self);
	}
}

/* a key can't be called back, so a pass says how many it let go */
static void
say_forgotten(IdemDatabase *database, const char *name)
{
	if (database->forgotten > 0)
		ereport(LOG,
				(errmsg("idem_action maintenance forgot %lld keys in \"%s\"",
						(long long) database->forgotten, name)));
	database->forgotten = 0;
}

/*
 * A session's share of the pass; the database's slot says when to come again.
 * Tells the ledger that it works in.  Where an error ends it, what the committed
 * batches have found out stands in the slot.
 */
static void
work(IdemDatabase *database, IdemPass *pass, const char *name, Oid *ledger)
{
	int64		now = idem_clock_monotonic();
	int64		until = now + SESSION_WORK;
	bool		more = true;
	bool		all_is_well;

	while (more && now < until)
	{
		if (!run_batch(database, pass, ledger, &more))
		{
			database->at_start = false;
			database->block = 0;
			database->last_pass = 0;
			database->rest_until = now + LEAST_REST;
			database->next_pass = naptimes_from_now(UNUSED_FACTOR);
			snprintf(database->problem, IDEM_MAX_PROBLEM, "%s", OidIsValid(*ledger) ? UNUSED : "");
			*ledger = database->ledger;
			return;
		}
		database->block = pass->block;
		database->due = idem_earlier(database->due, idem_clock_monotonic_of(pass->upcoming));
		database->forgotten += pass->forgotten;
		pass->forgotten = 0;
		database->pass_walk += pass->walked;
		pass->walked = 0;
		idem_maintenance_rest(pass);
		now = idem_clock_monotonic();
	}
	all_is_well = !more && !database->passed_over;
	database->at_start = false;
	database->next_pass = now;
	if (!more)
	{
		int64		rest = REST_FACTOR * database->pass_walk;

		refresh_roles();
		say_forgotten(database, name);
		database->last_pass = GetCurrentTimestamp();
		database->rest_until = now + Max(rest, LEAST_REST);
		database->next_pass = Max(naptimes_from_now(1), database->rest_until);
		database->pass_walk = 0;
		database->block = 0;
		database->passed_over = false;
	}
	write_repeats(until);
	if (all_is_well)
		database->problem[0] = '\0';
}

/*
 * An error is said once, until all is well again.  One that is about a row, or about
 * pages that cannot be read, costs just that, and the session goes on; any other
 * ends it.
 */
static void
note_problem(IdemDatabase *database, const char *name, const ErrorData *error, bool passed_over)
{
	char		problem[IDEM_MAX_PROBLEM];

	snprintf(problem, IDEM_MAX_PROBLEM, "%.*s",
			 pg_mbcliplen(error->message, strlen(error->message), IDEM_MAX_PROBLEM - 1), error->message);
	if (database->problem[0] == '\0' ||
		(!passed_over && strcmp(database->problem, problem) != 0))
		ereport(WARNING,
				(errcode(error->sqlerrcode),
				 errmsg("idem_action maintenance failed in \"%s\": %s", name, error->message),
				 errhint("It is tried again; worker_status shows the problem while it lasts.")));
	strcpy(database->problem, problem);
	if (passed_over)
		database->passed_over = true;
	else
		database->next_pass = database->rest_until = naptimes_from_now(UNUSED_FACTOR);
}

/* what autovacuum has of its own, or else shares with VACUUM */
static void
as_autovacuum(const char *name, const char *of_autovacuum)
{
	const char *value = GetConfigOption(of_autovacuum, false, false);

	if (value[0] != '-')
		override(name, value);
}

/*
 * What a database has to say to everyone who connects, as about the version of
 * its collation, its own users are told; it is not for the log at each pass.
 */
static void
connect_to(Oid dbid)
{
	char	   *level = pstrdup(GetConfigOption("log_min_messages", false, false));

	override("lock_timeout", LOCK_TIMEOUT_MS);
	override("search_path", "pg_catalog, pg_temp");
	override("log_min_messages", "error");
	BackgroundWorkerInitializeConnectionByOid(dbid, InvalidOid, 0);
	override("log_min_messages", level);
	/* no standby: what a failover takes back is done again */
	override("synchronous_commit", "local");
	as_autovacuum("vacuum_cost_delay", "autovacuum_vacuum_cost_delay");
	as_autovacuum("vacuum_cost_limit", "autovacuum_vacuum_cost_limit");
	override("default_transaction_isolation", "read committed");
	override("default_transaction_read_only", "off");
}

void
idem_worker_main(Datum arg)
{
	Oid			dbid = DatumGetObjectId(arg);
	MemoryContext context;
	IdemDatabase database;
	IdemPass	pass = {.end = InvalidBlockNumber};
	Oid			ledger;
	char	   *name;
	volatile bool again;

	set_up();
	connect_to(dbid);
	idem_database_connected(dbid, naptimes_from_now(1));
	(void) idem_database_get(dbid, &database);
	context = AllocSetContextCreate(TopMemoryContext, "idem_action session",
									ALLOCSET_DEFAULT_SIZES);
	StartTransactionCommand();
	name = MemoryContextStrdup(context, get_database_name(dbid));
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	ledger = database.ledger;
	pass.block = database.block;
	do
	{
		again = false;
		PG_TRY();
		{
			work(&database, &pass, name, &ledger);
		}
		PG_CATCH();
		{
			ErrorData  *error;

			MemoryContextSwitchTo(context);
			error = CopyErrorData();
			FlushErrorState();
			AbortCurrentTransaction();
			again = idem_maintenance_pass_over(&pass, error);
			note_problem(&database, name, error, again);
		}
		PG_END_TRY();
	} while (again);
	idem_database_put(&database, ledger);
	proc_exit(0);
}
