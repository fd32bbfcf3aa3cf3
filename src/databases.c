/*-------------------------------------------------------------------------
 *
 * databases.c
 *	  What the launcher and its workers know of each database.
 *
 * In shared memory, under one lock: a slot for each database, which the launcher
 * and its workers write, and the launcher's latch, which backends set when they
 * use a ledger for the first time, or commit what is due before the ordinary
 * pass; and whether the launcher finds room for its workers.
 *
 * When to come again is kept by a clock that nobody can set; what is due by the
 * time of day is counted from now when it is noted.
 *
 * After a crash of the server workers begin new passes, as after any start.  A
 * database without a slot, because all are taken, is served without memory of
 * the last pass, and as if it had been there at the start.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/databases.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "databases.h"
#include "access/xact.h"
#include "clock.h"
#include "commands/dbcommands.h"
#include "counters.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"
#include "worker.h"

#define MAX_DATABASES 1024

typedef struct SharedDatabases
{
	LWLock	   *lock;
	Latch	   *launcher;		/* NULL while there is none */
	bool		listed;			/* databases were, once since the start */
	bool		no_worker_slot; /* none was free for the last worker */
	IdemDatabase databases[MAX_DATABASES];	/* dbid invalid: free */
} SharedDatabases;

static SharedDatabases *shared = NULL;

PG_FUNCTION_INFO_V1(idem_worker_state);

Size
idem_databases_size(void)
{
	return sizeof(SharedDatabases);
}

void
idem_databases_start(void *memory, LWLock *its_lock)
{
	shared = memory;
	shared->lock = its_lock;
}

/* the slot of a database, or a free one, or NULL; caller holds the lock */
static IdemDatabase *
slot_of(Oid dbid)
{
	IdemDatabase *free_slot = NULL;

	for (int i = 0; i < MAX_DATABASES; i++)
	{
		if (shared->databases[i].dbid == dbid)
			return &shared->databases[i];
		if (free_slot == NULL && !OidIsValid(shared->databases[i].dbid))
			free_slot = &shared->databases[i];
	}
	return free_slot;
}

/* caller holds the lock */
static void
wake_launcher(void)
{
	if (shared->launcher != NULL)
		SetLatch(shared->launcher);
}

/* this backend's database's, once known; looked at without the lock */
static volatile IdemDatabase *own_slot = NULL;

/* no worker got into the database before, and maybe the last one did not */
static bool
lets_nobody_in(const volatile IdemDatabase *slot)
{
	return slot != NULL && slot->dbid == MyDatabaseId && slot->refused > 1;
}

/*
 * Tells the launcher, once per backend and ledger, that this one is used.  A
 * ledger that was made since the start of the server and that nobody has used
 * may be on its way out of a dump, and is left alone.
 */
void
idem_database_note_use(Oid ledger)
{
	static Oid	noted = InvalidOid;
	IdemDatabase *slot;

	if (shared == NULL || (noted == ledger && !lets_nobody_in(own_slot)))
		return;
	noted = ledger;
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	slot = slot_of(MyDatabaseId);
	if (slot != NULL)
	{
		bool		is_news = slot->ledger != ledger || lets_nobody_in(slot);

		own_slot = slot;
		slot->dbid = MyDatabaseId;
		if (slot->ledger != ledger)
			slot->last_pass = 0;
		slot->ledger = ledger;
		if (is_news)
		{
			slot->refused = 0;
			slot->next_pass = 0;
			wake_launcher();
		}
	}
	LWLockRelease(shared->lock);
}

/*
 * Tells the launcher what has become due earlier than all it knew of.  Most
 * often it is not earlier, which a look without the lock tells: whoever clears
 * the slot at the same moment begins a pass that sees what we have committed.
 */
static void
note_due(int64 due)
{
	IdemDatabase *slot;

	if (own_slot != NULL && own_slot->dbid == MyDatabaseId && own_slot->due != 0 && own_slot->due <= due)
		return;
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	slot = slot_of(MyDatabaseId);
	if (slot != NULL && slot->dbid == MyDatabaseId)
	{
		own_slot = slot;
		if (slot->due == 0 || due < slot->due)
		{
			slot->due = due;
			if (due < slot->next_pass)
				wake_launcher();
		}
	}
	LWLockRelease(shared->lock);
}

/* the earliest thing that this transaction has made due */
static int64 to_note = 0;

static void
note_at_commit(XactEvent event, void *arg)
{
	if (to_note == 0 || (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT &&
						 event != XACT_EVENT_PREPARE))
		return;
	/* a prepared transaction tells nobody when it is committed */
	if (event != XACT_EVENT_ABORT)
		note_due(to_note);
	to_note = 0;
}

/* something is due for maintenance; within naptime that is news */
void
idem_database_due_at_commit(TimestampTz due)
{
	static bool registered = false;

	if (shared == NULL ||
		due >= GetCurrentStatementStartTimestamp() + idem_worker_naptime * USECS_PER_SEC)
		return;
	if (!registered)
		RegisterXactCallback(note_at_commit, NULL);
	registered = true;
	to_note = idem_earlier(to_note, idem_clock_monotonic_of(due));
}

static void
launcher_ended(int code, Datum arg)
{
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	shared->launcher = NULL;
	LWLockRelease(shared->lock);
}

void
idem_databases_launcher_started(void)
{
	before_shmem_exit(launcher_ended, 0);
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	shared->launcher = MyLatch;
	LWLockRelease(shared->lock);
}

/* what is known of a database; false where nothing is */
bool
idem_database_get(Oid dbid, IdemDatabase *database)
{
	IdemDatabase *slot;
	bool		known;

	LWLockAcquire(shared->lock, LW_SHARED);
	slot = slot_of(dbid);
	known = slot != NULL && slot->dbid == dbid;
	if (known)
		*database = *slot;
	LWLockRelease(shared->lock);
	if (!known)
	{
		memset(database, 0, sizeof(*database));
		database->dbid = dbid;
		database->at_start = slot == NULL;
	}
	return known;
}

/*
 * A worker is about to be started: what holds if it does not get in.  What
 * becomes due from now on is kept, since a new pass may walk past it.
 */
void
idem_database_expect(Oid dbid, int64 next_pass)
{
	IdemDatabase *slot;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	slot = slot_of(dbid);
	if (slot != NULL)
	{
		slot->dbid = dbid;
		slot->refused++;
		slot->next_pass = slot->rest_until = next_pass;
		if (slot->block == 0)
			slot->due = 0;
	}
	LWLockRelease(shared->lock);
}

/* the worker got in, or it was not its fault that it did not: what holds if it
 * does not come to an end */
void
idem_database_connected(Oid dbid, int64 next_pass)
{
	IdemDatabase *slot;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	slot = slot_of(dbid);
	if (slot != NULL && slot->dbid == dbid)
	{
		slot->refused = 0;
		slot->next_pass = slot->rest_until = next_pass;
	}
	LWLockRelease(shared->lock);
}

/*
 * What the worker found out, the ledger that it worked in among it, and what
 * backends have said meanwhile.
 */
void
idem_database_put(const IdemDatabase *database, Oid ledger)
{
	IdemDatabase *slot;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	slot = slot_of(database->dbid);
	if (slot != NULL)
	{
		Oid			noted = slot->ledger;
		int64		due = idem_earlier(slot->due, database->due);
		IdemDatabaseClock clock = slot->clock;

		*slot = *database;
		slot->clock = clock;
		slot->due = due;
		slot->ledger = ledger;
		if (noted != database->ledger && noted != ledger)
		{
			slot->ledger = noted;
			slot->last_pass = slot->next_pass = 0;
		}
	}
	LWLockRelease(shared->lock);
}

/* of a database without a slot nothing is remembered but by this process */
static IdemDatabaseClock own_clock;

/* caller holds the lock */
static IdemDatabaseClock *
clock_of_slot(void)
{
	IdemDatabase *slot = slot_of(MyDatabaseId);

	return slot != NULL && slot->dbid == MyDatabaseId ? &slot->clock : &own_clock;
}

void
idem_database_get_clock(IdemDatabaseClock *clock)
{
	*clock = own_clock;
	if (shared == NULL)
		return;
	LWLockAcquire(shared->lock, LW_SHARED);
	*clock = *clock_of_slot();
	LWLockRelease(shared->lock);
}

/* the clock is believed in this ledger, with this baseline */
void
idem_database_set_clock(Oid ledger, int64 offset)
{
	IdemDatabaseClock *clock;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	clock = clock_of_slot();
	clock->ledger = ledger;
	clock->offset = offset;
	LWLockRelease(shared->lock);
}

/* whether the clock is believed; true where that is news */
bool
idem_database_hold_clock(bool hold)
{
	IdemDatabaseClock *clock = &own_clock;
	bool		news;

	if (shared != NULL)
	{
		LWLockAcquire(shared->lock, LW_EXCLUSIVE);
		clock = clock_of_slot();
	}
	news = clock->held != hold;
	clock->held = hold;
	if (shared != NULL)
		LWLockRelease(shared->lock);
	return news;
}

/* which databases there are now: lets go of the others */
void
idem_databases_are(List *dbids)
{
	ListCell   *lc;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < MAX_DATABASES; i++)
	{
		IdemDatabase *slot = &shared->databases[i];

		/* one that was created after the list was made is in the next */
		if (list_member_oid(dbids, slot->dbid))
			slot->missing = false;
		else if (slot->missing)
			memset(slot, 0, sizeof(IdemDatabase));
		else
			slot->missing = OidIsValid(slot->dbid);
	}
	foreach(lc, dbids)
	{
		IdemDatabase *slot = shared->listed ? NULL : slot_of(lfirst_oid(lc));

		if (slot != NULL)
		{
			slot->dbid = lfirst_oid(lc);
			slot->at_start = true;
		}
	}
	shared->listed = true;
	LWLockRelease(shared->lock);
}

/* naptime has become shorter: no pass later than this */
void
idem_databases_hurry(int64 next_pass)
{
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < MAX_DATABASES; i++)
	{
		shared->databases[i].next_pass = Min(shared->databases[i].next_pass, next_pass);
		shared->databases[i].rest_until = Min(shared->databases[i].rest_until, next_pass);
	}
	LWLockRelease(shared->lock);
}

/* notes whether a background worker slot was free; returns what it was before */
bool
idem_databases_no_worker_slot(bool none)
{
	bool		before;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	before = shared->no_worker_slot;
	shared->no_worker_slot = none;
	LWLockRelease(shared->lock);
	return before;
}

/* the slot of this database, for the view worker_status; no row without preload */
Datum
idem_worker_state(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	IdemDatabase database;
	Datum		values[4];
	bool		nulls[4];
	bool		running;
	bool		no_worker_slot;

	InitMaterializedSRF(fcinfo, 0);
	if (shared == NULL)
		PG_RETURN_NULL();
	(void) idem_database_get(MyDatabaseId, &database);
	LWLockAcquire(shared->lock, LW_SHARED);
	running = shared->launcher != NULL;
	no_worker_slot = running && shared->no_worker_slot;
	LWLockRelease(shared->lock);
	values[0] = TimestampTzGetDatum(database.last_pass);
	nulls[0] = database.last_pass == 0;
	if (!idem_worker_is_to_serve(get_database_name(MyDatabaseId)))
		snprintf(database.problem, IDEM_MAX_PROBLEM, "%s",
				 "idem_action.databases does not name this database: nothing is done in the background; CALL idem.run_maintenance()");
	else if (no_worker_slot)
		snprintf(database.problem, IDEM_MAX_PROBLEM, "%s",
				 "no background worker slot is free: raise max_worker_processes; CALL idem.run_maintenance() until then");
	else if (database.refused > 1)
		snprintf(database.problem, IDEM_MAX_PROBLEM, "%s",
				 "no worker gets into this database; the server's log says why");
	values[1] = CStringGetTextDatum(database.problem);
	nulls[1] = database.problem[0] == '\0';
	values[2] = BoolGetDatum(running);
	nulls[2] = false;
	values[3] = Int64GetDatum(idem_counters_uncounted());
	nulls[3] = false;
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	PG_RETURN_NULL();
}
