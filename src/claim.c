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
#include "answer.h"
#include "arg.h"
#include "canon.h"
#include "catalog/pg_type.h"
#include "errors.h"
#include "funcapi.h"
#include "key.h"
#include "ledger.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "state.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/wait_event.h"

/* probes that may find the row changed again, before the answer is "contended" */
#define MAX_TRIES 1000

#define MAX_WAIT (30 * USECS_PER_SEC)
#define FIRST_POLL 10			/* milliseconds; doubles up to LAST_POLL */
#define LAST_POLL 1000

PG_FUNCTION_INFO_V1(idem_claim_action);
PG_FUNCTION_INFO_V1(idem_claim_actions);
PG_FUNCTION_INFO_V1(idem_once);
PG_FUNCTION_INFO_V1(idem_find_action);

/*-------------------------------------------------------------------------
 * Requests
 *-------------------------------------------------------------------------
 */

static void
refuse_open_transaction(bool in_transaction)
{
	if (!in_transaction && IsTransactionBlock())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("a claim in an open transaction protects nothing outside it"),
				 errdetail("A crash before COMMIT would forget the claim, though the action may have taken effect."),
				 errhint("Commit first, or claim outside of a transaction (psycopg: autocommit=True). "
						 "If the effect is in this database too, pass in_transaction => true.")));
}

static text *
required_text(FunctionCallInfo fcinfo, int n, const char *name)
{
	if (PG_ARGISNULL(n))
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_INVALID_KEY),
				 errmsg("%s must not be null", name),
				 errhint("Key, intent and scope say what makes the action unique.")));
	return PG_GETARG_TEXT_PP(n);
}

/* the key of an action, checked, and the id that follows from it */
static void
set_key(IdemRequest *r, text *key)
{
	idem_check_key(VARSIZE_ANY_EXHDR(key));
	r->key = key;
	idem_action_id_plain(VARDATA_ANY(r->scope), VARSIZE_ANY_EXHDR(r->scope),
						 VARDATA_ANY(r->intent), VARSIZE_ANY_EXHDR(r->intent),
						 VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key), &r->action_id);
}

static void
set_intent(IdemRequest *r, text *intent, text *scope)
{
	idem_check_intent(VARSIZE_ANY_EXHDR(intent));
	idem_check_scope(VARSIZE_ANY_EXHDR(scope));
	r->call = IDEM_CALL_CLAIM;
	r->intent = intent;
	r->scope = scope;
	r->retry_after = -1;
}

static void
set_params(IdemRequest *r, Jsonb *params)
{
	r->params = params;
	r->params_digest = NULL;
	if (params != NULL)
	{
		r->params_digest = palloc(VARHDRSZ + IDEM_DIGEST_LENGTH);
		SET_VARSIZE(r->params_digest, VARHDRSZ + IDEM_DIGEST_LENGTH);
		idem_params_digest(params, (uint8 *) VARDATA(r->params_digest));
	}
}

/* the rule; asked for after each opening of the ledger, as it may have changed */
static void
set_rule(IdemRequest *r)
{
	r->rule = idem_rule_of(VARDATA_ANY(r->intent), VARSIZE_ANY_EXHDR(r->intent),
						   idem_require_rule);
	if (r->rule->scoped && VARSIZE_ANY_EXHDR(r->scope) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_INVALID_KEY),
				 errmsg("intent \"%s\" needs a scope", text_to_cstring(r->intent)),
				 errhint("Pass the tenant as scope.")));
}

/* a call_id that equals the key or the event would give the grant to a twin */
static void
check_call_id(const IdemRequest *r)
{
	char		buf[IDEM_PROVIDER_KEY_SIZE];
	text	   *others[] = {r->key, r->event_id};

	if (idem_uuid_is_null(&r->call_id))
		return;
	idem_provider_key(&r->call_id, 1, buf);
	for (int i = 0; i < (int) lengthof(others); i++)
	{
		if (others[i] != NULL && VARSIZE_ANY_EXHDR(others[i]) == strlen(buf) &&
			pg_strncasecmp(VARDATA_ANY(others[i]), buf, strlen(buf)) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_INVALID_KEY),
					 errmsg("call_id must not be the key or the event's id"),
					 errdetail("A second delivery would be taken for a lost reply, and both would act."),
					 errhint("Make a fresh random uuid for each call, and repeat it only where that call's reply was lost.")));
	}
}

static int64
wait_arg(FunctionCallInfo fcinfo, int n)
{
	int64		wait = idem_arg_usec(fcinfo, n, "wait");

	if (wait > MAX_WAIT)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("wait must be at most 30 seconds"),
				 errhint("Ask again after retry_after instead.")));
	return wait;
}

static void
raise_mismatch(const IdemAction *action, const IdemRequest *r)
{
	char	   *difference = action->params != NULL ?
		idem_params_difference(action->params, r->params) : NULL;

	ereport(ERROR,
			(errcode(ERRCODE_IDEM_PARAMS_MISMATCH),
			 errmsg("the action is known with other params"),
			 difference != NULL ?
			 errdetail("Differing: %s.", difference) :
			 errdetail("The stored params are not kept any more, only their fingerprint."),
			 errhint("Changed facts are another action: give it a key of its own, or correct the params.")));
}

/* two actions with one id would be one action: not believed, but looked at */
static void
check_identity(const IdemAction *action, const IdemRequest *r)
{
	if (!idem_text_equal(action->intent, r->intent) ||
		!idem_text_equal(action->scope, r->scope) ||
		(action->key != NULL && !idem_text_equal(action->key, r->key)))
		elog(ERROR, "the action_id of this key belongs to another action");
}

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
	t->known = false;
	t->holder = holder;
}

/* makes the write of a verdict; nothing is granted unless it was written */
static void
write_verdict(Try *t, IdemWrite written)
{
	switch (written)
	{
		case IDEM_WRITTEN:
			ForceSyncCommit();
			break;
		case IDEM_CHANGED:
			t->again = true;
			break;
		case IDEM_BUSY:
			contended(t, InvalidTransactionId);
			break;
	}
}

static void
try_claim(IdemLedger *ledger, IdemRequest *r, Try *t)
{
	IdemVerdict *v = &t->verdict;
	IdemFound	found;

	r->now = GetCurrentTimestamp();
	t->again = false;
	t->known = false;
	found = idem_ledger_probe(ledger, &r->action_id, &t->row, &t->holder);
	switch (found)
	{
		case IDEM_ABSENT:
			idem_decide_new(r, v);
			write_verdict(t, idem_ledger_insert(ledger, &v->after, false));
			return;
		case IDEM_HELD_NEW:
			contended(t, t->holder);
			return;
		case IDEM_PRESENT:
		case IDEM_HELD:
			break;
	}

	check_identity(&t->row, r);
	if (idem_is_forgotten(&t->row, r->now))
	{
		/* as if the row were gone: its place is taken, its history goes */
		idem_decide_new(r, v);
		if (found == IDEM_HELD)
			contended(t, t->holder);
		else
		{
			write_verdict(t, idem_ledger_update(ledger, &t->row, &v->after, false));
			if (!t->again && v->outcome != IDEM_CONTENDED)
				idem_ledger_forget_past(&r->action_id);
		}
		return;
	}

	t->known = true;
	idem_decide(&t->row, r, v);
	if (found == IDEM_HELD && (v->changes || v->outcome == IDEM_CLAIMED || v->outcome == IDEM_VERIFY))
		contended(t, t->holder);
	else if (v->changes)
	{
		write_verdict(t, idem_ledger_update(ledger, &t->row, &v->after, false));
		if (!t->again && v->outcome != IDEM_CONTENDED && v->event != NULL)
		{
			IdemEvent	line = {
				.event = v->event,
				.action = &t->row,
				.claim_id = v->event_claim,
				.attempt = v->event_attempt,
				.worker = t->row.worker,
				.detail = v->event_detail,
				.content = v->event_content,
			};

			idem_ledger_append(ledger, &line);
		}
	}
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

/* for a committed holder: sleeps a little, less than to the end of its lease */
static void
poll(long milliseconds)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 milliseconds, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/*
 * The claim, repeated while another holder stands in its way and "wait" is not
 * over.  Returns with the ledger open.
 */
static IdemLedger *
claim_waiting(IdemRequest *r, int64 wait, Try *t)
{
	IdemLedger *ledger = idem_ledger_open(true);
	TimestampTz deadline = GetCurrentTimestamp() + wait;
	long		pause = FIRST_POLL;

	set_rule(r);
	for (;;)
	{
		TimestampTz now;
		long		left;
		TransactionId holder;

		claim_once(ledger, r, t);
		if (t->verdict.outcome != IDEM_CONTENDED && t->verdict.outcome != IDEM_OUT_IN_PROGRESS)
			return ledger;
		now = GetCurrentTimestamp();
		if (now >= deadline)
			return ledger;

		left = Max(1, (deadline - now) / 1000);
		if (t->known && t->row.lease_until > now)
			left = Min(left, Max(1, (t->row.lease_until - now) / 1000));
		holder = t->holder;
		idem_ledger_close(ledger);
		if (TransactionIdIsValid(holder))
			(void) idem_ledger_wait_until(holder, deadline);
		else
		{
			poll(Min(left, pause));
			pause = Min(pause * 2, LAST_POLL);
		}
		ledger = idem_ledger_open(true);
		set_rule(r);
	}
}

static void
fill_answer(IdemAnswer *answer, const Try *t, const IdemRequest *r)
{
	const IdemVerdict *v = &t->verdict;

	memset(answer, 0, sizeof(*answer));
	answer->outcome = v->outcome;
	answer->now = r->now;
	answer->lease = r->rule->lease;
	answer->kept_draft = v->kept_draft;
	answer->action_id = &r->action_id;
	answer->scope = r->scope;
	answer->intent = r->intent;
	answer->key = r->key;
	if (v->outcome == IDEM_CONTENDED)
		answer->repeat = true;
	else
	{
		answer->action = &v->after;
		/* a replayed grant is told what the lost reply told */
		answer->repeat = t->known &&
			!(v->outcome == IDEM_CLAIMED && !v->changes &&
			  v->after.claimed_at == v->after.created_at);
	}
}

Datum
idem_claim_action(PG_FUNCTION_ARGS)
{
	IdemRequest r = {0};
	IdemAnswer	answer;
	IdemLedger *ledger;
	TupleDesc	desc;
	HeapTuple	tuple;
	Try			t;
	int64		wait;

	set_intent(&r, required_text(fcinfo, 1, "intent"), required_text(fcinfo, 4, "scope"));
	refuse_open_transaction(idem_arg_bool(fcinfo, 11, false));
	set_key(&r, required_text(fcinfo, 0, "key"));
	set_params(&r, idem_arg_content(fcinfo, 2, "params"));
	r.draft = idem_arg_content(fcinfo, 3, "draft");
	r.lease = idem_arg_lease(fcinfo, 5);
	wait = wait_arg(fcinfo, 6);
	r.worker = idem_arg_label(fcinfo, 7);
	r.source = idem_arg_label(fcinfo, 8);
	r.event_id = idem_arg_label(fcinfo, 9);
	if (!PG_ARGISNULL(10))
		r.call_id = *PG_GETARG_UUID_P(10);
	check_call_id(&r);

	ledger = claim_waiting(&r, wait, &t);
	if (t.verdict.outcome == IDEM_MISMATCH)
		raise_mismatch(&t.row, &r);
	fill_answer(&answer, &t, &r);
	desc = idem_answer_desc(fcinfo);
	tuple = idem_claim_tuple(desc, &answer);
	ReleaseTupleDesc(desc);
	idem_ledger_close(ledger);
	PG_RETURN_DATUM(HeapTupleGetDatum(tuple));
}

/*-------------------------------------------------------------------------
 * A batch of claims
 *-------------------------------------------------------------------------
 */

typedef struct BatchItem
{
	pg_uuid_t	action_id;
	int			position;
} BatchItem;

/* rivals take overlapping batches in one order; twins in that of the input */
static int
compare_items(const void *a, const void *b)
{
	const BatchItem *x = a;
	const BatchItem *y = b;
	int			order = memcmp(&x->action_id, &y->action_id, sizeof(pg_uuid_t));

	return order != 0 ? order : x->position - y->position;
}

Datum
idem_claim_actions(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	IdemRequest common = {0};
	IdemRequest *requests;
	BatchItem  *items;
	HeapTuple  *tuples;
	IdemLedger *ledger;
	Datum	   *keys;
	Datum	   *params;
	Datum	   *drafts;
	Datum	   *event_ids;
	bool	   *key_nulls;
	bool	   *param_nulls;
	bool	   *draft_nulls;
	bool	   *event_nulls;
	int			n;

	set_intent(&common, required_text(fcinfo, 0, "intent"), required_text(fcinfo, 4, "scope"));
	refuse_open_transaction(idem_arg_bool(fcinfo, 10, false));
	n = idem_arg_array(fcinfo, 1, "keys", TEXTOID, -1, &keys, &key_nulls);
	idem_arg_array(fcinfo, 2, "params", JSONBOID, n, &params, &param_nulls);
	idem_arg_array(fcinfo, 3, "drafts", JSONBOID, n, &drafts, &draft_nulls);
	common.lease = idem_arg_lease(fcinfo, 5);
	common.worker = idem_arg_label(fcinfo, 6);
	common.source = idem_arg_label(fcinfo, 7);
	idem_arg_array(fcinfo, 8, "event_ids", TEXTOID, n, &event_ids, &event_nulls);
	if (!PG_ARGISNULL(9))
		common.call_id = *PG_GETARG_UUID_P(9);

	/* everything that can be wrong is found before anything is claimed */
	requests = palloc(Max(n, 1) * sizeof(IdemRequest));
	items = palloc(Max(n, 1) * sizeof(BatchItem));
	tuples = palloc(Max(n, 1) * sizeof(HeapTuple));
	for (int i = 0; i < n; i++)
	{
		IdemRequest *r = &requests[i];

		*r = common;
		if (key_nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_INVALID_KEY),
					 errmsg("key must not be null"),
					 errdetail("Element %d of keys is null.", i + 1)));
		set_key(r, DatumGetTextPP(keys[i]));
		if (params != NULL && !param_nulls[i])
		{
			idem_content_check(DatumGetJsonbP(params[i]), "params");
			set_params(r, DatumGetJsonbP(params[i]));
		}
		if (drafts != NULL && !draft_nulls[i])
		{
			r->draft = DatumGetJsonbP(drafts[i]);
			idem_content_check(r->draft, "draft");
		}
		if (event_ids != NULL && !event_nulls[i])
			r->event_id = idem_text_cut(DatumGetTextPP(event_ids[i]), IDEM_MAX_LABEL);
		check_call_id(r);
		items[i].action_id = r->action_id;
		items[i].position = i;
	}
	qsort(items, n, sizeof(BatchItem), compare_items);

	InitMaterializedSRF(fcinfo, 0);
	ledger = idem_ledger_open(true);
	set_rule(&common);
	for (int i = 0; i < n; i++)
	{
		IdemRequest *r = &requests[items[i].position];
		IdemAnswer	answer;
		Try			t;

		r->rule = common.rule;
		/* the call's replay is for the first; a twin never gets the grant */
		if (i > 0 && idem_uuid_equal(&items[i - 1].action_id, &items[i].action_id))
			memset(&r->call_id, 0, sizeof(r->call_id));
		claim_once(ledger, r, &t);
		fill_answer(&answer, &t, r);
		tuples[items[i].position] = idem_claim_tuple(rsinfo->setDesc, &answer);
	}
	idem_ledger_close(ledger);
	for (int i = 0; i < n; i++)
		tuplestore_puttuple(rsinfo->setResult, tuples[i]);
	PG_RETURN_NULL();
}

/*-------------------------------------------------------------------------
 * once
 *-------------------------------------------------------------------------
 */

static void
raise_not_done(const IdemAction *action, const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_NOT_DONE),
			 errmsg("the action is known, but not as done: it %s", what),
			 errdetail("action_id %s.",
					   DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&action->action_id)))),
			 errhint("once() is for effects in this database only; use claim_action where others act on the same key.")));
}

/* true: the caller's transaction is the first; false: done by a committed one */
static bool
try_once(IdemLedger *ledger, IdemRequest *r, bool *first)
{
	IdemVerdict v;
	IdemAction	row;
	TransactionId holder;
	IdemFound	found;

	r->now = GetCurrentTimestamp();
	found = idem_ledger_probe(ledger, &r->action_id, &row, &holder);
	if (found == IDEM_HELD || found == IDEM_HELD_NEW)
	{
		idem_ledger_rest(ledger);
		idem_ledger_wait(holder);
		return false;
	}
	if (found == IDEM_ABSENT || idem_is_forgotten(&row, r->now))
	{
		IdemWrite	written;

		idem_decide_once(r, &v);
		if (v.after.state != IDEM_COMPLETED)
			raise_not_done(&v.after, "needs an approval first");
		*first = true;
		if (found == IDEM_ABSENT)
			return idem_ledger_insert(ledger, &v.after, true) == IDEM_WRITTEN;
		written = idem_ledger_update(ledger, &row, &v.after, true);
		if (written == IDEM_WRITTEN)
			idem_ledger_forget_past(&r->action_id);
		return written == IDEM_WRITTEN;
	}

	check_identity(&row, r);
	idem_decide(&row, r, &v);
	if (v.outcome == IDEM_MISMATCH)
		raise_mismatch(&row, r);
	if (row.state != IDEM_COMPLETED)
		raise_not_done(&row, psprintf("is %s", text_to_cstring(idem_state_name(row.state))));
	idem_ledger_check_visible(ledger);
	*first = false;
	return true;
}

Datum
idem_once(PG_FUNCTION_ARGS)
{
	IdemRequest r = {0};
	IdemLedger *ledger;
	bool		first;

	set_intent(&r, required_text(fcinfo, 1, "intent"), required_text(fcinfo, 3, "scope"));
	set_key(&r, required_text(fcinfo, 0, "key"));
	set_params(&r, idem_arg_content(fcinfo, 2, "params"));

	ledger = idem_ledger_open(true);
	set_rule(&r);
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
	IdemFound	found;
	TransactionId holder;
	TupleDesc	desc;
	HeapTuple	tuple;

	set_intent(&r, required_text(fcinfo, 1, "intent"), required_text(fcinfo, 2, "scope"));
	set_key(&r, required_text(fcinfo, 0, "key"));

	ledger = idem_ledger_open(false);
	set_rule(&r);
	answer.now = GetCurrentTimestamp();
	answer.action_id = &r.action_id;
	answer.scope = r.scope;
	answer.intent = r.intent;
	answer.key = r.key;
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		found = idem_ledger_probe(ledger, &r.action_id, &row, &holder);
		if (found != IDEM_ABSENT || idem_ledger_surely_absent(ledger, &r.action_id))
			break;
	}
	if (found == IDEM_ABSENT)
		answer.outcome = IDEM_UNKNOWN;
	else if (found == IDEM_HELD_NEW)
		answer.outcome = IDEM_CONTENDED;
	else
	{
		check_identity(&row, &r);
		if (idem_is_forgotten(&row, answer.now))
			answer.outcome = IDEM_UNKNOWN;
		else
		{
			answer.action = &row;
			answer.repeat = true;
			answer.outcome = idem_awaits_approval(&row, r.rule) ?
				IDEM_AWAITING_APPROVAL : idem_outcome_of(&row, answer.now);
		}
	}
	desc = idem_answer_desc(fcinfo);
	tuple = idem_claim_tuple(desc, &answer);
	ReleaseTupleDesc(desc);
	idem_ledger_close(ledger);
	PG_RETURN_DATUM(HeapTupleGetDatum(tuple));
}
