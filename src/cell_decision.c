/*-------------------------------------------------------------------------
 *
 * cell_decision.c
 *	  Cells of the table: what people decide.
 *
 * See state.c for when each applies.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/cell_decision.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "transition.h"
#include "clock.h"
#include "detail.h"
#include "utils/builtins.h"

/*-------------------------------------------------------------------------
 * Cells: decisions of people
 *-------------------------------------------------------------------------
 */

static void
decided(IdemVerdict *v, const IdemRequest *r, const char *event)
{
	v->changes = true;
	v->accepted = true;
	idem_record_decision(v, r, event);
}

void
idem_revise(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;
	Jsonb	   *older = a->draft;

	if (older != NULL && idem_draft_equal(older, r->draft))
	{
		v->accepted = true;
		v->note = "the draft is the same as before";
		return;
	}
	a->draft = r->draft;
	a->approved = false;
	decided(v, r, "revised");
	v->lines[0].content = idem_content_of("draft", older);
}

void
idem_refuse_revise(IdemVerdict *v, const IdemRequest *r)
{
	v->note = psprintf("refused: the action is %s; cancel_action stops it before it is done, rerun_action does it once more after that, or give the change a key of its own",
					   text_to_cstring(idem_state_name(v->after.state)));
}

void
idem_approve(IdemVerdict *v, const IdemRequest *r)
{
	const char *first;

	if (r->rule->four_eyes && !idem_is_second_person(r, &first))
	{
		v->note = first != NULL ?
			psprintf("refused: %s has drafted or revised it, and the rule asks for another person", first) :
			"refused: who drafted it is not known, and the rule asks for another person; revise_action makes it known";
		return;
	}
	v->after.approved = true;
	decided(v, r, "approved");
}

void
idem_refuse_approve(IdemVerdict *v, const IdemRequest *r)
{
	v->note = psprintf("refused: the action is %s and waits for no approval",
					   text_to_cstring(idem_state_name(v->after.state)));
}

/* pending or failed */
void
idem_cancel(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;

	if (a->uncertain)
	{
		a->cancel_requested = true;
		idem_to_attention(a, "outcome_unknown");
		v->note = "not cancelled: an attempt may have taken effect, so a person decides: resolve_action";
	}
	else
		idem_to_final(a, IDEM_CANCELLED, r);
	decided(v, r, "cancelled");
}

/* whoever cancels, doubt is ended only by who says what became of the action */
void
idem_refuse_cancel_doubtful(IdemVerdict *v, const IdemRequest *r)
{
	v->note = "refused: the action needs attention, so a person decides: resolve_action";
}

void
idem_cancel_held(IdemVerdict *v, const IdemRequest *r)
{
	v->note = "requested: the holder is told when it calls begin_effect or extend_claim";
	if (v->after.cancel_requested)
	{
		v->accepted = true;
		return;
	}
	v->after.cancel_requested = true;
	decided(v, r, "cancel_requested");
}

void
idem_cancel_again(IdemVerdict *v, const IdemRequest *r)
{
	v->accepted = true;
}

void
idem_refuse_cancel(IdemVerdict *v, const IdemRequest *r)
{
	v->note = "refused: the action is done; undoing it is an action of its own";
}

void
idem_resolve(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;
	IdemAction	before = *a;
	bool		reopened = a->state == IDEM_CANCELLED;

	a->uncertain = false;
	switch (r->decision)
	{
		case IDEM_HAPPENED:
			idem_keep_success(v, r);
			a->error = NULL;
			idem_to_final(a, IDEM_COMPLETED, r);
			break;
		case IDEM_NOT_HAPPENED:
			a->lost = 0;
			a->failures = 0;
			a->doubt_until = IDEM_NEVER;
			/* what a late success had left is kept in the history */
			a->external_ref = NULL;
			a->result = NULL;
			if (a->cancel_requested && !reopened)
				idem_to_final(a, IDEM_CANCELLED, r);
			else
			{
				a->cancel_requested = false;
				idem_to_pending(a, r->now);
			}
			break;
		case IDEM_CANCEL:
			if (reopened)
			{
				v->accepted = true;
				return;
			}
			idem_to_final(a, IDEM_CANCELLED, r);
			break;
	}
	idem_record_interruption(v, &before);
	decided(v, r, "resolved");
}

void
idem_resolve_held(IdemVerdict *v, const IdemRequest *r)
{
	/* the end of such a lease may be years away: nobody can wait for it */
	bool		ahead = v->after.claimed_at > r->now + IDEM_CLOCK_TOLERANCE &&
		idem_clock_believed();

	if (r->decision == IDEM_NOT_HAPPENED && !ahead)
	{
		v->note = "refused: a holder may be acting now; ask it to stop by cancel_action, or wait for the end of its lease";
		return;
	}
	idem_resolve(v, r);
	if (ahead)
		v->note = "the lease was taken while the clock ran ahead; its holder, if there still is one, is told at its next begin_effect or extend_claim, and a success that it reports waits for a person";
}

/* a hand-out and its success that only the row tells, before it stops to */
static void
tell_completion(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;
	ListCell   *lc;
	bool		told = false;

	foreach(lc, r->past)
	{
		IdemPast   *past = lfirst(lc);

		if (idem_uuid_equal(&past->claim_id, &a->claim_id) && past->claimed_at != 0)
			told = true;
	}
	if (idem_text_is(a->ended_by, "succeeded") && !told)
	{
		IdemLine   *line = idem_add_line(v, "succeeded", &a->claim_id, a->attempt);
		StringInfoData d;

		idem_detail_start(&d);
		idem_detail_add_text(&d, "external_ref", a->external_ref);
		idem_detail_add_bool(&d, "accepted", true);
		line->at = a->finished_at;
		line->claimed_at = a->claimed_at;
		line->detail = idem_detail_end(&d);
		line->content = idem_content_of("result", a->result);
	}
}

void
idem_resolve_completed(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;

	if (r->decision != IDEM_HAPPENED)
		v->note = "refused: the action is completed; rerun_action does it once more on purpose";
	else if (idem_double_open(a))
	{
		a->reason = NULL;
		if (r->result != NULL ||
			(r->external_ref != NULL && !idem_text_equal(a->external_ref, r->external_ref)))
			tell_completion(v, r);
		idem_keep_success(v, r);
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

	tell_completion(v, r);
	decided(v, r, "rerun");
	if (r->draft != NULL)
	{
		v->lines[v->nlines - 1].content = idem_content_of("draft", a->draft);
		a->draft = r->draft;
	}

	idem_to_pending(a, r->now);
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

void
idem_rerun(IdemVerdict *v, const IdemRequest *r)
{
	if (strcmp(r->rule->rerun_by, "nobody") == 0 ||
		(strcmp(r->rule->rerun_by, "resolver") == 0 && !r->by_resolver))
		v->problem = IDEM_PROBLEM_NOT_PERMITTED;
	else
		start_generation(v, r);
}

void
idem_rerun_doubtful(IdemVerdict *v, const IdemRequest *r)
{
	if (r->by_resolver)
		idem_rerun(v, r);
	else
		v->problem = IDEM_PROBLEM_NOT_PERMITTED;
}

void
idem_refuse_rerun(IdemVerdict *v, const IdemRequest *r)
{
	v->note = psprintf("refused: the action is %s and has not been done yet",
					   text_to_cstring(idem_state_name(v->after.state)));
}

void
idem_erase(IdemVerdict *v, const IdemRequest *r)
{
	IdemAction *a = &v->after;

	a->params = NULL;
	a->params_digest = NULL;
	a->draft = NULL;
	a->result = NULL;
	a->error = NULL;
	a->purged = true;
	v->erases = true;
	v->note = "the contents are gone from the ledger; its WAL, backups made before and copies of its history keep them until they expire";
	decided(v, r, "erased");
}

void
idem_refuse_erase(IdemVerdict *v, const IdemRequest *r)
{
	v->note = psprintf("refused: the action is %s and its contents are needed; cancel it first",
					   text_to_cstring(idem_state_name(v->after.state)));
}
