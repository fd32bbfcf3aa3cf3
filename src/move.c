/*-------------------------------------------------------------------------
 *
 * move.c
 *	  Moving an action from state to state, and the doubt list.
 *
 * Each move leaves the row consistent; whether it may be made, the cell that
 * makes it has checked.  idem_judge() is the one place that says what follows
 * from an attempt whose outcome nobody knows.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/move.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "transition.h"
#include "clock.h"
#include "common/pg_prng.h"
#include "key.h"
#include "utils/builtins.h"

bool
idem_draft_equal(Jsonb *a, Jsonb *b)
{
	return compareJsonbContainers(&a->root, &b->root) == 0;
}

/* unapproved actions are never handed out, not even to be searched for */
bool
idem_lacks_approval(const IdemAction *a, const IdemRule *rule)
{
	return rule->requires_approval && !a->approved;
}

/* two different successes are known, and no person has looked yet */
bool
idem_double_open(const IdemAction *a)
{
	return idem_text_is(a->reason, "double_result");
}

void
idem_leave_state(IdemAction *a)
{
	a->lease_until = IDEM_NEVER;
	a->due_at = IDEM_NEVER;
	a->finished_at = IDEM_NEVER;
	a->purge_after = IDEM_NEVER;
	a->forget_after = IDEM_NEVER;
	a->verifying = false;
	a->reason = NULL;
}

void
idem_to_pending(IdemAction *a, TimestampTz due_at)
{
	idem_leave_state(a);
	a->state = IDEM_PENDING;
	a->due_at = due_at;
}

void
idem_to_attention(IdemAction *a, const char *reason)
{
	idem_leave_state(a);
	a->state = IDEM_NEEDS_ATTENTION;
	a->reason = cstring_to_text(reason);
}

void
idem_to_final(IdemAction *a, IdemState state, const IdemRequest *r)
{
	idem_leave_state(a);
	a->state = state;
	a->uncertain = false;
	a->finished_at = idem_clock_not_before_known(r->now);
	idem_rule_start_retention(r->rule, a);
}

/* a lease from now on; what came from the queue is due there when it ends */
void
idem_lease_to(IdemVerdict *v, TimestampTz until)
{
	v->after.lease_until = until;
	if (v->queued)
		v->after.due_at = until;
}

int64
idem_lease_of(const IdemRequest *r)
{
	return r->lease > 0 ? r->lease : r->rule->lease;
}

/*
 * The last moment at which the holder may act under "retry": after it the
 * provider may have forgotten our key.  It binds no claim that was handed out
 * after it, which is done only where the earlier ones surely did nothing.
 */
TimestampTz
idem_window_end(const IdemAction *a, const IdemRequest *r)
{
	TimestampTz end;

	if (r->rule->on_uncertain != IDEM_RETRY)
		return DT_NOEND;
	end = a->first_claimed_at + r->rule->provider_window;
	return !a->uncertain_before && a->claimed_at >= end ? DT_NOEND : end;
}

/* where a lease renewed now ends */
TimestampTz
idem_lease_end(const IdemAction *a, const IdemRequest *r)
{
	return Min(r->now + idem_lease_of(r), idem_window_end(a, r));
}

/* whether the request names its delivery, and it is not the row's first arrival */
static bool
came_again(const IdemAction *a, const IdemRequest *r)
{
	if (r->source == NULL && r->event_id == NULL)
		return false;
	return a->attempt > 1 || a->generation > 1 ||
		(r->source != NULL && !idem_text_equal(a->source, r->source)) ||
		(r->event_id != NULL && !idem_text_equal(a->event_id, r->event_id));
}

/* whether the request has params for a row that has none, or has lost them */
bool
idem_brings_params(const IdemAction *a, const IdemRequest *r)
{
	return a->params == NULL && r->params != NULL &&
		(a->params_digest == NULL || a->purged);
}

static void
take_params(IdemAction *a, const IdemRequest *r)
{
	a->params = r->params;
	a->params_digest = r->params_digest;
	a->purged = false;
}

/*
 * An approval is of what the person saw.  Params that come later are kept for
 * the next look, and nothing is handed out before.
 */
void
idem_await_approval(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;

	idem_record_params(v, r);
	take_params(a, r);
	a->approved = false;
	v->changes = true;
	v->outcome = IDEM_AWAITING_APPROVAL;
}

void
idem_hand_out(IdemVerdict *v, const IdemRequest *r, bool verifying)
{
	IdemAction *a = &v->after;

	if (r->paused)
	{
		v->outcome = IDEM_PAUSED;
		return;
	}
	if (r->rule->requires_approval && idem_brings_params(a, r))
	{
		idem_await_approval(v, r);
		return;
	}
	idem_leave_state(a);
	a->state = IDEM_IN_PROGRESS;
	idem_new_claim_id(&a->claim_id);
	a->call_id = r->call_id;
	a->attempt++;
	a->claimed_at = r->now;
	if (a->first_claimed_at == IDEM_NEVER)
		a->first_claimed_at = r->now;
	idem_lease_to(v, r->now + idem_lease_of(r));
	a->worker = r->worker;
	a->marked = r->rule->marks_effect;
	a->begun = false;
	a->uncertain_before = a->uncertain;
	a->verifying = verifying;
	a->ended_by = NULL;
	if (came_again(a, r))
		idem_record_redelivery(v, r);
	if (idem_brings_params(a, r))
		take_params(a, r);
	/* what nobody approved never goes out */
	if (a->draft == NULL && !r->rule->requires_approval)
		a->draft = r->draft;
	v->changes = true;
	v->outcome = verifying ? IDEM_VERIFY : IDEM_CLAIMED;
}

void
idem_end_claim(IdemAction *a, const char *how)
{
	a->ended_by = cstring_to_text(how);
}

/* the growing delay after a failure: doubling, jittered, at most an hour */
TimestampTz
idem_retry_at(const IdemAction *a, const IdemRequest *r)
{
	int			n = a->failures + a->lost;
	double		delay;

	if (r->retry_after >= 0)
		return r->now + r->retry_after;
	delay = (double) r->rule->retry_delay * (double) (INT64CONST(1) << Min(Max(n - 1, 0), 40));
	delay = Min(delay, (double) IDEM_MAX_RETRY_DELAY);
	delay *= 0.5 + 0.5 * pg_prng_double(&pg_global_prng_state);
	return r->now + (int64) delay;
}

/*
 * The doubt list.  "already" says that this attempt has been judged before, so
 * that it is not counted as lost a second time.  Leaves the action pending
 * where it may be handed out, now or later.
 */
IdemJudgement
idem_judge(IdemAction *a, const IdemRequest *r, IdemCause cause, bool already)
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
				idem_to_final(a, IDEM_CANCELLED, r);
			else if (a->lost >= r->rule->max_attempts)
				idem_to_attention(a, "attempts_exhausted");
			else
			{
				idem_to_pending(a, due_at);
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
		idem_to_attention(a, cause == LEASE_OVER ? "lease_expired" : "outcome_unknown");
		return JUDGED_ENDED;
	}
	if (a->lost >= r->rule->max_attempts)
	{
		idem_to_attention(a, "attempts_exhausted");
		return JUDGED_ENDED;
	}
	switch (r->rule->on_uncertain)
	{
		case IDEM_REPEAT:
			idem_to_pending(a, due_at);
			return JUDGED_GRANT;
		case IDEM_RETRY:
			if (!idem_clock_believed())
			{
				idem_to_pending(a, due_at);
				return JUDGED_UNTIMED;
			}
			/* of a first claim that lies ahead the window can't be told */
			if (a->first_claimed_at > r->now + IDEM_CLOCK_TOLERANCE ||
				r->now + idem_lease_of(r) > a->first_claimed_at + r->rule->provider_window)
			{
				idem_to_attention(a, "provider_window_over");
				return JUDGED_ENDED;
			}
			idem_to_pending(a, due_at);
			return JUDGED_GRANT;
		case IDEM_SEARCH:
			idem_to_pending(a, Max(due_at, a->doubt_until + r->rule->settle));
			if (a->due_at > r->now)
				return JUDGED_WAIT;
			return idem_clock_believed() ? JUDGED_VERIFY : JUDGED_UNTIMED;
		case IDEM_REVIEW:
			break;
	}
	elog(ERROR, "unknown on_uncertain %d", (int) r->rule->on_uncertain);
}
