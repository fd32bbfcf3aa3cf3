/*-------------------------------------------------------------------------
 *
 * visible.c
 *	  Which intents a caller may see, and what the views show.
 *
 * A condition in the WHERE clause of a view hides rows from its result, not
 * from EXPLAIN: the planner pushes the caller's own conditions below it, and
 * the plan then tells how many rows they met, hidden ones included.  So each
 * view is made of two branches, of which sees_all() lets only one run:
 *
 *		SELECT * FROM idem.all_X WHERE idem.sees_all() AND ...
 *		UNION ALL
 *		SELECT * FROM idem.visible_X() WHERE NOT idem.sees_all()
 *
 * The first is an ordinary query, into which conditions are pushed.  The second
 * is a function: the caller's conditions apply to the rows that it returns, and
 * EXPLAIN does not look into it.  It reads the whole view each time.
 *
 * The first branch is planned for every caller.  No statistics are kept about
 * the columns of the tables (see 85_views.sql), so its estimates tell nothing
 * about hidden rows either.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/visible.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "visible.h"
#include "access.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "key.h"
#include "miscadmin.h"
#include "rule.h"
#include "settings.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

PG_FUNCTION_INFO_V1(idem_may_see);
PG_FUNCTION_INFO_V1(idem_sees_all);
PG_FUNCTION_INFO_V1(idem_visible_rows);

static bool
is_admin(Oid user)
{
	return idem_may_execute(user, "define_rule");
}

/*
 * The history of an intent outlives its rule.  Where a dropped rule named
 * roles, what is left of the intent is for administrators.
 */
static bool
sees_without_rule(text *intent, Oid user)
{
	ListCell   *lc;

	foreach(lc, idem_settings()->restricted)
	{
		if (idem_text_equal(lfirst(lc), intent))
			return is_admin(user);
	}
	return true;
}

/*
 * idem.may_see(intent, role): what the views are filtered by.  What belongs to
 * no intent is for everybody.
 */
Datum
idem_may_see(PG_FUNCTION_ARGS)
{
	Oid			role = PG_ARGISNULL(1) ? GetUserId() : PG_GETARG_OID(1);
	text	   *intent;
	const IdemRule *rule;

	if (PG_ARGISNULL(0))
		PG_RETURN_BOOL(true);
	intent = PG_GETARG_TEXT_PP(0);
	if (VARSIZE_ANY_EXHDR(intent) == 0)
		PG_RETURN_BOOL(true);
	idem_check_intent(intent);
	rule = idem_rule_of(VARDATA_ANY(intent), VARSIZE_ANY_EXHDR(intent), false);
	PG_RETURN_BOOL(rule->intent == NULL && !rule->is_missing ? sees_without_rule(intent, role) :
				   idem_rule_lets_see(rule, role));
}

/* whether what the caller may do by one rule, it may do by all of them */
static bool
all_rules_let(bool (*let) (const IdemRule *rule))
{
	ListCell   *lc;

	foreach(lc, idem_intents_with_rules())
	{
		text	   *intent = lfirst(lc);

		if (!let(idem_rule_of(VARDATA_ANY(intent), VARSIZE_ANY_EXHDR(intent), false)))
			return false;
	}
	return true;
}

/* may the caller decide about every intent?  Administrators make the rules. */
bool
idem_decides_on_every_intent(void)
{
	return is_admin(GetUserId()) ||
		(idem_is_operator(GetUserId()) && all_rules_let(idem_rule_lets_decide));
}

/* idem.sees_all(): whether no intent is hidden, those of dropped rules included */
Datum
idem_sees_all(PG_FUNCTION_ARGS)
{
	if (idem_is_owner(GetUserId()))
		PG_RETURN_BOOL(true);
	PG_RETURN_BOOL((idem_settings()->restricted == NIL || is_admin(GetUserId())) &&
				   all_rules_let(idem_rule_shows));
}

/* the view whose rows the function returns: that of its result type */
static char *
view_of(FunctionCallInfo fcinfo)
{
	Oid			view = get_typ_typrelid(get_func_rettype(fcinfo->flinfo->fn_oid));

	if (!OidIsValid(view))
		elog(ERROR, "visible_rows is declared without the view that it reads");
	return quote_qualified_identifier(get_namespace_name(get_rel_namespace(view)),
									  get_rel_name(view));
}

/*
 * idem.visible_X(): the rows of idem.all_X whose intent the caller may see.
 */
Datum
idem_visible_rows(PG_FUNCTION_ARGS)
{
	Oid			type = OIDOID;
	Datum		user = ObjectIdGetDatum(GetUserId());
	char	   *sql = psprintf("SELECT v.* FROM %s v WHERE idem.may_see(v.intent, $1)", view_of(fcinfo));

	InitMaterializedSRF(fcinfo, 0);
	idem_owner_return_query((ReturnSetInfo *) fcinfo->resultinfo, sql, 1, &type, &user);
	PG_RETURN_NULL();
}
