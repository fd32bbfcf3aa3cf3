/*-------------------------------------------------------------------------
 *
 * request.h
 *	  From arguments to a request, and from a verdict to an answer.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/request.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_REQUEST_H
#define IDEM_REQUEST_H

#include "answer.h"
#include "ledger.h"
#include "state.h"

/* one element of a batch: applied in order of action_id, answered by position */
typedef struct IdemBatchItem
{
	pg_uuid_t	action_id;
	int			position;
} IdemBatchItem;

/* the arrays of a batch that makes rows, taken apart */
typedef struct IdemBatchArgs
{
	int			n;
	IdemRequest *requests;
	IdemBatchItem *items;
	HeapTuple  *tuples;
} IdemBatchArgs;

/* what one row of a batch allocates, gone with the next row */
typedef struct IdemRowContext
{
	MemoryContext outer;
	MemoryContext row;
} IdemRowContext;

extern bool idem_commits_by_itself(void);
extern void idem_refuse_open_transaction(bool in_transaction);
extern text *idem_required_text(FunctionCallInfo fcinfo, int n, const char *name);
extern int64 idem_wait_arg(FunctionCallInfo fcinfo, int n);

extern void idem_request_intent(IdemRequest *r, IdemCall call, text *intent, text *scope);
extern void idem_request_key(IdemRequest *r, text *key);
extern void idem_request_call_id(IdemRequest *r, FunctionCallInfo fcinfo, int n);
extern void idem_request_check_call_id(const IdemRequest *r);
extern void idem_request_rule(IdemRequest *r);
extern void idem_request_rule_again(IdemRequest *r);
extern void idem_request_identify(IdemRequest *r);
extern void idem_request_identify_batch(IdemBatchArgs *batch, const IdemRequest *common);
extern IdemFound idem_request_probe(IdemLedger *ledger, IdemRequest *r, IdemAction *row,
									TransactionId *holder);
extern IdemWrite idem_request_make_room(IdemLedger *ledger, IdemRequest *r, const IdemAction *row);
extern void idem_request_permission(const IdemRequest *r);
extern void idem_request_success(IdemRequest *r, text *external_ref, Jsonb *result);
extern void idem_request_batch(FunctionCallInfo fcinfo, const IdemRequest *common,
							   int keys, int params, int drafts, int event_ids,
							   IdemBatchArgs *batch);

extern void idem_check_identity(const IdemAction *action, const IdemRequest *r);
extern void idem_raise_mismatch(const IdemAction *action, const IdemRequest *r);
extern void idem_count_repeat(const IdemRequest *r, const IdemVerdict *v, bool known);
extern void idem_answer(IdemAnswer *answer, const IdemRequest *r, const IdemVerdict *v,
						bool known);
extern Datum idem_claim_datum(FunctionCallInfo fcinfo, const IdemAnswer *answer);
extern void idem_report_of(IdemReport *report, const pg_uuid_t *id, const IdemVerdict *v);
extern void idem_batch_sort(IdemBatchItem *items, int n);
extern Datum idem_batch_return(FunctionCallInfo fcinfo, HeapTuple *tuples, int n);
extern void idem_row_start(IdemRowContext *context);
extern void idem_row_next(IdemRowContext *context);
extern void idem_row_answer(IdemRowContext *context);
extern void idem_row_end(IdemRowContext *context);

#endif							/* IDEM_REQUEST_H */
