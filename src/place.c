/*-------------------------------------------------------------------------
 *
 * place.c
 *	  The cluster and the database that a ledger is accepted in.
 *
 * A copy of a ledger must not hand out the actions of the original: a staging
 * copy would send real mail.  So the ledger keeps, in idem_state, where its
 * actions may be handed out to takers.
 *
 *	ledger		one row for each CREATE EXTENSION whose rows came together here;
 *				its name is a random uuid
 *	accepted	one row for each place that was accepted; its name is the system
 *				identifier, the database's OID and a digest of the ledgers that
 *				were there at the time, its value the server's timeline
 *
 * CREATE EXTENSION writes one of either kind.  Where no accepted row has the
 * name of the current place, the ledger is a copy until accept_copy() adds one:
 *
 *	another cluster, pg_upgrade		another system identifier
 *	CREATE DATABASE TEMPLATE		another database
 *	a dump restored anywhere		the ledger of the dump came beside the one that
 *	a logical subscriber			CREATE EXTENSION made: another set of ledgers
 *
 * Rows that a restore or a subscription brings have other names than those that
 * are there: they add, and neither replace nor collide.  A base backup and a
 * standby have the identity of the original, which failover needs; they start
 * with idem_action.start_paused where they are for anything else.
 *
 * Another timeline than the accepted one is the trace of a promotion or of a
 * recovery to an older moment, either of which may have lost the last commits.
 * That is said, and holds nothing.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/place.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "place.h"
#include "access.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "arg.h"
#include "catalog/pg_type.h"
#include "confirm.h"
#include "detail.h"
#include "digest.h"
#include "executor/spi.h"
#include "ledger.h"
#include "miscadmin.h"
#include "role.h"
#include "settings.h"
#include "utils/builtins.h"

#define DIGEST_BYTES 16			/* of the ledgers' digest, in hex */

PG_FUNCTION_INFO_V1(idem_place_name);
PG_FUNCTION_INFO_V1(idem_timeline);
PG_FUNCTION_INFO_V1(idem_accept_copy);
PG_FUNCTION_INFO_V1(idem_acknowledge_timeline);

static int
compare_names(const ListCell *a, const ListCell *b)
{
	return strcmp(lfirst(a), lfirst(b));
}

/* the name of the current place with these ledgers; sorts the list */
char *
idem_place(List *ledgers)
{
	StringInfoData buf;
	uint8		digest[IDEM_DIGEST_LENGTH];
	char		hex[2 * DIGEST_BYTES + 1];
	ListCell   *lc;

	list_sort(ledgers, compare_names);
	idem_digest_start(&buf, IDEM_FORMAT_LEDGERS);
	foreach(lc, ledgers)
		idem_digest_append(&buf, lfirst(lc), strlen(lfirst(lc)));
	idem_sha256(&buf, digest);
	for (int i = 0; i < DIGEST_BYTES; i++)
		snprintf(hex + 2 * i, 3, "%02x", digest[i]);
	return psprintf(UINT64_FORMAT "/%u/%s", GetSystemIdentifier(), MyDatabaseId, hex);
}

Datum
idem_place_name(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(idem_settings()->place));
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

/*
 * The accepted timeline, where the server writes another one; otherwise 0.  Not
 * kept with the settings: a session may see the promotion of its server.
 */
TimeLineID
idem_left_timeline(void)
{
	TimeLineID	accepted = idem_settings()->timeline;
	TimeLineID	current = current_timeline();

	return current != 0 && current != accepted ? accepted : 0;
}

#define SQL_ACCEPT \
	"INSERT INTO idem.idem_state (kind, name, value, role, actor, since)" \
	" VALUES ('accepted', $1, $2, $3, $4, pg_catalog.clock_timestamp()) ON CONFLICT DO NOTHING"
#define SQL_ACKNOWLEDGE \
	"UPDATE idem.idem_state SET value = $2, role = $3, actor = $4, since = pg_catalog.clock_timestamp()" \
	" WHERE kind OPERATOR(pg_catalog.=) 'accepted' AND name OPERATOR(pg_catalog.=) $1 AND value OPERATOR(pg_catalog.<>) $2"

/*
 * Runs one of them for the current place and timeline, as the ledger's owner;
 * records the event where that changed anything.
 */
static void
change_place(const char *sql, int expected, const char *what, text *actor)
{
	Oid			types[4] = {TEXTOID, TEXTOID, TEXTOID, TEXTOID};
	Datum		values[4];
	char		nulls[4] = {' ', ' ', ' ', actor == NULL ? 'n' : ' '};
	IdemOwner	caller;
	bool		changed;

	values[0] = CStringGetTextDatum(idem_settings()->place);
	values[1] = CStringGetTextDatum(psprintf("%u", current_timeline()));
	values[2] = CStringGetTextDatum(GetUserNameFromId(GetUserId(), false));
	values[3] = PointerGetDatum(actor);

	SPI_connect();
	idem_owner_enter(&caller);
	idem_run(sql, 4, types, values, nulls, expected);
	changed = SPI_processed > 0;
	idem_owner_leave(&caller);
	SPI_finish();

	if (changed)
	{
		IdemEvent	event = {.event = what,.actor = actor};
		StringInfoData detail;

		idem_detail_start(&detail);
		idem_detail_add_text(&detail, "system", cstring_to_text(psprintf(UINT64_FORMAT, GetSystemIdentifier())));
		idem_detail_add_int(&detail, "database", MyDatabaseId);
		idem_detail_add_int(&detail, "timeline", current_timeline());
		event.detail = idem_detail_end(&detail);
		idem_ledger_append(&event);
	}
	else
		idem_confirm_all();
}

/* a repeat changes and records nothing, here and below */
Datum
idem_accept_copy(PG_FUNCTION_ARGS)
{
	change_place(SQL_ACCEPT, SPI_OK_INSERT, "copy_accepted", idem_arg_label(fcinfo, 0));
	if (idem_roles_accept())
		ForceSyncCommit();
	PG_RETURN_VOID();
}

void
idem_acknowledge_left_timeline(text *actor)
{
	change_place(SQL_ACKNOWLEDGE, SPI_OK_UPDATE, "timeline_acknowledged", actor);
}

Datum
idem_acknowledge_timeline(PG_FUNCTION_ARGS)
{
	idem_acknowledge_left_timeline(idem_arg_label(fcinfo, 0));
	PG_RETURN_VOID();
}
