/*-------------------------------------------------------------------------
 *
 * answer.h
 *	  The two shapes that callers are answered in.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/answer.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_ANSWER_H
#define IDEM_ANSWER_H

#include "access/htup.h"
#include "access/tupdesc.h"
#include "idem_action.h"

/* idem.claim */
typedef struct IdemAnswer
{
	IdemOutcome outcome;
	bool		repeat;
	bool		kept_draft;
	TimestampTz now;
	int64		lease;			/* of the rule, for retry_after of a search */
	const IdemAction *action;	/* NULL: nothing is known but the identity */

	/* the identity, where action is NULL */
	const pg_uuid_t *action_id;
	text	   *scope;
	text	   *intent;
	text	   *key;
	Jsonb	   *own_params;		/* shown instead of the stored ones, or NULL */
} IdemAnswer;

/* idem.report */
typedef struct IdemReport
{
	pg_uuid_t	action_id;
	bool		accepted;
	bool		known;
	IdemState	state;
	int64		revision;
	const char *note;
} IdemReport;

extern const char *idem_outcome_name(IdemOutcome outcome);
extern bool idem_outcome_settles(IdemOutcome outcome);
extern TupleDesc idem_answer_desc(FunctionCallInfo fcinfo);
extern HeapTuple idem_claim_tuple(TupleDesc desc, const IdemAnswer *answer);
extern HeapTuple idem_report_tuple(TupleDesc desc, const IdemReport *report);

#endif							/* IDEM_ANSWER_H */
