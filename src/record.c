/*-------------------------------------------------------------------------
 *
 * record.c
 *	  What the history is told, and what it tells.
 *
 * A report's line keeps its facts and the answer that it got, a decision's line
 * what the person saw and what the decision made: enough to know the same call
 * when it comes again, and to answer it the same way.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/record.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "transition.h"
#include "canon.h"
#include "detail.h"
#include "quote.h"
#include "utils/builtins.h"

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

IdemLine *
idem_add_line(IdemVerdict *v, const char *event, const pg_uuid_t *claim_id, int32 attempt)
{
	IdemLine   *line = &v->lines[v->nlines++];

	Assert(v->nlines <= (int) lengthof(v->lines));
	line->event = event;
	line->claim_id = *claim_id;
	line->attempt = attempt;
	line->generation = v->generation;
	line->worker = v->worker;
	return line;
}

Jsonb *
idem_content_of(const char *name, Jsonb *value)
{
	StringInfoData d;

	if (value == NULL)
		return NULL;
	idem_detail_start(&d);
	idem_detail_add_json(&d, name, value);
	return idem_detail_end(&d);
}

/* the report, with the answer that it got */
void
idem_record_report(IdemVerdict *v, const IdemRequest *r)
{
	IdemLine   *line = idem_add_line(v, report_event(r), &r->claim_id, v->attempt);
	bool		keeps = !v->after.purged;
	StringInfoData d;

	idem_detail_start(&d);
	if (v->searching)
		idem_detail_add_bool(&d, "verifying", true);
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
		line->content = idem_content_of("result", r->result);
	}
	if (r->call == IDEM_CALL_COMPLETE && idem_double_open(&v->after))
		idem_detail_add_text(&d, "first_external_ref", v->after.external_ref);
	/* the row will tell the hand-out of another attempt, or none */
	if (v->accepted && v->after.state != IDEM_IN_PROGRESS &&
		idem_uuid_equal(&r->claim_id, &v->after.claim_id))
		line->claimed_at = v->after.claimed_at;
	idem_detail_add_bool(&d, "accepted", v->accepted);
	idem_detail_add(&d, "note", v->note);
	line->detail = idem_detail_end(&d);
}

/* a lease that ended without a report, with what became of it */
void
idem_record_expiry(IdemVerdict *v, const IdemAction *before)
{
	IdemLine   *line = idem_add_line(v, "expired", &before->claim_id, before->attempt);
	StringInfoData d;

	line->claimed_at = before->claimed_at;
	idem_detail_start(&d);
	idem_detail_add_bool(&d, "marked", before->marked);
	idem_detail_add_bool(&d, "begun", before->begun);
	idem_detail_add_bool(&d, "verifying", before->verifying);
	idem_detail_add_time(&d, "lease_until", before->lease_until);
	idem_detail_add_text(&d, "reason", v->after.reason);
	line->detail = idem_detail_end(&d);
}

/* a claim that held, and was ended by neither its holder nor its lease */
void
idem_record_interruption(IdemVerdict *v, const IdemAction *before)
{
	IdemLine   *line;
	StringInfoData d;

	if (before->state != IDEM_IN_PROGRESS)
		return;
	line = idem_add_line(v, "interrupted", &before->claim_id, before->attempt);
	line->generation = before->generation;
	line->worker = before->worker;
	line->claimed_at = before->claimed_at;
	idem_detail_start(&d);
	idem_detail_add_bool(&d, "marked", before->marked);
	idem_detail_add_bool(&d, "begun", before->begun);
	idem_detail_add_bool(&d, "verifying", before->verifying);
	idem_detail_add_time(&d, "lease_until", before->lease_until);
	line->detail = idem_detail_end(&d);
	idem_end_claim(&v->after, "interrupted");
}

/* a pending action that may be handed out to nobody any more */
void
idem_record_attention(IdemVerdict *v)
{
	IdemLine   *line = idem_add_line(v, "needs_attention", &v->after.claim_id, v->attempt);
	StringInfoData d;

	idem_detail_start(&d);
	idem_detail_add_text(&d, "reason", v->after.reason);
	line->detail = idem_detail_end(&d);
}

/* a claim that brought params which nobody has approved; the row as it was before */
void
idem_record_params(IdemVerdict *v, const IdemRequest *r)
{
	IdemLine   *line = idem_add_line(v, "params_added", &v->after.claim_id, v->attempt);
	StringInfoData d;

	line->worker = r->worker;
	line->source = r->source;
	line->event_id = r->event_id;
	idem_detail_start(&d);
	idem_detail_add_bool(&d, "approved", v->after.approved);
	idem_detail_add_int(&d, "revision", v->after.revision + 1);
	line->detail = idem_detail_end(&d);
}

/*
 * The delivery that was handed the action, where it is not the first arrival,
 * which the row tells: readers put it to the hand-out.
 */
void
idem_record_redelivery(IdemVerdict *v, const IdemRequest *r)
{
	IdemLine   *line = idem_add_line(v, "redelivered", &v->after.claim_id, v->after.attempt);

	line->worker = r->worker;
	line->source = r->source;
	line->event_id = r->event_id;
}

/*
 * Tells drafts apart.  It could be guessed from, so no view shows it, and it
 * goes with the contents: see idem_ledger_redact_past.
 */
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
void
idem_record_decision(IdemVerdict *v, const IdemRequest *r, const char *event)
{
	IdemLine   *line = idem_add_line(v, event, &v->after.claim_id, v->attempt);
	StringInfoData d;

	idem_detail_start(&d);
	if (r->call == IDEM_CALL_RESOLVE)
		idem_detail_add(&d, "decision", decision_names[r->decision]);
	idem_detail_add_text(&d, "external_ref", r->external_ref);
	idem_detail_add(&d, "draft_digest", draft_digest(r->draft));
	idem_detail_add_text(&d, "reason", r->note);
	if (r->revision > 0)
		idem_detail_add_int(&d, "saw", r->revision);
	idem_detail_add_int(&d, "made", v->after.revision + 1);
	idem_detail_add_bool(&d, "accepted", v->accepted);
	idem_detail_add(&d, "note", v->note);
	line->actor = r->actor;
	line->detail = idem_detail_end(&d);
}

/* who brought the first draft: the ledger adds the role */
void
idem_record_draft(IdemVerdict *v)
{
	static const pg_uuid_t none = {{0}};

	(void) idem_add_line(v, "drafted", &none, 0);
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

/* the revision that a line made of what there is to decide about, or 0 */
static int64
revision_made(const IdemPast *past)
{
	return is_decision(past) ? idem_detail_int(past->detail, "made") :
		strcmp(past->event, "params_added") == 0 ? idem_detail_int(past->detail, "revision") : 0;
}

/* the last line that made a later revision than this, or NULL */
static const IdemPast *
last_since(const IdemRequest *r, int64 revision)
{
	const IdemPast *last = NULL;
	ListCell   *lc;

	foreach(lc, r->past)
	{
		IdemPast   *past = lfirst(lc);

		if (revision_made(past) > revision)
			last = past;
	}
	return last;
}

/* "Ben revised it at ..." */
static char *
who_did_what(const IdemPast *past)
{
	char	   *decision = idem_detail_string(past->detail, "decision");
	char	   *at = pstrdup(timestamptz_to_str(past->at));

	if (strcmp(past->event, "params_added") == 0)
		return psprintf("a claim brought its params at %s", at);
	if (strcmp(past->event, "thinned") == 0)
		return psprintf("it was revised at %s", at);
	return psprintf("%s %s it%s%s at %s",
					idem_quote_label(past->actor != NULL ? past->actor : past->role), past->event,
					decision != NULL ? " as " : "", decision != NULL ? decision : "", at);
}

/* a decision on a revision that is not the row's any more */
void
idem_refuse_outdated(IdemVerdict *v, const IdemRequest *r)
{
	const IdemPast *last = last_since(r, r->revision);

	v->note = psprintf("refused: you saw revision " INT64_FORMAT ", it is at " INT64_FORMAT " now%s%s",
					   r->revision, v->after.revision, last != NULL ? "; " : " and ",
					   last != NULL ? who_did_what(last) :
					   text_to_cstring(idem_state_name(v->after.state)));
}

/* the same decision by the same person on the same revision, or still the last */
static bool
same_decision(const IdemPast *past, const IdemAction *a, const IdemRequest *r)
{
	bool		same_event = strcmp(past->event, decision_event(r)) == 0 ||
		(r->call == IDEM_CALL_CANCEL && strcmp(past->event, "cancel_requested") == 0);

	if (!is_decision(past) || !same_event ||
		strcmp(past->role, r->role) != 0 ||
		!same_string(past->actor, string_or_null(r->actor)))
		return false;
	if (r->revision > 0 ? idem_detail_int(past->detail, "saw") != r->revision :
		idem_detail_int(past->detail, "made") != a->revision)
		return false;
	if (r->call == IDEM_CALL_RESOLVE &&
		!same_string(idem_detail_string(past->detail, "decision"), decision_names[r->decision]))
		return false;
	return same_string(idem_detail_string(past->detail, "external_ref"), string_or_null(r->external_ref)) &&
		same_string(idem_detail_string(past->detail, "draft_digest"), draft_digest(r->draft));
}

/*
 * The same call, answered before: answer as it did.  A decision on which a later
 * one followed stands no more, and its repeat is told so.
 */
bool
idem_answer_from_past(IdemVerdict *v, const IdemRequest *r)
{
	ListCell   *lc;

	foreach(lc, r->past)
	{
		IdemPast   *past = lfirst(lc);
		const IdemPast *since;

		if (idem_class_of(r->call) == IDEM_CLASS_DECISION ? !same_decision(past, &v->after, r) : !same_report(past, r))
			continue;
		since = idem_class_of(r->call) == IDEM_CLASS_DECISION ? last_since(r, revision_made(past)) : NULL;
		v->accepted = since == NULL && idem_detail_bool(past->detail, "accepted");
		v->note = since == NULL ? idem_detail_string(past->detail, "note") :
			psprintf("accepted before, but it does not stand any more: %s, and the action is at revision " INT64_FORMAT " now",
					 who_did_what(since), v->after.revision);
		return true;
	}
	return false;
}

/* whether anyone has reported or decided since the last hand-out */
bool
idem_heard_since_hand_out(const IdemAction *a, const IdemRequest *r)
{
	ListCell   *lc;

	foreach(lc, r->past)
	{
		IdemPast   *past = lfirst(lc);

		if (past->generation == a->generation && past->during == a->attempt &&
			strcmp(past->event, "expired") != 0 && strcmp(past->event, "params_added") != 0 &&
			strcmp(past->event, IDEM_PASSED_OVER) != 0)
			return true;
	}
	return false;
}

/* whether a person has said since the last hand-out what became of the action;
 * the wish to cancel it says nothing of that */
bool
idem_decided_since_hand_out(const IdemAction *a, const IdemRequest *r)
{
	ListCell   *lc;

	foreach(lc, r->past)
	{
		IdemPast   *past = lfirst(lc);

		if (past->generation == a->generation && past->during == a->attempt &&
			is_decision(past) && strcmp(past->event, "cancel_requested") != 0)
			return true;
	}
	return false;
}

/* what there is to say of a claim without a line; thinned histories have lost some */
const char *
idem_unknown_claim(const IdemRequest *r)
{
	ListCell   *lc;

	foreach(lc, r->past)
	{
		if (strcmp(((IdemPast *) lfirst(lc))->event, "thinned") == 0)
			return "the ledger knows no such claim of this action";
	}
	return "the ledger never issued this claim";
}

/* the first line about the request's claim, or NULL */
const IdemPast *
idem_past_of_claim(const IdemRequest *r)
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

/* whether a line tells who wrote a draft, or a part of it */
static bool
is_authorship(const IdemPast *past)
{
	return strcmp(past->event, "drafted") == 0 || strcmp(past->event, "revised") == 0 ||
		(strcmp(past->event, "rerun") == 0 && idem_detail_string(past->detail, "draft_digest") != NULL);
}

/*
 * Whether the caller has had no part in the draft.  A person is who the application
 * names as actor, or the role where either of both is not named.  A rerun with a
 * draft begins a new one.  Where nobody is known to have drafted it, as before the
 * rule asked for a second person, "first" is NULL and the answer no.
 */
bool
idem_is_second_person(const IdemRequest *r, const char **first)
{
	char	   *actor = string_or_null(r->actor);
	bool		second = false;
	ListCell   *lc;

	*first = NULL;
	foreach(lc, r->past)
	{
		const IdemPast *past = lfirst(lc);
		bool		same;

		if (!is_authorship(past))
			continue;
		if (strcmp(past->event, "rerun") == 0)
			*first = NULL;
		if (*first != NULL && !second)
			continue;
		same = actor != NULL && past->actor != NULL ? strcmp(actor, past->actor) == 0 :
			strcmp(r->role, past->role) == 0;
		second = !same;
		*first = past->actor != NULL ? past->actor : past->role;
	}
	return *first != NULL && second;
}
