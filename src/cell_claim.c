/*-------------------------------------------------------------------------
 *
 * cell_claim.c
 *	  Cells of the table: a claim, and going on with one.
 *
 * See state.c for when each applies.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/cell_claim.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "transition.h"

/*-------------------------------------------------------------------------
 * Cells: a claim
 *-------------------------------------------------------------------------
 */

void
idem_tell_state(IdemVerdict *v, const IdemRequest *r)
{
	v->outcome = idem_outcome_of(&v->after, r->rule);
	if (v->outcome == IDEM_OUT_PENDING && r->call != IDEM_CALL_ENQUEUE)
		v->outcome = IDEM_NOT_DUE;
}

/* what a claim gets from the doubt list; a take gets only its own kind */
static void
claim_by_judgement(IdemVerdict *v, const IdemRequest *r, IdemJudgement judgement)
{
	/* an approval may be asked for since the action was handed out */
	if (r->call == IDEM_CALL_SWEEP || idem_lacks_approval(&v->after, r->rule))
	{
		idem_tell_state(v, r);
		return;
	}
	switch (judgement)
	{
		case JUDGED_GRANT:
		case JUDGED_GRANT_AT_ONCE:
			if (r->call == IDEM_CALL_TAKE_TO_VERIFY)
				idem_tell_state(v, r);
			else
				idem_hand_out(v, r, false);
			break;
		case JUDGED_VERIFY:
			if (r->call == IDEM_CALL_TAKE)
				idem_tell_state(v, r);
			else
				idem_hand_out(v, r, true);
			break;
		case JUDGED_UNTIMED:
			v->clock_holds = true;
			v->outcome = IDEM_NOT_DUE;
			break;
		case JUDGED_WAIT:
		case JUDGED_ENDED:
			v->changes = true;
			idem_tell_state(v, r);
			break;
	}
}

/* a person has to see what the claim brings before anybody gets it */
void
idem_claim_unapproved(IdemVerdict *v, const IdemRequest *r)
{
	if (idem_brings_params(&v->after, r))
		idem_await_approval(v, r);
	else
		idem_tell_state(v, r);
}

void
idem_claim_pending(IdemVerdict *v, const IdemRequest *r)
{
	if (v->after.uncertain)
	{
		IdemJudgement judgement = idem_judge(&v->after, r, STILL_DOUBTFUL, true);

		if (judgement == JUDGED_ENDED)
			idem_record_attention(v);
		claim_by_judgement(v, r, judgement);
	}
	else if (r->call == IDEM_CALL_TAKE_TO_VERIFY)
		idem_tell_state(v, r);
	else
		idem_hand_out(v, r, false);
}

/* the holder's own call again, its reply lost: the same grant */
void
idem_claim_held(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;

	if (!idem_uuid_is_null(&r->call_id) && idem_uuid_equal(&a->call_id, &r->call_id) &&
		idem_text_equal(a->worker, r->worker))
		v->outcome = a->verifying ? IDEM_VERIFY : IDEM_CLAIMED;
	else
		idem_tell_state(v, r);
}

void
idem_claim_lapsed(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction	before = v->after;
	IdemJudgement judgement;

	v->changes = true;
	idem_end_claim(&v->after, before.verifying ? "search_expired" : "expired");
	judgement = idem_judge(&v->after, r, LEASE_OVER, false);
	idem_record_expiry(v, &before);
	claim_by_judgement(v, r, judgement);
}

/*-------------------------------------------------------------------------
 * Cells: what the holder says while it holds
 *-------------------------------------------------------------------------
 */

void
idem_lost_claim(IdemVerdict *v, const IdemRequest *r)
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

void
idem_extend(IdemVerdict *v, const IdemRequest *r)
{
	if (!still_holds(v, r))
		return;
	if (idem_window_end(&v->after, r) <= r->now)
	{
		v->problem = IDEM_PROBLEM_WINDOW;
		return;
	}
	/* never shorter: the holder may rely on what it was told before */
	idem_lease_to(v, Max(v->after.lease_until, idem_lease_end(&v->after, r)));
	v->changes = true;
}

void
idem_begin(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;

	if (!still_holds(v, r))
		return;
	if (a->verifying)
		v->problem = IDEM_PROBLEM_SEARCHING;
	else if (r->lease > 0 && idem_window_end(a, r) <= r->now)
		v->problem = IDEM_PROBLEM_WINDOW;
	else if (a->lease_until <= r->now && r->lease == 0)
		v->problem = IDEM_PROBLEM_LOST;
	if (v->problem != IDEM_NO_PROBLEM)
		return;
	if (r->draft != NULL && (a->draft == NULL || !idem_draft_equal(a->draft, r->draft)))
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
	if (r->lease > 0 && idem_lease_end(a, r) > a->lease_until)
	{
		idem_lease_to(v, idem_lease_end(a, r));
		v->changes = true;
	}
	if (!a->begun)
	{
		a->begun = true;
		v->changes = true;
	}
}
