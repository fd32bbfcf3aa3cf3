/*-------------------------------------------------------------------------
 *
 * attempt.c
 *	  What the holder of a claim may say: begin_effect, extend_claim,
 *	  complete_action, fail_action, release_action and their batches.
 *
 * A report is never refused by an error for what it says: whatever the row's
 * state, it is stored, as the outcome or as evidence, since an error would
 * roll it back.  begin_effect and extend_claim do raise, because the answer
 * "do not act" must not be overlooked, and they lose nothing by it.
 *
 * Who holds the row open is waited for.  A report that needs the history locks
 * the row first, so that two equal reports are recorded once.
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
#include "answer.h"
#include "arg.h"
#include "catalog/pg_type.h"
#include "errors.h"
#include "funcapi.h"
#include "ledger.h"
#include "miscadmin.h"
#include "state.h"
#include "utils/builtins.h"
#include "utils/typcache.h"

PG_FUNCTION_INFO_V1(idem_begin_effect);
PG_FUNCTION_INFO_V1(idem_extend_claim);
PG_FUNCTION_INFO_V1(idem_extend_claims);
PG_FUNCTION_INFO_V1(idem_complete_action);
PG_FUNCTION_INFO_V1(idem_complete_actions);
PG_FUNCTION_INFO_V1(idem_fail_action);
PG_FUNCTION_INFO_V1(idem_release_action);

/*-------------------------------------------------------------------------
 * Applying a request to a row
 *-------------------------------------------------------------------------
 */

static void
append_event(IdemLedger *ledger, const IdemAction *row, const IdemVerdict *v)
{
	IdemEvent	line = {
		.event = v->event,
		.action = row,
		.claim_id = v->event_claim,
		.attempt = v->event_attempt,
		.worker = row->worker,
		.detail = v->event_detail,
		.content = v->event_content,
	};

	idem_ledger_append(ledger, &line);
}

/*
 * Decides and writes; false where the ledger knows no such action.  The
 * verdict's row is what is stored afterwards, valid until the next call.
 */
static bool
apply(IdemLedger *ledger, const pg_uuid_t *id, IdemRequest *r, IdemVerdict *v)
{
	for (;;)
	{
		IdemAction	row;
		TransactionId holder;

		CHECK_FOR_INTERRUPTS();
		r->now = GetCurrentTimestamp();
		r->past_read = false;
		switch (idem_ledger_probe(ledger, id, &row, &holder))
		{
			case IDEM_ABSENT:
				if (idem_ledger_surely_absent(ledger, id))
					return false;
				continue;
			case IDEM_HELD:
			case IDEM_HELD_NEW:
				idem_ledger_rest(ledger);
				idem_ledger_wait(holder);
				continue;
			case IDEM_PRESENT:
				break;
		}
		r->rule = idem_rule_of(VARDATA_ANY(row.intent), VARSIZE_ANY_EXHDR(row.intent), false);
		idem_decide(&row, r, v);
		if (v->needs_past)
		{
			if (idem_ledger_lock(ledger) != IDEM_WRITTEN)
				continue;
			r->past = idem_ledger_past(id);
			r->past_read = true;
			idem_decide(&row, r, v);
		}
		if (v->changes && idem_ledger_update(ledger, &row, &v->after, true) != IDEM_WRITTEN)
			continue;
		if (v->event != NULL)
			append_event(ledger, &row, v);
		if ((v->changes || v->event != NULL) &&
			!(r->call == IDEM_CALL_COMPLETE && idem_async_complete))
			ForceSyncCommit();
		return true;
	}
}

static void
raise_no_such_action(const pg_uuid_t *id)
{
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_NO_SUCH_ACTION),
			 errmsg("there is no action %s, or it is not yours to see",
					DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(id)))),
			 errhint("If it happened, import_actions makes it known to the ledger.")));
}

/*-------------------------------------------------------------------------
 * begin_effect and extend_claim
 *-------------------------------------------------------------------------
 */

static const char *
problem_text(const IdemVerdict *v)
{
	switch (v->problem)
	{
		case IDEM_PROBLEM_LOST:
			return psprintf("the claim is lost: the action is %s now",
							text_to_cstring(idem_state_name(v->after.state)));
		case IDEM_PROBLEM_CANCEL:
			return "a cancel was requested";
		case IDEM_NO_PROBLEM:
			break;
	}
	return NULL;
}

static void
raise_problem(const IdemVerdict *v)
{
	switch (v->problem)
	{
		case IDEM_PROBLEM_LOST:
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_CLAIM_LOST),
					 errmsg("%s", problem_text(v)),
					 errhint("Do not act. If the action has taken effect already, report it by complete_action.")));
			break;
		case IDEM_PROBLEM_CANCEL:
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_CANCEL_REQUESTED),
					 errmsg("%s", problem_text(v)),
					 errhint("Do not act; call release_action.")));
			break;
		case IDEM_NO_PROBLEM:
			break;
	}
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
	if (!apply(ledger, &id, r, &v))
		raise_no_such_action(&id);
	raise_problem(&v);
	left = seconds_left(&v, r);
	idem_ledger_close(ledger);
	PG_RETURN_FLOAT8(left);
}

Datum
idem_begin_effect(PG_FUNCTION_ARGS)
{
	IdemRequest r = {.call = IDEM_CALL_BEGIN};

	if (IsTransactionBlock())
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

/* a success is never lost for being too large: what is too large is left out */
static void
set_success(IdemRequest *r, text *external_ref, Jsonb *result)
{
	bool		long_ref = external_ref != NULL &&
		VARSIZE_ANY_EXHDR(external_ref) > IDEM_MAX_EXTERNAL_REF;
	bool		long_result = result != NULL &&
		(int) (VARSIZE(result) - VARHDRSZ) > idem_max_content;

	r->call = IDEM_CALL_COMPLETE;
	r->retry_after = -1;
	r->external_ref = long_ref ? NULL : external_ref;
	r->result = long_result ? NULL : result;
	if (long_ref && long_result)
		r->dropped = "external_ref and result were too large and are not kept";
	else if (long_ref)
		r->dropped = "external_ref was longer than 2 kB and is not kept";
	else if (long_result)
		r->dropped = "result was larger than idem_action.max_content and is not kept";
	else
		r->dropped = NULL;
}

static void
report_from_verdict(IdemReport *report, const pg_uuid_t *id, const IdemVerdict *v)
{
	report->action_id = *id;
	report->known = true;
	report->accepted = v->accepted;
	report->state = v->after.state;
	report->revision = v->after.revision;
	report->note = v->note;
}

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
	if (!apply(ledger, &id, r, &v))
		raise_no_such_action(&id);
	report_from_verdict(&report, &id, &v);
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

	set_success(&r, idem_arg_text(fcinfo, 2),
				PG_ARGISNULL(3) ? NULL : PG_GETARG_JSONB_P(3));
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
	IdemRequest r = {.call = IDEM_CALL_RELEASE, .retry_after = -1};

	r.error = idem_arg_label(fcinfo, 2);
	return report_one(fcinfo, &r);
}

/*-------------------------------------------------------------------------
 * Batches: applied in action_id order, answered in input order
 *-------------------------------------------------------------------------
 */

typedef struct BatchItem
{
	pg_uuid_t	action_id;
	pg_uuid_t	claim_id;
	int			position;
} BatchItem;

static int
compare_items(const void *a, const void *b)
{
	const BatchItem *x = a;
	const BatchItem *y = b;
	int			order = memcmp(&x->action_id, &y->action_id, sizeof(pg_uuid_t));

	return order != 0 ? order : x->position - y->position;
}

/* the pairs of arguments 0 and 1, sorted */
static BatchItem *
batch_args(FunctionCallInfo fcinfo, int *n)
{
	BatchItem  *items;
	Datum	   *ids;
	Datum	   *claims;
	bool	   *id_nulls;
	bool	   *claim_nulls;

	*n = idem_arg_array(fcinfo, 0, "action_ids", UUIDOID, -1, &ids, &id_nulls);
	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("claim_ids must not be null")));
	idem_arg_array(fcinfo, 1, "claim_ids", UUIDOID, *n, &claims, &claim_nulls);
	items = palloc(Max(*n, 1) * sizeof(BatchItem));
	for (int i = 0; i < *n; i++)
	{
		if (id_nulls[i] || claim_nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("action_ids and claim_ids must not hold nulls"),
					 errdetail("Element %d is null.", i + 1)));
		items[i].action_id = *DatumGetUUIDP(ids[i]);
		items[i].claim_id = *DatumGetUUIDP(claims[i]);
		items[i].position = i;
	}
	qsort(items, *n, sizeof(BatchItem), compare_items);
	return items;
}

Datum
idem_complete_actions(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	IdemLedger *ledger;
	BatchItem  *items;
	HeapTuple  *tuples;
	Datum	   *refs;
	Datum	   *results;
	bool	   *ref_nulls;
	bool	   *result_nulls;
	int			n;

	items = batch_args(fcinfo, &n);
	idem_arg_array(fcinfo, 2, "external_refs", TEXTOID, n, &refs, &ref_nulls);
	idem_arg_array(fcinfo, 3, "results", JSONBOID, n, &results, &result_nulls);
	tuples = palloc(Max(n, 1) * sizeof(HeapTuple));

	InitMaterializedSRF(fcinfo, 0);
	ledger = idem_ledger_open(true);
	for (int i = 0; i < n; i++)
	{
		int			at = items[i].position;
		IdemRequest r = {.claim_id = items[i].claim_id};
		IdemReport	report = {
			.action_id = items[i].action_id,
			.note = "there is no such action, or it is not yours to see",
		};
		IdemVerdict v;

		set_success(&r,
					refs == NULL || ref_nulls[at] ? NULL : DatumGetTextPP(refs[at]),
					results == NULL || result_nulls[at] ? NULL : DatumGetJsonbP(results[at]));
		if (apply(ledger, &items[i].action_id, &r, &v))
			report_from_verdict(&report, &items[i].action_id, &v);
		tuples[at] = idem_report_tuple(rsinfo->setDesc, &report);
	}
	idem_ledger_close(ledger);
	for (int i = 0; i < n; i++)
		tuplestore_puttuple(rsinfo->setResult, tuples[i]);
	PG_RETURN_NULL();
}

Datum
idem_extend_claims(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	IdemLedger *ledger;
	BatchItem  *items;
	HeapTuple  *tuples;
	int64		lease;
	int			n;

	items = batch_args(fcinfo, &n);
	lease = idem_arg_lease(fcinfo, 2);
	tuples = palloc(Max(n, 1) * sizeof(HeapTuple));

	InitMaterializedSRF(fcinfo, 0);
	ledger = idem_ledger_open(true);
	for (int i = 0; i < n; i++)
	{
		IdemRequest r = {
			.call = IDEM_CALL_EXTEND,
			.claim_id = items[i].claim_id,
			.lease = lease,
		};
		IdemVerdict v;
		Datum		values[3];
		bool		nulls[3] = {false, true, true};
		const char *problem = "there is no such action, or it is not yours to see";

		values[0] = UUIDPGetDatum(&items[i].action_id);
		if (apply(ledger, &items[i].action_id, &r, &v))
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
		tuples[items[i].position] = heap_form_tuple(rsinfo->setDesc, values, nulls);
	}
	idem_ledger_close(ledger);
	for (int i = 0; i < n; i++)
		tuplestore_puttuple(rsinfo->setResult, tuples[i]);
	PG_RETURN_NULL();
}
