/*-------------------------------------------------------------------------
 *
 * review.c
 *	  What people say: resolve, approve, revise, cancel, rerun, erase, show,
 *	  import.
 *
 * A decision applies to what the person saw: with a revision it counts only
 * while the row still has that revision, and otherwise the note tells who
 * decided what and when.  The same call twice is one decision, answered the same
 * while no later one has followed on it.  A refusal is an answer, not an error;
 * only what the caller may never do is raised.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/review.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "access/xact.h"
#include "apply.h"
#include "arg.h"
#include "catalog/pg_type.h"
#include "clock.h"
#include "errors.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "request.h"
#include "utils/builtins.h"
#include "utils/typcache.h"

PG_FUNCTION_INFO_V1(idem_resolve_action);
PG_FUNCTION_INFO_V1(idem_approve_action);
PG_FUNCTION_INFO_V1(idem_revise_action);
PG_FUNCTION_INFO_V1(idem_cancel_action);
PG_FUNCTION_INFO_V1(idem_rerun_action);
PG_FUNCTION_INFO_V1(idem_erase_action);
PG_FUNCTION_INFO_V1(idem_show_action);
PG_FUNCTION_INFO_V1(idem_import_actions);

static void
must_not_be_null(FunctionCallInfo fcinfo, int n, const char *name, const char *why)
{
	if (PG_ARGISNULL(n))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be null", name),
				 errhint("%s", why)));
}

static int64
revision_arg(FunctionCallInfo fcinfo, int n)
{
	if (PG_ARGISNULL(n))
		return 0;
	if (PG_GETARG_INT64(n) < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("revision must be the revision that you saw")));
	return PG_GETARG_INT64(n);
}

/* applies a decision and answers it as idem.report */
static Datum
decide(FunctionCallInfo fcinfo, IdemRequest *r)
{
	IdemLedger *ledger;
	IdemVerdict v;
	IdemReport	report;
	pg_uuid_t	id;
	TupleDesc	desc;
	HeapTuple	tuple;

	idem_arg_uuid(fcinfo, 0, "action_id", &id);
	r->retry_after = -1;
	ledger = idem_ledger_open(true);
	if (!idem_apply(ledger, &id, r, &v))
		idem_raise_no_such_action(&id);
	if (v.problem == IDEM_PROBLEM_NOT_PERMITTED)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_NOT_PERMITTED),
				 errmsg("rerunning this action is not yours to decide"),
				 errdetail("The rule says rerun_by \"%s\"; an action that needs attention is rerun by a resolver only.",
						   r->rule->rerun_by)));
	idem_report_of(&report, &id, &v);
	idem_ledger_close(ledger);
	desc = idem_answer_desc(fcinfo);
	tuple = idem_report_tuple(desc, &report);
	ReleaseTupleDesc(desc);
	PG_RETURN_DATUM(HeapTupleGetDatum(tuple));
}

static IdemDecision
decision_arg(FunctionCallInfo fcinfo, int n)
{
	char	   *name;

	must_not_be_null(fcinfo, n, "decision", "Say happened, not_happened or cancel.");
	name = text_to_cstring(PG_GETARG_TEXT_PP(n));
	if (strcmp(name, "happened") == 0)
		return IDEM_HAPPENED;
	if (strcmp(name, "not_happened") == 0)
		return IDEM_NOT_HAPPENED;
	if (strcmp(name, "cancel") == 0)
		return IDEM_CANCEL;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("decision must be happened, not_happened or cancel")));
}

Datum
idem_resolve_action(PG_FUNCTION_ARGS)
{
	IdemRequest r = {0};

	idem_request_success(&r, idem_arg_reference(fcinfo, 4), idem_arg_result(fcinfo, 5));
	r.call = IDEM_CALL_RESOLVE;
	r.decision = decision_arg(fcinfo, 1);
	r.note = idem_arg_sentence(fcinfo, 2, "note", "Say how you know: it is the answer to whoever asks later.");
	must_not_be_null(fcinfo, 3, "revision", "Pass the revision that you saw, so that you decide about what you saw.");
	r.revision = revision_arg(fcinfo, 3);
	r.actor = idem_arg_label(fcinfo, 6);
	return decide(fcinfo, &r);
}

Datum
idem_approve_action(PG_FUNCTION_ARGS)
{
	IdemRequest r = {.call = IDEM_CALL_APPROVE};

	must_not_be_null(fcinfo, 1, "revision", "Pass the revision that you saw, so that you approve what you saw.");
	r.revision = revision_arg(fcinfo, 1);
	r.note = idem_arg_label(fcinfo, 2);
	r.actor = idem_arg_label(fcinfo, 3);
	return decide(fcinfo, &r);
}

Datum
idem_revise_action(PG_FUNCTION_ARGS)
{
	IdemRequest r = {.call = IDEM_CALL_REVISE};

	r.draft = idem_arg_content(fcinfo, 1, "draft");
	if (r.draft == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("draft must not be null"),
				 errhint("Pass the new draft.")));
	r.revision = revision_arg(fcinfo, 2);
	r.actor = idem_arg_label(fcinfo, 3);
	return decide(fcinfo, &r);
}

Datum
idem_cancel_action(PG_FUNCTION_ARGS)
{
	IdemRequest r = {.call = IDEM_CALL_CANCEL};

	r.note = idem_arg_label(fcinfo, 1);
	r.actor = idem_arg_label(fcinfo, 2);
	r.revision = revision_arg(fcinfo, 3);
	return decide(fcinfo, &r);
}

Datum
idem_rerun_action(PG_FUNCTION_ARGS)
{
	IdemRequest r = {.call = IDEM_CALL_RERUN};

	r.note = idem_arg_sentence(fcinfo, 1, "reason", "Say why it is done once more.");
	must_not_be_null(fcinfo, 2, "revision", "Pass the revision that you saw, so that a repeated call does it once.");
	r.revision = revision_arg(fcinfo, 2);
	r.draft = idem_arg_content(fcinfo, 3, "draft");
	r.actor = idem_arg_label(fcinfo, 4);
	return decide(fcinfo, &r);
}

Datum
idem_erase_action(PG_FUNCTION_ARGS)
{
	IdemRequest r = {.call = IDEM_CALL_ERASE};

	r.note = idem_arg_sentence(fcinfo, 1, "reason", "Say why the contents go.");
	r.actor = idem_arg_label(fcinfo, 2);
	return decide(fcinfo, &r);
}

/* how an action stands, with its contents */
Datum
idem_show_action(PG_FUNCTION_ARGS)
{
	IdemRequest r = {0};
	IdemVerdict v = {0};
	IdemAnswer	answer;
	IdemLedger *ledger;
	pg_uuid_t	id;
	Datum		result;

	idem_arg_uuid(fcinfo, 0, "action_id", &id);
	ledger = idem_ledger_open(false);
	if (!idem_read_action(ledger, &id, idem_rule_lets_decide, &v.after, &r.rule))
		idem_raise_no_such_action(&id);
	r.now = idem_clock_now();
	v.outcome = idem_outcome_of(&v.after, r.rule);
	idem_answer(&answer, &r, &v, true);
	result = idem_claim_datum(fcinfo, &answer);
	idem_ledger_close(ledger);
	PG_RETURN_DATUM(result);
}

/* false: somebody else was there meanwhile, look again */
static bool
try_import(IdemLedger *ledger, IdemRequest *r, int64 *imported)
{
	IdemAction	row;
	IdemVerdict v;
	TransactionId holder;
	IdemFound	found;

	r->now = idem_clock_now();
	found = idem_request_probe(ledger, r, &row, &holder);
	if (found == IDEM_HELD_NEW || (found == IDEM_HELD && idem_is_forgotten(&row, r->now)))
	{
		idem_ledger_rest(ledger);
		idem_ledger_wait(holder);
		return false;
	}
	if (found != IDEM_ABSENT)
	{
		if (!idem_is_forgotten(&row, r->now))
		{
			idem_ledger_rely(ledger);
			return true;
		}
		if (idem_request_make_room(ledger, r, &row) != IDEM_WRITTEN)
			return false;
	}
	idem_decide_import(r, &v);
	if (idem_ledger_insert(ledger, &v.after, true) != IDEM_WRITTEN)
		return false;
	(*imported)++;
	return true;
}

/*
 * Makes keys known that were done before the ledger was there.  What exists
 * stays as it is and is not counted.
 */
Datum
idem_import_actions(PG_FUNCTION_ARGS)
{
	IdemRequest common = {0};
	IdemLedger *ledger;
	IdemBatchItem *items;
	IdemRequest *requests;
	Datum	   *keys;
	Datum	   *refs;
	bool	   *key_nulls;
	bool	   *ref_nulls;
	int64		imported = 0;
	int			n;

	idem_request_intent(&common, IDEM_CALL_ENQUEUE, idem_required_text(fcinfo, 0, "intent"),
						idem_required_text(fcinfo, 3, "scope"));
	n = idem_arg_list(fcinfo, 1, "keys", TEXTOID, IDEM_MAX_BATCH, &keys, &key_nulls);
	idem_arg_array(fcinfo, 2, "external_refs", TEXTOID, n, &refs, &ref_nulls);
	items = palloc(Max(n, 1) * sizeof(IdemBatchItem));
	requests = palloc_extended(Max(n, 1) * sizeof(IdemRequest), MCXT_ALLOC_HUGE);
	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (key_nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_INVALID_KEY),
					 errmsg("key must not be null"),
					 errdetail("Element %d of keys is null.", i + 1)));
		requests[i] = common;
		idem_request_key(&requests[i], DatumGetTextPP(keys[i]));
		if (refs != NULL && !ref_nulls[i])
		{
			requests[i].external_ref = idem_text_given(DatumGetTextPP(refs[i]));
			if (requests[i].external_ref != NULL &&
				VARSIZE_ANY_EXHDR(requests[i].external_ref) > IDEM_MAX_EXTERNAL_REF)
				ereport(ERROR,
						(errcode(ERRCODE_IDEM_CONTENT_TOO_LARGE),
						 errmsg("external_ref is longer than %d bytes", IDEM_MAX_EXTERNAL_REF),
						 errdetail("Element %d of external_refs.", i + 1)));
		}
	}

	ledger = idem_ledger_open(true);
	idem_request_rule(&common);
	if (!idem_rule_lets_decide(common.rule))
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_NOT_PERMITTED),
				 errmsg("intent \"%s\" is for its resolvers to import",
						idem_shown_text(common.intent))));
	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		requests[i].rule = common.rule;
		idem_request_identify(&requests[i]);
		items[i].action_id = requests[i].action_id;
		items[i].position = i;
	}
	idem_batch_sort(items, n);
	for (int i = 0; i < n; i++)
	{
		IdemRequest *r = &requests[items[i].position];

		while (!try_import(ledger, r, &imported))
			CHECK_FOR_INTERRUPTS();
	}
	idem_ledger_close(ledger);
	PG_RETURN_INT64(imported);
}
