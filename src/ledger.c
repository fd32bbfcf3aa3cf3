/*-------------------------------------------------------------------------
 *
 * ledger.c
 *	  One action in the tables: find, insert, update, append to its history.
 *
 * What it protects: that a key has one row, and that a row changes only from
 * the version its change was decided on.
 *
 * Finding.  A probe visits all entries of the primary key with a dirty
 * snapshot, so it sees rows of open transactions and knows whose they are.
 * The first version with a committed (or own) xmin wins; if somebody else's
 * open transaction is its xmax, the row is held open.  A dirty scan is not
 * atomic: it can miss a row that moves to another page meanwhile.  An insert
 * is safe from that by the unique index; every other call that finds nothing
 * has to ask idem_ledger_surely_absent.  No probe takes predicate locks: the
 * ledger is not part of SSI.
 *
 * Inserting.  Absent: take the key's advisory lock (a class of its own that
 * SQL can't reach), probe again, insert heap and index tuples with the primary
 * key as arbiter, release the lock.  The arbiter neither waits nor raises: on
 * a conflict the own tuple is deleted and the caller starts over.  The lock
 * spans just that window, so one transaction can insert any number of rows and
 * exhausts no lock table; after it, the open row itself is what rivals see.
 *
 * Updating.  A version is addressed by its TID.  The active snapshot of the
 * running statement keeps the line pointer from being re-used, so heap_update
 * tells for certain whether the version read is still the newest: an update is
 * a compare-and-swap.  heap_update waits for whoever has the version, so those
 * who must not wait lock it first, skipping what is locked.  What only adds to
 * the history locks the row, too.
 *
 * Table locks of what was written are kept to the end of the transaction: a
 * rotation of secrets and a change of a rule rely on waiting for it.  What has
 * only read lets go at once.
 *
 * Lock order: table locks, one key lock, one row, its queue entry and events.
 * Batches go in action_id order.  No session locks, ever.
 *
 * Isolation.  Under REPEATABLE READ and above a change to a version that the
 * transaction snapshot can't see raises 40001, and so does an insert of a key
 * of which it still sees a row deleted since.
 *
 * A crash leaves what the transactions left: an uncommitted claim is gone.  An
 * acknowledged one is on disk, as the callers force a synchronous commit.
 *
 * Storage.  idem_actions has no index but the primary key, since an index on
 * any column that changes (even in a predicate) ends HOT updates.  Measured on
 * PostgreSQL 15, claim and complete by four clients:
 *
 *							HOT completions		WAL bytes of a life
 *		primary key only		100 %				1143
 *		+ partial, leases		  0 %				1298
 *		+ state					  0 %				1380
 *		+ purge_after			  0 %				1377
 *		+ BRIN, created_at		100 %				1273
 *
 * What leases and retention ask for is found by walking over TID ranges
 * (ledger_scan.c), two million rows a second.  What takers ask for stands in
 * idem_queue, ordered as it is handed out; the row and its entry change in the
 * same transaction under the row's lock.  The fillfactor of 95 leaves room for
 * a completion on a page, and pruning for the next: of 10 000 open actions that
 * were completed in random order 79 % were HOT, of those completed at once all;
 * 85 would make it 88 % and an action a seventh larger.  Every index a DBA adds is maintained.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/ledger.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>
#include <time.h>

#include "compat.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "bells.h"
#include "clock.h"
#include "columns.h"
#include "confirm.h"
#include "databases.h"
#include "executor/tuptable.h"
#include "key.h"
#include "miscadmin.h"
#include "observer.h"
#include "queue.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "table.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/typcache.h"

static const char *const state_names[] = {
	[IDEM_PENDING] = "pending",
	[IDEM_IN_PROGRESS] = "in_progress",
	[IDEM_COMPLETED] = "completed",
	[IDEM_FAILED] = "failed",
	[IDEM_NEEDS_ATTENTION] = "needs_attention",
	[IDEM_CANCELLED] = "cancelled",
};

PG_FUNCTION_INFO_V1(idem_violated_invariant);

/*-------------------------------------------------------------------------
 * Between rows and structs
 *-------------------------------------------------------------------------
 */

text *
idem_state_name(IdemState state)
{
	return cstring_to_text(state_names[state]);
}

static IdemState
state_of(text *name)
{
	for (int i = 0; i < (int) lengthof(state_names); i++)
	{
		if (idem_text_is(name, state_names[i]))
			return i;
	}
	elog(ERROR, "unknown state in the ledger");
}

static inline TimestampTz
get_time(const Datum *v, const bool *n, int col)
{
	return n[col] ? IDEM_NEVER : DatumGetTimestampTz(v[col]);
}

static inline void *
get_varlena(const Datum *v, const bool *n, int col)
{
	return n[col] ? NULL : (void *) PG_DETOAST_DATUM_PACKED(v[col]);
}

static inline void *
get_content(const Datum *v, const bool *n, int col)
{
	return n[col] ? NULL : (void *) PG_DETOAST_DATUM(v[col]);
}

static void
action_from_values(const Datum *v, const bool *n, IdemAction *a)
{
	idem_get_uuid(v, n, COL_ACTION_ID, &a->action_id);
	a->created_at = DatumGetTimestampTz(v[COL_CREATED_AT]);
	a->revision = DatumGetInt64(v[COL_REVISION]);
	a->generation = DatumGetInt32(v[COL_GENERATION]);
	a->attempt = DatumGetInt32(v[COL_ATTEMPT]);
	a->lost = DatumGetInt32(v[COL_LOST]);
	a->failures = DatumGetInt32(v[COL_FAILURES]);
	a->priority = DatumGetInt32(v[COL_PRIORITY]);
	a->uncertain = DatumGetBool(v[COL_UNCERTAIN]);
	a->uncertain_before = DatumGetBool(v[COL_UNCERTAIN_BEFORE]);
	a->marked = DatumGetBool(v[COL_MARKED]);
	a->begun = DatumGetBool(v[COL_BEGUN]);
	a->verifying = DatumGetBool(v[COL_VERIFYING]);
	a->approved = DatumGetBool(v[COL_APPROVED]);
	a->cancel_requested = DatumGetBool(v[COL_CANCEL_REQUESTED]);
	a->purged = DatumGetBool(v[COL_PURGED]);
	a->ruled = DatumGetBool(v[COL_RULED]);
	a->first_claimed_at = get_time(v, n, COL_FIRST_CLAIMED_AT);
	a->claimed_at = get_time(v, n, COL_CLAIMED_AT);
	a->lease_until = get_time(v, n, COL_LEASE_UNTIL);
	a->due_at = get_time(v, n, COL_DUE_AT);
	a->doubt_until = get_time(v, n, COL_DOUBT_UNTIL);
	a->finished_at = get_time(v, n, COL_FINISHED_AT);
	a->purge_after = get_time(v, n, COL_PURGE_AFTER);
	a->forget_after = get_time(v, n, COL_FORGET_AFTER);
	idem_get_uuid(v, n, COL_CLAIM_ID, &a->claim_id);
	idem_get_uuid(v, n, COL_CALL_ID, &a->call_id);
	a->state = state_of(get_varlena(v, n, COL_STATE));
	a->scope = get_varlena(v, n, COL_SCOPE);
	a->intent = get_varlena(v, n, COL_INTENT);
	a->key = get_varlena(v, n, COL_KEY);
	a->reason = get_varlena(v, n, COL_REASON);
	a->ended_by = get_varlena(v, n, COL_ENDED_BY);
	a->worker = get_varlena(v, n, COL_WORKER);
	a->source = get_varlena(v, n, COL_SOURCE);
	a->event_id = get_varlena(v, n, COL_EVENT_ID);
	a->secret_id = get_varlena(v, n, COL_SECRET_ID);
	a->params = get_content(v, n, COL_PARAMS);
	a->params_digest = get_varlena(v, n, COL_PARAMS_DIGEST);
	a->draft = get_content(v, n, COL_DRAFT);
	a->external_ref = get_varlena(v, n, COL_EXTERNAL_REF);
	a->result = get_content(v, n, COL_RESULT);
	a->error = get_varlena(v, n, COL_ERROR);
}

void
idem_action_from_slot(TupleTableSlot *slot, IdemAction *action)
{
	slot_getallattrs(slot);
	action_from_values(slot->tts_values, slot->tts_isnull, action);
}

/*
 * The CHECK constraints of idem_actions, by the same names in the same order:
 * rows written from here do not pass the executor.  NULL where all hold.
 */
static const char *
violated_by(const IdemAction *a)
{
	bool		held = !idem_uuid_is_null(&a->claim_id);
	bool		in_progress = a->state == IDEM_IN_PROGRESS;
	bool		final = IDEM_STATE_IS_FINAL(a->state);
	bool		finished = a->finished_at != IDEM_NEVER;

	if (a->revision < 1 || a->generation < 1 || a->attempt < 0 || a->lost < 0 || a->failures < 0)
		return "counters_in_range";
	if (a->key == NULL && a->secret_id == NULL)
		return "key_or_secret";
	if (in_progress && (!held || a->claimed_at == IDEM_NEVER || a->ended_by != NULL))
		return "in_progress_is_held";
	if ((a->lease_until != IDEM_NEVER) != in_progress)
		return "lease_while_in_progress";
	if (a->lease_until != IDEM_NEVER && TIMESTAMP_NOT_FINITE(a->lease_until))
		return "lease_is_finite";
	if (a->due_at == IDEM_NEVER ? a->state == IDEM_PENDING :
		a->state != IDEM_PENDING && !in_progress)
		return "due_while_open";
	if (finished != final)
		return "finished_when_final";
	if ((a->forget_after != IDEM_NEVER) != finished ||
		(a->purge_after != IDEM_NEVER && !finished))
		return "retention_when_final";
	if (finished && a->uncertain)
		return "final_is_certain";
	if (a->state == IDEM_NEEDS_ATTENTION && a->reason == NULL)
		return "attention_has_reason";
	if (a->verifying && !in_progress)
		return "verifying_in_progress";
	if (held != (a->claimed_at != IDEM_NEVER) ||
		held != (a->first_claimed_at != IDEM_NEVER) ||
		held != (a->attempt != 0))
		return "claim_is_whole";
	if (a->ended_by != NULL && !held)
		return "ended_claim_exists";
	return NULL;
}

/*
 * The only place that makes a row of idem_actions.  The struct has to live as
 * long as the values.
 */
static void
values_from_action(const IdemAction *a, Datum *v, bool *n)
{
	const char *violated = violated_by(a);

	if (violated != NULL)
		elog(ERROR, "refused to write an action that violates \"%s\"", violated);

	memset(n, 0, ACTION_NCOLS * sizeof(bool));
	v[COL_ACTION_ID] = UUIDPGetDatum(&a->action_id);
	v[COL_CREATED_AT] = TimestampTzGetDatum(a->created_at);
	v[COL_REVISION] = Int64GetDatum(a->revision);
	v[COL_GENERATION] = Int32GetDatum(a->generation);
	v[COL_ATTEMPT] = Int32GetDatum(a->attempt);
	v[COL_LOST] = Int32GetDatum(a->lost);
	v[COL_FAILURES] = Int32GetDatum(a->failures);
	v[COL_PRIORITY] = Int32GetDatum(a->priority);
	v[COL_UNCERTAIN] = BoolGetDatum(a->uncertain);
	v[COL_UNCERTAIN_BEFORE] = BoolGetDatum(a->uncertain_before);
	v[COL_MARKED] = BoolGetDatum(a->marked);
	v[COL_BEGUN] = BoolGetDatum(a->begun);
	v[COL_VERIFYING] = BoolGetDatum(a->verifying);
	v[COL_APPROVED] = BoolGetDatum(a->approved);
	v[COL_CANCEL_REQUESTED] = BoolGetDatum(a->cancel_requested);
	v[COL_PURGED] = BoolGetDatum(a->purged);
	v[COL_RULED] = BoolGetDatum(a->ruled);
	idem_put_time(v, n, COL_FIRST_CLAIMED_AT, a->first_claimed_at);
	idem_put_time(v, n, COL_CLAIMED_AT, a->claimed_at);
	idem_put_time(v, n, COL_LEASE_UNTIL, a->lease_until);
	idem_put_time(v, n, COL_DUE_AT, a->due_at);
	idem_put_time(v, n, COL_DOUBT_UNTIL, a->doubt_until);
	idem_put_time(v, n, COL_FINISHED_AT, a->finished_at);
	idem_put_time(v, n, COL_PURGE_AFTER, a->purge_after);
	idem_put_time(v, n, COL_FORGET_AFTER, a->forget_after);
	idem_put_uuid(v, n, COL_CLAIM_ID, &a->claim_id);
	idem_put_uuid(v, n, COL_CALL_ID, &a->call_id);
	idem_put_pointer(v, n, COL_STATE, idem_state_name(a->state));
	idem_put_pointer(v, n, COL_SCOPE, a->scope);
	idem_put_pointer(v, n, COL_INTENT, a->intent);
	idem_put_pointer(v, n, COL_KEY, a->key);
	idem_put_pointer(v, n, COL_REASON, a->reason);
	idem_put_pointer(v, n, COL_ENDED_BY, a->ended_by);
	idem_put_pointer(v, n, COL_WORKER, a->worker);
	idem_put_pointer(v, n, COL_SOURCE, a->source);
	idem_put_pointer(v, n, COL_EVENT_ID, a->event_id);
	idem_put_pointer(v, n, COL_SECRET_ID, a->secret_id);
	idem_put_pointer(v, n, COL_PARAMS, a->params);
	idem_put_pointer(v, n, COL_PARAMS_DIGEST, a->params_digest);
	idem_put_pointer(v, n, COL_DRAFT, a->draft);
	idem_put_pointer(v, n, COL_EXTERNAL_REF, a->external_ref);
	idem_put_pointer(v, n, COL_RESULT, a->result);
	idem_put_pointer(v, n, COL_ERROR, a->error);
}

/* a value that would be read as an SQL NULL; never written from here */
static bool
has_stand_ins(const IdemAction *a, const bool *n)
{
	for (int col = COL_FIRST_CLAIMED_AT; col <= COL_FORGET_AFTER; col++)
	{
		const TimestampTz times[] = {
			a->first_claimed_at, a->claimed_at, a->lease_until, a->due_at,
			a->doubt_until, a->finished_at, a->purge_after, a->forget_after
		};

		if (!n[col] && times[col - COL_FIRST_CLAIMED_AT] == IDEM_NEVER)
			return true;
	}
	return (!n[COL_CLAIM_ID] && idem_uuid_is_null(&a->claim_id)) ||
		(!n[COL_CALL_ID] && idem_uuid_is_null(&a->call_id));
}

/* for the test that compares both lists: the first violated one of a row */
Datum
idem_violated_invariant(PG_FUNCTION_ARGS)
{
	HeapTupleHeader row = PG_GETARG_HEAPTUPLEHEADER(0);
	TupleDesc	desc = lookup_rowtype_tupdesc(HeapTupleHeaderGetTypeId(row),
											  HeapTupleHeaderGetTypMod(row));
	HeapTupleData tuple;
	Datum		v[ACTION_NCOLS];
	bool		n[ACTION_NCOLS];
	IdemAction	action;
	const char *violated;

	if (desc->natts != ACTION_NCOLS)
		elog(ERROR, "not a row of idem_actions");
	tuple.t_len = HeapTupleHeaderGetDatumLength(row);
	ItemPointerSetInvalid(&tuple.t_self);
	tuple.t_tableOid = InvalidOid;
	tuple.t_data = row;
	heap_deform_tuple(&tuple, desc, v, n);
	action_from_values(v, n, &action);
	violated = has_stand_ins(&action, n) ? "no_stand_ins" : violated_by(&action);
	ReleaseTupleDesc(desc);
	if (violated == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(violated));
}

/*-------------------------------------------------------------------------
 * Opening and closing
 *-------------------------------------------------------------------------
 */

/*
 * The ledger for one call.  for_writing takes the lock that a writer needs and
 * refuses where writing is not possible at all.
 */
IdemLedger *
idem_ledger_open(bool for_writing)
{
	IdemLedger *ledger = palloc(sizeof(IdemLedger));

	if (for_writing)
	{
		PreventCommandIfReadOnly("writing to the ledger");
		PreventCommandIfParallelMode("writing to the ledger");
		PreventCommandDuringRecovery("writing to the ledger");
	}
	ledger->lockmode = for_writing ? RowExclusiveLock : AccessShareLock;
	idem_table_open(&ledger->actions, "idem_actions", ACTION_NCOLS, ledger->lockmode);
	if (for_writing)
		idem_database_note_use(RelationGetRelid(ledger->actions.rel));

	/* a lock held already lets no news in, and rules hold from the next call */
	AcceptInvalidationMessages();
	if (for_writing)
		idem_table_check_constraints(ledger->actions.rel);
	ledger->pkey = NULL;
	ledger->locked = NULL;
	ledger->wrote = false;
	memset(&ledger->reliance, 0, sizeof(ledger->reliance));
	return ledger;
}

/* ends the use; waits until what the answer relies on is durable */
void
idem_ledger_close(IdemLedger *ledger)
{
	LOCKMODE	release = ledger->wrote ? NoLock : ledger->lockmode;
	IdemReliance reliance = ledger->reliance;

	if (ledger->pkey != NULL)
	{
		index_endscan(ledger->scan);
		ExecDropSingleTupleTableSlot(ledger->found);
		index_close(ledger->pkey, release);
	}
	if (ledger->locked != NULL)
		ExecDropSingleTupleTableSlot(ledger->locked);
	idem_table_close(&ledger->actions, release);
	pfree(ledger);
	/* last: this can take long, and holds no pin */
	idem_confirm(&reliance);
}

/*-------------------------------------------------------------------------
 * Finding
 *-------------------------------------------------------------------------
 */

void
idem_ledger_open_scan(IdemLedger *ledger)
{
	Oid			pkey = RelationGetPrimaryKeyIndex(ledger->actions.rel, false);
	MemoryContext old = MemoryContextSwitchTo(ledger->actions.context);

	if (!OidIsValid(pkey))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table idem_actions has lost its primary key")));
	ledger->pkey = index_open(pkey, ledger->lockmode);
	ledger->found = table_slot_create(ledger->actions.rel, NULL);
	InitDirtySnapshot(ledger->dirty);
	ledger->scan = index_beginscan(ledger->actions.rel, ledger->pkey,
								   &ledger->dirty, NULL, 1, 0, 0);
	MemoryContextSwitchTo(old);
}

static void
id_key(ScanKey key, const pg_uuid_t *id)
{
	ScanKeyInit(key, 1, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(id));
}

/* what the scan allocates lives as long as the ledger is open, here and below */
static void
rescan(IdemLedger *ledger, ScanKey key)
{
	MemoryContext old = MemoryContextSwitchTo(ledger->actions.context);

	index_rescan(ledger->scan, key, 1, NULL, 0);
	MemoryContextSwitchTo(old);
}

static bool
next_version(IdemLedger *ledger)
{
	MemoryContext old = MemoryContextSwitchTo(ledger->actions.context);
	bool		more = index_getnext_slot(ledger->scan, ForwardScanDirection, ledger->found);

	MemoryContextSwitchTo(old);
	return more;
}

/* of a version that no scan will stand on: what idem_ledger_peek tells of it */
static void
keep_identity(IdemLedger *ledger)
{
	MemoryContext old = MemoryContextSwitchTo(ledger->actions.context);
	bool		isnull;

	ledger->held_intent = DatumGetTextPCopy(slot_getattr(ledger->found, COL_INTENT + 1, &isnull));
	ledger->held_ruled = DatumGetBool(slot_getattr(ledger->found, COL_RULED + 1, &isnull));
	MemoryContextSwitchTo(old);
}

/*
 * Looks the action up and reads the version that counts.  The action's texts
 * and contents point into that version and live until the next probe or close.
 * With a NULL action the row is not read; idem_ledger_peek and idem_ledger_read
 * do so afterwards.
 */
IdemFound
idem_ledger_probe(IdemLedger *ledger, const pg_uuid_t *id,
				  IdemAction *action, TransactionId *holder)
{
	ScanKeyData key;
	IdemFound	found = IDEM_ABSENT;

	if (ledger->pkey == NULL)
		idem_ledger_open_scan(ledger);
	*holder = InvalidTransactionId;
	id_key(&key, id);
	rescan(ledger, &key);
	while (next_version(ledger))
	{
		if (TransactionIdIsValid(ledger->dirty.xmin))
		{
			*holder = ledger->dirty.xmin;
			found = IDEM_HELD_NEW;
			if (action == NULL)
				keep_identity(ledger);
			continue;
		}
		*holder = ledger->dirty.xmax;
		if (action != NULL)
			idem_action_from_slot(ledger->found, action);
		return TransactionIdIsValid(*holder) ? IDEM_HELD : IDEM_PRESENT;
	}
	return found;
}

/*
 * What the last probe, which has not read the row, came upon: only what tells
 * whose the action is.  Contents are left alone, since reading large ones takes
 * a time that could be measured.  Of a row that is being inserted, too: its
 * intent is known before its transaction has ended.
 */
void
idem_ledger_peek(IdemLedger *ledger, IdemFound found, IdemAction *action)
{
	bool		isnull;

	action->intent = found == IDEM_HELD_NEW ? ledger->held_intent :
		DatumGetTextPP(slot_getattr(ledger->found, COL_INTENT + 1, &isnull));
	action->ruled = found == IDEM_HELD_NEW ? ledger->held_ruled :
		DatumGetBool(slot_getattr(ledger->found, COL_RULED + 1, &isnull));
}

/* reads the version that the last probe came upon, as idem_ledger_probe does */
void
idem_ledger_read(IdemLedger *ledger, IdemAction *action)
{
	idem_action_from_slot(ledger->found, action);
}

/* whether any version of the row is visible to the snapshot, read untouched
 * by predicate locks */
static bool
snapshot_sees(IdemLedger *ledger, const pg_uuid_t *id, Snapshot snapshot)
{
	TupleTableSlot *slot = table_slot_create(ledger->actions.rel, NULL);
	IndexScanDesc scan = index_beginscan(ledger->actions.rel, ledger->pkey,
										 SnapshotAny, NULL, 1, 0, 0);
	ScanKeyData key;
	bool		seen = false;

	id_key(&key, id);
	index_rescan(scan, &key, 1, NULL, 0);
	while (!seen && index_getnext_slot(scan, ForwardScanDirection, slot))
		seen = table_tuple_satisfies_snapshot(ledger->actions.rel, slot, snapshot);
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	return seen;
}

/*
 * Confirms with a latest MVCC snapshot that an absent row is absent: only such
 * a scan can't miss a row that is moving.  Under SERIALIZABLE this is the one
 * read that takes a predicate lock.
 */
bool
idem_ledger_surely_absent(IdemLedger *ledger, const pg_uuid_t *id)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TupleTableSlot *slot = table_slot_create(ledger->actions.rel, NULL);
	IndexScanDesc scan = index_beginscan(ledger->actions.rel, ledger->pkey,
										 snapshot, NULL, 1, 0, 0);
	ScanKeyData key;
	bool		found;

	id_key(&key, id);
	index_rescan(scan, &key, 1, NULL, 0);
	found = index_getnext_slot(scan, ForwardScanDirection, slot);
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(snapshot);
	return !found;
}

static TransactionId
xmin_found(IdemLedger *ledger)
{
	return HeapTupleHeaderGetXmin(ExecFetchSlotHeapTuple(ledger->found, false, NULL)->t_data);
}

/* whether this transaction wrote the version last probed */
bool
idem_ledger_is_own(IdemLedger *ledger)
{
	return TransactionIdIsCurrentTransactionId(xmin_found(ledger));
}

/*
 * The caller will act on what the version last probed says, or acknowledge a
 * message because of it, and nothing is written: idem_ledger_close then waits
 * until that version is durable.
 */
void
idem_ledger_rely(IdemLedger *ledger)
{
	idem_confirm_rely(&ledger->reliance, xmin_found(ledger));
}

/* lets go of the version last probed, before a wait */
void
idem_ledger_rest(IdemLedger *ledger)
{
	if (ledger->pkey != NULL)
		ExecClearTuple(ledger->found);
}

/* waits for the end of an open transaction, whatever that end is */
void
idem_ledger_wait(TransactionId holder)
{
	XactLockTableWait(holder, NULL, NULL, XLTW_None);
}

/*
 * The same until a moment of idem_clock_monotonic(); false where that came.
 * lock_timeout is measured by the time of day, so that a clock set back would
 * lengthen the wait by as much.  Instead a timer of the kernel's cancels it as a
 * user would.  The wait runs in a subtransaction, since it then ends in an error.
 * Another's cancel and a deadlock go on to the caller.
 */
bool
idem_ledger_wait_until(TransactionId holder, int64 until)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	struct sigevent cancel = {.sigev_notify = SIGEV_SIGNAL,.sigev_signo = SIGINT};
	struct itimerspec at = {.it_value = {until / USECS_PER_SEC, until % USECS_PER_SEC * 1000}};
	timer_t		timer;
	volatile bool set = false;
	bool		over;
	ErrorData  *volatile error = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		if (timer_create(CLOCK_MONOTONIC, &cancel, &timer) != 0)
			elog(ERROR, "could not create a timer: %m");
		set = true;
		if (timer_settime(timer, TIMER_ABSTIME, &at, NULL) != 0)
			elog(ERROR, "could not set a timer: %m");
		idem_ledger_wait(holder);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();
	if (set)
		(void) timer_delete(timer);
	over = idem_clock_monotonic() >= until;

	/* in any case: there is nothing to keep */
	RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	if (error != NULL && !(over && error->sqlerrcode == ERRCODE_QUERY_CANCELED))
		ReThrowError(error);
	/* the timer's may have come when the wait was already over */
	if (over && error == NULL)
		QueryCancelPending = false;
	return error == NULL;
}

/*-------------------------------------------------------------------------
 * Writing
 *-------------------------------------------------------------------------
 */

static void
raise_unserializable(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not serialize access due to concurrent update"),
			 errdetail("The action was changed after this transaction's snapshot was taken."),
			 errhint("Run the transaction again.")));
}

/* when maintenance has something to do about the action; IDEM_NEVER for nothing */
static TimestampTz
due_for_maintenance(const IdemAction *action)
{
	if (action->lease_until != IDEM_NEVER)
		return action->lease_until;
	return action->purged ? action->forget_after : action->purge_after;
}

/*
 * Tells whoever waits for the action to be over, or for something to take, and
 * the launcher when it is to look at the action again.
 */
static void
tell_others(const IdemAction *before, const IdemAction *after)
{
	TimestampTz due = due_for_maintenance(after);

	if (due != IDEM_NEVER)
		idem_database_due_at_commit(due);
	if (before != NULL && before->state == IDEM_IN_PROGRESS && after->state != IDEM_IN_PROGRESS)
		idem_bell_ring_at_commit(idem_bell_of(&after->action_id, sizeof(pg_uuid_t)));
	if (after->state == IDEM_PENDING)
		idem_bell_ring_at_commit(idem_bell_of(VARDATA_ANY(after->intent),
											  VARSIZE_ANY_EXHDR(after->intent)));
}

/*
 * Inserts the row of an action that the caller found absent.  With wait false
 * a rival in the same window makes it IDEM_BUSY, otherwise it waits for it.
 * The caller acts on it or acknowledges a message, so the commit is forced to
 * disk, also where it is the commit of the caller's own transaction.
 */
IdemWrite
idem_ledger_insert(IdemLedger *ledger, const IdemAction *action, bool wait)
{
	LOCKTAG		tag;
	TransactionId holder;
	IdemAction	rival;
	TupleTableSlot *slot;
	bool		inserted;

	idem_key_locktag(&action->action_id, &tag);
	if (LockAcquire(&tag, ExclusiveLock, false, !wait) == LOCKACQUIRE_NOT_AVAIL)
		return IDEM_BUSY;
	if (idem_ledger_probe(ledger, &action->action_id, &rival, &holder) != IDEM_ABSENT)
	{
		LockRelease(&tag, ExclusiveLock, false);
		return IDEM_CHANGED;
	}
	if (IsolationUsesXactSnapshot() &&
		snapshot_sees(ledger, &action->action_id, GetTransactionSnapshot()))
		raise_unserializable();

	ledger->wrote = true;
	slot = idem_table_slot(&ledger->actions);
	values_from_action(action, slot->tts_values, slot->tts_isnull);
	ExecStoreVirtualTuple(slot);
	inserted = idem_table_insert(&ledger->actions, true);
	if (inserted)
	{
		idem_queue_add(action);
		tell_others(NULL, action);
		ForceSyncCommit();
	}
	else
	{
		/* a row the probe had missed; ours has to go before anyone sees it */
		CommandCounterIncrement();
		idem_table_retract(ledger->actions.rel, &slot->tts_tid);
	}
	CommandCounterIncrement();
	LockRelease(&tag, ExclusiveLock, false);
	return inserted ? IDEM_WRITTEN : IDEM_CHANGED;
}

/* what heap_update and heap_lock_tuple say, in our words */
static IdemWrite
write_result(TM_Result result)
{
	switch (result)
	{
		case TM_Ok:
			return IDEM_WRITTEN;
		case TM_Updated:
		case TM_Deleted:
			return IDEM_CHANGED;
		case TM_BeingModified:
		case TM_WouldBlock:
			return IDEM_BUSY;
		default:
			elog(ERROR, "unexpected state of a row of idem_actions: %d", result);
	}
}

/* raises 40001 where the version last probed is newer than the snapshot that
 * the whole transaction lives by */
void
idem_ledger_check_visible(IdemLedger *ledger)
{
	if (IsolationUsesXactSnapshot() &&
		!table_tuple_satisfies_snapshot(ledger->actions.rel, ledger->found,
										GetTransactionSnapshot()))
		raise_unserializable();
}

/* whether the version last probed is locked by this transaction and no other */
static bool
locked_by_us(IdemLedger *ledger)
{
	HeapTupleHeader header = ExecFetchSlotHeapTuple(ledger->found, false, NULL)->t_data;

	return HEAP_XMAX_IS_LOCKED_ONLY(header->t_infomask) &&
		!(header->t_infomask & HEAP_XMAX_IS_MULTI) &&
		TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetRawXmax(header));
}

/* locks the version last probed until the end of the transaction */
static IdemWrite
lock_version(IdemLedger *ledger, LockWaitPolicy policy)
{
	TM_FailureData failure;

	if (ledger->locked == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(ledger->actions.context);

		ledger->locked = table_slot_create(ledger->actions.rel, NULL);
		MemoryContextSwitchTo(old);
	}
	ledger->wrote = true;
	return write_result(table_tuple_lock(ledger->actions.rel, &ledger->found->tts_tid, SnapshotAny,
										 ledger->locked, GetCurrentCommandId(true),
										 LockTupleNoKeyExclusive, policy, 0, &failure));
}

/*
 * Locks the version last probed, so that what is added to the history is added
 * once.  With wait false an open holder makes it IDEM_BUSY.
 */
IdemWrite
idem_ledger_lock(IdemLedger *ledger, bool wait)
{
	idem_ledger_check_visible(ledger);
	return lock_version(ledger, wait ? LockWaitBlock : LockWaitSkip);
}

/*
 * Replaces the version last probed by "after".  "before" is what was read.
 * With wait false an open holder makes it IDEM_BUSY, otherwise it is waited
 * for; IDEM_CHANGED then says whether the decision still has its ground.
 */
IdemWrite
idem_ledger_update(IdemLedger *ledger, const IdemAction *before,
				   const IdemAction *after, bool wait)
{
	TupleTableSlot *slot;
	TM_FailureData failure;
	LockTupleMode lockmode;
	TU_UpdateIndexes update_indexes;
	IdemWrite	written;

	idem_ledger_check_visible(ledger);
	/* heap_update itself knows no way but to wait */
	if (!wait && !locked_by_us(ledger))
	{
		written = lock_version(ledger, LockWaitSkip);
		if (written != IDEM_WRITTEN)
			return written;
	}
	ledger->wrote = true;
	slot = idem_table_slot(&ledger->actions);
	values_from_action(after, slot->tts_values, slot->tts_isnull);
	ExecStoreVirtualTuple(slot);
	idem_confirm_note_write();
	CheckCmdReplicaIdentity(ledger->actions.rel, CMD_UPDATE);
	written = write_result(table_tuple_update(ledger->actions.rel, &ledger->found->tts_tid,
											  slot, GetCurrentCommandId(true), 0,
											  SnapshotAny, InvalidSnapshot, true,
											  &failure, &lockmode, &update_indexes));
	if (written != IDEM_WRITTEN)
		return written;
	idem_table_updated(&ledger->actions, &ledger->found->tts_tid, update_indexes);
	idem_queue_remove(before);
	idem_queue_add(after);
	tell_others(before, after);
	CommandCounterIncrement();
	return IDEM_WRITTEN;
}

/*
 * Removes the version last probed, where nobody else has it; the history goes
 * by idem_ledger_forget_past.  A final action has no entry in the queue.
 */
IdemWrite
idem_ledger_delete(IdemLedger *ledger)
{
	TM_FailureData failure;
	IdemWrite	written;

	idem_ledger_check_visible(ledger);
	ledger->wrote = true;
	CheckCmdReplicaIdentity(ledger->actions.rel, CMD_DELETE);
	written = write_result(table_tuple_delete(ledger->actions.rel, &ledger->found->tts_tid,
											  GetCurrentCommandId(true), 0, SnapshotAny,
											  InvalidSnapshot, locked_by_us(ledger), &failure));
	if (written == IDEM_WRITTEN)
	{
		idem_row_written(ledger->actions.rel, &ledger->found->tts_tid, NULL);
		CommandCounterIncrement();
	}
	return written;
}
