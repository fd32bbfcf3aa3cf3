/*-------------------------------------------------------------------------
 *
 * outbox.c
 *	  Deciding apart from delivering: enqueue_action, take_actions.
 *
 * enqueue_action records a decision in the caller's transaction: it becomes
 * true with the caller's own changes, or not at all.  A key that somebody else
 * holds open is waited for, since a decision must not get lost.
 *
 * A take walks the queues of its intents (queue.c) in step, best entry first,
 * and decides on each action's row whether it is handed out.  What is held by
 * another transaction is passed over, so takers never wait for each other and
 * one bad row blocks nobody; nor does one that this caller cannot be sent, for
 * its client_encoding or its size (content.c).  A row is granted to the taker whose update of it
 * succeeds: one at most.  Lapsed leases of earlier takers are due entries like
 * any other and go by the doubt list.
 *
 * A crash before the commit hands nothing out; after it, the rows are found
 * again by the call_id, or when their leases are over.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/outbox.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "access/xact.h"
#include "apply.h"
#include "arg.h"
#include "bells.h"
#include "catalog/pg_type.h"
#include "clock.h"
#include "content.h"
#include "detail.h"
#include "errors.h"
#include "funcapi.h"
#include "key.h"
#include "lib/qunique.h"
#include "miscadmin.h"
#include "pause.h"
#include "queue.h"
#include "request.h"
#include "settings.h"
#include "utils/array.h"
#include "utils/builtins.h"

#define MAX_TAKE 10000
#define FIRST_POLL 10			/* milliseconds; doubles up to LAST_POLL */
#define LAST_POLL 1000

PG_FUNCTION_INFO_V1(idem_enqueue_action);
PG_FUNCTION_INFO_V1(idem_enqueue_actions);
PG_FUNCTION_INFO_V1(idem_take_actions);
PG_FUNCTION_INFO_V1(idem_take_to_verify);

/*-------------------------------------------------------------------------
 * Enqueue
 *-------------------------------------------------------------------------
 */

/* false: somebody else was there meanwhile, look again */
static bool
try_enqueue(IdemLedger *ledger, IdemRequest *r, IdemAction *row, IdemVerdict *v, bool *known)
{
	TransactionId holder;
	IdemFound	found;

	r->now = idem_clock_now();
	found = idem_request_probe(ledger, r, row, &holder);
	*known = false;
	if (found == IDEM_ABSENT)
	{
		idem_decide_enqueue(r, v);
		return idem_insert_new(ledger, r, v, true) == IDEM_WRITTEN;
	}
	if (found == IDEM_HELD_NEW ||
		(found == IDEM_HELD && idem_is_forgotten(row, r->now)))
	{
		idem_ledger_rest(ledger);
		idem_ledger_wait(holder);
		idem_request_rule_again(r);
		return false;
	}
	idem_check_identity(row, r);
	if (idem_is_forgotten(row, r->now))
	{
		if (idem_request_make_room(ledger, r, row) != IDEM_WRITTEN)
			return false;
		idem_decide_enqueue(r, v);
		return idem_insert_new(ledger, r, v, true) == IDEM_WRITTEN;
	}
	idem_ledger_check_visible(ledger);
	idem_ledger_rely(ledger);
	idem_decide(row, r, v);
	*known = true;
	return true;
}

static void
enqueue(IdemLedger *ledger, IdemRequest *r, IdemAction *row, IdemVerdict *v, bool *known)
{
	while (!try_enqueue(ledger, r, row, v, known))
		CHECK_FOR_INTERRUPTS();
}

/* a taker would get digests where it needs the values */
static void
refuse_confidential(const IdemRequest *r)
{
	if (r->rule->confidential_paths != NIL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("intent \"%s\" keeps fields confidential and cannot be enqueued",
						idem_shown_text(r->intent)),
				 errdetail("A taker would be handed digests instead of the values."),
				 errhint("Claim it where the values are known, or enqueue a reference to them.")));
}

static TimestampTz
not_before_arg(FunctionCallInfo fcinfo, int n)
{
	TimestampTz value;

	if (PG_ARGISNULL(n))
		return IDEM_NEVER;
	value = PG_GETARG_TIMESTAMPTZ(n);
	if (TIMESTAMP_NOT_FINITE(value))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("not_before must be a finite time"),
				 errhint("Leave it out for an action that is due at once.")));
	return value;
}

Datum
idem_enqueue_action(PG_FUNCTION_ARGS)
{
	IdemRequest r = {0};
	IdemLedger *ledger;
	IdemAction	row;
	IdemVerdict v;
	IdemAnswer	answer;
	Datum		result;
	bool		known;

	idem_request_intent(&r, IDEM_CALL_ENQUEUE, idem_required_text(fcinfo, 1, "intent"),
						idem_required_text(fcinfo, 4, "scope"));
	idem_request_key(&r, idem_required_text(fcinfo, 0, "key"));
	r.own_params = idem_arg_content(fcinfo, 2, "params");
	r.draft = idem_arg_content(fcinfo, 3, "draft");
	r.not_before = not_before_arg(fcinfo, 5);
	r.priority = PG_ARGISNULL(6) ? 0 : PG_GETARG_INT32(6);
	r.source = idem_arg_label(fcinfo, 7);
	r.event_id = idem_arg_label(fcinfo, 8);

	ledger = idem_ledger_open(true);
	idem_request_rule(&r);
	idem_request_permission(&r);
	refuse_confidential(&r);
	idem_request_identify(&r);
	enqueue(ledger, &r, &row, &v, &known);
	idem_count_repeat(&r, &v, known);
	if (v.outcome == IDEM_MISMATCH)
		idem_raise_mismatch(&row, &r);
	idem_answer(&answer, &r, &v, known);
	result = idem_claim_datum(fcinfo, &answer);
	idem_ledger_close(ledger);
	PG_RETURN_DATUM(result);
}

Datum
idem_enqueue_actions(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	IdemRequest common = {0};
	IdemBatchArgs batch;
	IdemRowContext memory;
	IdemLedger *ledger;

	idem_request_intent(&common, IDEM_CALL_ENQUEUE, idem_required_text(fcinfo, 0, "intent"),
						idem_required_text(fcinfo, 4, "scope"));
	common.not_before = not_before_arg(fcinfo, 5);
	common.priority = PG_ARGISNULL(6) ? 0 : PG_GETARG_INT32(6);
	common.source = idem_arg_label(fcinfo, 7);
	idem_request_batch(fcinfo, &common, 1, 2, 3, 8, &batch);

	InitMaterializedSRF(fcinfo, 0);
	ledger = idem_ledger_open(true);
	idem_request_rule(&common);
	idem_request_permission(&common);
	refuse_confidential(&common);
	idem_request_identify_batch(&batch, &common);
	idem_row_start(&memory);
	for (int i = 0; i < batch.n; i++)
	{
		int			position = batch.items[i].position;
		IdemRequest *r = &batch.requests[position];
		IdemAction	row;
		IdemVerdict v;
		IdemAnswer	answer;
		bool		known;

		CHECK_FOR_INTERRUPTS();
		idem_row_next(&memory);
		/* the row before may have waited, and the rule have changed meanwhile */
		idem_request_rule(&common);
		r->rule = common.rule;
		r->paused = common.paused;
		enqueue(ledger, r, &row, &v, &known);
		idem_count_repeat(r, &v, known);
		idem_answer(&answer, r, &v, known);
		idem_row_answer(&memory);
		batch.tuples[position] = idem_claim_tuple(rsinfo->setDesc, &answer);
	}
	idem_row_end(&memory);
	idem_ledger_close(ledger);
	return idem_batch_return(fcinfo, batch.tuples, batch.n);
}

/*-------------------------------------------------------------------------
 * Take
 *-------------------------------------------------------------------------
 */

typedef struct Take
{
	IdemRequest request;
	text	  **intents;
	IdemQueueWalk *walks;		/* as many as open intents */
	bool	   *ahead;			/* the walk stands on an entry */
	int			nintents;
	int			nwalks;
	uint32		bell;
	text	   *scope;			/* NULL: any */
	TupleDesc	desc;
	HeapTuple  *tuples;
	int			max;
	int			taken;
	IdemRowContext memory;
} Take;

/* the rule of the row's intent, as it is now; false where it is missing */
static bool
set_rule(Take *take, const IdemAction *row)
{
	take->request.rule = idem_rule_of_action(row);
	return !take->request.rule->is_missing;
}

static void
keep(Take *take, const IdemVerdict *v)
{
	IdemAnswer	answer;

	idem_answer(&answer, &take->request, v, true);
	idem_row_answer(&take->memory);
	take->tuples[take->taken++] = idem_claim_tuple(take->desc, &answer);
}

/* whether a take may be answered with a row: it is among what the call asks for */
static bool
is_asked_for(const Take *take, const IdemAction *row)
{
	if (take->scope != NULL && !idem_text_equal(take->scope, row->scope))
		return false;
	for (int i = 0; i < take->nintents; i++)
	{
		if (idem_text_equal(take->intents[i], row->intent))
			return idem_rule_lets_act(take->request.rule);
	}
	return false;
}

/*
 * The reply of an earlier take got lost: the rows that it still holds.  A
 * call_id is no right: it may be another caller's.
 */
static void
replay(Take *take, IdemLedger *ledger)
{
	IdemRequest *r = &take->request;
	ListCell   *lc;

	foreach(lc, idem_queue_of_call(&r->call_id))
	{
		IdemAction	row;
		IdemVerdict v;
		TransactionId holder;

		CHECK_FOR_INTERRUPTS();
		if (take->taken == take->max)
			break;
		if (idem_ledger_probe(ledger, lfirst(lc), &row, &holder) != IDEM_PRESENT ||
			row.state != IDEM_IN_PROGRESS || row.lease_until <= r->now ||
			!set_rule(take, &row) || !is_asked_for(take, &row))
			continue;
		idem_decide(&row, r, &v);
		if ((v.outcome == IDEM_CLAIMED || v.outcome == IDEM_VERIFY) &&
			idem_cannot_go_out(&v.after) == NULL)
		{
			idem_ledger_rely(ledger);
			keep(take, &v);
		}
	}
}

/* whether the history has that this version of the row was passed over */
static bool
was_passed_over(const IdemAction *row)
{
	ListCell   *lc;

	foreach(lc, idem_ledger_past(&row->action_id))
	{
		IdemPast   *past = lfirst(lc);

		if (strcmp(past->event, IDEM_PASSED_OVER) == 0 &&
			idem_detail_int(past->detail, "revision") == row->revision)
			return true;
	}
	return false;
}

/*
 * The caller cannot be sent this action: others are handed out, and it waits for
 * another taker.  The history has it once for each version of the row, which is
 * how the view stuck knows.
 */
static void
pass_over(const Take *take, IdemLedger *ledger, const IdemAction *row, const char *reason)
{
	IdemEvent	line = {.event = IDEM_PASSED_OVER,.action = row,.worker = take->request.worker};
	StringInfoData detail;

	if (was_passed_over(row) || idem_ledger_lock(ledger, false) != IDEM_WRITTEN ||
		was_passed_over(row))
		return;
	idem_detail_start(&detail);
	idem_detail_add(&detail, "reason", reason);
	idem_detail_add_int(&detail, "revision", row->revision);
	line.detail = idem_detail_end(&detail);
	idem_ledger_append(&line);
}

/* hands out the action that a walk stands on, where that can be */
static void
try_take(Take *take, IdemLedger *ledger, const IdemQueueWalk *walk)
{
	IdemRequest *r = &take->request;
	IdemAction	row;
	IdemVerdict v;
	TransactionId holder;
	const char *reason;
	bool		hands_out;

	if (idem_ledger_probe(ledger, &walk->action_id, &row, &holder) != IDEM_PRESENT ||
		row.due_at == IDEM_NEVER || row.due_at > r->now ||
		(take->scope != NULL && !idem_text_equal(take->scope, row.scope)) ||
		!set_rule(take, &row))
		return;
	idem_decide(&row, r, &v);
	hands_out = v.outcome == IDEM_CLAIMED || v.outcome == IDEM_VERIFY;
	if (v.changes && hands_out && (reason = idem_cannot_go_out(&v.after)) != NULL)
	{
		pass_over(take, ledger, &row, reason);
		return;
	}
	if (!v.changes || idem_ledger_update(ledger, &row, &v.after, false) != IDEM_WRITTEN)
		return;
	idem_append_lines(&row, r, &v);
	ForceSyncCommit();
	if (hands_out)
		keep(take, &v);
}

/* the walk whose entry comes first: higher priority, then due longer */
static int
best_walk(const Take *take)
{
	int			best = -1;

	for (int i = 0; i < take->nwalks; i++)
	{
		const IdemQueueWalk *walk = &take->walks[i];

		if (take->ahead[i] &&
			(best < 0 || walk->priority > take->walks[best].priority ||
			 (walk->priority == take->walks[best].priority &&
			  walk->due_at < take->walks[best].due_at)))
			best = i;
	}
	return best;
}

/* opens a walk for each intent that hands out; IA005 or IA008 where none may */
static void
open_walks(Take *take)
{
	IdemRequest *r = &take->request;
	int			allowed = 0;

	take->nwalks = 0;
	for (int i = 0; i < take->nintents; i++)
	{
		text	   *intent = take->intents[i];
		bool		last = allowed == 0 && i == take->nintents - 1;
		const IdemRule *rule;

		CHECK_FOR_INTERRUPTS();
		rule = idem_rule_of(VARDATA_ANY(intent), VARSIZE_ANY_EXHDR(intent), last);
		if ((rule->intent == NULL && idem_require_rule) || !idem_rule_lets_act(rule))
		{
			if (last)
			{
				r->rule = rule;
				r->intent = intent;
				idem_request_permission(r);
			}
			continue;
		}
		allowed++;
		if (idem_is_paused(intent) || rule->confidential_paths != NIL)
			continue;
		idem_queue_start(&take->walks[take->nwalks], intent);
		take->ahead[take->nwalks] = idem_queue_next(&take->walks[take->nwalks], r->now);
		take->nwalks++;
	}
}

/* a staging copy must not send real mail, see place.c; nor by a replay of what
 * the original handed out */
static bool
is_copy(void)
{
	static bool said = false;

	if (!idem_settings()->copied)
		return false;
	if (!said)
		ereport(LOG,
				(errmsg("this ledger was copied or restored, so takes answer nothing"),
				 errhint("If its actions are to be handed out here and nowhere else, call idem.accept_copy().")));
	said = true;
	return true;
}

/* one look at the queues; leaves everything closed again */
static void
take_round(Take *take)
{
	IdemRequest *r = &take->request;
	IdemLedger *ledger = idem_ledger_open(true);
	bool		copied = is_copy();
	int			i;

	idem_row_start(&take->memory);
	r->now = idem_clock_now();
	if (!copied && !idem_uuid_is_null(&r->call_id))
		replay(take, ledger);
	if (!copied && take->taken == 0)
	{
		open_walks(take);
		while (take->taken < take->max && (i = best_walk(take)) >= 0)
		{
			CHECK_FOR_INTERRUPTS();
			idem_row_next(&take->memory);
			try_take(take, ledger, &take->walks[i]);
			idem_row_answer(&take->memory);
			take->ahead[i] = idem_queue_next(&take->walks[i], r->now);
		}
		for (i = 0; i < take->nwalks; i++)
			idem_queue_end(&take->walks[i]);
	}
	idem_row_end(&take->memory);
	idem_ledger_close(ledger);
}

static int
compare_intents(const void *a, const void *b)
{
	const text *x = *(text *const *) a;
	const text *y = *(text *const *) b;
	int			len = Min(VARSIZE_ANY_EXHDR(x), VARSIZE_ANY_EXHDR(y));
	int			order = memcmp(VARDATA_ANY(x), VARDATA_ANY(y), len);

	return order != 0 ? order : (int) VARSIZE_ANY_EXHDR(x) - (int) VARSIZE_ANY_EXHDR(y);
}

/* the intents, each once, and the bell of the first that was named */
static void
intents_arg(FunctionCallInfo fcinfo, Take *take)
{
	Datum	   *values;
	bool	   *nulls;
	int			n = idem_arg_list(fcinfo, 0, "intents", TEXTOID, IDEM_MAX_INTENTS, &values, &nulls);

	if (n == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("intents must name at least one intent")));
	take->intents = palloc(n * sizeof(text *));
	take->walks = palloc(n * sizeof(IdemQueueWalk));
	take->ahead = palloc0(n * sizeof(bool));
	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("intents must not hold nulls")));
		take->intents[i] = DatumGetTextPP(values[i]);
		idem_check_intent(take->intents[i]);
	}
	take->bell = idem_bell_of(VARDATA_ANY(take->intents[0]), VARSIZE_ANY_EXHDR(take->intents[0]));
	qsort(take->intents, n, sizeof(text *), compare_intents);
	take->nintents = qunique(take->intents, n, sizeof(text *), compare_intents);
}

static Datum
take(FunctionCallInfo fcinfo, IdemCall call)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Take		t = {.request = {.call = call,.retry_after = -1}};
	int64		deadline;
	int64		wait;
	long		pause = FIRST_POLL;

	intents_arg(fcinfo, &t);
	idem_refuse_open_transaction(idem_arg_bool(fcinfo, 7, false));
	t.max = PG_ARGISNULL(1) ? 1 : PG_GETARG_INT32(1);
	if (t.max < 1 || t.max > MAX_TAKE)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max must be between 1 and %d", MAX_TAKE),
				 errhint("Take no more than can be done within the lease.")));
	t.request.lease = idem_arg_lease(fcinfo, 2);
	t.request.worker = idem_arg_label(fcinfo, 3);
	t.scope = idem_arg_text(fcinfo, 4);
	if (t.scope != NULL)
		idem_check_scope(t.scope);
	wait = idem_wait_arg(fcinfo, 5);
	deadline = idem_clock_monotonic() + wait;
	idem_request_call_id(&t.request, fcinfo, 6);

	InitMaterializedSRF(fcinfo, 0);
	t.desc = rsinfo->setDesc;
	t.tuples = palloc(t.max * sizeof(HeapTuple));
	for (;;)
	{
		long		left;

		if (wait > 0)
			idem_bell_listen(t.bell);
		take_round(&t);
		left = (deadline - idem_clock_monotonic()) / 1000;
		if (t.taken > 0 || left <= 0)
			break;
		/* leases end without a ring, and other intents have other bells */
		idem_bell_await(t.bell, Min(left, pause), pause);
		pause = Min(pause * 2, LAST_POLL);
	}
	if (wait > 0)
		idem_bell_stop_listening();
	return idem_batch_return(fcinfo, t.tuples, t.taken);
}

Datum
idem_take_actions(PG_FUNCTION_ARGS)
{
	return take(fcinfo, IDEM_CALL_TAKE);
}

Datum
idem_take_to_verify(PG_FUNCTION_ARGS)
{
	return take(fcinfo, IDEM_CALL_TAKE_TO_VERIFY);
}
