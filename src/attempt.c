/*-------------------------------------------------------------------------
 *
 * attempt.c
 *	  What the holder of a claim may say: begin_effect, extend_claim,
 *	  complete_action, fail_action, release_action, verify_action, batches.
 *
 * A report is never refused by an error for what it says: whatever the row's
 * state, it is stored, as the outcome or as evidence, since an error would
 * roll it back.  begin_effect and extend_claim do raise, because the answer
 * "do not act" must not be overlooked, and they lose nothing by it.
 *
 * A crash before the commit loses the report; the attempt is then judged when
 * its lease is over, as if the holder had died.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/attempt.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "access/xact.h"
#include "apply.h"
#include "arg.h"
#include "catalog/pg_type.h"
#include "content.h"
#include "errors.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "request.h"
#include "utils/builtins.h"
#include "utils/typcache.h"

PG_FUNCTION_INFO_V1(idem_begin_effect);
PG_FUNCTION_INFO_V1(idem_extend_claim);
PG_FUNCTION_INFO_V1(idem_extend_claims);
PG_FUNCTION_INFO_V1(idem_complete_action);
PG_FUNCTION_INFO_V1(idem_complete_actions);
PG_FUNCTION_INFO_V1(idem_fail_action);
PG_FUNCTION_INFO_V1(idem_release_action);
PG_FUNCTION_INFO_V1(idem_verify_action);

/*-------------------------------------------------------------------------
 * begin_effect and extend_claim
 *-------------------------------------------------------------------------
 */

/* why a claim cannot go on, and what its holder can do about it */
static const struct
{
	int			sqlstate;
	const char *text;
	const char *hint;
}			problems[] = {
	[IDEM_NO_PROBLEM] = {0, NULL, NULL},
	[IDEM_PROBLEM_LOST] = {ERRCODE_IDEM_CLAIM_LOST, "the claim is lost",
	"Do not act. If the action has taken effect already, report it by complete_action."},
	[IDEM_PROBLEM_SEARCHING] = {ERRCODE_IDEM_CLAIM_LOST, "this claim was handed out to search, not to act",
	"Do not act. Search outside for the provider key, then call verify_action."},
	[IDEM_PROBLEM_WINDOW] = {ERRCODE_IDEM_CLAIM_LOST, "the provider window is over",
	"Do not act. If the action has taken effect already, report it by complete_action."},
	[IDEM_PROBLEM_CANCEL] = {ERRCODE_IDEM_CANCEL_REQUESTED, "a cancel was requested",
	"Do not act. Call release_action, or after begin_effect fail_action with effect none."},
	[IDEM_PROBLEM_PAUSED] = {ERRCODE_IDEM_CANCEL_REQUESTED, "the intent is paused",
	"Do not act. Call release_action, or after begin_effect fail_action with effect none."},
	[IDEM_PROBLEM_NOT_APPROVED] = {ERRCODE_IDEM_NOT_PERMITTED, "the draft is not the approved one",
	"Act on the draft that the claim was answered with, or release the claim, revise the draft and have it approved."},
};

/* NULL where there is none */
static const char *
problem_text(const IdemVerdict *v)
{
	Assert(v->problem < lengthof(problems));
	if (v->problem == IDEM_PROBLEM_LOST)
		return psprintf("%s: the action is %s now", problems[v->problem].text,
						text_to_cstring(idem_state_name(v->after.state)));
	return problems[v->problem].text;
}

static void
raise_problem(const IdemVerdict *v)
{
	if (v->problem != IDEM_NO_PROBLEM)
		ereport(ERROR,
				(errcode(problems[v->problem].sqlstate),
				 errmsg("%s", problem_text(v)),
				 errhint("%s", problems[v->problem].hint)));
}

static double
seconds_left(const IdemVerdict *v, const IdemRequest *r)
{
	return (double) Max(v->after.lease_until - r->now, 0) / USECS_PER_SEC;
}

/* begin_effect or extend_claim, as the request says */
static Datum
go_on(FunctionCallInfo fcinfo, IdemRequest *r)
{
	IdemLedger *ledger;
	IdemVerdict v;
	pg_uuid_t	id;
	double		left;

	idem_arg_uuid(fcinfo, 0, "action_id", &id);
	idem_arg_uuid(fcinfo, 1, "claim_id", &r->claim_id);
	ledger = idem_ledger_open(true);
	if (!idem_apply(ledger, &id, r, &v))
		idem_raise_no_such_action(&id);
	raise_problem(&v);
	left = seconds_left(&v, r);
	idem_ledger_close(ledger);
	PG_RETURN_FLOAT8(left);
}

Datum
idem_begin_effect(PG_FUNCTION_ARGS)
{
	IdemRequest r = {.call = IDEM_CALL_BEGIN};

	if (!idem_commits_by_itself())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("begin_effect cannot run in an open transaction"),
				 errdetail("A crash before COMMIT would forget that the effect had begun."),
				 errhint("Commit first; psycopg: autocommit=True.")));
	r.draft = idem_arg_content(fcinfo, 2, "draft");
	r.lease = idem_arg_lease(fcinfo, 3);
	return go_on(fcinfo, &r);
}

Datum
idem_extend_claim(PG_FUNCTION_ARGS)
{
	IdemRequest r = {.call = IDEM_CALL_EXTEND};

	r.lease = idem_arg_lease(fcinfo, 2);
	return go_on(fcinfo, &r);
}

/*-------------------------------------------------------------------------
 * Reports
 *-------------------------------------------------------------------------
 */

/* a single report: an unknown action is an error */
static Datum
report_one(FunctionCallInfo fcinfo, IdemRequest *r)
{
	IdemLedger *ledger;
	IdemVerdict v;
	IdemReport	report;
	pg_uuid_t	id;
	TupleDesc	desc;
	HeapTuple	tuple;

	idem_arg_uuid(fcinfo, 0, "action_id", &id);
	idem_arg_uuid(fcinfo, 1, "claim_id", &r->claim_id);
	ledger = idem_ledger_open(true);
	if (!idem_apply(ledger, &id, r, &v))
		idem_raise_no_such_action(&id);
	idem_report_of(&report, &id, &v);
	idem_ledger_close(ledger);
	desc = idem_answer_desc(fcinfo);
	tuple = idem_report_tuple(desc, &report);
	ReleaseTupleDesc(desc);
	PG_RETURN_DATUM(HeapTupleGetDatum(tuple));
}

Datum
idem_complete_action(PG_FUNCTION_ARGS)
{
	IdemRequest r = {0};

	idem_request_success(&r, idem_arg_reference(fcinfo, 2), idem_arg_result(fcinfo, 3));
	return report_one(fcinfo, &r);
}

static IdemEffect
effect_arg(FunctionCallInfo fcinfo, int n)
{
	char	   *name;

	if (PG_ARGISNULL(n))
		return IDEM_EFFECT_UNKNOWN;
	name = text_to_cstring(PG_GETARG_TEXT_PP(n));
	if (strcmp(name, "unknown") == 0)
		return IDEM_EFFECT_UNKNOWN;
	if (strcmp(name, "none") == 0)
		return IDEM_EFFECT_NONE;
	if (strcmp(name, "refused") == 0)
		return IDEM_EFFECT_REFUSED;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("effect must be unknown, none or refused"),
			 errhint("Timeout, reset, 5xx: unknown. Refused before it was sent: none. 4xx, refused for good: refused.")));
}

Datum
idem_fail_action(PG_FUNCTION_ARGS)
{
	IdemRequest r = {.call = IDEM_CALL_FAIL};

	if (!PG_ARGISNULL(2))
		r.error = idem_text_clean(PG_GETARG_TEXT_PP(2), IDEM_MAX_ERROR);
	r.effect = effect_arg(fcinfo, 3);
	r.retry_after = PG_ARGISNULL(4) ? -1 : idem_arg_usec(fcinfo, 4, "retry_after");
	return report_one(fcinfo, &r);
}

Datum
idem_release_action(PG_FUNCTION_ARGS)
{
	IdemRequest r = {.call = IDEM_CALL_RELEASE,.retry_after = -1};

	r.error = idem_arg_label(fcinfo, 2);
	return report_one(fcinfo, &r);
}

/*
 * What a search outside has found.  Found is a success; not found, by the claim
 * that was handed out to search, turns it into a grant.
 */
Datum
idem_verify_action(PG_FUNCTION_ARGS)
{
	IdemRequest r = {0};
	IdemLedger *ledger;
	IdemVerdict v;
	IdemAnswer	answer;
	pg_uuid_t	id;
	Datum		result;
	bool		found = idem_arg_bool(fcinfo, 2, false);

	idem_arg_uuid(fcinfo, 0, "action_id", &id);
	idem_arg_uuid(fcinfo, 1, "claim_id", &r.claim_id);
	idem_request_success(&r, idem_arg_reference(fcinfo, 3), idem_arg_result(fcinfo, 4));
	r.error = idem_arg_label(fcinfo, 5);
	r.searched = found;
	r.inconclusive = PG_ARGISNULL(2);
	if (!found)
		r.call = IDEM_CALL_SEARCHED;

	ledger = idem_ledger_open(true);
	if (!idem_apply(ledger, &id, &r, &v))
		idem_raise_no_such_action(&id);
	if (found)
		v.outcome = idem_outcome_of(&v.after, r.rule);
	idem_answer(&answer, &r, &v, true);
	result = idem_claim_datum(fcinfo, &answer);
	idem_ledger_close(ledger);
	PG_RETURN_DATUM(result);
}

/*-------------------------------------------------------------------------
 * Batches: applied in action_id order, answered in input order
 *-------------------------------------------------------------------------
 */

/* the pairs of arguments 0 and 1, sorted */
static IdemBatchItem *
batch_args(FunctionCallInfo fcinfo, Datum **claims, int *n)
{
	IdemBatchItem *items;
	Datum	   *ids;
	bool	   *id_nulls;
	bool	   *claim_nulls;

	*n = idem_arg_list(fcinfo, 0, "action_ids", UUIDOID, IDEM_MAX_BATCH, &ids, &id_nulls);
	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("claim_ids must not be null")));
	idem_arg_array(fcinfo, 1, "claim_ids", UUIDOID, *n, claims, &claim_nulls);
	items = palloc(Max(*n, 1) * sizeof(IdemBatchItem));
	for (int i = 0; i < *n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (id_nulls[i] || claim_nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("action_ids and claim_ids must not hold nulls"),
					 errdetail("Element %d is null.", i + 1)));
		items[i].action_id = *DatumGetUUIDP(ids[i]);
		items[i].position = i;
	}
	idem_batch_sort(items, *n);
	return items;
}

Datum
idem_complete_actions(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	IdemLedger *ledger;
	IdemBatchItem *items;
	Datum	   *claims;
	HeapTuple  *tuples;
	IdemRowContext memory;
	Datum	   *refs;
	Datum	   *results;
	bool	   *ref_nulls;
	bool	   *result_nulls;
	int			n;

	items = batch_args(fcinfo, &claims, &n);
	idem_arg_array(fcinfo, 2, "external_refs", TEXTOID, n, &refs, &ref_nulls);
	idem_arg_array(fcinfo, 3, "results", JSONBOID, n, &results, &result_nulls);
	tuples = palloc(Max(n, 1) * sizeof(HeapTuple));

	InitMaterializedSRF(fcinfo, 0);
	ledger = idem_ledger_open(true);
	idem_row_start(&memory);
	for (int i = 0; i < n; i++)
	{
		int			at = items[i].position;
		IdemRequest r = {.claim_id = *DatumGetUUIDP(claims[at])};
		IdemReport	report = {
			.action_id = items[i].action_id,
			.note = "there is no such action, or it is not yours to see",
		};
		IdemVerdict v;

		idem_row_next(&memory);
		idem_request_success(&r,
							 refs == NULL || ref_nulls[at] ? NULL :
							 idem_text_given(DatumGetTextPP(refs[at])),
							 results == NULL || result_nulls[at] ? NULL :
							 idem_content_given(DatumGetJsonbP(results[at])));
		if (idem_apply(ledger, &items[i].action_id, &r, &v))
			idem_report_of(&report, &items[i].action_id, &v);
		idem_row_answer(&memory);
		tuples[at] = idem_report_tuple(rsinfo->setDesc, &report);
	}
	idem_row_end(&memory);
	idem_ledger_close(ledger);
	return idem_batch_return(fcinfo, tuples, n);
}

Datum
idem_extend_claims(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	IdemLedger *ledger;
	IdemBatchItem *items;
	Datum	   *claims;
	HeapTuple  *tuples;
	IdemRowContext memory;
	int64		lease;
	int			n;

	items = batch_args(fcinfo, &claims, &n);
	lease = idem_arg_lease(fcinfo, 2);
	tuples = palloc(Max(n, 1) * sizeof(HeapTuple));

	InitMaterializedSRF(fcinfo, 0);
	ledger = idem_ledger_open(true);
	idem_row_start(&memory);
	for (int i = 0; i < n; i++)
	{
		IdemRequest r = {
			.call = IDEM_CALL_EXTEND,
			.claim_id = *DatumGetUUIDP(claims[items[i].position]),
			.lease = lease,
		};
		IdemVerdict v;
		Datum		values[3];
		bool		nulls[3] = {false, true, true};
		const char *problem = "there is no such action, or it is not yours to see";

		idem_row_next(&memory);
		values[0] = UUIDPGetDatum(&items[i].action_id);
		if (idem_apply(ledger, &items[i].action_id, &r, &v))
		{
			problem = problem_text(&v);
			if (problem == NULL)
			{
				values[1] = Float8GetDatum(seconds_left(&v, &r));
				nulls[1] = false;
			}
		}
		if (problem != NULL)
		{
			values[2] = CStringGetTextDatum(problem);
			nulls[2] = false;
		}
		idem_row_answer(&memory);
		tuples[items[i].position] = heap_form_tuple(rsinfo->setDesc, values, nulls);
	}
	idem_row_end(&memory);
	idem_ledger_close(ledger);
	return idem_batch_return(fcinfo, tuples, n);
}
