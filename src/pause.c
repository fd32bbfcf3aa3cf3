/*-------------------------------------------------------------------------
 *
 * pause.c
 *	  Intents that hand nothing out for the time being.
 *
 * A pause is a row of idem_state, by the name of the intent or '' for all of
 * them.  A hand-out that had its table lock before the pause committed may
 * still go through.
 *
 * idem_action.start_paused holds all of them too, in a server that may be a
 * physical copy: what it lets nobody do must be known before anybody connects,
 * so it is a setting and no row.  No call lifts it.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/pause.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "pause.h"
#include "access.h"
#include "arg.h"
#include "catalog/pg_type.h"
#include "confirm.h"
#include "detail.h"
#include "errors.h"
#include "executor/spi.h"
#include "key.h"
#include "ledger.h"
#include "miscadmin.h"
#include "rule.h"
#include "settings.h"
#include "utils/builtins.h"
#include "visible.h"

PG_FUNCTION_INFO_V1(idem_pause_intent);
PG_FUNCTION_INFO_V1(idem_resume_intent);

bool
idem_is_paused(text *intent)
{
	ListCell   *lc;

	if (idem_start_paused)
		return true;
	foreach(lc, idem_settings()->paused)
	{
		text	   *name = lfirst(lc);

		if (VARSIZE_ANY_EXHDR(name) == 0 || idem_text_equal(name, intent))
			return true;
	}
	return false;
}

#define SQL_PAUSE \
	"INSERT INTO idem.idem_state (kind, name, reason, role, actor, since)" \
	" VALUES ('pause', $1, $2, $3, $4, pg_catalog.clock_timestamp()) ON CONFLICT DO NOTHING"
#define SQL_RESUME \
	"DELETE FROM idem.idem_state WHERE kind OPERATOR(pg_catalog.=) 'pause' AND name OPERATOR(pg_catalog.=) $1"

/* pause and resume; a repeat changes and records nothing */
static void
change_pause(text *intent, text *reason, text *actor, bool pause)
{
	Oid			types[4] = {TEXTOID, TEXTOID, TEXTOID, TEXTOID};
	Datum		values[4];
	char		nulls[4] = {' ', ' ', ' ', ' '};
	char	   *role = GetUserNameFromId(GetUserId(), false);
	IdemOwner	caller;
	bool		changed;

	if (intent != NULL)
	{
		idem_check_intent(intent);
		if (!idem_rule_lets_decide(idem_rule_of(VARDATA_ANY(intent), VARSIZE_ANY_EXHDR(intent), true)))
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_NOT_PERMITTED),
					 errmsg("intent \"%s\" is for its resolvers to pause and resume",
							idem_shown_text(intent))));
	}
	else if (!idem_decides_on_every_intent())
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_NOT_PERMITTED),
				 errmsg("permission denied to pause or resume all intents"),
				 errdetail("It takes level admin, or membership in the resolver_role of every rule that has one."),
				 errhint("Pause and resume intents by their names.")));
	else
		intent = cstring_to_text("");
	values[0] = PointerGetDatum(intent);
	values[1] = PointerGetDatum(reason);
	values[2] = CStringGetTextDatum(role);
	values[3] = PointerGetDatum(actor);
	if (reason == NULL)
		nulls[1] = 'n';
	if (actor == NULL)
		nulls[3] = 'n';

	SPI_connect();
	idem_owner_enter(&caller);
	if (pause)
		idem_run(SQL_PAUSE, 4, types, values, nulls, SPI_OK_INSERT);
	else
		idem_run(SQL_RESUME, 1, types, values, nulls, SPI_OK_DELETE);
	changed = SPI_processed > 0;
	idem_owner_leave(&caller);
	SPI_finish();

	if (changed)
	{
		IdemEvent	event = {
			.event = pause ? "paused" : "resumed",
			.intent = text_to_cstring(intent),
			.actor = actor,
		};
		StringInfoData detail;

		idem_detail_start(&detail);
		idem_detail_add_text(&detail, "reason", reason);
		event.detail = idem_detail_end(&detail);
		idem_ledger_append(&event);
	}
	else
		idem_confirm_all();
}

Datum
idem_pause_intent(PG_FUNCTION_ARGS)
{
	text	   *reason = idem_arg_sentence(fcinfo, 1, "reason", "Say why, for whoever finds the intent paused.");

	change_pause(idem_arg_text(fcinfo, 0), reason, idem_arg_label(fcinfo, 2), true);
	PG_RETURN_VOID();
}

Datum
idem_resume_intent(PG_FUNCTION_ARGS)
{
	change_pause(idem_arg_text(fcinfo, 0), NULL, idem_arg_label(fcinfo, 1), false);
	PG_RETURN_VOID();
}
