/*-------------------------------------------------------------------------
 *
 * state.h
 *	  What a call does to an action: request in, verdict out.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/state.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STATE_H
#define IDEM_STATE_H

#include "idem_action.h"
#include "nodes/pg_list.h"
#include "rule.h"

/* the calls that move an action; whose claim it is, the row tells */
typedef enum IdemCall
{
	IDEM_CALL_CLAIM,
	IDEM_CALL_BEGIN,
	IDEM_CALL_EXTEND,
	IDEM_CALL_COMPLETE,
	IDEM_CALL_FAIL,
	IDEM_CALL_RELEASE
} IdemCall;

/* what a failure says about the effect */
typedef enum IdemEffect
{
	IDEM_EFFECT_UNKNOWN,
	IDEM_EFFECT_NONE,
	IDEM_EFFECT_REFUSED
} IdemEffect;

typedef struct IdemRequest
{
	IdemCall	call;
	const IdemRule *rule;
	TimestampTz now;

	/* a claim */
	text	   *scope;
	text	   *intent;
	text	   *key;
	pg_uuid_t	action_id;
	pg_uuid_t	call_id;
	Jsonb	   *params;
	bytea	   *params_digest;
	text	   *worker;
	text	   *source;
	text	   *event_id;

	/* a claim, begin_effect, extend_claim: 0 leaves it to the rule */
	int64		lease;
	Jsonb	   *draft;			/* a claim and begin_effect */

	/* a report, begin_effect, extend_claim */
	pg_uuid_t	claim_id;
	IdemEffect	effect;
	int64		retry_after;	/* microseconds, or -1 */
	text	   *external_ref;
	Jsonb	   *result;
	text	   *error;			/* of a failure; the reason of a release */
	const char *dropped;		/* note on what was too large to keep, or NULL */

	/* the action's history, once it has been read under the row's lock */
	bool		past_read;
	List	   *past;
} IdemRequest;

/* why begin_effect and extend_claim raise */
typedef enum IdemProblem
{
	IDEM_NO_PROBLEM,
	IDEM_PROBLEM_LOST,
	IDEM_PROBLEM_CANCEL
} IdemProblem;

typedef struct IdemVerdict
{
	bool		needs_past;		/* decide again with the history read */
	bool		changes;		/* write "after" */
	IdemAction	after;
	const char *event;			/* append this line, or NULL */
	pg_uuid_t	event_claim;
	int32		event_attempt;
	Jsonb	   *event_detail;
	Jsonb	   *event_content;
	IdemOutcome outcome;		/* of a claim */
	bool		kept_draft;		/* a claim's own draft was not taken */
	bool		accepted;		/* a report counts */
	const char *note;
	IdemProblem problem;
} IdemVerdict;

extern void idem_decide(const IdemAction *action, const IdemRequest *request,
						IdemVerdict *verdict);
extern void idem_decide_new(const IdemRequest *request, IdemVerdict *verdict);
extern void idem_decide_once(const IdemRequest *request, IdemVerdict *verdict);
extern bool idem_is_forgotten(const IdemAction *action, TimestampTz now);
extern IdemOutcome idem_outcome_of(const IdemAction *action, TimestampTz now);
extern bool idem_awaits_approval(const IdemAction *action, const IdemRule *rule);

#endif							/* IDEM_STATE_H */
