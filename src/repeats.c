/*-------------------------------------------------------------------------
 *
 * repeats.c
 *	  Counted repeats on their way to idem_repeats, and out of it.
 *
 * They are counted in shared memory (counters.c).  Maintenance takes some out,
 * writes them in a transaction of its own, and a transaction that does not
 * commit puts them back: each is written once.  A lock of its own lets one
 * writer at a time, so that a delivery has one row a day.  It finds that row by
 * the action, a hash of the delivery, the day and the outcome: what a batch costs
 * does not depend on how many deliveries the action has had.
 *
 * A row goes in the same transaction as the action that it speaks of, which a
 * writer must not undo.  So whoever writes a row looks at the action afterwards,
 * and takes the row back where somebody holds the action or it is gone; whoever
 * removes an action looks for rows afterwards, and waits for their writer.  One
 * of both sees the other.  The writer waits for nobody, so there is no deadlock.
 * What was taken back is written in a later pass, or without naming the action
 * once that is gone: the figures stay.
 *
 * A crash loses what was not yet written, and leaves no row without its action.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/repeats.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "repeats.h"
#include "access/genam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "answer.h"
#include "catalog/pg_class.h"
#include "catalog/pg_collation.h"
#include "counters.h"
#include "ledger.h"
#include "miscadmin.h"
#include "observer.h"
#include "request.h"
#include "storage/lmgr.h"
#include "table.h"
#include "utils/builtins.h"
#include "utils/date.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#define AT_ONCE 1000

/* columns of idem_repeats */
enum
{
	REP_DAY,
	REP_INTENT,
	REP_SOURCE,
	REP_EVENT_ID,
	REP_ACTION_ID,
	REP_DELIVERY,				/* a hash, see row_of */
	REP_OUTCOME,
	REP_N,
	REP_FIRST_AT,
	REP_LAST_AT,
	REPEATS_NCOLS
};

/* stands for actions that are gone; no action has it */
static const pg_uuid_t no_action = {{0}};

/* the table while counted repeats are written to it */
typedef struct Writing
{
	IdemLedger *ledger;
	IdemTable	table;
	Relation	index;
	SnapshotData dirty;
	IndexScanDesc scan;
	TupleTableSlot *found;
	TupleTableSlot *locked;
} Writing;

static void
writing_start(Writing *w)
{
	w->ledger = idem_ledger_open(false);
	idem_table_open(&w->table, "idem_repeats", REPEATS_NCOLS, RowExclusiveLock);
	w->index = index_open(idem_relation_oid("idem_repeats_pkey"), RowExclusiveLock);
	w->found = table_slot_create(w->table.rel, NULL);
	w->locked = table_slot_create(w->table.rel, NULL);
	InitDirtySnapshot(w->dirty);
	w->scan = index_beginscan(w->table.rel, w->index, &w->dirty, NULL, 4, 0, 0);
}

static void
writing_end(Writing *w)
{
	index_endscan(w->scan);
	ExecDropSingleTupleTableSlot(w->locked);
	ExecDropSingleTupleTableSlot(w->found);
	index_close(w->index, NoLock);
	idem_table_close(&w->table, NoLock);
	idem_ledger_close(w->ledger);
}

/* as it is committed, or as an open transaction is about to make it */
static IdemFound
look_at(IdemLedger *ledger, const pg_uuid_t *action_id)
{
	TransactionId holder;
	IdemFound	found = idem_ledger_probe(ledger, action_id, NULL, &holder);

	/* or it is just moving */
	if (found == IDEM_ABSENT && !idem_ledger_surely_absent(ledger, action_id))
		found = IDEM_HELD;
	idem_ledger_rest(ledger);
	return found;
}

/*
 * The row of the delivery, day and outcome, locked, in w->found; false where
 * there is none.  One that an open transaction removes with its action does not
 * count.  There is one writer at a time, so no row moves during the scan.
 */
static bool
find_row(Writing *w, const Datum *v)
{
	ScanKeyData keys[4];
	MemoryContext old;
	bool		found = false;

	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_UUID_EQ, v[REP_ACTION_ID]);
	ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_INT8EQ, v[REP_DELIVERY]);
	ScanKeyInit(&keys[2], 3, BTEqualStrategyNumber, F_DATE_EQ, v[REP_DAY]);
	ScanKeyInit(&keys[3], 4, BTEqualStrategyNumber, F_TEXTEQ, v[REP_OUTCOME]);
	keys[3].sk_collation = C_COLLATION_OID;
	old = MemoryContextSwitchTo(w->table.context);	/* what the scan keeps */
	index_rescan(w->scan, keys, lengthof(keys), NULL, 0);
	while (!found && index_getnext_slot(w->scan, ForwardScanDirection, w->found))
	{
		TM_FailureData failure;

		found = !TransactionIdIsValid(w->dirty.xmax) &&
			table_tuple_lock(w->table.rel, &w->found->tts_tid, SnapshotAny, w->locked,
							 GetCurrentCommandId(true), LockTupleNoKeyExclusive,
							 LockWaitSkip, 0, &failure) == TM_Ok;
	}
	MemoryContextSwitchTo(old);
	return found;
}

/* adds to the row found */
static void
add_to_row(Writing *w, const Datum *v)
{
	TupleTableSlot *slot = idem_table_slot(&w->table);

	slot_getallattrs(w->found);
	memcpy(slot->tts_values, w->found->tts_values, REPEATS_NCOLS * sizeof(Datum));
	memcpy(slot->tts_isnull, w->found->tts_isnull, REPEATS_NCOLS * sizeof(bool));
	slot->tts_values[REP_N] = Int64GetDatum(DatumGetInt64(slot->tts_values[REP_N]) +
											DatumGetInt64(v[REP_N]));
	slot->tts_values[REP_LAST_AT] = v[REP_LAST_AT];
	ExecStoreVirtualTuple(slot);
	idem_table_update(&w->table, &w->found->tts_tid);
	CommandCounterIncrement();
}

/* the key of the row: action, a hash of what else tells rows apart, day, outcome */
static void
row_of(IdemRepeat *repeat, bool of_action, Datum *v, bool *n)
{
	memset(n, false, REPEATS_NCOLS * sizeof(bool));
	v[REP_ACTION_ID] = UUIDPGetDatum(&repeat->key.action_id);
	v[REP_DAY] = DateADTGetDatum(repeat->key.day);
	v[REP_INTENT] = CStringGetTextDatum(repeat->intent);
	v[REP_SOURCE] = CStringGetTextDatum(repeat->source);
	v[REP_EVENT_ID] = CStringGetTextDatum(repeat->event_id);
	v[REP_OUTCOME] = CStringGetTextDatum(repeat->key.what == IDEM_AFTER_FORGETTING ?
										 "claimed_after_forgetting" :
										 idem_outcome_name(repeat->key.what));
	v[REP_N] = Int64GetDatum(pg_atomic_read_u64(&repeat->n));
	v[REP_FIRST_AT] = TimestampTzGetDatum(repeat->first_at);
	v[REP_LAST_AT] = TimestampTzGetDatum((TimestampTz) pg_atomic_read_u64(&repeat->last_at));
	n[REP_SOURCE] = repeat->source[0] == '\0';
	n[REP_EVENT_ID] = repeat->event_id[0] == '\0';
	if (of_action)
		v[REP_DELIVERY] = Int64GetDatum((int64) idem_delivery_hash(DatumGetTextPP(v[REP_SOURCE]),
																   DatumGetTextPP(v[REP_EVENT_ID])));
	else
	{
		/* only the figures count: a row for each intent and source */
		v[REP_ACTION_ID] = UUIDPGetDatum(&no_action);
		n[REP_EVENT_ID] = true;
		v[REP_DELIVERY] = Int64GetDatum((int64) idem_delivery_hash(DatumGetTextPP(v[REP_SOURCE]),
																   DatumGetTextPP(v[REP_INTENT])));
	}
}

/* false where it has to wait for a later pass */
static bool
write_one(Writing *w, IdemRepeat *repeat)
{
	IdemFound	found = look_at(w->ledger, &repeat->key.action_id);
	Datum		v[REPEATS_NCOLS];
	bool		n[REPEATS_NCOLS];
	TupleTableSlot *slot;
	bool		written;

	if (found == IDEM_HELD || found == IDEM_HELD_NEW)
		return false;
	row_of(repeat, found == IDEM_PRESENT, v, n);
	if (find_row(w, v))
	{
		/* it goes with its action, whoever wrote to it */
		add_to_row(w, v);
		return true;
	}
	slot = idem_table_slot(&w->table);
	memcpy(slot->tts_values, v, sizeof(v));
	memcpy(slot->tts_isnull, n, sizeof(n));
	ExecStoreVirtualTuple(slot);
	/* a duplicate is a row that an open transaction removes with its action */
	written = idem_table_insert(&w->table, true);
	CommandCounterIncrement();
	if (written &&
		(found == IDEM_ABSENT || look_at(w->ledger, &repeat->key.action_id) == IDEM_PRESENT))
		return true;
	if (written)
		idem_table_delete(w->table.rel, &slot->tts_tid);
	else
		idem_table_retract(w->table.rel, &slot->tts_tid);
	CommandCounterIncrement();
	return false;
}

/*
 * Writes some of what was counted in this database; true while there may be
 * more.  Caller is in a transaction of its own for it, and commits.
 */
bool
idem_repeats_write(void)
{
	Writing		w;
	List	   *taken;
	ListCell   *lc;
	IdemRowContext memory;
	bool		some_written = false;

	LockDatabaseObject(RelationRelationId, idem_relation_oid("idem_repeats"), 0,
					   ShareUpdateExclusiveLock);
	taken = idem_counters_take(MyDatabaseId, AT_ONCE);
	if (taken == NIL)
		return false;
	PushActiveSnapshot(GetTransactionSnapshot());
	writing_start(&w);
	idem_row_start(&memory);
	foreach(lc, taken)
	{
		CHECK_FOR_INTERRUPTS();
		idem_row_next(&memory);
		if (write_one(&w, lfirst(lc)))
			some_written = true;
		else
			idem_counters_leave(lfirst(lc));
	}
	idem_row_end(&memory);
	writing_end(&w);
	PopActiveSnapshot();
	return list_length(taken) == AT_ONCE && some_written;
}

/*
 * Removes rows of the action, at most so many, up to one that another transaction
 * is writing or removing, which it waits for; returns how many.  "clean" says
 * that none is left and that it has met no such one.
 */
static int
remove_rows(Relation rel, Relation index, const pg_uuid_t *action_id, int max, bool *clean)
{
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TransactionId other = InvalidTransactionId;
	SnapshotData dirty;
	IndexScanDesc scan;
	ScanKeyData key;
	int			removed = 0;

	*clean = true;
	CheckCmdReplicaIdentity(rel, CMD_DELETE);
	InitDirtySnapshot(dirty);
	scan = index_beginscan(rel, index, &dirty, NULL, 1, 0, 0);
	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(action_id));
	index_rescan(scan, &key, 1, NULL, 0);
	while (*clean && index_getnext_slot(scan, ForwardScanDirection, slot))
	{
		TM_FailureData failure;

		CHECK_FOR_INTERRUPTS();
		other = TransactionIdIsValid(dirty.xmin) ? dirty.xmin : dirty.xmax;
		*clean = removed < max && !TransactionIdIsValid(other) &&
			table_tuple_delete(rel, &slot->tts_tid, GetCurrentCommandId(true), 0, SnapshotAny,
							   InvalidSnapshot, true, &failure) == TM_Ok;
		if (*clean)
			idem_row_written(rel, &slot->tts_tid, NULL);
		removed += *clean;
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	CommandCounterIncrement();
	if (TransactionIdIsValid(other))
		XactLockTableWait(other, NULL, NULL, XLTW_None);
	return removed;
}

/*
 * Removes counted repeats of an action, at most so many, and returns how many.
 * Those of an action whose row the caller has just removed go with PG_INT32_MAX:
 * all of them.  A dirty scan can miss a row that is moving, but not two in a row:
 * there is one writer at a time.
 */
int
idem_repeats_forget(const pg_uuid_t *action_id, int max)
{
	Relation	rel = idem_relation_open("idem_repeats", REPEATS_NCOLS, RowExclusiveLock);
	Relation	index = index_open(idem_relation_oid("idem_repeats_pkey"), RowExclusiveLock);
	int			removed = 0;

	for (int looks = 0; looks < 2 && removed < max;)
	{
		bool		clean;

		CHECK_FOR_INTERRUPTS();
		removed += remove_rows(rel, index, action_id, max - removed, &clean);
		looks = clean ? looks + 1 : 0;
	}
	index_close(index, NoLock);
	table_close(rel, NoLock);
	return removed;
}
