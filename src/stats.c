/*-------------------------------------------------------------------------
 *
 * stats.c
 *	  Shared memory: what is known of each database.
 *
 * There is some only if the library was preloaded; without it everything works
 * but the automatic pass.  One lock protects all of it: the slots of databases,
 * which the launcher and its workers write, and the launcher's latch, which
 * backends set when they use a ledger for the first time.
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
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#define MAX_DATABASES 256

typedef struct SharedState
{
	LWLock	   *lock;
	Latch	   *launcher;		/* NULL while there is none */
	IdemDatabase databases[MAX_DATABASES];	/* dbid invalid: free */
} SharedState;

static SharedState *shared = NULL;
static shmem_request_hook_type previous_request_hook = NULL;
static shmem_startup_hook_type previous_startup_hook = NULL;

PG_FUNCTION_INFO_V1(idem_worker_state);
PG_FUNCTION_INFO_V1(idem_library_version);

static void
request_memory(void)
{
	if (previous_request_hook)
		previous_request_hook();
	RequestAddinShmemSpace(MAXALIGN(sizeof(SharedState)));
	RequestNamedLWLockTranche("idem_action", 1);
}

static void
start_memory(void)
{
	bool		found;

	if (previous_startup_hook)
		previous_startup_hook();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	shared = ShmemInitStruct("idem_action", sizeof(SharedState), &found);
	if (!found)
	{
		memset(shared, 0, sizeof(SharedState));
		shared->lock = &(GetNamedLWLockTranche("idem_action"))->lock;
	}
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

/* tells the launcher, once per backend, that this database has a ledger */
void
idem_stats_note_use(void)
{
	static bool noted = false;
	IdemDatabase *slot;

	if (noted || shared == NULL)
		return;
	noted = true;
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	slot = slot_of(MyDatabaseId);
	if (slot != NULL && !slot->used)
	{
		slot->dbid = MyDatabaseId;
		slot->used = true;
		slot->next_pass = 0;
		if (shared->launcher != NULL)
			SetLatch(shared->launcher);
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

void
idem_stats_put(const IdemDatabase *database)
{
	IdemDatabase *slot;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	slot = slot_of(database->dbid);
	if (slot != NULL)
	{
		bool		used = slot->used || database->used;

		*slot = *database;
		slot->used = used;
	}
	LWLockRelease(shared->lock);
}

/* the slot of this database, for the view worker_status; no row without preload */
Datum
idem_worker_state(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	IdemDatabase database;
	Datum		values[3];
	bool		nulls[3];

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
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	PG_RETURN_NULL();
}

Datum
idem_library_version(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(IDEM_VERSION));
}
