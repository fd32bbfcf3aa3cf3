/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  What idem_state says about the ledger as a whole, cached.
 *
 * A row of kind "system" names the cluster that a ledger was made in.  It goes
 * along in a dump, so a copy restored into another cluster finds a foreign one
 * and hands nothing out to takers until a person resumes it.
 *
 * Every hand-out asks for pauses and every confidential key for the current
 * secret, so each backend keeps them.  A statement trigger on idem_state sends
 * a relcache invalidation, as for the rules (see rule.c): it reaches the other
 * sessions at commit, the own one at once and again on rollback.
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
#include "access/xlog.h"
#include "table.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

/* columns of idem_state that are read here */
enum
{
	STATE_KIND,
	STATE_NAME,
	STATE_VALUE
};

static IdemSettings settings;
static MemoryContext context = NULL;
static bool valid = false;
static Oid	relid = InvalidOid;

static void
forget_settings(Datum arg, Oid changed)
{
	if (changed == relid || !OidIsValid(changed))
		valid = false;
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
	else if (idem_text_is(kind, "current"))
		settings.current_secret = TextDatumGetCString(slot->tts_values[STATE_VALUE]);
	else if (idem_text_is(kind, "secret"))
	{
		IdemUsedSecret *secret = palloc(sizeof(IdemUsedSecret));

		secret->id = TextDatumGetCString(name);
		secret->check = TextDatumGetCString(slot->tts_values[STATE_VALUE]);
		settings.used_secrets = lappend(settings.used_secrets, secret);
	}
	else if (idem_text_is(kind, "system"))
	{
		char		own[32];

		snprintf(own, sizeof(own), UINT64_FORMAT, GetSystemIdentifier());
		if (strcmp(TextDatumGetCString(slot->tts_values[STATE_VALUE]), own) != 0)
			settings.copied = true;
	}
	MemoryContextSwitchTo(old);
}

/* valid until the next call */
const IdemSettings *
idem_settings(void)
{
	Relation	rel;
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
	rel = table_open(idem_relation_oid("idem_state"), AccessShareLock);
	MemoryContextReset(context);
	memset(&settings, 0, sizeof(settings));
	relid = RelationGetRelid(rel);
	valid = true;

	/* not MVCC: neither the transaction's snapshot nor predicate locks */
	slot = table_slot_create(rel, NULL);
	scan = table_beginscan_strat(rel, SnapshotSelf, 0, NULL, true, false);
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		slot_getallattrs(slot);
		keep_row(slot);
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	table_close(rel, AccessShareLock);
	return &settings;
}
