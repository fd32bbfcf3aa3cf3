/*-------------------------------------------------------------------------
 *
 * state.c
 *	  The states of an action: the table of what each call does in each.
 *
 * idem_decide() is a function of the row, the request, whether the clock is
 * believed (clock.c) and (for what arrives late, and for people) the action's
 * history.  It writes nothing and locks
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
 * follows from doubt is idem_judge(), "the doubt list", and nothing else.
 *
 * ended_by tells how the last claim ended: succeeded, succeeded_late (after it
 * had ended otherwise), found (by its search), failed_none, failed_unknown,
 * failed_refused, released, searched (the search was inconclusive, or made the
 * action free for others), expired (its lease ended without a report),
 * search_expired (the same of a verify hand-out) or interrupted (while it held:
 * by a person, by the success of an earlier claim, or by after_restore).
 *
 * A hand-out is told by the row, and from its end on by a line of the history
 * with claimed_at: each end writes one, except a success in time, which
 * cell_decision.c writes down before the row stops telling it.
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
#include "transition.h"
#include "clock.h"
#include "utils/builtins.h"

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

/*
 * What arrives, and what it does in each situation, in the order of the enum above:
 * the columns are PENDING_DUE, PENDING_LATER, UNAPPROVED, HELD, LAPSED, COMPLETED,
 * FAILED, ATTENTION, CANCELLED.  A claim is also a take or the sweep; BEGIN and EXTEND
 * by an earlier claim are lost in any case; SEARCHED is a search that found nothing or
 * cannot tell; EARLIER_... are reports by a claim that is not the last one; from REVISE
 * on people decide.  A cell that is left out does not compile.  docs/states.md shows the
 * table, and a check compares both.
 */
#define TRANSITIONS(ON) \
	ON(CLAIM, claim_pending, tell_state, claim_unapproved, claim_held, claim_lapsed, \
	   tell_state, tell_state, tell_state, tell_state) \
	ON(BEGIN, lost_claim, lost_claim, lost_claim, begin, begin, lost_claim, lost_claim, \
	   lost_claim, lost_claim) \
	ON(EXTEND, lost_claim, lost_claim, lost_claim, extend, extend, lost_claim, \
	   lost_claim, lost_claim, lost_claim) \
	ON(SUCCESS, complete_late, complete_late, complete_late, complete, complete, \
	   complete_again, late_result, complete_doubtful, late_result) \
	ON(FAILURE, evidence, evidence, evidence, fail, fail, evidence, evidence, \
	   fail_doubtful, evidence) \
	ON(RELEASE, evidence, evidence, evidence, release, release, evidence, evidence, \
	   release_doubtful, evidence) \
	ON(SEARCHED, evidence, evidence, evidence, searched, searched, evidence, evidence, \
	   evidence, evidence) \
	ON(EARLIER_SUCCESS, late_result, late_result, late_result, late_result, \
	   late_result, second_result, late_result, late_result, late_result) \
	ON(EARLIER_OTHER, evidence, evidence, evidence, evidence, evidence, evidence, \
	   evidence, evidence, evidence) \
	ON(REVISE, revise, revise, revise, refuse_revise, refuse_revise, refuse_revise, \
	   refuse_revise, refuse_revise, refuse_revise) \
	ON(APPROVE, approve, approve, approve, refuse_approve, refuse_approve, \
	   refuse_approve, refuse_approve, refuse_approve, refuse_approve) \
	ON(CANCEL, cancel, cancel, cancel, cancel_held, cancel_held, refuse_cancel, cancel, \
	   refuse_cancel_doubtful, cancel_again) \
	ON(RESOLVE, resolve, resolve, resolve, resolve_held, resolve, resolve_completed, \
	   resolve, resolve, resolve) \
	ON(RERUN, refuse_rerun, refuse_rerun, refuse_rerun, refuse_rerun, refuse_rerun, \
	   rerun, rerun, rerun_doubtful, rerun) \
	ON(ERASE, refuse_erase, refuse_erase, refuse_erase, refuse_erase, refuse_erase, \
	   erase, erase, erase, erase)

#define ARRIVAL(arrival, ...) arrival,
#define CELLS(arrival, due, later, unapproved, held, lapsed, completed, failed, attention, cancelled) \
	[arrival] = { \
		[PENDING_DUE] = idem_##due, [PENDING_LATER] = idem_##later, \
		[UNAPPROVED] = idem_##unapproved, [HELD] = idem_##held, [LAPSED] = idem_##lapsed, \
		[COMPLETED] = idem_##completed, [FAILED] = idem_##failed, \
		[ATTENTION] = idem_##attention, [CANCELLED] = idem_##cancelled \
	},

typedef enum Arrival
{
	TRANSITIONS(ARRIVAL)
	NARRIVALS
} Arrival;

typedef void (*Cell) (IdemVerdict *v, const IdemRequest *r);

static const Cell transitions[NARRIVALS][NSITUATIONS] = {
	TRANSITIONS(CELLS)
};

/*-------------------------------------------------------------------------
 * Where an action stands, and what arrives
 *-------------------------------------------------------------------------
 */

bool
idem_is_forgotten(const IdemAction *a, TimestampTz now)
{
	return a->forget_after != IDEM_NEVER && a->forget_after <= now && !idem_double_open(a) &&
		idem_clock_believed();
}

static Situation
situation_of(const IdemAction *a, const IdemRequest *r)
{
	switch (a->state)
	{
		case IDEM_PENDING:
			if (idem_lacks_approval(a, r->rule))
				return UNAPPROVED;
			return a->due_at <= r->now ? PENDING_DUE : PENDING_LATER;
		case IDEM_IN_PROGRESS:
			return idem_clock_lease_over(a->claimed_at, a->lease_until, r->now) ? LAPSED : HELD;
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
		case IDEM_CALL_SWEEP:
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
			return idem_lacks_approval(a, rule) ? IDEM_AWAITING_APPROVAL : IDEM_OUT_PENDING;
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
		return arrival == SUCCESS || arrival == FAILURE || arrival == RELEASE ||
			(arrival == SEARCHED && a->verifying);
	return situation == COMPLETED && arrival == SUCCESS &&
		(r->external_ref == NULL || a->external_ref == NULL ||
		 idem_text_equal(a->external_ref, r->external_ref));
}

/* what depends on the history; true where it settles the matter */
static bool
settled_by_past(IdemVerdict *v, const IdemRequest *r, Arrival arrival)
{
	if (idem_answer_from_past(v, r))
	{
		/* a search that said "not there" before: while it holds, its grant */
		if (r->call == IDEM_CALL_SEARCHED && v->accepted && arrival == SEARCHED &&
			!r->inconclusive && v->after.state == IDEM_IN_PROGRESS &&
			v->after.lease_until > r->now)
			v->outcome = IDEM_CLAIMED;
		return true;
	}
	if (idem_class_of(r->call) == IDEM_CLASS_DECISION)
	{
		if (r->revision > 0 && r->revision != v->after.revision)
		{
			idem_refuse_outdated(v, r);
			return true;
		}
	}
	else if (arrival == EARLIER_SUCCESS || arrival == EARLIER_OTHER)
	{
		const IdemPast *past = idem_past_of_claim(r);

		v->attempt = past != NULL ? past->attempt : 0;
		v->generation = past != NULL ? past->generation : v->after.generation;
		v->worker = past != NULL && past->worker != NULL ? cstring_to_text(past->worker) : NULL;
		if (past != NULL && past->generation < v->after.generation)
		{
			idem_evidence(v, r);
			return true;
		}
	}
	return false;
}

static void
decide(const IdemAction *action, const IdemRequest *r, IdemVerdict *v)
{
	Situation	situation = situation_of(action, r);
	Arrival		arrival = arrival_of(action, r);

	memset(v, 0, sizeof(*v));
	v->after = *action;
	v->attempt = action->attempt;
	v->generation = action->generation;
	v->worker = action->worker;
	v->searching = action->verifying && idem_uuid_equal(&action->claim_id, &r->claim_id);
	v->queued = action->due_at != IDEM_NEVER;
	v->outcome = idem_outcome_of(action, r->rule);

	if (idem_class_of(r->call) == IDEM_CLASS_CLAIM)
	{
		if (params_differ(action, r))
		{
			v->outcome = IDEM_MISMATCH;
			return;
		}
		v->kept_draft = action->draft != NULL && r->draft != NULL &&
			!idem_draft_equal(action->draft, r->draft);
		if (r->call == IDEM_CALL_ENQUEUE)
		{
			idem_tell_state(v, r);
			return;
		}
	}
	else if (idem_class_of(r->call) == IDEM_CLASS_DECISION ||
			 (idem_class_of(r->call) == IDEM_CLASS_REPORT && !is_plain(action, r, situation, arrival)))
	{
		if (!r->past_read)
		{
			v->needs_past = true;
			return;
		}
		if (settled_by_past(v, r, arrival))
			return;
	}

	transitions[arrival][situation] (v, r);

	if (idem_class_of(r->call) == IDEM_CLASS_CLAIM && (v->outcome == IDEM_PAUSED || v->clock_holds))
	{
		/* only in place of a hand-out: then nothing is written */
		v->after = *action;
		v->changes = false;
		v->nlines = 0;
	}
	if (v->changes && r->rule->intent != NULL)
		v->after.ruled = true;
	if (v->changes && r->call != IDEM_CALL_EXTEND)
		v->after.revision++;
}

/* the answer to a report also says what of it was not kept */
static void
note_dropped(IdemVerdict *v, const IdemRequest *r)
{
	const char *dropped = r->dropped;

	if (r->call != IDEM_CALL_COMPLETE)
		return;
	if (r->result != NULL && v->after.purged)
		dropped = "the result is not kept: the action's contents were purged or erased";
	if (dropped != NULL)
		v->note = v->note == NULL ? dropped : psprintf("%s; %s", v->note, dropped);
}

/*
 * What the request does to the action.  The verdict's texts point into both,
 * or are newly allocated.
 */
void
idem_decide(const IdemAction *action, const IdemRequest *r, IdemVerdict *v)
{
	decide(action, r, v);
	note_dropped(v, r);
}

/* the row that a first arrival makes, not yet handed out */
static void
new_action(const IdemRequest *r, IdemVerdict *v)
{
	IdemAction *a = &v->after;

	memset(v, 0, sizeof(*v));
	idem_leave_state(a);
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
	a->key = r->stored_key;
	a->secret_id = r->secret_id;
	a->source = r->source;
	a->event_id = r->event_id;
	a->params = r->params;
	a->params_digest = r->params_digest;
	a->draft = r->draft;
	a->ruled = r->rule->intent != NULL;
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
		idem_hand_out(v, r, false);
		v->changes = v->outcome != IDEM_PAUSED;
	}
}

/* a decision recorded for takers: handed out to nobody yet */
void
idem_decide_enqueue(const IdemRequest *r, IdemVerdict *v)
{
	new_action(r, v);
	idem_to_pending(&v->after, r->not_before > r->now ? r->not_before : r->now);
	if (r->rule->four_eyes && r->draft != NULL)
		idem_record_draft(v);
	v->outcome = idem_outcome_of(&v->after, r->rule);
}

/* once(): handed out and completed in one row */
void
idem_decide_once(const IdemRequest *r, IdemVerdict *v)
{
	idem_decide_new(r, v);
	if (v->outcome == IDEM_CLAIMED)
		idem_succeed(v, r, false);
}

/* done before the ledger knew it: completed without an attempt */
void
idem_decide_import(const IdemRequest *r, IdemVerdict *v)
{
	new_action(r, v);
	v->after.external_ref = r->external_ref;
	idem_to_final(&v->after, IDEM_COMPLETED, r);
	v->outcome = IDEM_OUT_COMPLETED;
}
