/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  What idem_state says about the ledger as a whole, cached.
 *
 * A row of kind "system" names the cluster that a ledger was made in.  It goes
 * along in a dump, so a copy restored into another cluster finds a foreign one
 * and hands nothing out to takers until a person resumes it.  A row of kind
 * "timeline" names the server's timeline in the same way: another one is the
 * trace of a promotion or of a recovery to an older moment, which may both have
 * lost the last commits.
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
#include "access.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
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
	STATE_NCOLS = 7
};

PG_FUNCTION_INFO_V1(idem_timeline);

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

/* the timeline that this server writes; a standby writes none */
static TimeLineID
current_timeline(void)
{
	return RecoveryInProgress() ? 0 : GetWALInsertionTimeLine();
}

Datum
idem_timeline(PG_FUNCTION_ARGS)
{
	TimeLineID	timeline = current_timeline();

	if (timeline == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(timeline);
}

#define SQL_ADOPT \
	"UPDATE idem.idem_state SET value = $2" \
	" WHERE kind OPERATOR(pg_catalog.=) $1 AND value OPERATOR(pg_catalog.<>) $2"

/*
 * Says that this server's system or timeline is the ledger's; true where that
 * is news.  Caller is connected to SPI, as the owner.
 */
bool
idem_adopt(const char *kind)
{
	Oid			types[2] = {TEXTOID, TEXTOID};
	Datum		values[2];
	char		nulls[2] = {' ', ' '};
	uint64		own = strcmp(kind, "system") == 0 ? GetSystemIdentifier() : current_timeline();

	values[0] = CStringGetTextDatum(kind);
	values[1] = CStringGetTextDatum(psprintf(UINT64_FORMAT, own));
	idem_run(SQL_ADOPT, 2, types, values, nulls, SPI_OK_UPDATE);
	return SPI_processed > 0;
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
	else if (idem_text_is(kind, "timeline"))
	{
		TimeLineID	known = strtoul(TextDatumGetCString(slot->tts_values[STATE_VALUE]), NULL, 10);

		if (known != current_timeline())
			settings.left_timeline = known;
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
	rel = idem_relation_open("idem_state", STATE_NCOLS, AccessShareLock);
	MemoryContextReset(context);
	memset(&settings, 0, sizeof(settings));
	relid = RelationGetRelid(rel);
	changed_meanwhile = false;

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
	/* only now: the scan may have been cancelled, and told of changes */
	valid = !changed_meanwhile;
	return &settings;
}
