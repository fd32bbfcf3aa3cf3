/*-------------------------------------------------------------------------
 *
 * claim.c
 *	  claim_action, claim_actions, once, find_action: may I act?
 *
 * A claim probes first.  What is known is answered from the row: no lock, no
 * transaction id, no WAL.  What is absent is inserted; what is due is updated;
 * both only where nobody else holds the row open, else the answer is
 * "contended" at once, or after "wait".  A grant is answered only for a row
 * that was written, and its commit is forced to disk whatever
 * synchronous_commit says, since the caller acts on it.
 *
 * Waiting holds nothing: no row, no pin, no lock but the table's own is taken
 * again after each wait, and the time is read anew, so that a wait never eats
 * the lease.
 *
 * A crash before the commit leaves no claim, and the caller got no answer; a
 * crash after it leaves the claim, to be replayed by its call_id or to be
 * judged when its lease is over.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/claim.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "access/xact.h"
#include "apply.h"
#include "arg.h"
#include "bells.h"
#include "clock.h"
#include "counters.h"
#include "errors.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "request.h"
#include "utils/builtins.h"

/* probes that may find the row changed again, before the answer is "contended" */
#define MAX_TRIES 1000

#define FIRST_POLL 10			/* milliseconds; doubles up to LAST_POLL */
#define LAST_POLL 1000

PG_FUNCTION_INFO_V1(idem_claim_action);
PG_FUNCTION_INFO_V1(idem_claim_actions);
PG_FUNCTION_INFO_V1(idem_once);
PG_FUNCTION_INFO_V1(idem_find_action);

/*-------------------------------------------------------------------------
 * One claim
 *-------------------------------------------------------------------------
 */

/* what one try came to; the verdict's row lives until the next try or close */
typedef struct Try
{
	IdemVerdict verdict;
	IdemAction	row;			/* as it was read */
	bool		known;			/* a committed row was read */
	bool		again;			/* it changed meanwhile */
	TransactionId holder;		/* whom "contended" waits for, or invalid */
} Try;

static void
contended(Try *t, TransactionId holder)
{
	t->verdict.outcome = IDEM_CONTENDED;
	t->verdict.changes = false;
	t->verdict.kept_draft = false;
	t->known = false;
	t->holder = holder;
}

/* makes the write of a verdict; nothing is granted unless it was written */
static bool
written(Try *t, IdemWrite write)
{
	switch (write)
	{
		case IDEM_WRITTEN:
			ForceSyncCommit();
			return true;
		case IDEM_CHANGED:
			t->again = true;
			return false;
		case IDEM_BUSY:
			contended(t, InvalidTransactionId);
			return false;
	}
	return false;
}

static void
try_claim(IdemLedger *ledger, IdemRequest *r, Try *t)
{
	IdemVerdict *v = &t->verdict;
	IdemFound	found;

	r->now = idem_clock_now();
	t->again = false;
	t->known = false;
	found = idem_request_probe(ledger, r, &t->row, &t->holder);
	switch (found)
	{
		case IDEM_ABSENT:
			idem_decide_new(r, v);
			if (v->changes)
				(void) written(t, idem_insert_new(ledger, r, v, false));
			return;
		case IDEM_HELD_NEW:
			contended(t, t->holder);
			return;
		case IDEM_PRESENT:
		case IDEM_HELD:
			break;
	}

	idem_check_identity(&t->row, r);
	if (idem_is_forgotten(&t->row, r->now))
	{
		idem_decide_new(r, v);
		if (found == IDEM_HELD)
			contended(t, t->holder);
		else if (v->changes && written(t, idem_request_make_room(ledger, r, &t->row)))
		{
			idem_decide_new(r, v);
			if (written(t, idem_insert_new(ledger, r, v, false)))
				idem_counter_add(&r->action_id, r->intent, r->source, r->event_id,
								 IDEM_AFTER_FORGETTING);
		}
		return;
	}

	t->known = true;
	idem_decide(&t->row, r, v);
	if (found == IDEM_HELD &&
		(v->changes || v->outcome == IDEM_CLAIMED || v->outcome == IDEM_VERIFY))
		contended(t, t->holder);
	else if (v->changes)
	{
		if (written(t, idem_ledger_update(ledger, &t->row, &v->after, false)))
			idem_append_lines(&t->row, r, v);
	}
	else if (idem_outcome_settles(v->outcome))
		idem_ledger_rely(ledger);
}

static void
claim_once(IdemLedger *ledger, IdemRequest *r, Try *t)
{
	for (int i = 0; i < MAX_TRIES; i++)
	{
		CHECK_FOR_INTERRUPTS();
		try_claim(ledger, r, t);
		if (!t->again)
			return;
	}
	contended(t, InvalidTransactionId);
}

/*
 * The claim, repeated while another holder stands in its way and "wait" is not
 * over.  Returns with the ledger open.
 */
static IdemLedger *
claim_waiting(IdemRequest *r, int64 wait, Try *t)
{
	IdemLedger *ledger = idem_ledger_open(true);
	int64		deadline = idem_clock_monotonic() + wait;
	long		pause = FIRST_POLL;

	idem_request_rule(r);
	idem_request_permission(r);
	idem_request_identify(r);
	for (;;)
	{
		long		left;
		uint32		bell;

		bell = idem_bell_of(&r->action_id, sizeof(pg_uuid_t));
		if (wait > 0)
			idem_bell_listen(bell);
		claim_once(ledger, r, t);
		left = (deadline - idem_clock_monotonic()) / 1000;
		if ((t->verdict.outcome != IDEM_CONTENDED && t->verdict.outcome != IDEM_OUT_IN_PROGRESS) ||
			left <= 0)
			break;
		/* nobody ends a wait for oneself */
		if (t->known && idem_ledger_is_own(ledger))
			break;

		/* to the deadline, or to the end of the holder's lease */
		if (t->known && t->row.lease_until > r->now)
			left = Min(left, Max(1, (t->row.lease_until - r->now) / 1000));
		idem_ledger_close(ledger);
		if (TransactionIdIsValid(t->holder))
			(void) idem_ledger_wait_until(t->holder, deadline);
		else
		{
			/* a look a second all the same: COMMIT PREPARED rings no bell */
			idem_bell_await(bell, t->known ? Min(left, LAST_POLL) : Min(left, pause), pause);
			pause = Min(pause * 2, LAST_POLL);
		}
		ledger = idem_ledger_open(true);
		idem_request_rule(r);
		idem_request_permission(r);
		idem_request_identify(r);
	}
	if (wait > 0)
		idem_bell_stop_listening();
	return ledger;
}

Datum
idem_claim_action(PG_FUNCTION_ARGS)
{
	IdemRequest r = {0};
	IdemAnswer	answer;
	IdemLedger *ledger;
	Datum		result;
	Try			t;
	int64		wait;

	idem_request_intent(&r, IDEM_CALL_CLAIM, idem_required_text(fcinfo, 1, "intent"),
						idem_required_text(fcinfo, 4, "scope"));
	idem_refuse_open_transaction(idem_arg_bool(fcinfo, 11, false));
	idem_request_key(&r, idem_required_text(fcinfo, 0, "key"));
	r.own_params = idem_arg_content(fcinfo, 2, "params");
	r.draft = idem_arg_content(fcinfo, 3, "draft");
	r.lease = idem_arg_lease(fcinfo, 5);
	wait = idem_wait_arg(fcinfo, 6);
	r.worker = idem_arg_label(fcinfo, 7);
	r.source = idem_arg_label(fcinfo, 8);
	r.event_id = idem_arg_label(fcinfo, 9);
	idem_request_call_id(&r, fcinfo, 10);
	idem_request_check_call_id(&r);

	ledger = claim_waiting(&r, wait, &t);
	idem_count_repeat(&r, &t.verdict, t.known);
	if (t.verdict.outcome == IDEM_MISMATCH)
		idem_raise_mismatch(&t.row, &r);
	idem_answer(&answer, &r, &t.verdict, t.known);
	result = idem_claim_datum(fcinfo, &answer);
	idem_ledger_close(ledger);
	PG_RETURN_DATUM(result);
}

/*-------------------------------------------------------------------------
 * A batch of claims
 *-------------------------------------------------------------------------
 */

Datum
idem_claim_actions(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	IdemRequest common = {0};
	IdemBatchArgs batch;
	IdemRowContext memory;
	IdemLedger *ledger;

	idem_request_intent(&common, IDEM_CALL_CLAIM, idem_required_text(fcinfo, 0, "intent"),
						idem_required_text(fcinfo, 4, "scope"));
	idem_refuse_open_transaction(idem_arg_bool(fcinfo, 10, false));
	common.lease = idem_arg_lease(fcinfo, 5);
	common.worker = idem_arg_label(fcinfo, 6);
	common.source = idem_arg_label(fcinfo, 7);
	idem_request_call_id(&common, fcinfo, 9);
	idem_request_batch(fcinfo, &common, 1, 2, 3, 8, &batch);

	InitMaterializedSRF(fcinfo, 0);
	ledger = idem_ledger_open(true);
	idem_request_rule(&common);
	idem_request_permission(&common);
	idem_request_identify_batch(&batch, &common);
	idem_row_start(&memory);
	for (int i = 0; i < batch.n; i++)
	{
		IdemBatchItem *item = &batch.items[i];
		IdemRequest *r = &batch.requests[item->position];
		IdemAnswer	answer;
		Try			t;

		idem_row_next(&memory);
		/* the call's replay is for the first; a twin never gets the grant */
		if (i > 0 && idem_uuid_equal(&item[-1].action_id, &item->action_id))
			memset(&r->call_id, 0, sizeof(r->call_id));
		claim_once(ledger, r, &t);
		idem_count_repeat(r, &t.verdict, t.known);
		idem_answer(&answer, r, &t.verdict, t.known);
		idem_row_answer(&memory);
		batch.tuples[item->position] = idem_claim_tuple(rsinfo->setDesc, &answer);
	}
	idem_row_end(&memory);
	idem_ledger_close(ledger);
	return idem_batch_return(fcinfo, batch.tuples, batch.n);
}

/*-------------------------------------------------------------------------
 * once
 *-------------------------------------------------------------------------
 */

static void
raise_not_done(const IdemAction *action)
{
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_NOT_DONE),
			 errmsg("the action is known, but not as done: it is %s",
					text_to_cstring(idem_state_name(action->state))),
			 errdetail("action_id %s.",
					   DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&action->action_id)))),
			 errhint("once() is for effects in this database only; use claim_action where others act on the same key.")));
}

static void
raise_not_first(const IdemVerdict *v)
{
	bool		paused = v->outcome == IDEM_PAUSED;

	ereport(ERROR,
			(errcode(ERRCODE_IDEM_NOT_DONE),
			 paused ?
			 errmsg("the action is new, and its intent is paused") :
			 errmsg("the action is new, and its intent needs an approval first"),
			 errdetail("action_id %s.",
					   DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&v->after.action_id)))),
			 paused ?
			 errhint("Roll back and repeat the transaction once resume_intent has been called.") :
			 errhint("once() is for effects in this database only; use claim_action where a person approves.")));
}

/* true: the caller's transaction is the first; false: done by a committed one */
static bool
try_once(IdemLedger *ledger, IdemRequest *r, bool *first)
{
	IdemVerdict v;
	IdemAction	row;
	TransactionId holder;
	IdemFound	found;

	r->now = idem_clock_now();
	found = idem_request_probe(ledger, r, &row, &holder);
	if (found == IDEM_HELD || found == IDEM_HELD_NEW)
	{
		idem_ledger_rest(ledger);
		idem_ledger_wait(holder);
		idem_request_rule_again(r);
		return false;
	}
	if (found == IDEM_ABSENT || idem_is_forgotten(&row, r->now))
	{
		idem_decide_once(r, &v);
		if (v.after.state != IDEM_COMPLETED)
			raise_not_first(&v);
		*first = true;
		if (found != IDEM_ABSENT)
		{
			if (idem_request_make_room(ledger, r, &row) != IDEM_WRITTEN)
				return false;
			idem_decide_once(r, &v);
			idem_counter_add(&r->action_id, r->intent, NULL, NULL, IDEM_AFTER_FORGETTING);
		}
		return idem_insert_new(ledger, r, &v, true) == IDEM_WRITTEN;
	}

	idem_check_identity(&row, r);
	idem_decide(&row, r, &v);
	if (v.outcome == IDEM_MISMATCH)
	{
		idem_count_repeat(r, &v, true);
		idem_raise_mismatch(&row, r);
	}
	if (row.state != IDEM_COMPLETED)
		raise_not_done(&row);
	idem_ledger_check_visible(ledger);
	idem_ledger_rely(ledger);
	idem_counter_add(&r->action_id, r->intent, NULL, NULL, IDEM_OUT_COMPLETED);
	*first = false;
	return true;
}

Datum
idem_once(PG_FUNCTION_ARGS)
{
	IdemRequest r = {0};
	IdemLedger *ledger;
	bool		first;

	idem_request_intent(&r, IDEM_CALL_CLAIM, idem_required_text(fcinfo, 1, "intent"),
						idem_required_text(fcinfo, 3, "scope"));
	idem_request_key(&r, idem_required_text(fcinfo, 0, "key"));
	r.own_params = idem_arg_content(fcinfo, 2, "params");

	ledger = idem_ledger_open(true);
	idem_request_rule(&r);
	idem_request_permission(&r);
	idem_request_identify(&r);
	while (!try_once(ledger, &r, &first))
		CHECK_FOR_INTERRUPTS();
	idem_ledger_close(ledger);
	PG_RETURN_BOOL(first);
}

/*-------------------------------------------------------------------------
 * find_action
 *-------------------------------------------------------------------------
 */

Datum
idem_find_action(PG_FUNCTION_ARGS)
{
	IdemRequest r = {0};
	IdemAction	row;
	IdemAnswer	answer = {0};
	IdemLedger *ledger;
	IdemFound	found = IDEM_ABSENT;
	TransactionId holder;
	Datum		result;
	bool		sees;

	idem_request_intent(&r, IDEM_CALL_CLAIM, idem_required_text(fcinfo, 1, "intent"),
						idem_required_text(fcinfo, 2, "scope"));
	idem_request_key(&r, idem_required_text(fcinfo, 0, "key"));

	ledger = idem_ledger_open(false);
	idem_request_rule(&r);
	sees = idem_rule_shows(r.rule);
	/* an id made under a secret is a fact of its own */
	if (sees || !r.rule->confidential_key)
	{
		idem_request_identify(&r);
		answer.action_id = &r.action_id;
	}
	answer.now = idem_clock_now();
	answer.scope = r.scope;
	answer.intent = r.intent;
	answer.key = r.rule->confidential_key ? NULL : r.key;
	/* who may not see it does not look: known and unknown take the same time */
	while (sees)
	{
		CHECK_FOR_INTERRUPTS();
		found = idem_request_probe(ledger, &r, &row, &holder);
		if (found != IDEM_ABSENT || idem_ledger_surely_absent(ledger, &r.action_id))
			break;
	}
	if (found == IDEM_ABSENT)
		answer.outcome = IDEM_UNKNOWN;
	else if (found == IDEM_HELD_NEW)
		answer.outcome = IDEM_CONTENDED;
	else
	{
		idem_check_identity(&row, &r);
		if (idem_is_forgotten(&row, answer.now))
			answer.outcome = IDEM_UNKNOWN;
		else
		{
			answer.action = &row;
			answer.repeat = true;
			answer.outcome = idem_outcome_of(&row, r.rule);
			if (idem_outcome_settles(answer.outcome))
				idem_ledger_rely(ledger);
		}
	}
	result = idem_claim_datum(fcinfo, &answer);
	idem_ledger_close(ledger);
	PG_RETURN_DATUM(result);
}
