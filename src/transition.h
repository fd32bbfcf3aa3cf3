/*-------------------------------------------------------------------------
 *
 * transition.h
 *	  What the table in state.c is made of: moves, the doubt list, lines of the
 *	  history, and the cells.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/transition.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_TRANSITION_H
#define IDEM_TRANSITION_H

#include "ledger.h"
#include "state.h"

/* how judging an attempt came about */
typedef enum IdemCause
{
	LEASE_OVER,					/* an attempt ended without a report */
	REPORTED_UNKNOWN,			/* it ended with "unknown" */
	REPORTED_CLEAN,				/* it did nothing, but an older doubt stands */
	STILL_DOUBTFUL				/* a pending row, judged again */
} IdemCause;

/* what the doubt list says; otherwise the action has left for good */
typedef enum IdemJudgement
{
	JUDGED_ENDED,
	JUDGED_GRANT,
	JUDGED_GRANT_AT_ONCE,		/* the attempt surely did nothing */
	JUDGED_VERIFY,
	JUDGED_WAIT,				/* due_at says until when */
	JUDGED_UNTIMED				/* the clock is not believed */
} IdemJudgement;

/* move.c */
extern bool idem_lacks_approval(const IdemAction *a, const IdemRule *rule);
extern bool idem_draft_equal(Jsonb *a, Jsonb *b);
extern bool idem_double_open(const IdemAction *a);
extern void idem_leave_state(IdemAction *a);
extern void idem_to_pending(IdemAction *a, TimestampTz due_at);
extern void idem_to_attention(IdemAction *a, const char *reason);
extern void idem_to_final(IdemAction *a, IdemState state, const IdemRequest *r);
extern int64 idem_lease_of(const IdemRequest *r);
extern TimestampTz idem_window_end(const IdemAction *a, const IdemRequest *r);
extern TimestampTz idem_lease_end(const IdemAction *a, const IdemRequest *r);
extern void idem_lease_to(IdemVerdict *v, TimestampTz until);
extern bool idem_brings_params(const IdemAction *a, const IdemRequest *r);
extern void idem_await_approval(IdemVerdict *v, const IdemRequest *r);
extern void idem_hand_out(IdemVerdict *v, const IdemRequest *r, bool verifying);
extern void idem_end_claim(IdemAction *a, const char *how);
extern TimestampTz idem_retry_at(const IdemAction *a, const IdemRequest *r);
extern IdemJudgement idem_judge(IdemAction *a, const IdemRequest *r, IdemCause cause, bool already);

/* record.c */
extern IdemLine *idem_add_line(IdemVerdict *v, const char *event, const pg_uuid_t *claim_id, int32 attempt);
extern Jsonb *idem_content_of(const char *name, Jsonb *value);
extern void idem_record_report(IdemVerdict *v, const IdemRequest *r);
extern void idem_record_expiry(IdemVerdict *v, const IdemAction *before);
extern void idem_record_interruption(IdemVerdict *v, const IdemAction *before);
extern void idem_record_attention(IdemVerdict *v);
extern void idem_record_params(IdemVerdict *v, const IdemRequest *r);
extern void idem_record_redelivery(IdemVerdict *v, const IdemRequest *r);
extern void idem_record_draft(IdemVerdict *v);
extern bool idem_is_second_person(const IdemRequest *r, const char **first);
extern void idem_record_decision(IdemVerdict *v, const IdemRequest *r, const char *event);
extern bool idem_answer_from_past(IdemVerdict *v, const IdemRequest *r);
extern bool idem_heard_since_hand_out(const IdemAction *a, const IdemRequest *r);
extern bool idem_decided_since_hand_out(const IdemAction *a, const IdemRequest *r);
extern void idem_refuse_outdated(IdemVerdict *v, const IdemRequest *r);
extern const char *idem_unknown_claim(const IdemRequest *r);
extern const IdemPast *idem_past_of_claim(const IdemRequest *r);

/* cell_claim.c */
extern void idem_tell_state(IdemVerdict *v, const IdemRequest *r);
extern void idem_claim_unapproved(IdemVerdict *v, const IdemRequest *r);
extern void idem_claim_pending(IdemVerdict *v, const IdemRequest *r);
extern void idem_claim_held(IdemVerdict *v, const IdemRequest *r);
extern void idem_claim_lapsed(IdemVerdict *v, const IdemRequest *r);
extern void idem_begin(IdemVerdict *v, const IdemRequest *r);
extern void idem_extend(IdemVerdict *v, const IdemRequest *r);
extern void idem_lost_claim(IdemVerdict *v, const IdemRequest *r);

/* cell_report.c */
extern void idem_keep_success(IdemVerdict *v, const IdemRequest *r);
extern void idem_succeed(IdemVerdict *v, const IdemRequest *r, bool late);
extern void idem_complete(IdemVerdict *v, const IdemRequest *r);
extern void idem_complete_late(IdemVerdict *v, const IdemRequest *r);
extern void idem_complete_again(IdemVerdict *v, const IdemRequest *r);
extern void idem_complete_doubtful(IdemVerdict *v, const IdemRequest *r);
extern void idem_fail(IdemVerdict *v, const IdemRequest *r);
extern void idem_fail_doubtful(IdemVerdict *v, const IdemRequest *r);
extern void idem_release(IdemVerdict *v, const IdemRequest *r);
extern void idem_release_doubtful(IdemVerdict *v, const IdemRequest *r);
extern void idem_searched(IdemVerdict *v, const IdemRequest *r);
extern void idem_late_result(IdemVerdict *v, const IdemRequest *r);
extern void idem_second_result(IdemVerdict *v, const IdemRequest *r);
extern void idem_evidence(IdemVerdict *v, const IdemRequest *r);

/* cell_decision.c */
extern void idem_revise(IdemVerdict *v, const IdemRequest *r);
extern void idem_refuse_revise(IdemVerdict *v, const IdemRequest *r);
extern void idem_approve(IdemVerdict *v, const IdemRequest *r);
extern void idem_refuse_approve(IdemVerdict *v, const IdemRequest *r);
extern void idem_cancel(IdemVerdict *v, const IdemRequest *r);
extern void idem_refuse_cancel_doubtful(IdemVerdict *v, const IdemRequest *r);
extern void idem_cancel_held(IdemVerdict *v, const IdemRequest *r);
extern void idem_cancel_again(IdemVerdict *v, const IdemRequest *r);
extern void idem_refuse_cancel(IdemVerdict *v, const IdemRequest *r);
extern void idem_resolve(IdemVerdict *v, const IdemRequest *r);
extern void idem_resolve_held(IdemVerdict *v, const IdemRequest *r);
extern void idem_resolve_completed(IdemVerdict *v, const IdemRequest *r);
extern void idem_rerun(IdemVerdict *v, const IdemRequest *r);
extern void idem_rerun_doubtful(IdemVerdict *v, const IdemRequest *r);
extern void idem_refuse_rerun(IdemVerdict *v, const IdemRequest *r);
extern void idem_erase(IdemVerdict *v, const IdemRequest *r);
extern void idem_refuse_erase(IdemVerdict *v, const IdemRequest *r);

#endif							/* IDEM_TRANSITION_H */
