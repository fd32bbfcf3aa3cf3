/*-------------------------------------------------------------------------
 *
 * stats.c
 *	  Shared memory: what is known of each database, counted repeats, and the
 *	  bells that wake waiters.
 *
 * There is some only if the library was preloaded; without it everything works
 * but the automatic pass and the counters.  One lock protects the slots of
 * databases, which the launcher and its workers write, and the launcher's
 * latch, which backends set when they use a ledger for the first time, or
 * commit what is due before the ordinary pass.
 *
 * Another lock protects the table of counters: shared to find an entry, whose
 * numbers are atomic, exclusive to add or remove one.  A repeat that finds the
 * table full is counted as uncounted.  Maintenance takes numbers out and writes
 * them to idem_repeats; where its transaction does not commit they are put back.
 * So a number is in one place at any time, whoever else takes some meanwhile.
 *
 * A bell is a condition variable that several actions or intents share by hash:
 * who waits for one listens before it looks, and a commit rings what its
 * transaction has changed.  A ring for somebody else costs a look; without
 * preload waiters look from time to time.
 *
 * A crash of the server clears it: the workers then begin new passes, as after
 * any start.  A database without a slot, because all are taken, is served
 * without memory of the last pass.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/stats.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "stats.h"
#include "access/xact.h"
#include "common/hashfn.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/condition_variable.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/tuplestore.h"
#include "utils/wait_event.h"
#include "worker.h"

#define MAX_DATABASES 256

#define MAX_REPEATS 8192
#define BELLS 256				/* a power of two */

typedef struct SharedState
{
	LWLock	   *lock;
	LWLock	   *repeats_lock;
	pg_atomic_uint64 uncounted;
	ConditionVariable bells[BELLS];
	Latch	   *launcher;		/* NULL while there is none */
	IdemDatabase databases[MAX_DATABASES];	/* dbid invalid: free */
} SharedState;

static void end_taking(bool committed);

static SharedState *shared = NULL;
static HTAB *repeats = NULL;
static shmem_request_hook_type previous_request_hook = NULL;
static shmem_startup_hook_type previous_startup_hook = NULL;

PG_FUNCTION_INFO_V1(idem_worker_state);
PG_FUNCTION_INFO_V1(idem_library_version);

static void
request_memory(void)
{
	if (previous_request_hook)
		previous_request_hook();
	RequestAddinShmemSpace(add_size(MAXALIGN(sizeof(SharedState)),
									hash_estimate_size(MAX_REPEATS, sizeof(IdemRepeat))));
	RequestNamedLWLockTranche("idem_action", 2);
}

static void
start_memory(void)
{
	HASHCTL		ctl = {0};
	bool		found;

	if (previous_startup_hook)
		previous_startup_hook();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	shared = ShmemInitStruct("idem_action", sizeof(SharedState), &found);
	if (!found)
	{
		memset(shared, 0, sizeof(SharedState));
		shared->lock = &GetNamedLWLockTranche("idem_action")[0].lock;
		shared->repeats_lock = &GetNamedLWLockTranche("idem_action")[1].lock;
		pg_atomic_init_u64(&shared->uncounted, 0);
		for (int i = 0; i < BELLS; i++)
			ConditionVariableInit(&shared->bells[i]);
	}
	ctl.keysize = sizeof(IdemRepeatKey);
	ctl.entrysize = sizeof(IdemRepeat);
	repeats = ShmemInitHash("idem_action repeats", MAX_REPEATS, MAX_REPEATS, &ctl,
							HASH_ELEM | HASH_BLOBS);
	LWLockRelease(AddinShmemInitLock);
}

/* only while shared_preload_libraries are loaded */
void
idem_stats_init(void)
{
	previous_request_hook = shmem_request_hook;
	shmem_request_hook = request_memory;
	previous_startup_hook = shmem_startup_hook;
	shmem_startup_hook = start_memory;
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

/* tells the launcher, once per backend and ledger, that this database has one */
void
idem_stats_note_use(Oid ledger)
{
	static Oid	noted = InvalidOid;
	IdemDatabase *slot;

	if (noted == ledger || shared == NULL)
		return;
	noted = ledger;
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	slot = slot_of(MyDatabaseId);
	if (slot != NULL && !slot->used)
	{
		slot->dbid = MyDatabaseId;
		slot->used = true;
		slot->next_pass = 0;
		wake_launcher();
	}
	LWLockRelease(shared->lock);
}

/* tells the launcher what has become due earlier than all it knew of */
static void
note_due(TimestampTz due)
{
	IdemDatabase *slot;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	slot = slot_of(MyDatabaseId);
	if (slot != NULL && slot->dbid == MyDatabaseId && due < slot->next_pass &&
		(slot->due == 0 || due < slot->due))
	{
		slot->due = due;
		wake_launcher();
	}
	LWLockRelease(shared->lock);
}

static void
launcher_ended(int code, Datum arg)
{
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	shared->launcher = NULL;
	LWLockRelease(shared->lock);
}

void
idem_stats_launcher_started(void)
{
	before_shmem_exit(launcher_ended, 0);
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	shared->launcher = MyLatch;
	LWLockRelease(shared->lock);
}

/* what is known of a database; false where nothing is */
bool
idem_stats_get(Oid dbid, IdemDatabase *database)
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
	}
	return known;
}

/*
 * A worker is about to be started: what holds if it does not get in.  What
 * becomes due from now on is kept, since a new pass may walk past it.
 */
void
idem_stats_expect(Oid dbid, TimestampTz next_pass)
{
	IdemDatabase *slot;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	slot = slot_of(dbid);
	if (slot != NULL)
	{
		slot->dbid = dbid;
		slot->used = false;
		slot->refused++;
		slot->next_pass = slot->rest_until = next_pass;
		if (slot->block == 0)
			slot->due = 0;
	}
	LWLockRelease(shared->lock);
}

/* the worker got in: what holds if it does not come to an end */
void
idem_stats_connected(Oid dbid, TimestampTz next_pass)
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

/* what the worker found out, and what backends have said meanwhile */
void
idem_stats_put(const IdemDatabase *database)
{
	IdemDatabase *slot;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	slot = slot_of(database->dbid);
	if (slot != NULL)
	{
		bool		used = slot->used && slot->dbid == database->dbid;
		TimestampTz due = idem_earlier(slot->due, database->due);

		*slot = *database;
		slot->due = due;
		if (used && !database->used)
		{
			slot->used = true;
			slot->next_pass = 0;
		}
	}
	LWLockRelease(shared->lock);
}

/*-------------------------------------------------------------------------
 * Bells, and what else the others are told at commit
 *-------------------------------------------------------------------------
 */

static bits32 to_ring[BELLS / 32];
static TimestampTz to_note = 0;
static bool to_tell = false;

static void
tell(XactEvent event, void *arg)
{
	if (!to_tell || (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT &&
					 event != XACT_EVENT_PREPARE))
		return;
	for (int i = 0; event == XACT_EVENT_COMMIT && i < BELLS; i++)
	{
		if (to_ring[i / 32] & ((bits32) 1 << i % 32))
			ConditionVariableBroadcast(&shared->bells[i]);
	}
	if (event == XACT_EVENT_COMMIT && to_note != 0)
		note_due(to_note);
	end_taking(event == XACT_EVENT_COMMIT);
	memset(to_ring, 0, sizeof(to_ring));
	to_note = 0;
	to_tell = false;
}

static void
tell_at_commit(void)
{
	static bool registered = false;

	if (!registered)
		RegisterXactCallback(tell, NULL);
	registered = true;
	to_tell = true;
}

/* the bell for an action_id, or for the name of an intent */
uint32
idem_stats_bell_of(const void *name, int len)
{
	return hash_bytes(name, len) % BELLS;
}

void
idem_stats_ring_at_commit(uint32 bell)
{
	if (shared == NULL)
		return;
	tell_at_commit();
	to_ring[bell / 32] |= (bits32) 1 << bell % 32;
}

/* something is due for maintenance; within naptime that is news */
void
idem_stats_due_at_commit(TimestampTz due)
{
	if (shared == NULL ||
		due >= GetCurrentStatementStartTimestamp() + idem_worker_naptime * USECS_PER_SEC)
		return;
	tell_at_commit();
	to_note = idem_earlier(to_note, due);
}

/* from now on a ring is not missed; to be called before looking */
void
idem_stats_listen(uint32 bell)
{
	if (shared != NULL)
		ConditionVariablePrepareToSleep(&shared->bells[bell]);
}

/* sleeps until the bell rings, or without preload for "poll" at most */
void
idem_stats_await(uint32 bell, long milliseconds, long poll)
{
	if (shared != NULL)
		(void) ConditionVariableTimedSleep(&shared->bells[bell], milliseconds,
										   PG_WAIT_EXTENSION);
	else
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 Min(milliseconds, poll), PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
	CHECK_FOR_INTERRUPTS();
}

void
idem_stats_stop_listening(void)
{
	if (shared != NULL)
		ConditionVariableCancelSleep();
}

/*-------------------------------------------------------------------------
 * Repeats
 *-------------------------------------------------------------------------
 */

/* at most IDEM_MAX_COUNTED bytes, never half a character */
static void
copy_label(char *to, text *label)
{
	int			len = label == NULL ? 0 : VARSIZE_ANY_EXHDR(label);

	if (len > IDEM_MAX_COUNTED)
		len = pg_mbcliplen(VARDATA_ANY(label), len, IDEM_MAX_COUNTED);
	if (len > 0)
		memcpy(to, VARDATA_ANY(label), len);
	to[len] = '\0';
}

static uint64
hash_label(text *label, uint64 seed)
{
	if (label == NULL)
		return hash_bytes_extended((const unsigned char *) "", 0, seed);
	return hash_bytes_extended((const unsigned char *) VARDATA_ANY(label),
							   VARSIZE_ANY_EXHDR(label), seed);
}

static void
add_one(IdemRepeat *entry, TimestampTz now)
{
	pg_atomic_fetch_add_u64(&entry->n, 1);
	pg_atomic_write_u64(&entry->last_at, (uint64) now);
}

/*
 * Counts an answer to a delivery.  It is not undone by a rollback, and it is
 * lost in a crash of the server.
 */
void
idem_stats_count(const pg_uuid_t *action_id, text *intent, text *source, text *event_id, int what)
{
	IdemRepeatKey key = {0};
	IdemRepeat *entry;
	TimestampTz now;
	bool		found;

	if (shared == NULL)
		return;
	now = GetCurrentTimestamp();
	key.dbid = MyDatabaseId;
	key.day = now / USECS_PER_DAY - (now < 0 && now % USECS_PER_DAY != 0);
	key.what = what;
	key.delivery = hash_label(event_id, hash_label(source, 0));
	key.action_id = *action_id;

	LWLockAcquire(shared->repeats_lock, LW_SHARED);
	entry = hash_search(repeats, &key, HASH_FIND, NULL);
	if (entry != NULL)
		add_one(entry, now);
	LWLockRelease(shared->repeats_lock);
	if (entry != NULL)
		return;

	LWLockAcquire(shared->repeats_lock, LW_EXCLUSIVE);
	if (hash_get_num_entries(repeats) >= MAX_REPEATS)
		entry = hash_search(repeats, &key, HASH_FIND, NULL);
	else
	{
		entry = hash_search(repeats, &key, HASH_ENTER_NULL, &found);
		if (entry != NULL && !found)
		{
			pg_atomic_init_u64(&entry->n, 0);
			pg_atomic_init_u64(&entry->last_at, 0);
			entry->left = false;
			entry->first_at = now;
			text_to_cstring_buffer(intent, entry->intent, sizeof(entry->intent));
			copy_label(entry->source, source);
			copy_label(entry->event_id, event_id);
		}
	}
	if (entry != NULL)
		add_one(entry, now);
	else
		pg_atomic_fetch_add_u64(&shared->uncounted, 1);
	LWLockRelease(shared->repeats_lock);
}

/* what this transaction has taken out, in a context of its own */
static List *taken = NIL;
static MemoryContext taken_context = NULL;

/*
 * Takes out counters of a database, at most so many, until the transaction
 * commits or they are put back.  The result lives as long as it.
 */
List *
idem_stats_take_repeats(Oid dbid, int max)
{
	HASH_SEQ_STATUS status;
	IdemRepeat *entry;
	MemoryContext old;

	if (shared == NULL)
		return NIL;
	if (taken_context == NULL)
		taken_context = AllocSetContextCreate(TopMemoryContext, "idem_action repeats",
											  ALLOCSET_DEFAULT_SIZES);
	tell_at_commit();
	old = MemoryContextSwitchTo(taken_context);
	LWLockAcquire(shared->repeats_lock, LW_EXCLUSIVE);
	hash_seq_init(&status, repeats);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		IdemRepeat *copy;

		if (entry->key.dbid != dbid)
			continue;
		copy = palloc(sizeof(IdemRepeat));
		memcpy(copy, entry, sizeof(IdemRepeat));
		taken = lappend(taken, copy);
		hash_search(repeats, &entry->key, HASH_REMOVE, NULL);
		if (list_length(taken) == max)
		{
			hash_seq_term(&status);
			break;
		}
	}
	LWLockRelease(shared->repeats_lock);
	MemoryContextSwitchTo(old);
	return taken;
}

static void
put_back(IdemRepeat *copy)
{
	uint64		n = pg_atomic_read_u64(&copy->n);
	bool		found = true;
	IdemRepeat *entry = hash_search(repeats, &copy->key, HASH_FIND, NULL);

	if (entry == NULL && hash_get_num_entries(repeats) < MAX_REPEATS)
		entry = hash_search(repeats, &copy->key, HASH_ENTER_NULL, &found);
	if (entry == NULL)
		pg_atomic_fetch_add_u64(&shared->uncounted, n);
	else if (!found)
	{
		memcpy(entry, copy, sizeof(IdemRepeat));
		entry->left = false;
	}
	else
	{
		entry->first_at = copy->first_at;
		pg_atomic_fetch_add_u64(&entry->n, n);
	}
}

/* one of those taken is left for later, whatever becomes of the transaction */
void
idem_stats_leave(IdemRepeat *copy)
{
	copy->left = true;
}

/* at the end of a transaction that has taken some */
static void
end_taking(bool committed)
{
	ListCell   *lc;

	if (taken == NIL)
		return;
	LWLockAcquire(shared->repeats_lock, LW_EXCLUSIVE);
	foreach(lc, taken)
	{
		IdemRepeat *copy = lfirst(lc);

		if (!committed || copy->left)
			put_back(copy);
	}
	LWLockRelease(shared->repeats_lock);
	taken = NIL;
	MemoryContextReset(taken_context);
}

/* lets go of what belongs to databases that are not in the list any more */
void
idem_stats_keep_only(List *dbids)
{
	HASH_SEQ_STATUS status;
	IdemRepeat *entry;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < MAX_DATABASES; i++)
	{
		if (!list_member_oid(dbids, shared->databases[i].dbid))
			memset(&shared->databases[i], 0, sizeof(IdemDatabase));
	}
	LWLockRelease(shared->lock);

	LWLockAcquire(shared->repeats_lock, LW_EXCLUSIVE);
	hash_seq_init(&status, repeats);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		if (!list_member_oid(dbids, entry->key.dbid))
			hash_search(repeats, &entry->key, HASH_REMOVE, NULL);
	}
	LWLockRelease(shared->repeats_lock);
}

/* the slot of this database, for the view worker_status; no row without preload */
Datum
idem_worker_state(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	IdemDatabase database;
	Datum		values[4];
	bool		nulls[4];

	InitMaterializedSRF(fcinfo, 0);
	if (shared == NULL)
		PG_RETURN_NULL();
	(void) idem_stats_get(MyDatabaseId, &database);
	values[0] = TimestampTzGetDatum(database.last_pass);
	nulls[0] = database.last_pass == 0;
	values[1] = CStringGetTextDatum(database.problem);
	nulls[1] = database.problem[0] == '\0';
	LWLockAcquire(shared->lock, LW_SHARED);
	values[2] = BoolGetDatum(shared->launcher != NULL);
	LWLockRelease(shared->lock);
	nulls[2] = false;
	values[3] = Int64GetDatum(pg_atomic_read_u64(&shared->uncounted));
	nulls[3] = false;
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	PG_RETURN_NULL();
}

Datum
idem_library_version(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(IDEM_VERSION));
}
