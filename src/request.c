/*-------------------------------------------------------------------------
 *
 * request.c
 *	  From arguments to a request, and from a verdict to an answer.
 *
 * What can be wrong with an argument is found here, before anything is read or
 * written, so that an error costs nothing.  An error names facts and lengths,
 * never a key or a content.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/request.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "request.h"
#include "access.h"
#include "access/xact.h"
#include "arg.h"
#include "canon.h"
#include "catalog/pg_type.h"
#include "conceal.h"
#include "content.h"
#include "counters.h"
#include "errors.h"
#include "funcapi.h"
#include "key.h"
#include "miscadmin.h"
#include "pause.h"
#include "repeats.h"
#include "secret.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/tuplestore.h"
#include "utils/typcache.h"

#define MAX_WAIT (30 * USECS_PER_SEC)

/* kept of the digest of params: enough to notice a mistake, half the size */
#define IDEM_FINGERPRINT_LENGTH 16

PG_FUNCTION_INFO_V1(idem_action_id);

/*
 * Whether the statement is a transaction of its own.  The statements of a
 * pipeline are one transaction too, unless this one asks to be committed as
 * soon as it is done.
 */
bool
idem_commits_by_itself(void)
{
	if (IsTransactionBlock() || (MyXactFlags & XACT_FLAGS_PIPELINING))
		return false;
	MyXactFlags |= XACT_FLAGS_NEEDIMMEDIATECOMMIT;
	return true;
}

/* 25001, unless the caller says that it knows */
void
idem_refuse_open_transaction(bool in_transaction)
{
	if (!in_transaction && !idem_commits_by_itself())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("a claim in an open transaction protects nothing outside it"),
				 errdetail("A crash before COMMIT would forget the claim, though the action may have taken effect."),
				 errhint("Commit first, or claim outside of a transaction (psycopg: autocommit=True). "
						 "If the effect is in this database too, pass in_transaction => true.")));
}

text *
idem_required_text(FunctionCallInfo fcinfo, int n, const char *name)
{
	if (PG_ARGISNULL(n))
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_INVALID_KEY),
				 errmsg("%s must not be null", name),
				 errhint("Key, intent and scope say what makes the action unique.")));
	return PG_GETARG_TEXT_PP(n);
}

void
idem_request_key(IdemRequest *r, text *key)
{
	idem_check_key(key);
	r->key = key;
}

void
idem_request_intent(IdemRequest *r, IdemCall call, text *intent, text *scope)
{
	idem_check_intent(intent);
	idem_check_scope(scope);
	r->call = call;
	r->intent = intent;
	r->scope = scope;
	r->retry_after = -1;
	r->not_before = IDEM_NEVER;
}

/* the action's id, under a secret where keys are confidential */
static void
id_under(const IdemRequest *r, const IdemSecret *secret, pg_uuid_t *id)
{
	if (r->rule->confidential_key)
		idem_action_id_keyed(VARDATA_ANY(r->scope), VARSIZE_ANY_EXHDR(r->scope),
							 VARDATA_ANY(r->intent), VARSIZE_ANY_EXHDR(r->intent),
							 VARDATA_ANY(r->key), VARSIZE_ANY_EXHDR(r->key),
							 secret->bytes, secret->len, id);
	else
		idem_action_id_plain(VARDATA_ANY(r->scope), VARSIZE_ANY_EXHDR(r->scope),
							 VARDATA_ANY(r->intent), VARSIZE_ANY_EXHDR(r->intent),
							 VARDATA_ANY(r->key), VARSIZE_ANY_EXHDR(r->key), id);
}

/* id, stored params and fingerprint as they are under a secret, or none */
static void
identify_under(IdemRequest *r, const IdemSecret *secret)
{
	uint8		digest[IDEM_DIGEST_LENGTH];

	id_under(r, secret, &r->action_id);
	r->secret_id = secret != NULL ? cstring_to_text(secret->id) : NULL;
	r->params = r->own_params;
	r->params_digest = NULL;
	if (r->params == NULL)
		return;
	if (r->rule->confidential_paths != NIL)
	{
		r->params = idem_conceal(r->own_params, r->rule->confidential_paths, secret);
		/* a digest may be longer than what it stands for */
		idem_content_check(r->params, "params with concealed fields");
	}
	idem_params_digest(r->params, digest);
	r->params_digest = palloc(VARHDRSZ + IDEM_FINGERPRINT_LENGTH);
	SET_VARSIZE(r->params_digest, VARHDRSZ + IDEM_FINGERPRINT_LENGTH);
	memcpy(VARDATA(r->params_digest), digest, IDEM_FINGERPRINT_LENGTH);
}

/* what the request is about, by the rule it has; a new row would get this */
void
idem_request_identify(IdemRequest *r)
{
	bool		confidential = r->rule->confidential_key || r->rule->confidential_paths != NIL;

	r->secrets = confidential ? idem_secrets_in_use() : NIL;
	r->stored_key = r->rule->confidential_key ? NULL : r->key;
	identify_under(r, confidential ? linitial(r->secrets) : NULL);
}

/* the secret that a row was made under, among those in use */
static const IdemSecret *
secret_in_use(const IdemRequest *r, text *id)
{
	ListCell   *lc;

	foreach(lc, r->secrets)
	{
		if (idem_text_is(id, ((IdemSecret *) lfirst(lc))->id))
			return lfirst(lc);
	}
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_SECRET_MISSING),
			 errmsg("secret \"%s\" is not among those in use", text_to_cstring(id)),
			 errhint("Make it known again by idem.use_secret.")));
}

/*
 * Probes for the action, where keys are confidential under every secret in
 * use: only if none of them knows it, it counts as absent, and as new under
 * the current one.  The request is then about the row that was found.
 */
IdemFound
idem_request_probe(IdemLedger *ledger, IdemRequest *r, IdemAction *row, TransactionId *holder)
{
	IdemFound	found;

	if (r->secrets == NIL)
		return idem_ledger_probe(ledger, &r->action_id, row, holder);

	/* an earlier look may have been led to a row that is gone by now */
	if (strcmp(text_to_cstring(r->secret_id), ((IdemSecret *) linitial(r->secrets))->id) != 0)
		identify_under(r, linitial(r->secrets));
	found = idem_ledger_probe(ledger, &r->action_id, row, holder);
	if (found == IDEM_ABSENT && r->rule->confidential_key)
	{
		ListCell   *lc;

		for_each_from(lc, r->secrets, 1)
		{
			pg_uuid_t	id;

			id_under(r, lfirst(lc), &id);

			/*
			 * A dirty scan can miss a row that is moving, and no unique index
			 * would stop a second one under another id.
			 */
			do
			{
				CHECK_FOR_INTERRUPTS();
				found = idem_ledger_probe(ledger, &id, row, holder);
			} while (found == IDEM_ABSENT && !idem_ledger_surely_absent(ledger, &id));
			if (found == IDEM_ABSENT)
				continue;
			identify_under(r, lfirst(lc));
			break;
		}
	}
	else if ((found == IDEM_PRESENT || found == IDEM_HELD) && row->secret_id != NULL &&
			 !idem_text_equal(row->secret_id, r->secret_id))
		identify_under(r, secret_in_use(r, row->secret_id));
	return found;
}

/*
 * A forgotten row is as if it were gone: it goes now, with all that was about
 * it, and the request is about a new row, under the current secret.  Caller has
 * probed the row and found that nobody holds it.
 */
IdemWrite
idem_request_make_room(IdemLedger *ledger, IdemRequest *r, const IdemAction *row)
{
	pg_uuid_t	id = row->action_id;
	IdemWrite	written = idem_ledger_delete(ledger);

	if (written != IDEM_WRITTEN)
		return written;
	(void) idem_ledger_forget_past(&id, PG_INT32_MAX);
	(void) idem_repeats_forget(&id, PG_INT32_MAX);
	idem_request_identify(r);
	return IDEM_WRITTEN;
}

/* the rule and the pause; asked for after each opening of the ledger, as they
 * may have changed */
void
idem_request_rule(IdemRequest *r)
{
	r->rule = idem_rule_of(VARDATA_ANY(r->intent), VARSIZE_ANY_EXHDR(r->intent), true);
	if (r->rule->scoped && VARSIZE_ANY_EXHDR(r->scope) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_INVALID_KEY),
				 errmsg("intent \"%s\" needs a scope", idem_shown_text(r->intent)),
				 errhint("Pass the tenant as scope.")));
	r->paused = idem_is_paused(r->intent);
}

/* who is outside the rule's roles may not make or take its actions */
void
idem_request_permission(const IdemRequest *r)
{
	if (!idem_rule_lets_act(r->rule))
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_NOT_PERMITTED),
				 errmsg("intent \"%s\" is for its workers only", idem_shown_text(r->intent)),
				 errhint("The rule's worker_role names the role whose members may act.")));
}

/*
 * The same after a wait for another transaction: what a person has changed
 * meanwhile holds.  The table lock, held all the while, keeps what is
 * confidential from changing, so the ids stand.
 */
void
idem_request_rule_again(IdemRequest *r)
{
	AcceptInvalidationMessages();
	idem_request_rule(r);
	idem_request_permission(r);
}

void
idem_request_call_id(IdemRequest *r, FunctionCallInfo fcinfo, int n)
{
	if (!PG_ARGISNULL(n))
		r->call_id = *PG_GETARG_UUID_P(n);
}

/* whether a text is the uuid, written in any of the ways that PostgreSQL reads */
static bool
is_uuid(text *value, const pg_uuid_t *id)
{
	char		hex[2 * UUID_LEN];
	int			len = 0;

	for (int i = 0; i < (int) VARSIZE_ANY_EXHDR(value); i++)
	{
		char		c = VARDATA_ANY(value)[i];

		if (c == '-' || c == '{' || c == '}')
			continue;
		if (len == 2 * UUID_LEN)
			return false;
		hex[len++] = pg_tolower((unsigned char) c);
	}
	for (int i = 0; i < UUID_LEN && len == 2 * UUID_LEN; i++)
	{
		static const char digits[] = "0123456789abcdef";

		if (hex[2 * i] != digits[id->data[i] >> 4] || hex[2 * i + 1] != digits[id->data[i] & 15])
			return false;
	}
	return len == 2 * UUID_LEN;
}

/* a call_id that equals the key or the event would give the grant to a twin */
void
idem_request_check_call_id(const IdemRequest *r)
{
	text	   *others[] = {r->key, r->event_id};

	if (idem_uuid_is_null(&r->call_id))
		return;
	for (int i = 0; i < (int) lengthof(others); i++)
	{
		if (others[i] != NULL && is_uuid(others[i], &r->call_id))
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_INVALID_KEY),
					 errmsg("call_id must not be the key or the event's id"),
					 errdetail("A second delivery would be taken for a lost reply, and both would act."),
					 errhint("Make a fresh random uuid for each call, and repeat it only where that call's reply was lost.")));
	}
}

int64
idem_wait_arg(FunctionCallInfo fcinfo, int n)
{
	int64		wait = idem_arg_usec(fcinfo, n, "wait");

	if (wait > MAX_WAIT)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("wait must be at most 30 seconds"),
				 errhint("Ask again after retry_after instead.")));
	return wait;
}

void
idem_raise_mismatch(const IdemAction *action, const IdemRequest *r)
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

/*
 * Two actions with one id would be one action: not believed, but looked at.
 * Neither does an action that a rule made go on by the defaults.
 */
void
idem_check_identity(const IdemAction *action, const IdemRequest *r)
{
	if (r->rule->intent == NULL && action->ruled)
		idem_raise_no_rule(text_to_cstring(r->intent), true);
	if (!idem_text_equal(action->intent, r->intent) ||
		!idem_text_equal(action->scope, r->scope) ||
		(action->key != NULL && !idem_text_equal(action->key, r->key)))
		elog(ERROR, "the action_id of this key belongs to another action");
}

/* a success is never lost for what comes with it: what breaks a bound is left out */
void
idem_request_success(IdemRequest *r, text *external_ref, Jsonb *result)
{
	bool		long_ref = external_ref != NULL &&
		VARSIZE_ANY_EXHDR(external_ref) > IDEM_MAX_EXTERNAL_REF;
	const char *fault = result != NULL ? idem_result_fault(result) : NULL;

	r->call = IDEM_CALL_COMPLETE;
	r->retry_after = -1;
	r->external_ref = long_ref ? NULL : external_ref;
	r->result = fault != NULL ? NULL : result;
	r->dropped = long_ref ? "external_ref was longer than 2 kB and is not kept" : fault;
	if (long_ref && fault != NULL)
		r->dropped = psprintf("%s; %s", r->dropped, fault);
}

/*
 * The requests of a batch, one for each key, in the order of the input, and the
 * order to apply them in.  The numbers are those of the arguments; event_ids is
 * negative where the function has none.
 */
void
idem_request_batch(FunctionCallInfo fcinfo, const IdemRequest *common,
				   int keys_arg, int params_arg, int drafts_arg, int event_ids_arg,
				   IdemBatchArgs *batch)
{
	Datum	   *keys;
	Datum	   *params;
	Datum	   *drafts;
	Datum	   *event_ids = NULL;
	bool	   *key_nulls;
	bool	   *param_nulls;
	bool	   *draft_nulls;
	bool	   *event_nulls = NULL;
	int			n;

	n = idem_arg_list(fcinfo, keys_arg, "keys", TEXTOID, IDEM_MAX_BATCH, &keys, &key_nulls);
	idem_arg_array(fcinfo, params_arg, "params", JSONBOID, n, &params, &param_nulls);
	idem_arg_array(fcinfo, drafts_arg, "drafts", JSONBOID, n, &drafts, &draft_nulls);
	idem_arg_array(fcinfo, event_ids_arg, "event_ids", TEXTOID, n, &event_ids, &event_nulls);

	batch->n = n;
	batch->requests = palloc_extended(Max(n, 1) * sizeof(IdemRequest), MCXT_ALLOC_HUGE);
	batch->items = palloc(Max(n, 1) * sizeof(IdemBatchItem));
	batch->tuples = palloc(Max(n, 1) * sizeof(HeapTuple));
	for (int i = 0; i < n; i++)
	{
		IdemRequest *r = &batch->requests[i];

		CHECK_FOR_INTERRUPTS();
		*r = *common;
		if (key_nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_INVALID_KEY),
					 errmsg("key must not be null"),
					 errdetail("Element %d of keys is null.", i + 1)));
		idem_request_key(r, DatumGetTextPP(keys[i]));
		if (params != NULL && !param_nulls[i])
			r->own_params = idem_content_given(DatumGetJsonbP(params[i]));
		if (r->own_params != NULL)
			idem_content_check(r->own_params, "params");
		if (drafts != NULL && !draft_nulls[i])
			r->draft = idem_content_given(DatumGetJsonbP(drafts[i]));
		if (r->draft != NULL)
			idem_content_check(r->draft, "draft");
		if (event_ids != NULL && !event_nulls[i])
			r->event_id = idem_text_given(idem_text_cut(DatumGetTextPP(event_ids[i]), IDEM_MAX_LABEL));
		idem_request_check_call_id(r);
	}
}

/* the batch by the rule that "common" has: ids, and the order to apply them in */
void
idem_request_identify_batch(IdemBatchArgs *batch, const IdemRequest *common)
{
	for (int i = 0; i < batch->n; i++)
	{
		IdemRequest *r = &batch->requests[i];

		CHECK_FOR_INTERRUPTS();
		r->rule = common->rule;
		r->paused = common->paused;
		idem_request_identify(r);
		batch->items[i].action_id = r->action_id;
		batch->items[i].position = i;
	}
	idem_batch_sort(batch->items, batch->n);
}

/*
 * A delivery that met an action already known, or somebody's open transaction,
 * and was not handed it; it may have judged an attempt.
 */
void
idem_count_repeat(const IdemRequest *r, const IdemVerdict *v, bool known)
{
	bool		handed_out = v->changes && (v->outcome == IDEM_CLAIMED || v->outcome == IDEM_VERIFY);

	if ((known || v->outcome == IDEM_CONTENDED) && !handed_out)
		idem_counter_add(&r->action_id, r->intent, r->source, r->event_id, v->outcome);
}

/*
 * What the verdict on a claim answers.  "known" says that the ledger had the
 * row before; the answer points into the verdict.
 */
void
idem_answer(IdemAnswer *answer, const IdemRequest *r, const IdemVerdict *v, bool known)
{
	memset(answer, 0, sizeof(*answer));
	answer->outcome = v->outcome;
	answer->now = r->now;
	answer->lease = r->rule->lease;
	answer->kept_draft = v->kept_draft;
	answer->action_id = &r->action_id;
	answer->scope = r->scope;
	answer->intent = r->intent;
	answer->key = r->stored_key;
	/* what the row keeps as digests, its caller knows */
	if (r->rule->confidential_paths != NIL)
		answer->own_params = r->own_params;
	if (v->outcome == IDEM_CONTENDED)
		answer->repeat = true;
	else if (known || v->outcome != IDEM_PAUSED)
	{
		answer->action = &v->after;
		/* a replayed grant is told what the lost reply told */
		answer->repeat = known &&
			!(v->outcome == IDEM_CLAIMED && !v->changes &&
			  v->after.claimed_at == v->after.created_at);
	}
}

/* the answer as the function's result */
Datum
idem_claim_datum(FunctionCallInfo fcinfo, const IdemAnswer *answer)
{
	TupleDesc	desc = idem_answer_desc(fcinfo);
	HeapTuple	tuple = idem_claim_tuple(desc, answer);

	ReleaseTupleDesc(desc);
	return HeapTupleGetDatum(tuple);
}

/* the answer to a report or a decision */
void
idem_report_of(IdemReport *report, const pg_uuid_t *id, const IdemVerdict *v)
{
	report->action_id = *id;
	report->known = true;
	report->accepted = v->accepted;
	report->state = v->after.state;
	report->revision = v->after.revision;
	report->note = v->note;
}

/* rivals take overlapping batches in one order; twins in that of the input */
static int
compare_items(const void *a, const void *b)
{
	const IdemBatchItem *x = a;
	const IdemBatchItem *y = b;
	int			order = memcmp(&x->action_id, &y->action_id, sizeof(pg_uuid_t));

	CHECK_FOR_INTERRUPTS();
	return order != 0 ? order : x->position - y->position;
}

void
idem_batch_sort(IdemBatchItem *items, int n)
{
	qsort(items, n, sizeof(IdemBatchItem), compare_items);
}

/* the rows of a function that has called InitMaterializedSRF */
Datum
idem_batch_return(FunctionCallInfo fcinfo, HeapTuple *tuples, int n)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		tuplestore_puttuple(rsinfo->setResult, tuples[i]);
	}
	PG_RETURN_NULL();
}

/*
 * Memory of a batch: idem_row_next before each row, idem_row_answer before its
 * tuple is formed, so that only the tuples add up.
 */
void
idem_row_start(IdemRowContext *context)
{
	context->outer = CurrentMemoryContext;
	context->row = AllocSetContextCreate(CurrentMemoryContext, "idem_action row of a batch",
										 ALLOCSET_SMALL_SIZES);
}

void
idem_row_next(IdemRowContext *context)
{
	MemoryContextReset(context->row);
	MemoryContextSwitchTo(context->row);
}

void
idem_row_answer(IdemRowContext *context)
{
	MemoryContextSwitchTo(context->outer);
}

void
idem_row_end(IdemRowContext *context)
{
	MemoryContextSwitchTo(context->outer);
	MemoryContextDelete(context->row);
}

/* the id of an action, where its keys are confidential under the current secret */
Datum
idem_action_id(PG_FUNCTION_ARGS)
{
	IdemRequest r = {0};
	pg_uuid_t  *id = palloc(sizeof(pg_uuid_t));

	idem_request_intent(&r, IDEM_CALL_CLAIM, idem_required_text(fcinfo, 1, "intent"),
						idem_required_text(fcinfo, 2, "scope"));
	idem_request_key(&r, idem_required_text(fcinfo, 0, "key"));
	r.rule = idem_rule_of(VARDATA_ANY(r.intent), VARSIZE_ANY_EXHDR(r.intent), false);
	if ((r.rule->confidential_key || r.rule->is_missing) &&
		(!idem_rule_lets_act(r.rule) || !idem_may_execute(GetUserId(), "claim_action")))
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_NOT_PERMITTED),
				 errmsg("ids of confidential keys are for those who may claim"),
				 errdetail("Who could compute them could find out keys by trying.")));
	id_under(&r, r.rule->confidential_key ? linitial(idem_secrets_in_use()) : NULL, id);
	PG_RETURN_UUID_P(id);
}
