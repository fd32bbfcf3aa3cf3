/*-------------------------------------------------------------------------
 *
 * history.c
 *	  The history of actions: append to it, read it, take things out.
 *
 * idem_events holds what a row does not tell: ended attempts, reports that came
 * too late, decisions.  A straight life writes nothing here.
 *
 * Lines of an action are written and removed under its row's lock, so a walk
 * with a dirty snapshot by whoever holds that lock sees all of them and nobody
 * else's half.  A crash leaves a line exactly where it leaves the change that
 * the line is about.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/history.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "access.h"
#include "access/heapam.h"
#include "access/relscan.h"
#include "access/table.h"
#include "access/xact.h"
#include "commands/sequence.h"
#include "detail.h"
#include "executor/tuptable.h"
#include "ledger.h"
#include "miscadmin.h"
#include "table.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

/* columns of idem_events */
enum
{
	EV_ID,
	EV_AT,
	EV_ACTION_ID,
	EV_GENERATION,
	EV_ATTEMPT,
	EV_DURING,
	EV_CLAIM_ID,
	EV_CLAIMED_AT,
	EV_INTENT,
	EV_EVENT,
	EV_ROLE,
	EV_ACTOR,
	EV_WORKER,
	EV_SOURCE,
	EV_EVENT_ID,
	EV_DETAIL,
	EV_CONTENT,
	EVENT_NCOLS
};

#define MAX_TRIES 1000

/*
 * Sets the sequence of ids to the highest there is: after a switch to a logical
 * subscriber, which gets rows but no sequences, it lags behind.
 */
static void
catch_up_ids(Relation rel, Oid sequence)
{
	Relation	index = index_open(idem_relation_oid("idem_events_pkey"), AccessShareLock);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	IndexScanDesc scan = index_beginscan(rel, index, SnapshotAny, NULL, 0, 0, 0);
	IdemOwner	caller;

	index_rescan(scan, NULL, 0, NULL, 0);
	if (index_getnext_slot(scan, BackwardScanDirection, slot))
	{
		bool		isnull;
		int64		highest = DatumGetInt64(slot_getattr(slot, EV_ID + 1, &isnull));

		/* another session may have caught up meanwhile: never set it back */
		idem_owner_enter(&caller);
		if (nextval_internal(sequence, false) < highest)
			(void) DirectFunctionCall2(setval_oid, ObjectIdGetDatum(sequence), Int64GetDatum(highest));
		idem_owner_leave(&caller);
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, AccessShareLock);
}

/*
 * "during" is the attempt that the action had reached when it happened; an id of
 * 0 is a new one, after all others.
 */
static void
append(const IdemEvent *event, int64 id, int32 during)
{
	IdemTable	events;
	TupleTableSlot *slot;
	Datum	   *v;
	bool	   *n;
	Oid			sequence;

	idem_table_open(&events, "idem_events", EVENT_NCOLS, RowExclusiveLock);
	slot = idem_table_slot(&events);
	v = slot->tts_values;
	n = slot->tts_isnull;
	memset(n, true, EVENT_NCOLS * sizeof(bool));

	sequence = idem_relation_oid("idem_events_id_seq");
	v[EV_ID] = Int64GetDatum(id > 0 ? id : nextval_internal(sequence, false));
	v[EV_AT] = TimestampTzGetDatum(event->at != 0 ? event->at : GetCurrentTimestamp());
	n[EV_ID] = n[EV_AT] = false;
	if (event->action != NULL)
	{
		idem_put_uuid(v, n, EV_ACTION_ID, &event->action->action_id);
		idem_put_pointer(v, n, EV_INTENT, event->action->intent);
		v[EV_GENERATION] = Int32GetDatum(event->generation > 0 ? event->generation :
										 event->action->generation);
		v[EV_ATTEMPT] = Int32GetDatum(event->attempt);
		v[EV_DURING] = Int32GetDatum(during);
		n[EV_GENERATION] = n[EV_ATTEMPT] = n[EV_DURING] = false;
		idem_put_uuid(v, n, EV_CLAIM_ID, &event->claim_id);
		if (event->claimed_at != 0)
			idem_put(v, n, EV_CLAIMED_AT, TimestampTzGetDatum(event->claimed_at));
	}
	else if (event->intent != NULL)
		idem_put_pointer(v, n, EV_INTENT, cstring_to_text(event->intent));
	idem_put_pointer(v, n, EV_EVENT, cstring_to_text(event->event));
	idem_put_pointer(v, n, EV_ROLE, cstring_to_text(GetUserNameFromId(GetUserId(), false)));
	idem_put_pointer(v, n, EV_ACTOR, event->actor);
	idem_put_pointer(v, n, EV_WORKER, event->worker);
	idem_put_pointer(v, n, EV_SOURCE, event->source);
	idem_put_pointer(v, n, EV_EVENT_ID, event->event_id);
	idem_put_pointer(v, n, EV_DETAIL, event->detail);
	idem_put_pointer(v, n, EV_CONTENT, event->content);
	ExecStoreVirtualTuple(slot);
	for (int tries = 0; !idem_table_insert(&events, true); tries++)
	{
		/* somebody else may be catching up at the same time */
		if (tries == MAX_TRIES)
			elog(ERROR, "found no free id for a line of the history");
		CommandCounterIncrement();
		idem_table_retract(events.rel, &slot->tts_tid);
		CommandCounterIncrement();
		catch_up_ids(events.rel, sequence);
		v[EV_ID] = Int64GetDatum(nextval_internal(sequence, false));
	}
	idem_table_close(&events, NoLock);
	CommandCounterIncrement();
}

/*
 * Appends a line to the history.  Where it is about an action, the caller has
 * just written or locked the action's row.  Other lines tell that a rule, a
 * right, a secret or a pause was changed: a crash must not undo what a person
 * relies on, so that commit is forced to disk.
 */
void
idem_ledger_append(const IdemEvent *event)
{
	append(event, 0, event->action != NULL ? event->action->attempt : 0);
	if (event->action == NULL)
		ForceSyncCommit();
}

/* a walk over the events of one action, in the order they were written */
typedef struct EventWalk
{
	Relation	rel;
	Relation	index;
	SnapshotData dirty;
	IndexScanDesc scan;
	TupleTableSlot *slot;
} EventWalk;

static void
walk_start(EventWalk *walk, const pg_uuid_t *id, LOCKMODE lockmode)
{
	ScanKeyData key;

	walk->rel = idem_relation_open("idem_events", EVENT_NCOLS, lockmode);
	walk->index = index_open(idem_relation_oid("idem_events_action"), lockmode);
	walk->slot = table_slot_create(walk->rel, NULL);
	InitDirtySnapshot(walk->dirty);
	walk->scan = index_beginscan(walk->rel, walk->index, &walk->dirty, NULL, 1, 0, 0);
	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(id));
	index_rescan(walk->scan, &key, 1, NULL, 0);
}

static bool
walk_next(EventWalk *walk)
{
	while (index_getnext_slot(walk->scan, ForwardScanDirection, walk->slot))
	{
		if (!TransactionIdIsValid(walk->dirty.xmin))
			return true;
	}
	return false;
}

static void
walk_end(EventWalk *walk)
{
	index_endscan(walk->scan);
	ExecDropSingleTupleTableSlot(walk->slot);
	index_close(walk->index, NoLock);
	table_close(walk->rel, NoLock);
}

static char *
get_string(TupleTableSlot *slot, int column)
{
	return slot->tts_isnull[column] ? NULL : TextDatumGetCString(slot->tts_values[column]);
}

/*
 * The action's history, oldest first, as a list of IdemPast.  Events are
 * written under the row's lock: a caller that has to see all of them holds it.
 */
List *
idem_ledger_past(const pg_uuid_t *id)
{
	EventWalk	walk;
	List	   *past = NIL;

	walk_start(&walk, id, AccessShareLock);
	while (walk_next(&walk))
	{
		TupleTableSlot *slot = walk.slot;
		IdemPast   *line = palloc0(sizeof(IdemPast));

		slot_getallattrs(slot);
		line->id = DatumGetInt64(slot->tts_values[EV_ID]);
		line->at = DatumGetTimestampTz(slot->tts_values[EV_AT]);
		line->event = TextDatumGetCString(slot->tts_values[EV_EVENT]);
		if (!slot->tts_isnull[EV_CLAIMED_AT])
			line->claimed_at = DatumGetTimestampTz(slot->tts_values[EV_CLAIMED_AT]);
		line->role = TextDatumGetCString(slot->tts_values[EV_ROLE]);
		line->actor = get_string(slot, EV_ACTOR);
		line->worker = get_string(slot, EV_WORKER);
		line->source = get_string(slot, EV_SOURCE);
		line->event_id = get_string(slot, EV_EVENT_ID);
		idem_get_uuid(slot->tts_values, slot->tts_isnull, EV_CLAIM_ID, &line->claim_id);
		line->generation = DatumGetInt32(slot->tts_values[EV_GENERATION]);
		line->attempt = DatumGetInt32(slot->tts_values[EV_ATTEMPT]);
		line->during = DatumGetInt32(slot->tts_values[EV_DURING]);
		if (!slot->tts_isnull[EV_DETAIL])
			line->detail = DatumGetJsonbPCopy(slot->tts_values[EV_DETAIL]);
		past = lappend(past, line);
	}
	walk_end(&walk);
	return past;
}

/*
 * The history goes with the row, at most so many lines; returns how many.
 * Caller holds the row's lock.
 */
int
idem_ledger_forget_past(const pg_uuid_t *id, int max)
{
	EventWalk	walk;
	int			gone = 0;

	walk_start(&walk, id, RowExclusiveLock);
	while (gone < max && walk_next(&walk))
	{
		CHECK_FOR_INTERRUPTS();
		idem_table_delete(walk.rel, &walk.slot->tts_tid);
		gone++;
	}
	walk_end(&walk);
	CommandCounterIncrement();
	return gone;
}

/* what a purge takes out of a line's detail, and what an erasure does besides */
static const char *const free_texts[] = {"error", "draft_digest", "reason", "note"};
#define NPURGED 2

static bool
holds_contents(TupleTableSlot *slot, int nkinds)
{
	slot_getallattrs(slot);
	if (!slot->tts_isnull[EV_CONTENT])
		return true;
	for (int i = 0; i < nkinds && !slot->tts_isnull[EV_DETAIL]; i++)
	{
		if (DatumGetBool(DirectFunctionCall2(jsonb_exists, slot->tts_values[EV_DETAIL],
											 CStringGetTextDatum(free_texts[i]))))
			return true;
	}
	return false;
}

/*
 * Takes the contents out of the history of an action that is purged, error
 * texts with them, and with "texts" also what people and workers have noted, of
 * one that is erased; who did what and when stays.  Changes at most so many lines
 * and returns how many.  Caller holds the row's lock.
 */
int
idem_ledger_redact_past(const pg_uuid_t *id, bool texts, int max)
{
	int			nkinds = texts ? (int) lengthof(free_texts) : NPURGED;
	EventWalk	walk;
	IdemTable	events;
	List	   *lines = NIL;
	ListCell   *lc;

	/* all of them first: the walk would meet what the updates write */
	walk_start(&walk, id, RowExclusiveLock);
	while (list_length(lines) < max && walk_next(&walk))
	{
		CHECK_FOR_INTERRUPTS();
		if (holds_contents(walk.slot, nkinds))
			lines = lappend(lines, ExecCopySlotHeapTuple(walk.slot));
	}
	walk_end(&walk);

	idem_table_open(&events, "idem_events", EVENT_NCOLS, RowExclusiveLock);
	foreach(lc, lines)
	{
		HeapTuple	line = lfirst(lc);
		TupleTableSlot *slot = idem_table_slot(&events);

		heap_deform_tuple(line, RelationGetDescr(events.rel), slot->tts_values, slot->tts_isnull);
		slot->tts_isnull[EV_CONTENT] = true;
		for (int i = 0; i < nkinds && !slot->tts_isnull[EV_DETAIL]; i++)
			slot->tts_values[EV_DETAIL] =
				DirectFunctionCall2(jsonb_delete, slot->tts_values[EV_DETAIL],
									CStringGetTextDatum(free_texts[i]));
		ExecStoreVirtualTuple(slot);
		idem_table_update(&events, &line->t_self);
	}
	idem_table_close(&events, NoLock);
	CommandCounterIncrement();
	return list_length(lines);
}

/*-------------------------------------------------------------------------
 * Thinning
 *
 * One action that is claimed and released for ever, revised for ever, or met by
 * one late report after the other would make its own history the costliest thing
 * in the ledger: every decision reads it, and a purge rewrites it.  So the middle
 * of a long history goes: lines that no later call can need, between the first
 * and the last ones.  One line "thinned" stands in their place and says how many
 * there were of which kind, and when.
 *-------------------------------------------------------------------------
 */

#define KEPT_FIRST 100
#define KEPT_LAST 400

typedef struct ThinLine
{
	ItemPointerData tid;
	int64		id;
	TimestampTz at;
	char	   *event;
	int32		generation;
	int32		during;
	char	   *role;
	char	   *actor;			/* or NULL */
	Jsonb	   *detail;
} ThinLine;

static const char *const routine_events[] = {
	"expired", "failed", "released", "searched", "redelivered", "revised", "thinned"
};

#define NROUTINE lengthof(routine_events)

/*
 * Which kind of routine a line is, or -1 where it stays: what succeeded and what
 * people decided always does, and of the current attempt all but reports that
 * were kept as evidence, and drafts replaced since.
 */
static int
routine_of(const ThinLine *line, const IdemAction *action)
{
	bool		current = line->generation == action->generation && line->during == action->attempt;

	for (int i = 0; i < (int) NROUTINE; i++)
	{
		if (strcmp(line->event, routine_events[i]) != 0)
			continue;
		if (current && strcmp(line->event, "revised") != 0 && strcmp(line->event, "thinned") != 0 &&
			idem_detail_bool(line->detail, "accepted"))
			return -1;
		return i;
	}
	return -1;
}

/* the lines of an action's history, in order, as an array */
static ThinLine *
read_lines(const pg_uuid_t *id, int *n)
{
	EventWalk	walk;
	int			room = 1024;
	ThinLine   *lines = palloc(room * sizeof(ThinLine));

	*n = 0;
	walk_start(&walk, id, AccessShareLock);
	while (walk_next(&walk))
	{
		TupleTableSlot *slot = walk.slot;
		ThinLine   *line;

		CHECK_FOR_INTERRUPTS();
		if (*n == room)
			lines = repalloc_huge(lines, (room *= 2) * sizeof(ThinLine));
		line = &lines[(*n)++];
		slot_getallattrs(slot);
		line->tid = slot->tts_tid;
		line->id = DatumGetInt64(slot->tts_values[EV_ID]);
		line->at = DatumGetTimestampTz(slot->tts_values[EV_AT]);
		line->event = TextDatumGetCString(slot->tts_values[EV_EVENT]);
		line->generation = DatumGetInt32(slot->tts_values[EV_GENERATION]);
		line->during = DatumGetInt32(slot->tts_values[EV_DURING]);
		line->role = TextDatumGetCString(slot->tts_values[EV_ROLE]);
		line->actor = get_string(slot, EV_ACTOR);
		line->detail = slot->tts_isnull[EV_DETAIL] ? NULL :
			DatumGetJsonbPCopy(slot->tts_values[EV_DETAIL]);
	}
	walk_end(&walk);
	return lines;
}

/* whether a line tells of a person's first revision: an approval asks who had one */
static bool
is_first_revision(const ThinLine *lines, int at)
{
	if (strcmp(lines[at].event, "revised") != 0)
		return false;
	for (int i = 0; i < at; i++)
	{
		if (strcmp(lines[i].event, "revised") == 0 && strcmp(lines[i].role, lines[at].role) == 0 &&
			(lines[i].actor == NULL ? lines[at].actor == NULL :
			 lines[at].actor != NULL && strcmp(lines[i].actor, lines[at].actor) == 0))
			return false;
	}
	return true;
}

/*
 * Thins the history of an action where it is long.  Caller holds the row's lock;
 * "action" is the row as it is now.
 */
void
idem_ledger_thin_past(const IdemAction *action)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "idem_action history",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext outer = MemoryContextSwitchTo(context);
	int64		counts[NROUTINE] = {0};
	int64		total = 0;
	int64		made = 0;
	TimestampTz first = DT_NOEND;
	const ThinLine *last = NULL;
	ThinLine   *lines;
	Relation	rel;
	int			n;

	lines = read_lines(&action->action_id, &n);
	rel = idem_relation_open("idem_events", EVENT_NCOLS, RowExclusiveLock);
	for (int i = KEPT_FIRST; i < n - KEPT_LAST; i++)
	{
		const ThinLine *line = &lines[i];
		int			kind = routine_of(line, action);

		if (kind < 0 || is_first_revision(lines, i))
			continue;
		idem_table_delete(rel, &lines[i].tid);
		if (strcmp(line->event, "thinned") == 0)
		{
			for (int k = 0; k < (int) NROUTINE; k++)
				counts[k] += idem_detail_int(line->detail, routine_events[k]);
			total += idem_detail_int(line->detail, "lines");
			first = Min(first, idem_detail_time(line->detail, "first"));
		}
		else
		{
			counts[kind]++;
			total++;
			first = Min(first, line->at);
		}
		made = Max(made, idem_detail_int(line->detail, "made"));
		last = line;
	}
	table_close(rel, NoLock);
	CommandCounterIncrement();
	if (last != NULL)
	{
		IdemEvent	event = {
			.event = "thinned",
			.at = last->at,
			.action = action,
			.generation = last->generation,
		};
		StringInfoData d;

		idem_detail_start(&d);
		idem_detail_add_int(&d, "lines", total);
		for (int k = 0; k < (int) NROUTINE; k++)
		{
			if (counts[k] > 0)
				idem_detail_add_int(&d, routine_events[k], counts[k]);
		}
		idem_detail_add_time(&d, "first", first);
		idem_detail_add_time(&d, "last", last->at);
		/* stands for the decisions among them */
		if (made > 0)
			idem_detail_add_int(&d, "made", made);
		event.detail = idem_detail_end(&d);
		append(&event, last->id, last->during);
	}
	MemoryContextSwitchTo(outer);
	MemoryContextDelete(context);
}
