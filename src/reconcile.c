/*-------------------------------------------------------------------------
 *
 * reconcile.c
 *	  Comparing an intent with the provider's statement: what stands only in
 *	  one of them, and what stands twice.
 *
 * A reference counts as known if an action has it, or if its history tells that
 * one was reported: of two successes of one action the row keeps the first.
 * References have no index, as one would end HOT updates (see ledger.c), so the
 * call reads both tables as a whole, once.
 *
 * It only reads, by the snapshot of the calling statement, and waits for nobody.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/reconcile.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "access.h"
#include "arg.h"
#include "blank.h"
#include "catalog/pg_type.h"
#include "errors.h"
#include "funcapi.h"
#include "key.h"
#include "miscadmin.h"
#include "request.h"
#include "rule.h"
#include "utils/array.h"
#include "utils/builtins.h"

/*
 * $1 intent, $2 the statement's references, $3 since.  What the history tells
 * belongs to the generation in which it was told: a rerun is a second effect on
 * purpose.
 */
#define SQL_RECONCILE \
	"WITH statement AS MATERIALIZED (" \
	" SELECT r.ref, pg_catalog.count(*) AS n" \
	" FROM (SELECT u COLLATE pg_catalog.\"C\" AS ref FROM pg_catalog.unnest($2) u) r GROUP BY r.ref" \
	"), known AS MATERIALIZED (" \
	" SELECT a.external_ref COLLATE pg_catalog.\"C\" AS ref, a.action_id, a.generation FROM idem.idem_actions a" \
	" WHERE a.intent OPERATOR(pg_catalog.=) $1 AND a.external_ref IS NOT NULL" \
	" UNION" \
	" SELECT (e.detail OPERATOR(pg_catalog.->>) 'external_ref') COLLATE pg_catalog.\"C\", e.action_id, e.generation FROM idem.idem_events e" \
	" WHERE e.intent OPERATOR(pg_catalog.=) $1 AND e.action_id IS NOT NULL AND (e.detail OPERATOR(pg_catalog.->>) 'external_ref') IS NOT NULL" \
	"), matched AS MATERIALIZED (" \
	" SELECT s.ref, s.n, k.action_id, k.generation," \
	"  pg_catalog.min(k.action_id::pg_catalog.text) OVER of_ref OPERATOR(pg_catalog.<>)" \
	"  pg_catalog.max(k.action_id::pg_catalog.text) OVER of_ref AS of_several_actions," \
	"  pg_catalog.count(*) OVER of_effect AS refs" \
	" FROM statement s JOIN known k ON k.ref OPERATOR(pg_catalog.=) s.ref" \
	" WINDOW of_ref AS (PARTITION BY s.ref), of_effect AS (PARTITION BY k.action_id, k.generation)" \
	"), found (kind, ref, action_id) AS (" \
	" SELECT 'absent_here', s.ref, NULL::pg_catalog.uuid FROM statement s" \
	" WHERE NOT EXISTS (SELECT FROM matched b WHERE b.ref OPERATOR(pg_catalog.=) s.ref)" \
	" UNION ALL" \
	" SELECT 'twice', s.ref, b.action_id FROM statement s LEFT JOIN matched b ON b.ref OPERATOR(pg_catalog.=) s.ref" \
	" WHERE s.n OPERATOR(pg_catalog.>) 1 OR b.of_several_actions OR b.refs OPERATOR(pg_catalog.>) 1" \
	" UNION ALL" \
	" SELECT 'unknown_there', a.external_ref, a.action_id FROM idem.idem_actions a" \
	" WHERE a.intent OPERATOR(pg_catalog.=) $1 AND a.state OPERATOR(pg_catalog.=) 'completed'" \
	" AND a.finished_at OPERATOR(pg_catalog.>=) $3" \
	" AND NOT EXISTS (SELECT FROM matched b WHERE b.action_id OPERATOR(pg_catalog.=) a.action_id AND b.generation OPERATOR(pg_catalog.=) a.generation)" \
	")" \
	" SELECT DISTINCT f.kind, f.ref, f.action_id, a.scope, a.key, a.state, a.finished_at" \
	" FROM found f LEFT JOIN idem.idem_actions a ON a.action_id OPERATOR(pg_catalog.=) f.action_id" \
	" ORDER BY 1, 2, 3"

PG_FUNCTION_INFO_V1(idem_reconcile);

/* the statement has to be whole: a line without a reference cannot be compared */
static void
check_references(FunctionCallInfo fcinfo, int n)
{
	Datum	   *refs;
	bool	   *nulls;
	int			count = idem_arg_list(fcinfo, n, "external_refs", TEXTOID, IDEM_MAX_BATCH, &refs, &nulls);

	for (int i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (nulls[i] || idem_is_blank(DatumGetTextPP(refs[i])))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("external_refs must not hold nulls or blanks"),
					 errdetail("Element %d is %s.", i + 1, nulls[i] ? "null" : "blank")));
	}
}

static void
check_permission(text *intent)
{
	idem_check_intent(intent);
	if (!idem_rule_shows(idem_rule_of(VARDATA_ANY(intent), VARSIZE_ANY_EXHDR(intent), true)))
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_NOT_PERMITTED),
				 errmsg("intent \"%s\" is for the roles of its rule only", idem_shown_text(intent))));
}

Datum
idem_reconcile(PG_FUNCTION_ARGS)
{
	Oid			types[3] = {TEXTOID, TEXTARRAYOID, TIMESTAMPTZOID};
	Datum		values[3];

	values[0] = PointerGetDatum(idem_required_text(fcinfo, 0, "intent"));
	check_permission(DatumGetTextPP(values[0]));
	check_references(fcinfo, 1);
	if (PG_ARGISNULL(2))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("since must not be null"),
				 errhint("Pass the moment at which the statement begins.")));
	values[1] = PG_GETARG_DATUM(1);
	values[2] = PG_GETARG_DATUM(2);

	InitMaterializedSRF(fcinfo, 0);
	idem_owner_return_query((ReturnSetInfo *) fcinfo->resultinfo, SQL_RECONCILE, 3, types, values);
	PG_RETURN_NULL();
}
