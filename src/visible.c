/*-------------------------------------------------------------------------
 *
 * visible.c
 *	  What the views show to a caller who may not see every intent.
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
#include "access.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "rule.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

PG_FUNCTION_INFO_V1(idem_sees_all);
PG_FUNCTION_INFO_V1(idem_visible_rows);

/* idem.sees_all(): whether no intent is hidden from the caller */
Datum
idem_sees_all(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(idem_sees_every_intent());
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
