/*-------------------------------------------------------------------------
 *
 * state.c
 *	  The states of an action: one table, and the cells it consists of.
 *
 * idem_decide() is a function of the row, the request and (for what arrives
 * late, and for people) the action's history.  It writes nothing and locks
 * nothing; the caller writes the verdict as a compare-and-swap on the version
 * decided on, and decides again where that fails.  So a transition has no
 * moment in which a crash could leave half of it.
 *
 * The history is asked for only when a report does not meet its own running
 * claim, or a person decides: to answer the same call the same way, to know
 * whether anybody has reported or decided since the hand-out, and to tell who
 * did.  The verdict then says needs_past, and the caller comes again with the
 * row locked.
 *
 * Doubt is sticky.  "uncertain" means that some attempt may have taken effect;
 * only a success, a search that found nothing, or a person clears it.  What
 * follows from doubt is judge(), "the doubt list", and nothing else.
 *
 * ended_by tells how the last claim ended: succeeded, failed_none,
 * failed_unknown, failed_refused, released, searched (the search was
 * inconclusive, or made the action free for others), expired (its lease ended
 * without a report) or search_expired (the same of a verify hand-out).
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
#include "canon.h"
#include "common/pg_prng.h"
#include "detail.h"
#include "key.h"
#include "ledger.h"
#include "utils/builtins.h"

#define MAX_RETRY_DELAY USECS_PER_HOUR

/* where an action stands when a call arrives: the rows of the table */
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

/* the columns: a call, and by whose claim it comes */
typedef enum Arrival
{
	CLAIM,						/* also a take */
	BEGIN,						/* these two by an earlier claim are lost */
	EXTEND,						/* in any case */
	SUCCESS,
	FAILURE,
	RELEASE,
	SEARCHED,					/* and not found, or not to be told */
	EARLIER_SUCCESS,
	EARLIER_OTHER,
	REVISE,						/* from here on by people */
	APPROVE,
	CANCEL,
	RESOLVE,
	RERUN,
	ERASE
} Arrival;

#define NARRIVALS (ERASE + 1)

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
static void searched(IdemVerdict *v, const IdemRequest *r);
static void late_result(IdemVerdict *v, const IdemRequest *r);
static void second_result(IdemVerdict *v, const IdemRequest *r);
static void evidence(IdemVerdict *v, const IdemRequest *r);
static void revise(IdemVerdict *v, const IdemRequest *r);
static void refuse_revise(IdemVerdict *v, const IdemRequest *r);
static void approve(IdemVerdict *v, const IdemRequest *r);
static void refuse_approve(IdemVerdict *v, const IdemRequest *r);
static void cancel(IdemVerdict *v, const IdemRequest *r);
static void cancel_doubtful(IdemVerdict *v, const IdemRequest *r);
static void cancel_held(IdemVerdict *v, const IdemRequest *r);
static void cancel_again(IdemVerdict *v, const IdemRequest *r);
static void refuse_cancel(IdemVerdict *v, const IdemRequest *r);
static void resolve(IdemVerdict *v, const IdemRequest *r);
static void resolve_held(IdemVerdict *v, const IdemRequest *r);
static void resolve_completed(IdemVerdict *v, const IdemRequest *r);
static void rerun(IdemVerdict *v, const IdemRequest *r);
static void rerun_doubtful(IdemVerdict *v, const IdemRequest *r);
static void refuse_rerun(IdemVerdict *v, const IdemRequest *r);
static void erase(IdemVerdict *v, const IdemRequest *r);
static void refuse_erase(IdemVerdict *v, const IdemRequest *r);

static const Cell transitions[NSITUATIONS][NARRIVALS] = {
	[PENDING_DUE] = {
		[CLAIM] = claim_pending, [BEGIN] = lost_claim, [EXTEND] = lost_claim,
		[SUCCESS] = complete_late, [FAILURE] = evidence, [RELEASE] = evidence, [SEARCHED] = evidence,
		[EARLIER_SUCCESS] = late_result, [EARLIER_OTHER] = evidence,
		[REVISE] = revise, [APPROVE] = approve, [CANCEL] = cancel,
		[RESOLVE] = resolve, [RERUN] = refuse_rerun, [ERASE] = refuse_erase,
	},
	[PENDING_LATER] = {
		[CLAIM] = answer, [BEGIN] = lost_claim, [EXTEND] = lost_claim,
		[SUCCESS] = complete_late, [FAILURE] = evidence, [RELEASE] = evidence, [SEARCHED] = evidence,
		[EARLIER_SUCCESS] = late_result, [EARLIER_OTHER] = evidence,
		[REVISE] = revise, [APPROVE] = approve, [CANCEL] = cancel,
		[RESOLVE] = resolve, [RERUN] = refuse_rerun, [ERASE] = refuse_erase,
	},
	[UNAPPROVED] = {
		[CLAIM] = answer, [BEGIN] = lost_claim, [EXTEND] = lost_claim,
		[SUCCESS] = complete_late, [FAILURE] = evidence, [RELEASE] = evidence, [SEARCHED] = evidence,
		[EARLIER_SUCCESS] = late_result, [EARLIER_OTHER] = evidence,
		[REVISE] = revise, [APPROVE] = approve, [CANCEL] = cancel,
		[RESOLVE] = resolve, [RERUN] = refuse_rerun, [ERASE] = refuse_erase,
	},
	[HELD] = {
		[CLAIM] = claim_held, [BEGIN] = begin, [EXTEND] = extend,
		[SUCCESS] = complete, [FAILURE] = fail, [RELEASE] = release, [SEARCHED] = searched,
		[EARLIER_SUCCESS] = late_result, [EARLIER_OTHER] = evidence,
		[REVISE] = refuse_revise, [APPROVE] = refuse_approve, [CANCEL] = cancel_held,
		[RESOLVE] = resolve_held, [RERUN] = refuse_rerun, [ERASE] = refuse_erase,
	},
	[LAPSED] = {
		[CLAIM] = claim_lapsed, [BEGIN] = begin, [EXTEND] = extend,
		[SUCCESS] = complete, [FAILURE] = fail, [RELEASE] = release, [SEARCHED] = searched,
		[EARLIER_SUCCESS] = late_result, [EARLIER_OTHER] = evidence,
		[REVISE] = refuse_revise, [APPROVE] = refuse_approve, [CANCEL] = cancel_held,
		[RESOLVE] = resolve, [RERUN] = refuse_rerun, [ERASE] = refuse_erase,
	},
	[COMPLETED] = {
		[CLAIM] = answer, [BEGIN] = lost_claim, [EXTEND] = lost_claim,
		[SUCCESS] = complete_again, [FAILURE] = evidence, [RELEASE] = evidence, [SEARCHED] = evidence,
		[EARLIER_SUCCESS] = second_result, [EARLIER_OTHER] = evidence,
		[REVISE] = refuse_revise, [APPROVE] = refuse_approve, [CANCEL] = refuse_cancel,
		[RESOLVE] = resolve_completed, [RERUN] = rerun, [ERASE] = erase,
	},
	[FAILED] = {
		[CLAIM] = answer, [BEGIN] = lost_claim, [EXTEND] = lost_claim,
		[SUCCESS] = late_result, [FAILURE] = evidence, [RELEASE] = evidence, [SEARCHED] = evidence,
		[EARLIER_SUCCESS] = late_result, [EARLIER_OTHER] = evidence,
		[REVISE] = refuse_revise, [APPROVE] = refuse_approve, [CANCEL] = cancel,
		[RESOLVE] = resolve, [RERUN] = rerun, [ERASE] = erase,
	},
	[ATTENTION] = {
		[CLAIM] = answer, [BEGIN] = lost_claim, [EXTEND] = lost_claim,
		[SUCCESS] = complete_doubtful, [FAILURE] = fail_doubtful, [RELEASE] = release_doubtful, [SEARCHED] = evidence,
		[EARLIER_SUCCESS] = late_result, [EARLIER_OTHER] = evidence,
		[REVISE] = refuse_revise, [APPROVE] = refuse_approve, [CANCEL] = cancel_doubtful,
		[RESOLVE] = resolve, [RERUN] = rerun_doubtful, [ERASE] = erase,
	},
	[CANCELLED] = {
		[CLAIM] = answer, [BEGIN] = lost_claim, [EXTEND] = lost_claim,
		[SUCCESS] = late_result, [FAILURE] = evidence, [RELEASE] = evidence, [SEARCHED] = evidence,
		[EARLIER_SUCCESS] = late_result, [EARLIER_OTHER] = evidence,
		[REVISE] = refuse_revise, [APPROVE] = refuse_approve, [CANCEL] = cancel_again,
		[RESOLVE] = resolve, [RERUN] = rerun, [ERASE] = erase,
	},
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
 * Where an action stands, and what arrives
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

static Situation
situation_of(const IdemAction *a, const IdemRequest *r)
{
	switch (a->state)
	{
		case IDEM_PENDING:
			if (r->rule->requires_approval && !a->approved)
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
		case IDEM_CALL_ENQUEUE:
		case IDEM_CALL_TAKE:
		case IDEM_CALL_TAKE_TO_VERIFY:
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
		case IDEM_CALL_SEARCHED:
			return last ? SEARCHED : EARLIER_OTHER;
		case IDEM_CALL_REVISE:
			return REVISE;
		case IDEM_CALL_APPROVE:
			return APPROVE;
		case IDEM_CALL_CANCEL:
			return CANCEL;
		case IDEM_CALL_RESOLVE:
			return RESOLVE;
		case IDEM_CALL_RERUN:
			return RERUN;
		case IDEM_CALL_ERASE:
			return ERASE;
	}
	elog(ERROR, "unknown call %d", (int) r->call);
}

/* the outcome that a state is told by, where nothing is handed out */
IdemOutcome
idem_outcome_of(const IdemAction *a, const IdemRule *rule)
{
	switch (a->state)
	{
		case IDEM_PENDING:
			return rule->requires_approval && !a->approved ?
				IDEM_AWAITING_APPROVAL : IDEM_OUT_PENDING;
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

/* a lease from now on; what came from the queue is due there when it ends */
static void
lease_to(IdemVerdict *v, TimestampTz until)
{
	v->after.lease_until = until;
	if (v->queued)
		v->after.due_at = until;
}

static int64
lease_of(const IdemRequest *r)
{
	return r->lease > 0 ? r->lease : r->rule->lease;
}

static void
hand_out(IdemVerdict *v, const IdemRequest *r, bool verifying)
{
	IdemAction *a = &v->after;

	if (r->paused)
	{
		v->outcome = IDEM_PAUSED;
		return;
	}
	leave_state(a);
	a->state = IDEM_IN_PROGRESS;
	idem_new_claim_id(&a->claim_id);
	a->call_id = r->call_id;
	a->attempt++;
	a->claimed_at = r->now;
	if (a->first_claimed_at == IDEM_NEVER)
		a->first_claimed_at = r->now;
	lease_to(v, r->now + lease_of(r));
	a->worker = r->worker;
	a->marked = r->rule->marks_effect;
	a->begun = false;
	a->uncertain_before = a->uncertain;
	a->verifying = verifying;
	a->ended_by = NULL;
	if (a->params == NULL && r->params != NULL &&
		(a->params_digest == NULL || a->purged))
	{
		a->params = r->params;
		a->params_digest = r->params_digest;
		a->purged = false;
	}
	if (a->draft == NULL && r->draft != NULL)
	{
		a->draft = r->draft;
		a->purged = false;
	}
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
 * that it is not counted as lost a second time.  Leaves the action pending
 * where it may be handed out, now or later.
 */
static Judgement
judge(IdemAction *a, const IdemRequest *r, Cause cause, bool already)
{
	bool		ended = cause == LEASE_OVER || cause == REPORTED_UNKNOWN;
	bool		did_nothing = ended && a->marked && !a->begun;
	TimestampTz due_at = cause == STILL_DOUBTFUL ? a->due_at : r->now;

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
				to_pending(a, due_at);
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
			to_pending(a, due_at);
			return JUDGED_GRANT;
		case IDEM_RETRY:
			if (r->now + lease_of(r) > a->first_claimed_at + r->rule->provider_window)
			{
				to_attention(a, "provider_window_over");
				return JUDGED_ENDED;
			}
			to_pending(a, due_at);
			return JUDGED_GRANT;
		case IDEM_SEARCH:
			to_pending(a, Max(due_at, a->doubt_until + r->rule->settle));
			return a->due_at <= r->now ? JUDGED_VERIFY : JUDGED_WAIT;
		case IDEM_REVIEW:
			break;
	}
	elog(ERROR, "unknown on_uncertain %d", (int) r->rule->on_uncertain);
}

/*-------------------------------------------------------------------------
 * Lines for the history
 *-------------------------------------------------------------------------
 */

static const char *const effect_names[] = {
	[IDEM_EFFECT_UNKNOWN] = "unknown",
	[IDEM_EFFECT_NONE] = "none",
	[IDEM_EFFECT_REFUSED] = "refused",
};

static const char *const decision_names[] = {
	[IDEM_HAPPENED] = "happened",
	[IDEM_NOT_HAPPENED] = "not_happened",
	[IDEM_CANCEL] = "cancel",
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
		case IDEM_CALL_RELEASE:
			return "released";
		default:
			return "searched";
	}
}

static IdemLine *
add_line(IdemVerdict *v, const char *event, const pg_uuid_t *claim_id, int32 attempt)
{
	IdemLine   *line = &v->lines[v->nlines++];

	Assert(v->nlines <= (int) lengthof(v->lines));
	line->event = event;
	line->claim_id = *claim_id;
	line->attempt = attempt;
	return line;
}

static Jsonb *
content_of(const char *name, Jsonb *value)
{
	StringInfoData d;

	if (value == NULL)
		return NULL;
	idem_detail_start(&d);
	idem_detail_add_json(&d, name, value);
	return idem_detail_end(&d);
}

/* the report, with the answer that it got */
static void
record_report(IdemVerdict *v, const IdemRequest *r)
{
	IdemLine   *line = add_line(v, report_event(r), &r->claim_id, v->attempt);
	bool		keeps = !v->after.purged;
	StringInfoData d;

	idem_detail_start(&d);
	if (r->call == IDEM_CALL_FAIL)
		idem_detail_add(&d, "effect", effect_names[r->effect]);
	if (r->call == IDEM_CALL_SEARCHED)
		idem_detail_add(&d, "found", r->inconclusive ? "cannot tell" : "no");
	if (r->searched)
		idem_detail_add(&d, "found", "yes");
	idem_detail_add_text(&d, "external_ref", r->external_ref);
	if (keeps)
	{
		idem_detail_add_text(&d, r->call == IDEM_CALL_FAIL ? "error" : "reason", r->error);
		line->content = content_of("result", r->result);
	}
	if (r->call == IDEM_CALL_COMPLETE && double_open(&v->after))
		idem_detail_add_text(&d, "first_external_ref", v->after.external_ref);
	idem_detail_add_bool(&d, "accepted", v->accepted);
	idem_detail_add(&d, "note", v->note);
	line->detail = idem_detail_end(&d);
}

/* a lease that ended without a report, with what became of it */
static void
record_expiry(IdemVerdict *v, const IdemAction *before)
{
	IdemLine   *line = add_line(v, "expired", &before->claim_id, before->attempt);
	StringInfoData d;

	idem_detail_start(&d);
	idem_detail_add_bool(&d, "begun", before->begun);
	idem_detail_add_bool(&d, "verifying", before->verifying);
	idem_detail_add(&d, "lease_until", timestamptz_to_str(before->lease_until));
	idem_detail_add_text(&d, "reason", v->after.reason);
	line->detail = idem_detail_end(&d);
}

/* tells drafts apart in the history without keeping them */
static char *
draft_digest(Jsonb *draft)
{
	uint8		digest[IDEM_DIGEST_LENGTH];
	char	   *hex;

	if (draft == NULL)
		return NULL;
	idem_params_digest(draft, digest);
	hex = palloc0(2 * IDEM_DIGEST_LENGTH + 1);
	hex_encode((char *) digest, IDEM_DIGEST_LENGTH, hex);
	return hex;
}

/* what a person decided, on which revision, and what it made */
static void
record_decision(IdemVerdict *v, const IdemRequest *r, const char *event)
{
	IdemLine   *line = add_line(v, event, &v->after.claim_id, v->attempt);
	StringInfoData d;

	idem_detail_start(&d);
	if (r->call == IDEM_CALL_RESOLVE)
		idem_detail_add(&d, "decision", decision_names[r->decision]);
	idem_detail_add_text(&d, "external_ref", r->external_ref);
	idem_detail_add(&d, "draft", draft_digest(r->draft));
	idem_detail_add_text(&d, "reason", r->note);
	if (r->revision > 0)
		idem_detail_add_int(&d, "saw", r->revision);
	idem_detail_add_int(&d, "made", v->after.revision + 1);
	idem_detail_add_bool(&d, "accepted", v->accepted);
	idem_detail_add(&d, "note", v->note);
	line->actor = r->actor;
	line->detail = idem_detail_end(&d);
}

/*-------------------------------------------------------------------------
 * What the history says
 *-------------------------------------------------------------------------
 */

static bool
same_string(const char *a, const char *b)
{
	if (a == NULL || b == NULL)
		return a == b;
	return strcmp(a, b) == 0;
}

static char *
string_or_null(text *value)
{
	return value == NULL ? NULL : text_to_cstring(value);
}

/* a report's facts: of a success the reference, of a failure its effect */
static bool
same_report(const IdemPast *past, const IdemRequest *r)
{
	if (!idem_uuid_equal(&past->claim_id, &r->claim_id) ||
		strcmp(past->event, report_event(r)) != 0)
		return false;
	switch (r->call)
	{
		case IDEM_CALL_COMPLETE:
			return same_string(idem_detail_string(past->detail, "external_ref"),
							   string_or_null(r->external_ref));
		case IDEM_CALL_FAIL:
			return same_string(idem_detail_string(past->detail, "effect"),
							   effect_names[r->effect]);
		case IDEM_CALL_SEARCHED:
			return same_string(idem_detail_string(past->detail, "found"),
							   r->inconclusive ? "cannot tell" : "no");
		default:
			return true;
	}
}

static const char *
decision_event(const IdemRequest *r)
{
	switch (r->call)
	{
		case IDEM_CALL_REVISE:
			return "revised";
		case IDEM_CALL_APPROVE:
			return "approved";
		case IDEM_CALL_CANCEL:
			return "cancelled";
		case IDEM_CALL_RESOLVE:
			return "resolved";
		case IDEM_CALL_RERUN:
			return "rerun";
		default:
			return "erased";
	}
}

static bool
is_decision(const IdemPast *past)
{
	return idem_detail_int(past->detail, "made") > 0;
}

/* the same decision by the same role on the same revision, or still the last */
static bool
same_decision(const IdemPast *past, const IdemAction *a, const IdemRequest *r)
{
	if (!is_decision(past) || strcmp(past->event, decision_event(r)) != 0 ||
		strcmp(past->role, r->role) != 0)
		return false;
	if (r->revision > 0 ? idem_detail_int(past->detail, "saw") != r->revision :
		idem_detail_int(past->detail, "made") != a->revision)
		return false;
	if (r->call == IDEM_CALL_RESOLVE &&
		!same_string(idem_detail_string(past->detail, "decision"), decision_names[r->decision]))
		return false;
	return same_string(idem_detail_string(past->detail, "external_ref"), string_or_null(r->external_ref)) &&
		same_string(idem_detail_string(past->detail, "draft"), draft_digest(r->draft));
}

/* the same call, answered before: answer as it did */
static bool
answer_from_past(IdemVerdict *v, const IdemRequest *r)
{
	ListCell   *lc;

	foreach(lc, r->past)
	{
		IdemPast   *past = lfirst(lc);

		if (IDEM_IS_DECISION(r->call) ? !same_decision(past, &v->after, r) : !same_report(past, r))
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

/* whether a person has decided since the last hand-out */
static bool
decided_since_hand_out(const IdemAction *a, const IdemRequest *r)
{
	ListCell   *lc;

	foreach(lc, r->past)
	{
		IdemPast   *past = lfirst(lc);

		if (past->generation == a->generation && past->during == a->attempt && is_decision(past))
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
	v->outcome = idem_outcome_of(&v->after, r->rule);
	if (v->outcome == IDEM_OUT_PENDING && r->call != IDEM_CALL_ENQUEUE)
		v->outcome = IDEM_NOT_DUE;
}

/* what a claim gets from the doubt list; a take gets only its own kind */
static void
claim_by_judgement(IdemVerdict *v, const IdemRequest *r, Judgement judgement)
{
	switch (judgement)
	{
		case JUDGED_GRANT:
		case JUDGED_GRANT_AT_ONCE:
			if (r->call == IDEM_CALL_TAKE_TO_VERIFY)
				answer(v, r);
			else
				hand_out(v, r, false);
			break;
		case JUDGED_VERIFY:
			if (r->call == IDEM_CALL_TAKE)
				answer(v, r);
			else
				hand_out(v, r, true);
			break;
		case JUDGED_WAIT:
		case JUDGED_ENDED:
			v->changes = true;
			answer(v, r);
			break;
	}
}

static void
claim_pending(IdemVerdict *v, const IdemRequest *r)
{
	if (v->after.uncertain)
		claim_by_judgement(v, r, judge(&v->after, r, STILL_DOUBTFUL, true));
	else if (r->call == IDEM_CALL_TAKE_TO_VERIFY)
		answer(v, r);
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

	v->changes = true;
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
	else if (r->paused)
		v->problem = IDEM_PROBLEM_PAUSED;
	return v->problem == IDEM_NO_PROBLEM;
}

static void
extend(IdemVerdict *v, const IdemRequest *r)
{
	if (!still_holds(v, r))
		return;
	/* never shorter: the holder may rely on what it was told before */
	lease_to(v, Max(v->after.lease_until, r->now + lease_of(r)));
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
	if (r->draft != NULL && (a->draft == NULL || !draft_equal(a->draft, r->draft)))
	{
		if (r->rule->requires_approval)
		{
			v->problem = IDEM_PROBLEM_NOT_APPROVED;
			return;
		}
		a->draft = r->draft;
		a->approved = false;
		v->changes = true;
	}
	if (r->lease > 0 && r->now + r->lease > a->lease_until)
	{
		lease_to(v, r->now + r->lease);
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
keep_success(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;

	if (r->external_ref != NULL)
		a->external_ref = r->external_ref;
	if (r->result != NULL && !a->purged)
		a->result = r->result;
	if (r->result != NULL && a->purged)
		v->note = "the result is not kept: the action's contents were purged or erased";
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
	keep_success(v, r);
	a->error = NULL;
	to_final(a, IDEM_COMPLETED, r);
	a->reason = open_double;
	end_claim(a, "succeeded");
	v->changes = true;
	v->accepted = true;
	if (late || r->searched)
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

static bool
same_known_success(const IdemAction *a, const IdemRequest *r)
{
	return r->external_ref != NULL && idem_text_equal(a->external_ref, r->external_ref);
}

static void
complete_doubtful(IdemVerdict *v, const IdemRequest *r)
{
	const IdemAction *a = &v->after;

	if (success_known(a) && !same_known_success(a, r))
		second_result(v, r);
	else if (decided_since_hand_out(a, r))
		late_result(v, r);
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
	static const char *const ends[] = {
		[IDEM_EFFECT_UNKNOWN] = "failed_unknown",
		[IDEM_EFFECT_NONE] = "failed_none",
		[IDEM_EFFECT_REFUSED] = "failed_refused",
	};
	IdemAction *a = &v->after;
	IdemEffect	effect = verifying ? IDEM_EFFECT_NONE : r->effect;
	Judgement	judgement;

	a->uncertain = a->uncertain_before;
	if (!a->purged)
		a->error = r->error;
	end_claim(a, ends[r->effect]);
	if (effect == IDEM_EFFECT_NONE)
		a->failures++;

	if (effect == IDEM_EFFECT_REFUSED)
	{
		if (a->uncertain)
			to_attention(a, "outcome_unknown");
		else
			to_final(a, IDEM_FAILED, r);
	}
	else if (effect == IDEM_EFFECT_NONE && !a->uncertain && a->cancel_requested)
		to_final(a, IDEM_CANCELLED, r);
	else if (effect == IDEM_EFFECT_NONE && a->failures >= r->rule->max_failures)
		to_attention(a, "failures_exhausted");
	else if (effect == IDEM_EFFECT_NONE && !a->uncertain)
		to_pending(a, retry_at(a, r));
	else
	{
		judgement = judge(a, r, effect == IDEM_EFFECT_NONE ? REPORTED_CLEAN : REPORTED_UNKNOWN,
						  already);
		if (judgement != JUDGED_ENDED && judgement != JUDGED_GRANT_AT_ONCE)
			a->due_at = Max(a->due_at, retry_at(a, r));
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

/*
 * A search that did not find it.  Absent: the doubt is over, and the searching
 * claim turns into a grant.  The same claim saying so again holds that grant.
 */
static void
searched(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;

	if (!a->verifying)
	{
		evidence(v, r);
		return;
	}
	v->changes = true;
	v->accepted = true;
	if (r->inconclusive)
	{
		end_claim(a, "searched");
		to_attention(a, "verify_inconclusive");
	}
	else
	{
		a->uncertain = false;
		a->uncertain_before = false;
		a->doubt_until = IDEM_NEVER;
		if (a->cancel_requested)
		{
			end_claim(a, "searched");
			to_final(a, IDEM_CANCELLED, r);
		}
		else if (r->paused)
		{
			end_claim(a, "searched");
			to_pending(a, r->now);
		}
		else
		{
			a->verifying = false;
			a->begun = false;
			a->marked = r->rule->marks_effect;
			lease_to(v, r->now + lease_of(r));
		}
	}
	record_report(v, r);
	if (a->state == IDEM_IN_PROGRESS)
		v->outcome = IDEM_CLAIMED;
	else if (a->state == IDEM_PENDING)
		v->outcome = IDEM_PAUSED;
	else
		answer(v, r);
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
	if (success_known(&v->after))
	{
		second_result(v, r);
		return;
	}
	keep_success(v, r);
	v->accepted = false;
	v->note = "kept: the success came after the claim had ended, so a person decides";
	to_attention(&v->after, "late_result");
	v->changes = true;
	record_report(v, r);
}

/* another success than the one that is stored: the first result stays */
static void
second_result(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;

	if (same_known_success(a, r))
	{
		if (a->state == IDEM_COMPLETED)
			v->accepted = true;
		else
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
 * Cells: decisions of people
 *-------------------------------------------------------------------------
 */

static void
decided(IdemVerdict *v, const IdemRequest *r, const char *event)
{
	v->changes = true;
	v->accepted = true;
	record_decision(v, r, event);
}

static void
revise(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;
	Jsonb	   *older = a->draft;

	if (older != NULL && draft_equal(older, r->draft))
	{
		v->accepted = true;
		v->note = "the draft is the same as before";
		return;
	}
	a->draft = r->draft;
	a->approved = false;
	decided(v, r, "revised");
	v->lines[0].content = content_of("draft", older);
}

static void
refuse_revise(IdemVerdict *v, const IdemRequest *r)
{
	v->note = psprintf("refused: the action is %s; a later change wants cancel_action before it is done, rerun_action after it, or a key of its own",
					   text_to_cstring(idem_state_name(v->after.state)));
}

static void
approve(IdemVerdict *v, const IdemRequest *r)
{
	v->after.approved = true;
	decided(v, r, "approved");
}

static void
refuse_approve(IdemVerdict *v, const IdemRequest *r)
{
	v->note = psprintf("refused: the action is %s and waits for no approval",
					   text_to_cstring(idem_state_name(v->after.state)));
}

/* pending or failed */
static void
cancel(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;

	if (a->uncertain)
	{
		a->cancel_requested = true;
		to_attention(a, "outcome_unknown");
		v->note = "an attempt may have taken effect, so a person decides";
	}
	else
		to_final(a, IDEM_CANCELLED, r);
	decided(v, r, "cancelled");
}

static void
cancel_doubtful(IdemVerdict *v, const IdemRequest *r)
{
	if (r->by_resolver)
	{
		to_final(&v->after, IDEM_CANCELLED, r);
		decided(v, r, "cancelled");
	}
	else
		v->note = "refused: an attempt may have taken effect; a resolver decides by resolve_action";
}

static void
cancel_held(IdemVerdict *v, const IdemRequest *r)
{
	v->note = "requested: the holder is told when it calls begin_effect or extend_claim";
	if (v->after.cancel_requested)
	{
		v->accepted = true;
		return;
	}
	v->after.cancel_requested = true;
	decided(v, r, "cancelled");
}

static void
cancel_again(IdemVerdict *v, const IdemRequest *r)
{
	v->accepted = true;
}

static void
refuse_cancel(IdemVerdict *v, const IdemRequest *r)
{
	v->note = "refused: the action is done; undoing it is an action of its own";
}

static void
resolve(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;
	bool		reopened = a->state == IDEM_CANCELLED;

	a->uncertain = false;
	switch (r->decision)
	{
		case IDEM_HAPPENED:
			keep_success(v, r);
			a->error = NULL;
			to_final(a, IDEM_COMPLETED, r);
			break;
		case IDEM_NOT_HAPPENED:
			a->lost = 0;
			a->failures = 0;
			a->doubt_until = IDEM_NEVER;
			/* what a late success had left is kept in the history */
			a->external_ref = NULL;
			a->result = NULL;
			if (a->cancel_requested && !reopened)
				to_final(a, IDEM_CANCELLED, r);
			else
			{
				a->cancel_requested = false;
				to_pending(a, r->now);
			}
			break;
		case IDEM_CANCEL:
			if (reopened)
			{
				v->accepted = true;
				return;
			}
			to_final(a, IDEM_CANCELLED, r);
			break;
	}
	decided(v, r, "resolved");
}

static void
resolve_held(IdemVerdict *v, const IdemRequest *r)
{
	if (r->decision == IDEM_NOT_HAPPENED)
		v->note = "refused: a holder may be acting now; ask it to stop by cancel_action, or wait for the end of its lease";
	else
		resolve(v, r);
}

static void
resolve_completed(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;

	if (r->decision != IDEM_HAPPENED)
		v->note = "refused: the action is completed; rerun_action does it once more on purpose";
	else if (double_open(a))
	{
		a->reason = NULL;
		keep_success(v, r);
		decided(v, r, "resolved");
	}
	else if (r->external_ref == NULL || idem_text_equal(a->external_ref, r->external_ref))
		v->accepted = true;
	else
		v->note = "refused: the action is completed with another external_ref";
}

static void
start_generation(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;
	ListCell   *lc;
	bool		told = false;

	/* a straight completion is told by its row only: now it becomes past */
	foreach(lc, r->past)
	{
		IdemPast   *past = lfirst(lc);

		if (idem_uuid_equal(&past->claim_id, &a->claim_id) && strcmp(past->event, "succeeded") == 0)
			told = true;
	}
	if (idem_text_is(a->ended_by, "succeeded") && !told)
	{
		IdemLine   *line = add_line(v, "succeeded", &a->claim_id, a->attempt);
		StringInfoData d;

		idem_detail_start(&d);
		idem_detail_add_text(&d, "external_ref", a->external_ref);
		idem_detail_add_bool(&d, "accepted", true);
		line->detail = idem_detail_end(&d);
		line->content = content_of("result", a->result);
	}
	decided(v, r, "rerun");
	if (r->draft != NULL)
	{
		v->lines[v->nlines - 1].content = content_of("draft", a->draft);
		a->draft = r->draft;
	}

	to_pending(a, r->now);
	a->generation++;
	a->attempt = 0;
	a->lost = 0;
	a->failures = 0;
	a->uncertain = false;
	a->uncertain_before = false;
	a->marked = false;
	a->begun = false;
	a->approved = false;
	a->cancel_requested = false;
	memset(&a->claim_id, 0, sizeof(a->claim_id));
	memset(&a->call_id, 0, sizeof(a->call_id));
	a->first_claimed_at = IDEM_NEVER;
	a->claimed_at = IDEM_NEVER;
	a->doubt_until = IDEM_NEVER;
	a->ended_by = NULL;
	a->worker = NULL;
	a->external_ref = NULL;
	a->result = NULL;
	a->error = NULL;
}

static void
rerun(IdemVerdict *v, const IdemRequest *r)
{
	if (strcmp(r->rule->rerun_by, "nobody") == 0 ||
		(strcmp(r->rule->rerun_by, "resolver") == 0 && !r->by_resolver))
		v->problem = IDEM_PROBLEM_NOT_PERMITTED;
	else
		start_generation(v, r);
}

static void
rerun_doubtful(IdemVerdict *v, const IdemRequest *r)
{
	if (r->by_resolver)
		rerun(v, r);
	else
		v->problem = IDEM_PROBLEM_NOT_PERMITTED;
}

static void
refuse_rerun(IdemVerdict *v, const IdemRequest *r)
{
	v->note = psprintf("refused: the action is %s and has not been done yet",
					   text_to_cstring(idem_state_name(v->after.state)));
}

static void
erase(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;

	a->params = NULL;
	a->params_digest = NULL;
	a->draft = NULL;
	a->result = NULL;
	a->error = NULL;
	a->purged = true;
	v->erases = true;
	decided(v, r, "erased");
}

static void
refuse_erase(IdemVerdict *v, const IdemRequest *r)
{
	v->note = psprintf("refused: the action is %s and its contents are needed; cancel it first",
					   text_to_cstring(idem_state_name(v->after.state)));
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

/* whether a report meets its own claim running, or repeats what the row tells */
static bool
is_plain(const IdemAction *a, const IdemRequest *r, Situation situation, Arrival arrival)
{
	if (situation == HELD || situation == LAPSED)
		return arrival <= RELEASE || (arrival == SEARCHED && a->verifying);
	return situation == COMPLETED && arrival == SUCCESS && !double_open(a) &&
		(r->external_ref == NULL || a->external_ref == NULL ||
		 idem_text_equal(a->external_ref, r->external_ref));
}

/* a decision on a revision that is not the row's any more */
static void
refuse_outdated(IdemVerdict *v, const IdemRequest *r)
{
	const IdemPast *last = NULL;
	ListCell   *lc;

	foreach(lc, r->past)
	{
		IdemPast   *past = lfirst(lc);

		if (is_decision(past))
			last = past;
	}
	if (last != NULL)
		v->note = psprintf("refused: you saw revision " INT64_FORMAT ", it is at " INT64_FORMAT " now; %s %s it%s%s at %s",
						   r->revision, v->after.revision,
						   last->actor != NULL ? last->actor : last->role, last->event,
						   strcmp(last->event, "resolved") == 0 ? " as " : "",
						   strcmp(last->event, "resolved") == 0 ? idem_detail_string(last->detail, "decision") : "",
						   timestamptz_to_str(last->at));
	else
		v->note = psprintf("refused: you saw revision " INT64_FORMAT ", it is at " INT64_FORMAT " now and %s",
						   r->revision, v->after.revision,
						   text_to_cstring(idem_state_name(v->after.state)));
}

/* what depends on the history; true where it settles the matter */
static bool
settled_by_past(IdemVerdict *v, const IdemRequest *r, Arrival arrival)
{
	if (answer_from_past(v, r))
	{
		/* a search that said "not there" before: while it holds, its grant */
		if (r->call == IDEM_CALL_SEARCHED)
		{
			answer(v, r);
			if (v->accepted && arrival == SEARCHED && !r->inconclusive &&
				v->after.state == IDEM_IN_PROGRESS && v->after.lease_until > r->now)
				v->outcome = IDEM_CLAIMED;
		}
		return true;
	}
	if (IDEM_IS_DECISION(r->call))
	{
		if (r->revision > 0 && r->revision != v->after.revision)
		{
			refuse_outdated(v, r);
			return true;
		}
	}
	else if (arrival == EARLIER_SUCCESS || arrival == EARLIER_OTHER)
	{
		const IdemPast *past = past_of_claim(r);

		v->attempt = past != NULL ? past->attempt : 0;
		if (past != NULL && past->generation < v->after.generation)
		{
			evidence(v, r);
			return true;
		}
	}
	return false;
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
	v->attempt = action->attempt;
	v->queued = action->due_at != IDEM_NEVER;

	if (IDEM_IS_CLAIM(r->call))
	{
		if (params_differ(action, r))
		{
			v->outcome = IDEM_MISMATCH;
			return;
		}
		v->kept_draft = action->draft != NULL && r->draft != NULL &&
			!draft_equal(action->draft, r->draft);
		if (r->call == IDEM_CALL_ENQUEUE)
		{
			answer(v, r);
			return;
		}
	}
	else if (IDEM_IS_DECISION(r->call) ||
			 (IDEM_IS_REPORT(r->call) && !is_plain(action, r, situation, arrival)))
	{
		if (!r->past_read)
		{
			v->needs_past = true;
			return;
		}
		if (settled_by_past(v, r, arrival))
			return;
	}

	transitions[situation][arrival] (v, r);

	if (r->call == IDEM_CALL_SEARCHED && !v->changes)
		answer(v, r);
	if (IDEM_IS_CLAIM(r->call) && v->outcome == IDEM_PAUSED)
	{
		/* only in place of a hand-out: then nothing is written */
		v->after = *action;
		v->changes = false;
		v->nlines = 0;
	}
	if (v->changes && r->call != IDEM_CALL_EXTEND)
		v->after.revision++;
}

/* the row that a first arrival makes, not yet handed out */
static void
new_action(const IdemRequest *r, IdemVerdict *v)
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
	a->priority = r->priority;
	a->scope = r->scope;
	a->intent = r->intent;
	a->key = r->key;
	a->source = r->source;
	a->event_id = r->event_id;
	a->params = r->params;
	a->params_digest = r->params_digest;
	a->draft = r->draft;
	v->changes = true;
}

/* a claim of an action that the ledger does not know */
void
idem_decide_new(const IdemRequest *r, IdemVerdict *v)
{
	new_action(r, v);
	if (r->rule->requires_approval)
		idem_decide_enqueue(r, v);
	else
	{
		hand_out(v, r, false);
		v->changes = v->outcome != IDEM_PAUSED;
	}
}

/* a decision recorded for takers: handed out to nobody yet */
void
idem_decide_enqueue(const IdemRequest *r, IdemVerdict *v)
{
	new_action(r, v);
	to_pending(&v->after, r->not_before > r->now ? r->not_before : r->now);
	v->outcome = idem_outcome_of(&v->after, r->rule);
}

/* once(): handed out and completed in one row */
void
idem_decide_once(const IdemRequest *r, IdemVerdict *v)
{
	idem_decide_new(r, v);
	if (v->outcome == IDEM_CLAIMED)
		succeed(v, r, false);
}

/* done before the ledger knew it: completed without an attempt */
void
idem_decide_import(const IdemRequest *r, IdemVerdict *v)
{
	new_action(r, v);
	v->after.external_ref = r->external_ref;
	to_final(&v->after, IDEM_COMPLETED, r);
	v->outcome = IDEM_OUT_COMPLETED;
}
