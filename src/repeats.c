/*-------------------------------------------------------------------------
 *
 * repeats.c
 *	  Counted repeats on their way to idem_repeats, and out of it.
 *
 * They are counted in shared memory (counters.c).  Maintenance takes some out,
 * writes them in a transaction of its own, and a transaction that does not
 * commit puts them back: each is written once.  A lock of its own lets one
 * writer at a time, so that a delivery has one row a day.
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
#include "access.h"
#include "access/genam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "answer.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "counters.h"
#include "executor/spi.h"
#include "ledger.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "table.h"
#include "utils/builtins.h"
#include "utils/date.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#define AT_ONCE 1000
#define REPEATS_NCOLS 9

/* $1 day, $2 intent, $3 source, $4 event_id, $5 action, $6 outcome, $7 n, $8, $9 */
#define OF_DELIVERY \
	" WHERE (action_id OPERATOR(pg_catalog.=) $5 OR action_id IS NULL AND $5 IS NULL)" \
	" AND intent OPERATOR(pg_catalog.=) $2 AND day OPERATOR(pg_catalog.=) $1" \
	" AND outcome OPERATOR(pg_catalog.=) $6" \
	" AND (source OPERATOR(pg_catalog.=) $3 OR source IS NULL AND $3 IS NULL)" \
	" AND (event_id OPERATOR(pg_catalog.=) $4 OR event_id IS NULL AND $4 IS NULL)"
#define SQL_ADD \
	"UPDATE idem.idem_repeats SET n = n OPERATOR(pg_catalog.+) $7, last_at = $9" \
	" WHERE ctid OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT ctid FROM idem.idem_repeats" \
	OF_DELIVERY " FOR UPDATE SKIP LOCKED))"
#define SQL_NEW \
	"INSERT INTO idem.idem_repeats (day, intent, source, event_id, action_id, outcome, n, first_at, last_at)" \
	" VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
#define SQL_TAKE_BACK \
	"DELETE FROM idem.idem_repeats" OF_DELIVERY \
	" AND xmin OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id()::pg_catalog.xid"

static uint64
run(const char *sql, Datum *values, const char *nulls, int expected)
{
	static Oid	types[9] = {
		DATEOID, TEXTOID, TEXTOID, TEXTOID, UUIDOID, TEXTOID, INT8OID,
		TIMESTAMPTZOID, TIMESTAMPTZOID
	};

	idem_run(sql, lengthof(types), types, values, nulls, expected);
	return SPI_processed;
}

/* as it is committed, or as somebody is about to make it */
static IdemFound
look_at(const pg_uuid_t *action_id)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "idem_action row",
												  ALLOCSET_SMALL_SIZES);
	MemoryContext outer = MemoryContextSwitchTo(context);
	IdemLedger *ledger = idem_ledger_open(false);
	TransactionId holder;
	IdemAction	row;
	IdemFound	found = idem_ledger_probe(ledger, action_id, &row, &holder);

	/* or it is just moving */
	if (found == IDEM_ABSENT && !idem_ledger_surely_absent(ledger, action_id))
		found = IDEM_HELD;
	idem_ledger_close(ledger);
	MemoryContextSwitchTo(outer);
	MemoryContextDelete(context);
	return found;
}

/* false where it has to wait for a later pass */
static bool
write_one(IdemRepeat *repeat)
{
	IdemFound	found = look_at(&repeat->key.action_id);
	Datum		v[9];
	char		nulls[] = "         ";

	if (found == IDEM_HELD || found == IDEM_HELD_NEW)
		return false;
	v[0] = DateADTGetDatum(repeat->key.day);
	v[1] = CStringGetTextDatum(repeat->intent);
	v[2] = CStringGetTextDatum(repeat->source);
	v[3] = CStringGetTextDatum(repeat->event_id);
	v[4] = UUIDPGetDatum(&repeat->key.action_id);
	v[5] = CStringGetTextDatum(repeat->key.what == IDEM_AFTER_FORGETTING ? "claimed_after_forgetting" :
							   idem_outcome_name(repeat->key.what));
	v[6] = Int64GetDatum(pg_atomic_read_u64(&repeat->n));
	v[7] = TimestampTzGetDatum(repeat->first_at);
	v[8] = TimestampTzGetDatum((TimestampTz) pg_atomic_read_u64(&repeat->last_at));
	if (repeat->source[0] == '\0')
		nulls[2] = 'n';
	if (repeat->event_id[0] == '\0')
		nulls[3] = 'n';
	if (found == IDEM_ABSENT)
		nulls[3] = nulls[4] = 'n';	/* only the figures count */
	if (run(SQL_ADD, v, nulls, SPI_OK_UPDATE) > 0)
		return true;			/* a row goes with its action whoever wrote to
								 * it */
	(void) run(SQL_NEW, v, nulls, SPI_OK_INSERT);
	if (found == IDEM_ABSENT || look_at(&repeat->key.action_id) == IDEM_PRESENT)
		return true;
	(void) run(SQL_TAKE_BACK, v, nulls, SPI_OK_DELETE);
	return false;
}

/*
 * Writes some of what was counted in this database; true while there may be
 * more.  Caller is in a transaction of its own for it, and commits.
 */
bool
idem_repeats_write(void)
{
	List	   *taken;
	ListCell   *lc;
	IdemOwner	caller;
	bool		some_written = false;

	LockDatabaseObject(RelationRelationId, idem_relation_oid("idem_repeats"), 0,
					   ShareUpdateExclusiveLock);
	taken = idem_counters_take(MyDatabaseId, AT_ONCE);
	if (taken == NIL)
		return false;
	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_connect();
	idem_owner_enter(&caller);
	foreach(lc, taken)
	{
		if (write_one(lfirst(lc)))
			some_written = true;
		else
			idem_counters_leave(lfirst(lc));
	}
	idem_owner_leave(&caller);
	SPI_finish();
	PopActiveSnapshot();
	return list_length(taken) == AT_ONCE && some_written;
}

/*
 * Removes the action's rows up to one that another transaction is writing or
 * removing, which it waits for; true where it has seen no such one.
 */
static bool
remove_rows(Relation rel, Relation index, const pg_uuid_t *action_id)
{
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	bool		all_gone = true;
	TransactionId other = InvalidTransactionId;
	SnapshotData dirty;
	IndexScanDesc scan;
	ScanKeyData key;

	InitDirtySnapshot(dirty);
	scan = index_beginscan(rel, index, &dirty, NULL, 1, 0, 0);
	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(action_id));
	index_rescan(scan, &key, 1, NULL, 0);
	while (all_gone && index_getnext_slot(scan, ForwardScanDirection, slot))
	{
		TM_FailureData failure;

		other = TransactionIdIsValid(dirty.xmin) ? dirty.xmin : dirty.xmax;
		all_gone = !TransactionIdIsValid(other) &&
			table_tuple_delete(rel, &slot->tts_tid, GetCurrentCommandId(true), 0, SnapshotAny,
							   InvalidSnapshot, true, &failure) == TM_Ok;
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	CommandCounterIncrement();
	if (TransactionIdIsValid(other))
		XactLockTableWait(other, NULL, NULL, XLTW_None);
	return all_gone;
}

/*
 * The counted repeats of an action whose row the caller has just removed.  A
 * dirty scan can miss a row that is moving, but not two in a row: there is one
 * writer at a time.
 */
void
idem_repeats_forget(const pg_uuid_t *action_id)
{
	Relation	rel = idem_relation_open("idem_repeats", REPEATS_NCOLS, RowExclusiveLock);
	Relation	index = index_open(idem_relation_oid("idem_repeats_action"), RowExclusiveLock);

	for (int clean = 0; clean < 2;)
	{
		CHECK_FOR_INTERRUPTS();
		clean = remove_rows(rel, index, action_id) ? clean + 1 : 0;
	}
	index_close(index, NoLock);
	table_close(rel, NoLock);
}
