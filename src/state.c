/*-------------------------------------------------------------------------
 *
 * state.c
 *	  The states of an action: one table, and the cells it consists of.
 *
 * idem_decide() is a function of the row, the request and (for what arrives
 * late) the action's history.  It writes nothing and locks nothing; the caller
 * writes the verdict as a compare-and-swap on the version decided on, and
 * decides again where that fails.  So a transition has no moment in which a
 * crash could leave half of it.
 *
 * The history is asked for only when a report does not meet its own running
 * claim: to answer the same report the same way, and to know whether anybody
 * has reported or decided since the hand-out.  The verdict then says
 * needs_past, and the caller comes again with the row locked.
 *
 * Doubt is sticky.  "uncertain" means that some attempt may have taken effect;
 * only a success, a search that found nothing, or a person clears it.  What
 * follows from doubt is judge(), "the doubt list", and nothing else.
 *
 * ended_by tells how the last claim ended: succeeded, failed_none,
 * failed_unknown, failed_refused, released, expired (its lease ended without
 * a report) or search_expired (the same of a verify hand-out).
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/state.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "state.h"
#include "common/pg_prng.h"
#include "detail.h"
#include "key.h"
#include "ledger.h"
#include "utils/builtins.h"

#define MAX_RETRY_DELAY USECS_PER_HOUR

/* where an action stands when a call arrives */
typedef enum Situation
{
	PENDING_DUE,
	PENDING_LATER,
	UNAPPROVED,
	HELD,						/* in progress, lease valid */
	LAPSED,						/* in progress, lease over, not judged */
	COMPLETED,
	FAILED,
	ATTENTION,
	CANCELLED
} Situation;

#define NSITUATIONS (CANCELLED + 1)

/* the columns of the table: a call, and by whose claim it comes */
typedef enum Arrival
{
	CLAIM,
	BEGIN,						/* these two by the last claim; by an */
	EXTEND,						/* earlier one they are lost anyway */
	SUCCESS,
	FAILURE,
	RELEASE,
	EARLIER_SUCCESS,
	EARLIER_OTHER
} Arrival;

#define NARRIVALS (EARLIER_OTHER + 1)

typedef void (*Cell) (IdemVerdict *v, const IdemRequest *r);

static void claim_pending(IdemVerdict *v, const IdemRequest *r);
static void claim_held(IdemVerdict *v, const IdemRequest *r);
static void claim_lapsed(IdemVerdict *v, const IdemRequest *r);
static void answer(IdemVerdict *v, const IdemRequest *r);
static void begin(IdemVerdict *v, const IdemRequest *r);
static void extend(IdemVerdict *v, const IdemRequest *r);
static void lost_claim(IdemVerdict *v, const IdemRequest *r);
static void complete(IdemVerdict *v, const IdemRequest *r);
static void complete_late(IdemVerdict *v, const IdemRequest *r);
static void complete_again(IdemVerdict *v, const IdemRequest *r);
static void complete_doubtful(IdemVerdict *v, const IdemRequest *r);
static void fail(IdemVerdict *v, const IdemRequest *r);
static void fail_doubtful(IdemVerdict *v, const IdemRequest *r);
static void release(IdemVerdict *v, const IdemRequest *r);
static void release_doubtful(IdemVerdict *v, const IdemRequest *r);
static void late_result(IdemVerdict *v, const IdemRequest *r);
static void second_result(IdemVerdict *v, const IdemRequest *r);
static void evidence(IdemVerdict *v, const IdemRequest *r);

static const Cell transitions[NSITUATIONS][NARRIVALS] = {
	/*                 claim          begin       extend      success            failure        release           earlier success  other earlier report */
	[PENDING_DUE] =   {claim_pending, lost_claim, lost_claim, complete_late,     evidence,      evidence,         late_result,     evidence},
	[PENDING_LATER] = {answer,        lost_claim, lost_claim, complete_late,     evidence,      evidence,         late_result,     evidence},
	[UNAPPROVED] =    {answer,        lost_claim, lost_claim, complete_late,     evidence,      evidence,         late_result,     evidence},
	[HELD] =          {claim_held,    begin,      extend,     complete,          fail,          release,          late_result,     evidence},
	[LAPSED] =        {claim_lapsed,  begin,      extend,     complete,          fail,          release,          late_result,     evidence},
	[COMPLETED] =     {answer,        lost_claim, lost_claim, complete_again,    evidence,      evidence,         second_result,   evidence},
	[FAILED] =        {answer,        lost_claim, lost_claim, late_result,       evidence,      evidence,         late_result,     evidence},
	[ATTENTION] =     {answer,        lost_claim, lost_claim, complete_doubtful, fail_doubtful, release_doubtful, late_result,     evidence},
	[CANCELLED] =     {answer,        lost_claim, lost_claim, late_result,       evidence,      evidence,         late_result,     evidence},
};

/* how judging an attempt came about */
typedef enum Cause
{
	LEASE_OVER,					/* an attempt ended without a report */
	REPORTED_UNKNOWN,			/* it ended with "unknown" */
	REPORTED_CLEAN,				/* it did nothing, but an older doubt stands */
	STILL_DOUBTFUL				/* a pending row, judged again */
} Cause;

/* what the doubt list says; otherwise the action has left for good */
typedef enum Judgement
{
	JUDGED_ENDED,
	JUDGED_GRANT,
	JUDGED_GRANT_AT_ONCE,		/* the attempt surely did nothing */
	JUDGED_VERIFY,
	JUDGED_WAIT					/* due_at says until when */
} Judgement;

/*-------------------------------------------------------------------------
 * Small words
 *-------------------------------------------------------------------------
 */

static bool
draft_equal(Jsonb *a, Jsonb *b)
{
	return compareJsonbContainers(&a->root, &b->root) == 0;
}

/* two different successes are known, and no person has looked yet */
static bool
double_open(const IdemAction *a)
{
	return idem_text_is(a->reason, "double_result");
}

bool
idem_is_forgotten(const IdemAction *a, TimestampTz now)
{
	return a->forget_after != IDEM_NEVER && a->forget_after <= now && !double_open(a);
}

bool
idem_awaits_approval(const IdemAction *a, const IdemRule *rule)
{
	return a->state == IDEM_PENDING && rule->requires_approval && !a->approved;
}

static Situation
situation_of(const IdemAction *a, const IdemRequest *r)
{
	switch (a->state)
	{
		case IDEM_PENDING:
			if (idem_awaits_approval(a, r->rule))
				return UNAPPROVED;
			return a->due_at <= r->now ? PENDING_DUE : PENDING_LATER;
		case IDEM_IN_PROGRESS:
			return a->lease_until > r->now ? HELD : LAPSED;
		case IDEM_COMPLETED:
			return COMPLETED;
		case IDEM_FAILED:
			return FAILED;
		case IDEM_NEEDS_ATTENTION:
			return ATTENTION;
		case IDEM_CANCELLED:
			return CANCELLED;
	}
	elog(ERROR, "unknown state %d", (int) a->state);
}

static Arrival
arrival_of(const IdemAction *a, const IdemRequest *r)
{
	bool		last = !idem_uuid_is_null(&r->claim_id) &&
		idem_uuid_equal(&a->claim_id, &r->claim_id);

	switch (r->call)
	{
		case IDEM_CALL_CLAIM:
			return CLAIM;
		case IDEM_CALL_BEGIN:
			return BEGIN;
		case IDEM_CALL_EXTEND:
			return EXTEND;
		case IDEM_CALL_COMPLETE:
			return last ? SUCCESS : EARLIER_SUCCESS;
		case IDEM_CALL_FAIL:
			return last ? FAILURE : EARLIER_OTHER;
		case IDEM_CALL_RELEASE:
			return last ? RELEASE : EARLIER_OTHER;
	}
	elog(ERROR, "unknown call %d", (int) r->call);
}

/* the outcome that a state is told by, where nothing is handed out */
IdemOutcome
idem_outcome_of(const IdemAction *a, TimestampTz now)
{
	switch (a->state)
	{
		case IDEM_PENDING:
			return a->due_at <= now ? IDEM_OUT_PENDING : IDEM_NOT_DUE;
		case IDEM_IN_PROGRESS:
			return IDEM_OUT_IN_PROGRESS;
		case IDEM_COMPLETED:
			return IDEM_OUT_COMPLETED;
		case IDEM_FAILED:
			return IDEM_OUT_FAILED;
		case IDEM_NEEDS_ATTENTION:
			return IDEM_OUT_NEEDS_ATTENTION;
		case IDEM_CANCELLED:
			return IDEM_OUT_CANCELLED;
	}
	elog(ERROR, "unknown state %d", (int) a->state);
}

/*-------------------------------------------------------------------------
 * Moving: each leaves the row consistent; the caller has checked that it may
 *-------------------------------------------------------------------------
 */

static void
leave_state(IdemAction *a)
{
	a->lease_until = IDEM_NEVER;
	a->due_at = IDEM_NEVER;
	a->finished_at = IDEM_NEVER;
	a->purge_after = IDEM_NEVER;
	a->forget_after = IDEM_NEVER;
	a->verifying = false;
	a->reason = NULL;
}

static void
to_pending(IdemAction *a, TimestampTz due_at)
{
	leave_state(a);
	a->state = IDEM_PENDING;
	a->due_at = due_at;
}

static void
to_attention(IdemAction *a, const char *reason)
{
	leave_state(a);
	a->state = IDEM_NEEDS_ATTENTION;
	a->reason = cstring_to_text(reason);
}

static void
to_final(IdemAction *a, IdemState state, const IdemRequest *r)
{
	leave_state(a);
	a->state = state;
	a->uncertain = false;
	a->finished_at = r->now;
	idem_rule_start_retention(r->rule, a);
}

static void
hand_out(IdemVerdict *v, const IdemRequest *r, bool verifying)
{
	IdemAction *a = &v->after;

	leave_state(a);
	a->state = IDEM_IN_PROGRESS;
	idem_new_claim_id(&a->claim_id);
	a->call_id = r->call_id;
	a->attempt++;
	a->claimed_at = r->now;
	if (a->first_claimed_at == IDEM_NEVER)
		a->first_claimed_at = r->now;
	a->lease_until = r->now + (r->lease > 0 ? r->lease : r->rule->lease);
	a->worker = r->worker;
	a->marked = r->rule->marks_effect;
	a->begun = false;
	a->uncertain_before = a->uncertain;
	a->verifying = verifying;
	a->ended_by = NULL;
	if (a->params == NULL && a->params_digest == NULL)
	{
		a->params = r->params;
		a->params_digest = r->params_digest;
	}
	if (a->draft == NULL)
		a->draft = r->draft;
	v->changes = true;
	v->outcome = verifying ? IDEM_VERIFY : IDEM_CLAIMED;
}

static void
end_claim(IdemAction *a, const char *how)
{
	a->ended_by = cstring_to_text(how);
}

/* the growing delay after a failure: doubling, jittered, at most an hour */
static TimestampTz
retry_at(const IdemAction *a, const IdemRequest *r)
{
	int			n = a->failures + a->lost;
	double		delay;

	if (r->retry_after >= 0)
		return r->now + r->retry_after;
	delay = (double) r->rule->retry_delay * (double) (INT64CONST(1) << Min(Max(n - 1, 0), 40));
	delay = Min(delay, (double) MAX_RETRY_DELAY);
	delay *= 0.5 + 0.5 * pg_prng_double(&pg_global_prng_state);
	return r->now + (int64) delay;
}

/*
 * The doubt list.  "already" says that this attempt has been judged before, so
 * that it is not counted as lost a second time.
 */
static Judgement
judge(IdemAction *a, const IdemRequest *r, Cause cause, bool already)
{
	bool		ended = cause == LEASE_OVER || cause == REPORTED_UNKNOWN;
	bool		did_nothing = ended && a->marked && !a->begun;
	int64		lease = r->lease > 0 ? r->lease : r->rule->lease;

	if (ended)
	{
		if (!already)
			a->lost++;
		if (did_nothing && !a->uncertain_before)
		{
			a->uncertain = false;
			if (a->cancel_requested)
				to_final(a, IDEM_CANCELLED, r);
			else if (a->lost >= r->rule->max_attempts)
				to_attention(a, "attempts_exhausted");
			else
			{
				to_pending(a, r->now);
				return JUDGED_GRANT_AT_ONCE;
			}
			return JUDGED_ENDED;
		}
		/* a search does not act, nor does an attempt that had not begun */
		if (!a->verifying && !did_nothing)
			a->doubt_until = cause == LEASE_OVER ? a->lease_until : r->now;
		a->uncertain = true;
	}

	if (a->cancel_requested || r->rule->on_uncertain == IDEM_REVIEW)
	{
		to_attention(a, cause == LEASE_OVER ? "lease_expired" : "outcome_unknown");
		return JUDGED_ENDED;
	}
	if (a->lost >= r->rule->max_attempts)
	{
		to_attention(a, "attempts_exhausted");
		return JUDGED_ENDED;
	}
	switch (r->rule->on_uncertain)
	{
		case IDEM_REPEAT:
			to_pending(a, r->now);
			return JUDGED_GRANT;
		case IDEM_RETRY:
			if (r->now + lease > a->first_claimed_at + r->rule->provider_window)
			{
				to_attention(a, "provider_window_over");
				return JUDGED_ENDED;
			}
			to_pending(a, r->now);
			return JUDGED_GRANT;
		case IDEM_SEARCH:
			to_pending(a, Max(r->now, a->doubt_until + r->rule->settle));
			return a->due_at <= r->now ? JUDGED_VERIFY : JUDGED_WAIT;
		case IDEM_REVIEW:
			break;
	}
	elog(ERROR, "unknown on_uncertain %d", (int) r->rule->on_uncertain);
}

/*-------------------------------------------------------------------------
 * Events
 *-------------------------------------------------------------------------
 */

static const char *const effect_names[] = {
	[IDEM_EFFECT_UNKNOWN] = "unknown",
	[IDEM_EFFECT_NONE] = "none",
	[IDEM_EFFECT_REFUSED] = "refused",
};

static const char *
report_event(const IdemRequest *r)
{
	switch (r->call)
	{
		case IDEM_CALL_COMPLETE:
			return "succeeded";
		case IDEM_CALL_FAIL:
			return "failed";
		default:
			return "released";
	}
}

/* the report as a line of the history, with the answer that it got */
static void
record_report(IdemVerdict *v, const IdemRequest *r)
{
	StringInfoData d;

	idem_detail_start(&d);
	if (r->call == IDEM_CALL_FAIL)
		idem_detail_add(&d, "effect", effect_names[r->effect]);
	idem_detail_add_text(&d, "external_ref", r->external_ref);
	idem_detail_add_text(&d, r->call == IDEM_CALL_RELEASE ? "reason" : "error", r->error);
	if (r->call == IDEM_CALL_COMPLETE && double_open(&v->after))
		idem_detail_add_text(&d, "first_external_ref", v->after.external_ref);
	idem_detail_add_bool(&d, "accepted", v->accepted);
	idem_detail_add(&d, "note", v->note);
	v->event = report_event(r);
	v->event_claim = r->claim_id;
	v->event_detail = idem_detail_end(&d);
	if (r->result != NULL)
	{
		idem_detail_start(&d);
		idem_detail_add_json(&d, "result", r->result);
		v->event_content = idem_detail_end(&d);
	}
}

/* a lease that ended without a report, with what became of it */
static void
record_expiry(IdemVerdict *v, const IdemAction *before)
{
	StringInfoData d;

	idem_detail_start(&d);
	idem_detail_add_bool(&d, "begun", before->begun);
	idem_detail_add_bool(&d, "verifying", before->verifying);
	idem_detail_add(&d, "lease_until", timestamptz_to_str(before->lease_until));
	idem_detail_add_text(&d, "reason", v->after.reason);
	v->event = "expired";
	v->event_claim = before->claim_id;
	v->event_attempt = before->attempt;
	v->event_detail = idem_detail_end(&d);
}

/* a report's facts: of a success the reference, of a failure its effect */
static bool
same_facts(const IdemPast *past, const IdemRequest *r)
{
	char	   *stored;

	if (strcmp(past->event, report_event(r)) != 0)
		return false;
	switch (r->call)
	{
		case IDEM_CALL_COMPLETE:
			stored = idem_detail_string(past->detail, "external_ref");
			if (stored == NULL || r->external_ref == NULL)
				return stored == NULL && r->external_ref == NULL;
			return idem_text_is(r->external_ref, stored);
		case IDEM_CALL_FAIL:
			stored = idem_detail_string(past->detail, "effect");
			return stored != NULL && strcmp(stored, effect_names[r->effect]) == 0;
		default:
			return true;
	}
}

/* the same report by the same claim, recorded before: answer as it did */
static bool
answer_from_past(IdemVerdict *v, const IdemRequest *r)
{
	ListCell   *lc;

	foreach(lc, r->past)
	{
		IdemPast   *past = lfirst(lc);

		if (!idem_uuid_equal(&past->claim_id, &r->claim_id) || !same_facts(past, r))
			continue;
		v->accepted = idem_detail_bool(past->detail, "accepted");
		v->note = idem_detail_string(past->detail, "note");
		return true;
	}
	return false;
}

/* whether anyone has reported or decided since the last hand-out */
static bool
heard_since_hand_out(const IdemAction *a, const IdemRequest *r)
{
	ListCell   *lc;

	foreach(lc, r->past)
	{
		IdemPast   *past = lfirst(lc);

		if (past->generation == a->generation && past->during == a->attempt &&
			strcmp(past->event, "expired") != 0)
			return true;
	}
	return false;
}

/* the first line about the request's claim; NULL: the ledger never issued it */
static const IdemPast *
past_of_claim(const IdemRequest *r)
{
	ListCell   *lc;

	foreach(lc, r->past)
	{
		IdemPast   *past = lfirst(lc);

		if (idem_uuid_equal(&past->claim_id, &r->claim_id))
			return past;
	}
	return NULL;
}

/*-------------------------------------------------------------------------
 * Cells: a claim
 *-------------------------------------------------------------------------
 */

static void
answer(IdemVerdict *v, const IdemRequest *r)
{
	if (idem_awaits_approval(&v->after, r->rule))
		v->outcome = IDEM_AWAITING_APPROVAL;
	else
		v->outcome = idem_outcome_of(&v->after, r->now);
}

/* what a claim gets from the doubt list */
static void
claim_by_judgement(IdemVerdict *v, const IdemRequest *r, Judgement judgement)
{
	v->changes = true;
	switch (judgement)
	{
		case JUDGED_GRANT:
		case JUDGED_GRANT_AT_ONCE:
			hand_out(v, r, false);
			break;
		case JUDGED_VERIFY:
			hand_out(v, r, true);
			break;
		case JUDGED_WAIT:
		case JUDGED_ENDED:
			answer(v, r);
			break;
	}
}

static void
claim_pending(IdemVerdict *v, const IdemRequest *r)
{
	if (v->after.uncertain)
		claim_by_judgement(v, r, judge(&v->after, r, STILL_DOUBTFUL, true));
	else
		hand_out(v, r, false);
}

/* the holder's own call again, its reply lost: the same grant */
static void
claim_held(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;

	if (!idem_uuid_is_null(&r->call_id) && idem_uuid_equal(&a->call_id, &r->call_id) &&
		idem_text_equal(a->worker, r->worker))
		v->outcome = a->verifying ? IDEM_VERIFY : IDEM_CLAIMED;
	else
		answer(v, r);
}

static void
claim_lapsed(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction	before = v->after;
	Judgement	judgement;

	end_claim(&v->after, before.verifying ? "search_expired" : "expired");
	judgement = judge(&v->after, r, LEASE_OVER, false);
	record_expiry(v, &before);
	claim_by_judgement(v, r, judgement);
}

/*-------------------------------------------------------------------------
 * Cells: what the holder says while it holds
 *-------------------------------------------------------------------------
 */

static void
lost_claim(IdemVerdict *v, const IdemRequest *r)
{
	v->problem = IDEM_PROBLEM_LOST;
}

/* may this claim go on?  Its lease may be over as long as nobody judged it. */
static bool
still_holds(IdemVerdict *v, const IdemRequest *r)
{
	if (!idem_uuid_equal(&v->after.claim_id, &r->claim_id))
		v->problem = IDEM_PROBLEM_LOST;
	else if (v->after.cancel_requested)
		v->problem = IDEM_PROBLEM_CANCEL;
	return v->problem == IDEM_NO_PROBLEM;
}

static void
extend(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;

	if (!still_holds(v, r))
		return;
	/* never shorter: the holder may rely on what it was told before */
	a->lease_until = Max(a->lease_until,
						 r->now + (r->lease > 0 ? r->lease : r->rule->lease));
	v->changes = true;
}

static void
begin(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;

	if (!still_holds(v, r))
		return;
	if (a->verifying || (a->lease_until <= r->now && r->lease == 0))
	{
		v->problem = IDEM_PROBLEM_LOST;
		return;
	}
	if (r->lease > 0 && r->now + r->lease > a->lease_until)
	{
		a->lease_until = r->now + r->lease;
		v->changes = true;
	}
	if (r->draft != NULL && (a->draft == NULL || !draft_equal(a->draft, r->draft)))
	{
		a->draft = r->draft;
		v->changes = true;
	}
	if (!a->begun)
	{
		a->begun = true;
		v->changes = true;
	}
}

/*-------------------------------------------------------------------------
 * Cells: reports by the last claim
 *-------------------------------------------------------------------------
 */

static void
keep_success(IdemAction *a, const IdemRequest *r)
{
	if (r->external_ref != NULL)
		a->external_ref = r->external_ref;
	if (r->result != NULL)
		a->result = r->result;
}

/* the action is done; "late" says that it came after the lease */
static void
succeed(IdemVerdict *v, const IdemRequest *r, bool late)
{
	IdemAction *a = &v->after;
	text	   *open_double = double_open(a) ? a->reason : NULL;

	if (a->cancel_requested)
		v->note = "the cancel came too late: the action had taken effect";
	else if (r->dropped != NULL)
		v->note = r->dropped;
	else if (late)
		v->note = "accepted although the lease had ended: nobody had acted since";
	keep_success(a, r);
	a->error = NULL;
	to_final(a, IDEM_COMPLETED, r);
	a->reason = open_double;
	end_claim(a, "succeeded");
	v->changes = true;
	v->accepted = true;
	if (late)
		record_report(v, r);
}

static void
complete(IdemVerdict *v, const IdemRequest *r)
{
	succeed(v, r, v->after.lease_until <= r->now);
}

/* pending again: its own success counts while nobody has acted on its end */
static void
complete_late(IdemVerdict *v, const IdemRequest *r)
{
	if (heard_since_hand_out(&v->after, r))
		late_result(v, r);
	else
		succeed(v, r, true);
}

static void
complete_again(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;

	if (a->external_ref == NULL && r->external_ref != NULL && !double_open(a))
	{
		a->external_ref = r->external_ref;
		v->changes = true;
		v->accepted = true;
		v->note = "the external reference was added";
	}
	else if (r->external_ref == NULL || idem_text_equal(a->external_ref, r->external_ref))
		v->accepted = true;
	else
		second_result(v, r);
}

/* a success is known that the row's external_ref belongs to */
static bool
success_known(const IdemAction *a)
{
	return a->state == IDEM_COMPLETED ||
		idem_text_is(a->reason, "late_result") || double_open(a);
}

static void
complete_doubtful(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;

	if (success_known(a) &&
		(r->external_ref == NULL || !idem_text_equal(a->external_ref, r->external_ref)))
		second_result(v, r);
	else
		succeed(v, r, true);
}

/*
 * The fail rules.  Where the lease had lapsed and been judged, the attempt is
 * put back to how it was handed out first ("as if valid").
 */
static void
fail_attempt(IdemVerdict *v, const IdemRequest *r, bool verifying, bool already)
{
	IdemAction *a = &v->after;
	IdemEffect	effect = verifying ? IDEM_EFFECT_NONE : r->effect;
	Judgement	judgement;

	static const char *const ends[] = {
		[IDEM_EFFECT_UNKNOWN] = "failed_unknown",
		[IDEM_EFFECT_NONE] = "failed_none",
		[IDEM_EFFECT_REFUSED] = "failed_refused",
	};

	a->uncertain = a->uncertain_before;
	a->error = r->error;
	end_claim(a, ends[r->effect]);

	if (effect == IDEM_EFFECT_REFUSED)
	{
		if (a->uncertain)
			to_attention(a, "outcome_unknown");
		else
			to_final(a, IDEM_FAILED, r);
	}
	else if (effect == IDEM_EFFECT_NONE && !a->uncertain && a->cancel_requested)
	{
		a->failures++;
		to_final(a, IDEM_CANCELLED, r);
	}
	else
	{
		if (effect == IDEM_EFFECT_NONE)
			a->failures++;
		if (effect == IDEM_EFFECT_NONE && a->failures >= r->rule->max_failures)
			to_attention(a, "failures_exhausted");
		else if (effect == IDEM_EFFECT_NONE && !a->uncertain)
			to_pending(a, retry_at(a, r));
		else
		{
			judgement = judge(a, r, effect == IDEM_EFFECT_NONE ? REPORTED_CLEAN : REPORTED_UNKNOWN,
							  already);
			if (judgement == JUDGED_GRANT || judgement == JUDGED_VERIFY ||
				judgement == JUDGED_WAIT)
				a->due_at = Max(a->due_at, retry_at(a, r));
		}
	}
	v->changes = true;
	v->accepted = true;
	record_report(v, r);
}

static void
fail(IdemVerdict *v, const IdemRequest *r)
{
	fail_attempt(v, r, v->after.verifying, false);
}

static bool
lease_was_judged(const IdemAction *a)
{
	return idem_text_is(a->reason, "lease_expired");
}

static void
fail_doubtful(IdemVerdict *v, const IdemRequest *r)
{
	if (lease_was_judged(&v->after))
		fail_attempt(v, r, idem_text_is(v->after.ended_by, "search_expired"), true);
	else
		evidence(v, r);
}

/* this attempt did nothing and counts nothing */
static void
release(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;

	if (a->marked && a->begun)
	{
		v->note = "refused: begin_effect was called, so the attempt may have taken effect; report it by complete_action or fail_action";
		return;
	}
	a->uncertain = a->uncertain_before;
	end_claim(a, "released");
	if (!a->cancel_requested)
		to_pending(a, r->now);
	else if (a->uncertain)
		to_attention(a, "outcome_unknown");
	else
		to_final(a, IDEM_CANCELLED, r);
	v->changes = true;
	v->accepted = true;
	record_report(v, r);
}

static void
release_doubtful(IdemVerdict *v, const IdemRequest *r)
{
	if (lease_was_judged(&v->after))
		release(v, r);
	else
		evidence(v, r);
}

/*-------------------------------------------------------------------------
 * Cells: reports that come too late
 *-------------------------------------------------------------------------
 */

/* kept, and nothing else: who, when, what */
static void
evidence(IdemVerdict *v, const IdemRequest *r)
{
	v->accepted = false;
	v->note = "kept as evidence: the claim had ended, so the action's state is unchanged";
	record_report(v, r);
}

/* a success where none was expected any more: a person has to look */
static void
late_result(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;

	if (success_known(a))
	{
		second_result(v, r);
		return;
	}
	v->accepted = false;
	v->note = "kept: the success came after the claim had ended, so a person decides";
	keep_success(a, r);
	to_attention(a, "late_result");
	v->changes = true;
	record_report(v, r);
}

/* another success than the one that is stored: the first result stays */
static void
second_result(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;

	if (r->external_ref != NULL && idem_text_equal(a->external_ref, r->external_ref))
	{
		v->accepted = a->state == IDEM_COMPLETED;
		if (!v->accepted)
			evidence(v, r);
		return;
	}
	v->accepted = false;
	v->note = "kept: another success is stored already, so the action may have been done twice; a person decides";
	if (a->state != IDEM_COMPLETED)
		to_attention(a, "double_result");
	else
		a->reason = cstring_to_text("double_result");
	v->changes = true;
	record_report(v, r);
}

/*-------------------------------------------------------------------------
 * Deciding
 *-------------------------------------------------------------------------
 */

/* a claim is compared with what the row was made for, whatever its state */
static bool
params_differ(const IdemAction *a, const IdemRequest *r)
{
	return a->params_digest != NULL && r->params_digest != NULL &&
		!idem_text_equal((text *) a->params_digest, (text *) r->params_digest);
}

/*
 * What the request does to the action.  The verdict's texts point into both,
 * or are newly allocated.
 */
void
idem_decide(const IdemAction *action, const IdemRequest *r, IdemVerdict *v)
{
	Situation	situation = situation_of(action, r);
	Arrival		arrival = arrival_of(action, r);

	memset(v, 0, sizeof(*v));
	v->after = *action;
	v->event_attempt = action->attempt;

	if (r->call == IDEM_CALL_CLAIM)
	{
		if (params_differ(action, r))
		{
			v->outcome = IDEM_MISMATCH;
			return;
		}
		v->kept_draft = action->draft != NULL && r->draft != NULL &&
			!draft_equal(action->draft, r->draft);
	}
	else if (arrival >= SUCCESS)
	{
		/* only a report that meets its own claim running needs no history */
		bool		plain = (situation == HELD || situation == LAPSED) && arrival <= RELEASE;

		if (situation == COMPLETED && arrival == SUCCESS && !double_open(action) &&
			(r->external_ref == NULL || action->external_ref == NULL ||
			 idem_text_equal(action->external_ref, r->external_ref)))
			plain = true;
		if (!plain)
		{
			if (!r->past_read)
			{
				v->needs_past = true;
				return;
			}
			if (answer_from_past(v, r))
				return;
			if (arrival >= EARLIER_SUCCESS)
			{
				const IdemPast *past = past_of_claim(r);

				v->event_attempt = past != NULL ? past->attempt : 0;
				if (past != NULL && past->generation < action->generation)
				{
					evidence(v, r);
					return;
				}
			}
		}
	}

	transitions[situation][arrival] (v, r);
	if (v->changes && r->call != IDEM_CALL_EXTEND)
		v->after.revision++;
}

/* the first row of an action that the ledger does not know */
void
idem_decide_new(const IdemRequest *r, IdemVerdict *v)
{
	IdemAction *a = &v->after;

	memset(v, 0, sizeof(*v));
	leave_state(a);
	a->action_id = r->action_id;
	a->created_at = r->now;
	a->revision = 1;
	a->generation = 1;
	a->first_claimed_at = IDEM_NEVER;
	a->claimed_at = IDEM_NEVER;
	a->doubt_until = IDEM_NEVER;
	a->scope = r->scope;
	a->intent = r->intent;
	a->key = r->key;
	a->source = r->source;
	a->event_id = r->event_id;
	a->params = r->params;
	a->params_digest = r->params_digest;
	a->draft = r->draft;
	if (r->rule->requires_approval)
	{
		to_pending(a, r->now);
		v->changes = true;
		v->outcome = IDEM_AWAITING_APPROVAL;
	}
	else
		hand_out(v, r, false);
}

/* the same for once(): handed out and completed in one row */
void
idem_decide_once(const IdemRequest *r, IdemVerdict *v)
{
	idem_decide_new(r, v);
	if (v->outcome == IDEM_CLAIMED)
		succeed(v, r, false);
}
