/*-------------------------------------------------------------------------
 *
 * cell_report.c
 *	  Cells of the table: what the holder of a claim reports.
 *
 * See state.c for when each applies.  None of them loses a report: what does not
 * count any more is kept as evidence.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/cell_report.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "transition.h"
#include "utils/builtins.h"

/*-------------------------------------------------------------------------
 * Cells: reports by the last claim
 *-------------------------------------------------------------------------
 */

/* what a success leaves in the row */
void
idem_keep_success(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;

	if (r->external_ref != NULL)
		a->external_ref = r->external_ref;
	if (r->result != NULL && !a->purged)
		a->result = r->result;
}

/* what a success is told, at first and again */
static void
note_success(IdemVerdict *v, bool late)
{
	if (v->after.cancel_requested)
		v->note = "the cancel came too late: the action had taken effect";
	else if (late)
		v->note = "accepted although the claim had ended: nobody had acted since";
	v->accepted = true;
}

/*
 * The action is done; "late" says that the claim had ended, by its lease or by
 * its own report.  A success in time by a claim that was to act is told by the row
 * alone, any other one by a line too.
 */
void
idem_succeed(IdemVerdict *v, const IdemRequest *r, bool late)
{
	IdemAction *a = &v->after;
	bool		found = r->searched || v->searching;
	text	   *open_double = idem_double_open(a) ? a->reason : NULL;

	note_success(v, late);
	idem_keep_success(v, r);
	a->error = NULL;
	idem_to_final(a, IDEM_COMPLETED, r);
	a->reason = open_double;
	idem_end_claim(a, late ? "succeeded_late" : found ? "found" : "succeeded");
	v->changes = true;
	if (late || found)
		idem_record_report(v, r);
}

void
idem_complete(IdemVerdict *v, const IdemRequest *r)
{
	idem_succeed(v, r, v->after.lease_until <= r->now);
}

/* pending again: its own success counts while nobody has acted on its end */
void
idem_complete_late(IdemVerdict *v, const IdemRequest *r)
{
	if (idem_heard_since_hand_out(&v->after, r))
		idem_late_result(v, r);
	else
		idem_succeed(v, r, true);
}

void
idem_complete_again(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;

	if (a->external_ref == NULL && r->external_ref != NULL)
	{
		a->external_ref = r->external_ref;
		v->changes = true;
	}
	if (r->external_ref == NULL || idem_text_equal(a->external_ref, r->external_ref))
	{
		note_success(v, idem_text_is(a->ended_by, "succeeded_late"));
		if (v->changes)
			idem_record_report(v, r);
	}
	else
		idem_second_result(v, r);
}

/* a success is known that the row's external_ref belongs to */
static bool
success_known(const IdemAction *a)
{
	return a->state == IDEM_COMPLETED ||
		idem_text_is(a->reason, "late_result") || idem_double_open(a);
}

static bool
same_known_success(const IdemAction *a, const IdemRequest *r)
{
	return r->external_ref != NULL && idem_text_equal(a->external_ref, r->external_ref);
}

void
idem_complete_doubtful(IdemVerdict *v, const IdemRequest *r)
{
	const IdemAction *a = &v->after;

	if (success_known(a) && !same_known_success(a, r))
		idem_second_result(v, r);
	else if (idem_decided_since_hand_out(a, r))
		idem_late_result(v, r);
	else
		idem_succeed(v, r, true);
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
	IdemJudgement judgement;

	a->uncertain = a->uncertain_before;
	if (!a->purged)
		a->error = r->error;
	idem_end_claim(a, ends[r->effect]);
	if (effect == IDEM_EFFECT_NONE)
		a->failures++;

	if (effect == IDEM_EFFECT_REFUSED)
	{
		if (a->uncertain)
			idem_to_attention(a, "outcome_unknown");
		else
			idem_to_final(a, IDEM_FAILED, r);
	}
	else if (effect == IDEM_EFFECT_NONE && !a->uncertain && a->cancel_requested)
		idem_to_final(a, IDEM_CANCELLED, r);
	else if (effect == IDEM_EFFECT_NONE && a->failures >= r->rule->max_failures)
		idem_to_attention(a, "failures_exhausted");
	else if (effect == IDEM_EFFECT_NONE && !a->uncertain)
		idem_to_pending(a, idem_retry_at(a, r));
	else
	{
		judgement = idem_judge(a, r, effect == IDEM_EFFECT_NONE ? REPORTED_CLEAN : REPORTED_UNKNOWN,
							   already);
		if (judgement != JUDGED_ENDED && judgement != JUDGED_GRANT_AT_ONCE)
			a->due_at = Max(a->due_at, idem_retry_at(a, r));
	}
	v->changes = true;
	v->accepted = true;
	idem_record_report(v, r);
}

void
idem_fail(IdemVerdict *v, const IdemRequest *r)
{
	fail_attempt(v, r, v->after.verifying, false);
}

static bool
lease_was_judged(const IdemAction *a)
{
	return idem_text_is(a->reason, "lease_expired");
}

void
idem_fail_doubtful(IdemVerdict *v, const IdemRequest *r)
{
	if (lease_was_judged(&v->after))
		fail_attempt(v, r, idem_text_is(v->after.ended_by, "search_expired"), true);
	else
		idem_evidence(v, r);
}

/* this attempt did nothing and counts nothing */
void
idem_release(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;

	if (a->marked && a->begun)
	{
		v->note = "refused: begin_effect was called, so the attempt may have taken effect; report it by complete_action or fail_action";
		return;
	}
	a->uncertain = a->uncertain_before;
	idem_end_claim(a, "released");
	if (!a->cancel_requested)
		idem_to_pending(a, r->now);
	else if (a->uncertain)
		idem_to_attention(a, "outcome_unknown");
	else
		idem_to_final(a, IDEM_CANCELLED, r);
	v->changes = true;
	v->accepted = true;
	idem_record_report(v, r);
}

void
idem_release_doubtful(IdemVerdict *v, const IdemRequest *r)
{
	if (lease_was_judged(&v->after))
		idem_release(v, r);
	else
		idem_evidence(v, r);
}

/*
 * A search that did not find it.  Absent: the doubt is over, and the searching
 * claim turns into a grant.  The same claim saying so again holds that grant.
 */
void
idem_searched(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;

	if (!a->verifying)
	{
		idem_evidence(v, r);
		return;
	}
	v->changes = true;
	v->accepted = true;
	if (r->inconclusive)
	{
		idem_end_claim(a, "searched");
		idem_to_attention(a, "verify_inconclusive");
	}
	else
	{
		a->uncertain = false;
		a->uncertain_before = false;
		a->doubt_until = IDEM_NEVER;
		if (a->cancel_requested)
		{
			idem_end_claim(a, "searched");
			idem_to_final(a, IDEM_CANCELLED, r);
		}
		else if (r->paused || idem_lacks_approval(a, r->rule))
		{
			idem_end_claim(a, "searched");
			idem_to_pending(a, r->now);
		}
		else
		{
			a->verifying = false;
			a->begun = false;
			a->marked = r->rule->marks_effect;
			idem_lease_to(v, r->now + idem_lease_of(r));
		}
	}
	idem_record_report(v, r);
	if (a->state == IDEM_IN_PROGRESS)
		v->outcome = IDEM_CLAIMED;
	else if (a->state == IDEM_PENDING && !idem_lacks_approval(a, r->rule))
		v->outcome = IDEM_PAUSED;
	else
		v->outcome = idem_outcome_of(a, r->rule);
}

/*-------------------------------------------------------------------------
 * Cells: reports that come too late
 *-------------------------------------------------------------------------
 */

/* kept, and nothing else: who, when, what */
void
idem_evidence(IdemVerdict *v, const IdemRequest *r)
{
	v->accepted = false;
	v->note = psprintf("kept as evidence: %s, so the action's state is unchanged",
					   v->attempt == 0 ? idem_unknown_claim(r) : "the claim had ended");
	idem_record_report(v, r);
}

/* a success where none was expected any more: a person has to look */
void
idem_late_result(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction	before = v->after;

	if (success_known(&v->after))
	{
		idem_second_result(v, r);
		return;
	}
	idem_keep_success(v, r);
	v->accepted = false;
	v->note = psprintf("kept: %s, so a person decides",
					   v->attempt == 0 ? idem_unknown_claim(r) : "the success came after the claim had ended");
	idem_to_attention(&v->after, "late_result");
	v->changes = true;
	idem_record_report(v, r);
	idem_record_interruption(v, &before);
}

/* another success than the one that is stored: the first result stays */
void
idem_second_result(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;

	if (same_known_success(a, r))
	{
		if (a->state != IDEM_COMPLETED)
			idem_evidence(v, r);
		else
		{
			v->accepted = true;
			if (v->attempt == 0)
			{
				v->note = psprintf("the success is known; %s", idem_unknown_claim(r));
				idem_record_report(v, r);
			}
		}
		return;
	}
	v->accepted = false;
	v->note = psprintf("kept: another success is stored already%s%s, so the action may have been done twice; a person decides",
					   v->attempt == 0 ? ", and " : "", v->attempt == 0 ? idem_unknown_claim(r) : "");
	if (a->state != IDEM_COMPLETED)
		idem_to_attention(a, "double_result");
	else
		a->reason = cstring_to_text("double_result");
	v->changes = true;
	idem_record_report(v, r);
}
