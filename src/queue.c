/*-------------------------------------------------------------------------
 *
 * queue.c
 *	  The order in which actions are handed out to takers.
 *
 * idem_queue has an entry for each action with a due_at: what is pending, and
 * what was claimed out of the queue, due when its lease ends, so that takers
 * find a lapsed lease without anybody's help.  A straight claim never comes
 * here.  Purged actions have no entry: a taker could not act on them.
 *
 * What it protects: that a taker looks only at what may be handed out, however
 * many actions are finished.  Nothing else depends on it: an entry is a hint,
 * and whether its action is handed out is decided on the action's row.
 *
 * An entry changes in the transaction that changes the row, after it, so the
 * row's lock covers it and a crash leaves both or neither.  Walks use a dirty
 * snapshot: an entry that an open transaction inserts or deletes is passed
 * over, which is the SKIP LOCKED of this queue.  Dead entries are marked in the
 * index as walks meet them.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/queue.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "queue.h"
#include "access/table.h"
#include "miscadmin.h"
#include "table.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

/* columns of idem_queue; the first four are its order, priority downwards */
enum
{
	Q_INTENT,
	Q_PRIORITY,
	Q_DUE_AT,
	Q_ACTION_ID,
	Q_CALL_ID,
	QUEUE_NCOLS
};

static bool
has_entry(const IdemAction *action)
{
	return action->due_at != IDEM_NEVER && !action->purged;
}

/* caller has just written the action's row, here and in idem_queue_remove */
void
idem_queue_add(const IdemAction *action)
{
	IdemTable	queue;
	TupleTableSlot *slot;

	if (!has_entry(action))
		return;
	idem_table_open(&queue, "idem_queue", QUEUE_NCOLS, RowExclusiveLock);
	slot = idem_table_slot(&queue);
	slot->tts_values[Q_INTENT] = PointerGetDatum(action->intent);
	slot->tts_values[Q_PRIORITY] = Int32GetDatum(action->priority);
	slot->tts_values[Q_DUE_AT] = TimestampTzGetDatum(action->due_at);
	slot->tts_values[Q_ACTION_ID] = UUIDPGetDatum(&action->action_id);
	slot->tts_values[Q_CALL_ID] = UUIDPGetDatum(&action->call_id);
	memset(slot->tts_isnull, false, QUEUE_NCOLS * sizeof(bool));
	slot->tts_isnull[Q_CALL_ID] = action->state != IDEM_IN_PROGRESS ||
		idem_uuid_is_null(&action->call_id);
	ExecStoreVirtualTuple(slot);
	idem_table_insert(&queue, false);
	idem_table_close(&queue, NoLock);
}

/* a scan over the entries of an index of the queue, not yet positioned */
static void
open_walk(IdemQueueWalk *walk, const char *index, LOCKMODE lockmode, int nkeys)
{
	walk->rel = idem_relation_open("idem_queue", QUEUE_NCOLS, lockmode);
	walk->index = index_open(idem_relation_oid(index), lockmode);
	walk->slot = table_slot_create(walk->rel, NULL);
	InitDirtySnapshot(walk->dirty);
	walk->scan = index_beginscan(walk->rel, walk->index, &walk->dirty, NULL, nkeys, 0, 0);
}

static void
close_walk(IdemQueueWalk *walk)
{
	index_endscan(walk->scan);
	ExecDropSingleTupleTableSlot(walk->slot);
	index_close(walk->index, NoLock);
	table_close(walk->rel, NoLock);
}

/* the next entry that no open transaction is about to insert or delete */
static bool
next_entry(IdemQueueWalk *walk)
{
	while (index_getnext_slot(walk->scan, ForwardScanDirection, walk->slot))
	{
		CHECK_FOR_INTERRUPTS();
		if (!TransactionIdIsValid(walk->dirty.xmin) && !TransactionIdIsValid(walk->dirty.xmax))
			return true;
	}
	return false;
}

static void
intent_key(IdemQueueWalk *walk, ScanKey key, text *intent)
{
	ScanKeyInit(key, Q_INTENT + 1, BTEqualStrategyNumber, F_TEXTEQ, PointerGetDatum(intent));
	key->sk_collation = TupleDescAttr(RelationGetDescr(walk->rel), Q_INTENT)->attcollation;
}

void
idem_queue_remove(const IdemAction *action)
{
	IdemQueueWalk walk;
	ScanKeyData keys[4];

	if (!has_entry(action))
		return;
	open_walk(&walk, "idem_queue_order", RowExclusiveLock, lengthof(keys));
	intent_key(&walk, &keys[0], action->intent);
	ScanKeyInit(&keys[1], Q_PRIORITY + 1, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(action->priority));
	ScanKeyInit(&keys[2], Q_DUE_AT + 1, BTEqualStrategyNumber, F_TIMESTAMPTZ_EQ,
				TimestampTzGetDatum(action->due_at));
	ScanKeyInit(&keys[3], Q_ACTION_ID + 1, BTEqualStrategyNumber, F_UUID_EQ,
				UUIDPGetDatum(&action->action_id));
	index_rescan(walk.scan, keys, lengthof(keys), NULL, 0);
	while (next_entry(&walk))
		idem_table_delete(walk.rel, &walk.slot->tts_tid);
	close_walk(&walk);
}

/* caller keeps the intent until the end of the walk */
void
idem_queue_start(IdemQueueWalk *walk, text *intent)
{
	open_walk(walk, "idem_queue_order", AccessShareLock, 2);
	walk->intent = intent;
	walk->started = false;
	walk->ended = false;
}

/* positions the scan on the highest priority, or the highest below the last */
static void
seek_priority(IdemQueueWalk *walk)
{
	ScanKeyData keys[2];

	intent_key(walk, &keys[0], walk->intent);
	if (walk->started)
		ScanKeyInit(&keys[1], Q_PRIORITY + 1, BTLessStrategyNumber, F_INT4LT,
					Int32GetDatum(walk->priority));
	else
		ScanKeyInit(&keys[1], Q_PRIORITY + 1, BTLessEqualStrategyNumber, F_INT4LE,
					Int32GetDatum(PG_INT32_MAX));
	walk->started = true;
	index_rescan(walk->scan, keys, 2, NULL, 0);
}

/*
 * The next due entry: higher priority first, then what is due longer.  Where an
 * entry is not due, no later one of its priority is, so the walk goes on with
 * the next lower priority: its cost depends on what is due and on how many
 * priorities there are, not on what waits or is finished.
 */
bool
idem_queue_next(IdemQueueWalk *walk, TimestampTz now)
{
	if (!walk->started)
		seek_priority(walk);
	while (!walk->ended)
	{
		if (!next_entry(walk))
		{
			walk->ended = true;
			break;
		}
		slot_getallattrs(walk->slot);
		walk->priority = DatumGetInt32(walk->slot->tts_values[Q_PRIORITY]);
		walk->due_at = DatumGetTimestampTz(walk->slot->tts_values[Q_DUE_AT]);
		walk->action_id = *DatumGetUUIDP(walk->slot->tts_values[Q_ACTION_ID]);
		if (walk->due_at <= now)
			return true;
		seek_priority(walk);
	}
	return false;
}

void
idem_queue_end(IdemQueueWalk *walk)
{
	close_walk(walk);
}

/* the actions that a take with this call_id holds, as a list of pg_uuid_t */
List *
idem_queue_of_call(const pg_uuid_t *call_id)
{
	IdemQueueWalk walk;
	ScanKeyData key;
	List	   *ids = NIL;

	open_walk(&walk, "idem_queue_call", AccessShareLock, 1);
	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(call_id));
	index_rescan(walk.scan, &key, 1, NULL, 0);
	while (next_entry(&walk))
	{
		pg_uuid_t  *id = palloc(sizeof(pg_uuid_t));

		slot_getallattrs(walk.slot);
		*id = *DatumGetUUIDP(walk.slot->tts_values[Q_ACTION_ID]);
		ids = lappend(ids, id);
	}
	close_walk(&walk);
	return ids;
}
