/*-------------------------------------------------------------------------
 *
 * answer.c
 *	  The two shapes that callers are answered in: idem.claim, idem.report.
 *
 * retry_after is what the caller's message hangs on: it is not NULL exactly
 * where the caller must keep the message and ask again.  claim_id goes to its
 * holder only.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/answer.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "answer.h"
#include "access/htup_details.h"
#include "key.h"
#include "ledger.h"
#include "table.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/typcache.h"

/* columns of idem.claim */
enum
{
	C_GRANTED,
	C_OUTCOME,
	C_ACTION_ID,
	C_CLAIM_ID,
	C_ATTEMPT,
	C_GENERATION,
	C_REPEAT,
	C_STATE,
	C_REASON,
	C_LEASE_UNTIL,
	C_RETRY_AFTER,
	C_PROVIDER_KEY,
	C_SCOPE,
	C_INTENT,
	C_KEY,
	C_PARAMS,
	C_DRAFT,
	C_REVISION,
	C_EXTERNAL_REF,
	C_RESULT,
	C_ERROR,
	C_UNCERTAIN,
	C_SOURCE,
	C_EVENT_ID,
	C_WORKER,
	C_CLAIMED_AT,
	C_FIRST_SEEN,
	C_FINISHED_AT,
	CLAIM_NCOLS
};

/* columns of idem.report */
enum
{
	R_ACTION_ID,
	R_ACCEPTED,
	R_STATE,
	R_REVISION,
	R_NOTE,
	REPORT_NCOLS
};

#define CONTENDED_RETRY 0.1		/* seconds; open transactions are short */
#define PAUSED_RETRY 30.0

static const char *const outcome_names[] = {
	[IDEM_CLAIMED] = "claimed",
	[IDEM_VERIFY] = "verify",
	[IDEM_OUT_COMPLETED] = "completed",
	[IDEM_OUT_IN_PROGRESS] = "in_progress",
	[IDEM_CONTENDED] = "contended",
	[IDEM_NOT_DUE] = "not_due",
	[IDEM_PAUSED] = "paused",
	[IDEM_OUT_PENDING] = "pending",
	[IDEM_AWAITING_APPROVAL] = "awaiting_approval",
	[IDEM_OUT_NEEDS_ATTENTION] = "needs_attention",
	[IDEM_OUT_FAILED] = "failed",
	[IDEM_OUT_CANCELLED] = "cancelled",
	[IDEM_MISMATCH] = "mismatch",
	[IDEM_UNKNOWN] = "unknown",
};

const char *
idem_outcome_name(IdemOutcome outcome)
{
	return outcome_names[outcome];
}

/* the row type a function returns; the caller releases it */
TupleDesc
idem_answer_desc(FunctionCallInfo fcinfo)
{
	return lookup_rowtype_tupdesc(get_func_rettype(fcinfo->flinfo->fn_oid), -1);
}

static double
seconds_until(TimestampTz then, TimestampTz now)
{
	return (double) (then > now ? then - now : USECS_PER_MINUTE) / USECS_PER_SEC;
}

/* seconds after which to ask again; false where the message may go */
static bool
retry_after(const IdemAnswer *answer, double *seconds)
{
	switch (answer->outcome)
	{
		case IDEM_OUT_IN_PROGRESS:
			*seconds = seconds_until(answer->action->lease_until, answer->now);
			return true;
		case IDEM_NOT_DUE:
			*seconds = seconds_until(answer->action->due_at, answer->now);
			return true;
		case IDEM_VERIFY:
			*seconds = (double) answer->lease / USECS_PER_SEC;
			return true;
		case IDEM_CONTENDED:
			*seconds = CONTENDED_RETRY;
			return true;
		case IDEM_PAUSED:
			*seconds = PAUSED_RETRY;
			return true;
		default:
			return false;
	}
}

/* whether the caller may act on the answer, or acknowledge its message */
bool
idem_outcome_settles(IdemOutcome outcome)
{
	switch (outcome)
	{
		case IDEM_UNKNOWN:
		case IDEM_OUT_IN_PROGRESS:
		case IDEM_CONTENDED:
		case IDEM_NOT_DUE:
		case IDEM_PAUSED:
			return false;
		default:
			return true;
	}
}

/* everything the row tells; contents only where they are the caller's to see */
static void
put_action(const IdemAnswer *answer, Datum *v, bool *n)
{
	const IdemAction *a = answer->action;
	bool		holds = answer->outcome == IDEM_CLAIMED || answer->outcome == IDEM_VERIFY;
	char		provider_key[IDEM_PROVIDER_KEY_SIZE];

	idem_provider_key(&a->action_id, a->generation, provider_key);
	idem_put(v, n, C_ACTION_ID, UUIDPGetDatum(&a->action_id));
	if (holds)
		idem_put(v, n, C_CLAIM_ID, UUIDPGetDatum(&a->claim_id));
	idem_put(v, n, C_ATTEMPT, Int32GetDatum(a->attempt));
	idem_put(v, n, C_GENERATION, Int32GetDatum(a->generation));
	idem_put_pointer(v, n, C_STATE, idem_state_name(a->state));
	idem_put_pointer(v, n, C_REASON, a->reason);
	if (a->reason == NULL && a->purged)
		idem_put_pointer(v, n, C_REASON, cstring_to_text("content_purged"));
	else if (a->reason == NULL && answer->kept_draft)
		idem_put_pointer(v, n, C_REASON, cstring_to_text("other_draft_kept"));
	idem_put_time(v, n, C_LEASE_UNTIL, a->lease_until);
	idem_put_pointer(v, n, C_PROVIDER_KEY, cstring_to_text(provider_key));
	idem_put_pointer(v, n, C_SCOPE, a->scope);
	idem_put_pointer(v, n, C_INTENT, a->intent);
	idem_put_pointer(v, n, C_KEY, a->key);
	idem_put(v, n, C_REVISION, Int64GetDatum(a->revision));
	idem_put(v, n, C_UNCERTAIN, BoolGetDatum(a->uncertain));
	idem_put_pointer(v, n, C_SOURCE, a->source);
	idem_put_pointer(v, n, C_EVENT_ID, a->event_id);
	idem_put_pointer(v, n, C_WORKER, a->worker);
	idem_put_time(v, n, C_CLAIMED_AT, a->claimed_at);
	idem_put(v, n, C_FIRST_SEEN, TimestampTzGetDatum(a->created_at));
	idem_put_time(v, n, C_FINISHED_AT, a->finished_at);
	if (answer->outcome != IDEM_MISMATCH)
	{
		idem_put_pointer(v, n, C_PARAMS,
						 answer->own_params != NULL ? answer->own_params : a->params);
		idem_put_pointer(v, n, C_DRAFT, a->draft);
		idem_put_pointer(v, n, C_EXTERNAL_REF, a->external_ref);
		idem_put_pointer(v, n, C_RESULT, a->result);
		idem_put_pointer(v, n, C_ERROR, a->error);
	}
}

HeapTuple
idem_claim_tuple(TupleDesc desc, const IdemAnswer *answer)
{
	Datum		v[CLAIM_NCOLS];
	bool		n[CLAIM_NCOLS];
	double		seconds;

	if (desc->natts != CLAIM_NCOLS)
		elog(ERROR, "type idem.claim does not fit the loaded library");
	memset(n, true, sizeof(n));
	idem_put(v, n, C_GRANTED, BoolGetDatum(answer->outcome == IDEM_CLAIMED));
	idem_put_pointer(v, n, C_OUTCOME, cstring_to_text(outcome_names[answer->outcome]));
	idem_put(v, n, C_REPEAT, BoolGetDatum(answer->repeat));
	if (retry_after(answer, &seconds))
		idem_put(v, n, C_RETRY_AFTER, Float8GetDatum(seconds));
	if (answer->action != NULL)
		put_action(answer, v, n);
	else
	{
		if (answer->action_id != NULL)
			idem_put(v, n, C_ACTION_ID, UUIDPGetDatum(answer->action_id));
		idem_put_pointer(v, n, C_SCOPE, answer->scope);
		idem_put_pointer(v, n, C_INTENT, answer->intent);
		idem_put_pointer(v, n, C_KEY, answer->key);
	}
	return heap_form_tuple(desc, v, n);
}

HeapTuple
idem_report_tuple(TupleDesc desc, const IdemReport *report)
{
	Datum		v[REPORT_NCOLS];
	bool		n[REPORT_NCOLS];

	if (desc->natts != REPORT_NCOLS)
		elog(ERROR, "type idem.report does not fit the loaded library");
	memset(n, true, sizeof(n));
	idem_put(v, n, R_ACTION_ID, UUIDPGetDatum(&report->action_id));
	idem_put(v, n, R_ACCEPTED, BoolGetDatum(report->accepted));
	if (report->known)
	{
		idem_put_pointer(v, n, R_STATE, idem_state_name(report->state));
		idem_put(v, n, R_REVISION, Int64GetDatum(report->revision));
	}
	if (report->note != NULL)
		idem_put_pointer(v, n, R_NOTE, cstring_to_text(report->note));
	return heap_form_tuple(desc, v, n);
}
