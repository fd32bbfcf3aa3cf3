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
	IDEM_CALL_ENQUEUE,
	IDEM_CALL_TAKE,				/* hands out to act only */
	IDEM_CALL_TAKE_TO_VERIFY,	/* hands out to search only */
	IDEM_CALL_SWEEP,			/* maintenance: hands out nothing */
	IDEM_CALL_BEGIN,
	IDEM_CALL_EXTEND,
	IDEM_CALL_COMPLETE,			/* also a search that found it */
	IDEM_CALL_FAIL,
	IDEM_CALL_RELEASE,
	IDEM_CALL_SEARCHED,			/* a search that did not */
	IDEM_CALL_REVISE,
	IDEM_CALL_APPROVE,
	IDEM_CALL_CANCEL,
	IDEM_CALL_RESOLVE,
	IDEM_CALL_RERUN,
	IDEM_CALL_ERASE
} IdemCall;

/* what kind of call it is */
typedef enum IdemCallClass
{
	IDEM_CLASS_CLAIM,			/* asks for a hand-out, or judges */
	IDEM_CLASS_HOLDER,			/* the holder goes on */
	IDEM_CLASS_REPORT,			/* the holder says what became of it */
	IDEM_CLASS_DECISION			/* a person decides */
} IdemCallClass;

static inline IdemCallClass
idem_class_of(IdemCall call)
{
	switch (call)
	{
		case IDEM_CALL_CLAIM:
		case IDEM_CALL_ENQUEUE:
		case IDEM_CALL_TAKE:
		case IDEM_CALL_TAKE_TO_VERIFY:
		case IDEM_CALL_SWEEP:
			return IDEM_CLASS_CLAIM;
		case IDEM_CALL_BEGIN:
		case IDEM_CALL_EXTEND:
			return IDEM_CLASS_HOLDER;
		case IDEM_CALL_COMPLETE:
		case IDEM_CALL_FAIL:
		case IDEM_CALL_RELEASE:
		case IDEM_CALL_SEARCHED:
			return IDEM_CLASS_REPORT;
		case IDEM_CALL_REVISE:
		case IDEM_CALL_APPROVE:
		case IDEM_CALL_CANCEL:
		case IDEM_CALL_RESOLVE:
		case IDEM_CALL_RERUN:
		case IDEM_CALL_ERASE:
			return IDEM_CLASS_DECISION;
	}
	elog(ERROR, "unknown call %d", (int) call);
}

/* what a failure says about the effect */
typedef enum IdemEffect
{
	IDEM_EFFECT_UNKNOWN,
	IDEM_EFFECT_NONE,
	IDEM_EFFECT_REFUSED
} IdemEffect;

/* what a person says about a doubtful action */
typedef enum IdemDecision
{
	IDEM_HAPPENED,
	IDEM_NOT_HAPPENED,
	IDEM_CANCEL
} IdemDecision;

typedef struct IdemRequest
{
	IdemCall	call;
	const IdemRule *rule;
	bool		paused;			/* the intent is: nothing is handed out */
	TimestampTz now;

	/* a claim */
	text	   *scope;
	text	   *intent;
	text	   *key;			/* as the caller gave it */
	Jsonb	   *own_params;		/* likewise */
	text	   *stored_key;		/* NULL where keys are confidential */
	text	   *secret_id;
	List	   *secrets;		/* to look for the key under, current first */
	pg_uuid_t	action_id;
	pg_uuid_t	call_id;
	Jsonb	   *params;
	bytea	   *params_digest;
	text	   *worker;
	text	   *source;
	text	   *event_id;

	/* enqueue */
	TimestampTz not_before;		/* or IDEM_NEVER */
	int32		priority;

	/* a claim, begin_effect, extend_claim: 0 leaves it to the rule */
	int64		lease;
	Jsonb	   *draft;			/* a claim, begin_effect, revise, rerun */

	/* a report, begin_effect, extend_claim */
	pg_uuid_t	claim_id;
	IdemEffect	effect;
	int64		retry_after;	/* microseconds, or -1 */
	text	   *external_ref;
	Jsonb	   *result;
	text	   *error;			/* of a failure; the reason of a release */
	const char *dropped;		/* note on what was too large to keep, or NULL */
	bool		searched;		/* the success was found by a search */
	bool		inconclusive;	/* the search could not tell */

	/* a person's decision */
	IdemDecision decision;
	text	   *note;
	text	   *actor;
	const char *role;			/* the database role that decides */
	int64		revision;		/* what the person saw, or 0 */
	bool		by_resolver;

	/* the action's history, once it has been read under the row's lock */
	bool		past_read;
	List	   *past;
} IdemRequest;

/* what is raised instead of answered, as nothing is lost by it */
typedef enum IdemProblem
{
	IDEM_NO_PROBLEM,
	IDEM_PROBLEM_LOST,
	IDEM_PROBLEM_SEARCHING,		/* the claim may search, not act */
	IDEM_PROBLEM_WINDOW,		/* the provider window is over */
	IDEM_PROBLEM_CANCEL,
	IDEM_PROBLEM_PAUSED,
	IDEM_PROBLEM_NOT_APPROVED,	/* the draft is not the approved one */
	IDEM_PROBLEM_NOT_PERMITTED	/* the rule gives this rerun to others */
} IdemProblem;

/* a line for the history */
typedef struct IdemLine
{
	TimestampTz at;				/* 0: when it was decided */
	TimestampTz claimed_at;		/* of the attempt that it ended, or 0 */
	const char *event;
	pg_uuid_t	claim_id;
	int32		attempt;
	int32		generation;
	text	   *actor;
	text	   *worker;
	text	   *source;			/* of the delivery spoken of */
	text	   *event_id;
	Jsonb	   *detail;
	Jsonb	   *content;
} IdemLine;

typedef struct IdemVerdict
{
	bool		needs_past;		/* decide again with the history read */
	bool		changes;		/* write "after" */
	IdemAction	after;
	IdemLine	lines[2];		/* append these */
	int			nlines;
	bool		erases;			/* contents go from the history too */
	bool		queued;			/* the action came from the queue */
	int32		attempt;		/* the one the request speaks of, */
	int32		generation;		/* its generation, */
	text	   *worker;			/* and who had it */
	bool		searching;		/* handed out to search */
	IdemOutcome outcome;		/* of a claim */
	bool		clock_holds;	/* no hand-out by a clock that is not believed */
	bool		kept_draft;		/* a claim's own draft was not taken */
	bool		accepted;		/* a report counts */
	const char *note;
	IdemProblem problem;
} IdemVerdict;

extern void idem_decide(const IdemAction *action, const IdemRequest *request,
						IdemVerdict *verdict);
extern void idem_decide_new(const IdemRequest *request, IdemVerdict *verdict);
extern void idem_decide_enqueue(const IdemRequest *request, IdemVerdict *verdict);
extern void idem_decide_import(const IdemRequest *request, IdemVerdict *verdict);
extern void idem_decide_once(const IdemRequest *request, IdemVerdict *verdict);
extern bool idem_is_forgotten(const IdemAction *action, TimestampTz now);
extern IdemOutcome idem_outcome_of(const IdemAction *action, const IdemRule *rule);

#endif							/* IDEM_STATE_H */
