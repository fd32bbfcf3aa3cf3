/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  What idem_state says about the ledger as a whole, cached.
 *
 * Every hand-out asks for pauses and every confidential key for the current
 * secret, so each backend keeps them.  A trigger on idem_state sends
 * a relcache invalidation, as for the rules (see rule.c): it reaches the other
 * sessions at commit, the own one at once and again on rollback.
 *
 * The rows that say where the ledger is accepted are explained in place.c.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/settings.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "settings.h"
#include "access/table.h"
#include "place.h"
#include "table.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

/* columns of idem_state; the others are for people */
enum
{
	STATE_KIND,
	STATE_NAME,
	STATE_VALUE,
	STATE_SINCE = 6,
	STATE_NCOLS
};

static IdemSettings settings;
static MemoryContext context = NULL;
static bool valid = false;
static bool changed_meanwhile;
static Oid	relid = InvalidOid;

static void
forget_settings(Datum arg, Oid changed)
{
	if (changed == relid || !OidIsValid(changed))
	{
		valid = false;
		changed_meanwhile = true;
	}
}

/* a row of idem_state; what it keeps is in the cache's context */
static void
keep_row(TupleTableSlot *slot)
{
	text	   *kind = DatumGetTextPP(slot->tts_values[STATE_KIND]);
	Datum		name = slot->tts_values[STATE_NAME];
	MemoryContext old = MemoryContextSwitchTo(context);

	if (idem_text_is(kind, "pause"))
		settings.paused = lappend(settings.paused, DatumGetTextPCopy(name));
	else if (idem_text_is(kind, "restricted"))
		settings.restricted = lappend(settings.restricted, DatumGetTextPCopy(name));
	else if (idem_text_is(kind, "ruled"))
		settings.ruled = lappend(settings.ruled, DatumGetTextPCopy(name));
	else if (idem_text_is(kind, "current"))
		settings.current_secret = TextDatumGetCString(slot->tts_values[STATE_VALUE]);
	else if (idem_text_is(kind, "secret"))
	{
		IdemUsedSecret *secret = palloc(sizeof(IdemUsedSecret));

		secret->id = TextDatumGetCString(name);
		secret->check = TextDatumGetCString(slot->tts_values[STATE_VALUE]);
		settings.used_secrets = lappend(settings.used_secrets, secret);
	}
	else if (idem_text_is(kind, "clock"))
		settings.known_time = Max(settings.known_time,
								  DatumGetTimestampTz(slot->tts_values[STATE_SINCE]));
	else if (idem_text_is(kind, "ledger"))
		settings.ledgers = lappend(settings.ledgers, TextDatumGetCString(name));
	else if (idem_text_is(kind, "accepted"))
	{
		IdemAcceptedPlace *place = palloc(sizeof(IdemAcceptedPlace));

		place->name = TextDatumGetCString(name);
		place->timeline = strtoul(TextDatumGetCString(slot->tts_values[STATE_VALUE]), NULL, 10);
		settings.accepted = lappend(settings.accepted, place);
	}
	MemoryContextSwitchTo(old);
}

/* once all rows are there: where we are, and whether that was accepted */
static void
find_place(void)
{
	MemoryContext old = MemoryContextSwitchTo(context);
	ListCell   *lc;

	settings.place = idem_place(settings.ledgers);
	settings.copied = true;
	foreach(lc, settings.accepted)
	{
		const IdemAcceptedPlace *place = lfirst(lc);

		if (strcmp(place->name, settings.place) == 0)
		{
			settings.copied = false;
			settings.timeline = place->timeline;
		}
	}
	MemoryContextSwitchTo(old);
}

/* valid until the next call */
const IdemSettings *
idem_settings(void)
{
	Relation	rel;
	Snapshot	snapshot;
	TableScanDesc scan;
	TupleTableSlot *slot;

	if (valid)
		return &settings;
	if (context == NULL)
	{
		context = AllocSetContextCreate(CacheMemoryContext, "idem_action settings",
										ALLOCSET_SMALL_SIZES);
		CacheRegisterRelcacheCallback(forget_settings, (Datum) 0);
	}
	rel = idem_relation_open("idem_state", STATE_NCOLS, AccessShareLock);
	MemoryContextReset(context);
	memset(&settings, 0, sizeof(settings));
	relid = RelationGetRelid(rel);
	changed_meanwhile = false;

	/*
	 * The latest MVCC snapshot: an other one could miss a row that is just
	 * being replaced, so that a pause or the current secret would be missing.
	 * Each version is asked for its visibility, since a scan by a MVCC
	 * snapshot would take predicate locks.
	 */
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	slot = table_slot_create(rel, NULL);
	scan = table_beginscan_strat(rel, SnapshotAny, 0, NULL, true, false);
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		if (!table_tuple_satisfies_snapshot(rel, slot, snapshot))
			continue;
		slot_getallattrs(slot);
		keep_row(slot);
	}
	table_endscan(scan);
	UnregisterSnapshot(snapshot);
	ExecDropSingleTupleTableSlot(slot);
	table_close(rel, AccessShareLock);
	find_place();
	/* only now: the scan may have been cancelled, and told of changes */
	valid = !changed_meanwhile;
	return &settings;
}
