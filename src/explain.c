/*-------------------------------------------------------------------------
 *
 * explain.c
 *	  The story of an action in plain words, and finding the action to ask for.
 *
 * explain_action reads one row and its history and says who did what when,
 * what is known, what is not, and what to do next.  It shows no contents.  The
 * advice follows from the state alone, so it cannot contradict what the calls
 * it names will do.  Names from outside are quoted where they could be taken for
 * words of ours, and each fact is one line.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/explain.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "access.h"
#include "access/xact.h"
#include "apply.h"
#include "arg.h"
#include "clock.h"
#include "catalog/pg_type.h"
#include "counters.h"
#include "detail.h"
#include "errors.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "key.h"
#include "miscadmin.h"
#include "pause.h"
#include "quote.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(idem_explain_action);
PG_FUNCTION_INFO_V1(idem_search_actions);

/* the lines of a story, in order */
typedef struct Story
{
	ReturnSetInfo *rsinfo;
} Story;

static void tell(Story *story, const char *format,...) pg_attribute_printf(2, 3);

static void
tell(Story *story, const char *format,...)
{
	StringInfoData line;
	Datum		value;
	bool		isnull = false;
	int			needed;
	int			save_errno = errno;

	initStringInfo(&line);
	for (;;)
	{
		va_list		args;

		errno = save_errno;
		va_start(args, format);
		needed = appendStringInfoVA(&line, format, args);
		va_end(args);
		if (needed == 0)
			break;
		enlargeStringInfo(&line, needed);
	}
	idem_keep_one_line(line.data);
	value = CStringGetTextDatum(line.data);
	tuplestore_putvalues(story->rsinfo->setResult, story->rsinfo->setDesc, &value, &isnull);
}

static const char *
text_or(text *value, const char *otherwise)
{
	return value != NULL ? text_to_cstring(value) : otherwise;
}

/* "name", or a literal */
static const char *
in_quotes(text *name)
{
	char	   *label = text_to_cstring(name);

	return idem_is_plain_label(label) ? psprintf("\"%s\"", label) : idem_quote_label(label);
}

/* " (worker-3)", or nothing */
static const char *
by_worker(const char *worker)
{
	return worker != NULL ? psprintf(" (worker %s)", idem_quote_label(worker)) : "";
}

static const char *
by_event(const char *event_id)
{
	return event_id != NULL ? psprintf(", event %s", idem_quote_label(event_id)) : "";
}

static const char *
from_source(const char *source)
{
	return source != NULL ? psprintf(" from %s", idem_quote_label(source)) : "";
}

static const char *
quoted_reason(const char *value)
{
	return value != NULL ? psprintf(": %s", value) : "";
}

/* "attempt 2", and of which generation where there is more than one */
static const char *
attempt_name(int attempt, int generation, const IdemAction *row)
{
	if (row->generation == 1)
		return psprintf("attempt %d", attempt);
	return psprintf("attempt %d of generation %d", attempt, generation);
}

/* what an attempt whose lease ended may have done */
static const char *
expiry_meaning(Jsonb *detail)
{
	if (idem_detail_bool(detail, "verifying"))
		return "it was searching, not acting";
	if (!idem_detail_bool(detail, "marked"))
		return "nobody knows whether it acted";
	if (idem_detail_bool(detail, "begun"))
		return "it had said that it acts";
	return "it had not said that it acts, so it did nothing";
}

/* "nobody knows", or "never issued" where no line of the history is missing */
static const char *
unknown_claim(const List *history)
{
	ListCell   *lc;

	foreach(lc, history)
	{
		if (strcmp(((IdemPast *) lfirst(lc))->event, "thinned") == 0)
			return "a claim that the ledger does not know";
	}
	return "a claim that the ledger never issued";
}

/* one line of the history */
static void
tell_past(Story *story, const IdemPast *past, const IdemAction *row, const List *history)
{
	char	   *at = pstrdup(timestamptz_to_str(past->at));
	const char *who = idem_quote_label(past->actor != NULL ? past->actor : past->role);
	const char *attempt = past->attempt > 0 ? attempt_name(past->attempt, past->generation, row) :
		unknown_claim(history);
	char	   *ref = idem_detail_string(past->detail, "external_ref");
	char	   *found = idem_detail_string(past->detail, "found");
	const char *with_ref = ref != NULL ? psprintf(" with reference %s", idem_quote_label(ref)) : "";
	const char *why = quoted_reason(idem_detail_string(past->detail, "reason"));
	const char *kept = idem_detail_bool(past->detail, "accepted") ? "" :
		past->attempt == 0 ? "; it is kept as evidence" :
		"; it came too late and is kept as evidence";

	if (strcmp(past->event, "expired") == 0)
		tell(story, "%s: the lease of %s%s ended without a report; %s.",
			 pstrdup(timestamptz_to_str(idem_detail_time(past->detail, "lease_until"))), attempt,
			 by_worker(past->worker), expiry_meaning(past->detail));
	else if (strcmp(past->event, "failed") == 0)
		tell(story, "%s: %s failed, effect %s%s%s.", at, attempt,
			 idem_detail_string(past->detail, "effect"),
			 quoted_reason(idem_detail_string(past->detail, "error")), kept);
	else if (strcmp(past->event, "released") == 0)
		tell(story, "%s: %s gave its claim back, having done nothing%s%s.", at, attempt, why, kept);
	else if (found != NULL)
		tell(story, "%s: %s searched outside: %s%s%s%s.", at, attempt,
			 strcmp(found, "yes") == 0 ? "found it" :
			 strcmp(found, "no") == 0 ? "not there" : "cannot tell",
			 with_ref, why, kept);
	else if (strcmp(past->event, "succeeded") == 0)
		tell(story, "%s: %s reported success%s%s.", at, attempt, with_ref, kept);
	else if (strcmp(past->event, "interrupted") == 0)
		tell(story, "%s: the claim of %s%s ended while it held; %s.", at, attempt, by_worker(past->worker),
			 expiry_meaning(past->detail));
	else if (strcmp(past->event, "needs_attention") == 0)
		tell(story, "%s: no further attempt may be made, so a person decides; reason %s.", at,
			 idem_detail_string(past->detail, "reason"));
	else if (strcmp(past->event, "params_added") == 0)
		tell(story, "%s: a claim%s%s%s brought its params%s.", at, by_worker(past->worker),
			 by_event(past->event_id), from_source(past->source),
			 idem_detail_bool(past->detail, "approved") ? ", which the approval did not cover" : "");
	else if (strcmp(past->event, "thinned") == 0)
		tell(story, "%s: " INT64_FORMAT " lines up to here are left out, from %s on; view history counts them by kind.",
			 at, idem_detail_int(past->detail, "lines"),
			 pstrdup(timestamptz_to_str(idem_detail_time(past->detail, "first"))));
	else if (strcmp(past->event, IDEM_PASSED_OVER) == 0)
		tell(story, "%s: a taker%s was not given it%s.", at, by_worker(past->worker), why);
	else if (strcmp(past->event, "resolved") == 0)
		tell(story, "%s: %s decided \"%s\"%s%s.", at, who,
			 idem_detail_string(past->detail, "decision"), with_ref, why);
	else
		tell(story, "%s: %s by %s%s.", at, past->event, who, why);
}

/* a hand-out, told by a line of the history or by the row */
typedef struct HandOut
{
	TimestampTz at;
	int32		generation;
	int32		attempt;
	const char *worker;
	bool		searching;		/* as far as the row tells */
	bool		begun;
} HandOut;

/* by time, and in the order in which they were written */
static int
compare_lines(const ListCell *a, const ListCell *b)
{
	const IdemPast *x = lfirst(a);
	const IdemPast *y = lfirst(b);

	if (x->at != y->at)
		return x->at < y->at ? -1 : 1;
	return x->id < y->id ? -1 : x->id > y->id;
}

static bool
is_about(const IdemPast *past, const HandOut *hand_out)
{
	return past->generation == hand_out->generation && past->attempt == hand_out->attempt;
}

/*
 * Each hand-out once, in order: of an ended attempt by its first line that tells
 * one, of the last attempt by the row.  "found" is zeroed.  Returns how many.
 */
static int
find_hand_outs(const IdemAction *row, const List *history, HandOut *found)
{
	int			n = 0;
	ListCell   *lc;

	foreach(lc, history)
	{
		IdemPast   *past = lfirst(lc);
		bool		known = past->claimed_at == 0 ||
			(past->generation == row->generation && past->attempt == row->attempt);

		for (int i = 0; i < n && !known; i++)
			known = is_about(past, &found[i]);
		if (known)
			continue;
		found[n].at = past->claimed_at;
		found[n].generation = past->generation;
		found[n].attempt = past->attempt;
		found[n++].worker = past->worker;
	}
	if (row->claimed_at != IDEM_NEVER)
	{
		found[n].at = row->claimed_at;
		found[n].generation = row->generation;
		found[n].attempt = row->attempt;
		found[n].worker = text_or(row->worker, NULL);
		found[n].searching = row->verifying;
		found[n++].begun = row->begun;
	}
	return n;
}

/* with the delivery that was handed it, and whether it was to be searched for */
static void
tell_hand_out(Story *story, const HandOut *hand_out, const IdemAction *row, const List *history)
{
	const IdemPast *delivery = NULL;
	bool		searching = hand_out->searching;
	ListCell   *lc;

	foreach(lc, history)
	{
		IdemPast   *past = lfirst(lc);

		if (!is_about(past, hand_out))
			continue;
		if (strcmp(past->event, "redelivered") == 0)
			delivery = past;
		else if (idem_detail_bool(past->detail, "verifying"))
			searching = true;
	}
	tell(story, "%s: %s was handed out%s%s%s%s%s.", pstrdup(timestamptz_to_str(hand_out->at)),
		 attempt_name(hand_out->attempt, hand_out->generation, row), by_worker(hand_out->worker),
		 delivery != NULL ? by_event(delivery->event_id) : "",
		 delivery != NULL ? from_source(delivery->source) : "",
		 searching ? ", to search first" : "", hand_out->begun ? "; it said that it acts" : "");
}

/* the hand-outs and what followed on each, by time */
static void
tell_history(Story *story, const IdemAction *row, List *history, TimestampTz now)
{
	HandOut    *hand_outs = palloc0((list_length(history) + 1) * sizeof(HandOut));
	int			n = find_hand_outs(row, history, hand_outs);
	int			next = 0;
	ListCell   *lc;

	list_sort(history, compare_lines);
	foreach(lc, history)
	{
		IdemPast   *past = lfirst(lc);

		while (next < n && (hand_outs[next].at < past->at || is_about(past, &hand_outs[next])))
			tell_hand_out(story, &hand_outs[next++], row, history);
		if (strcmp(past->event, "redelivered") != 0)
			tell_past(story, past, row, history);
	}
	while (next < n)
		tell_hand_out(story, &hand_outs[next++], row, history);
	if (row->state == IDEM_IN_PROGRESS)
		tell(story, "%s: its lease %s.", pstrdup(timestamptz_to_str(row->lease_until)),
			 row->lease_until > now ? "ends" : "ended, and nobody has judged it yet");
}

/* whose success it was that a person has to look at */
static const char *
late_claim(const List *history)
{
	const char *claim = "a claim that did not hold the action any more";
	ListCell   *lc;

	foreach(lc, history)
	{
		IdemPast   *past = lfirst(lc);

		if (strcmp(past->event, "succeeded") == 0 && !idem_detail_bool(past->detail, "accepted"))
			claim = past->attempt > 0 ? "a claim that did not hold the action any more" :
				unknown_claim(history);
	}
	return claim;
}

/* those whose claim ended without a report, unless that says that they did nothing */
static void
tell_whom_to_stop(Story *story, const IdemAction *a, const List *history)
{
	ListCell   *lc;

	foreach(lc, history)
	{
		IdemPast   *past = lfirst(lc);

		if (past->generation != a->generation ||
			(strcmp(past->event, "expired") != 0 && strcmp(past->event, "interrupted") != 0) ||
			idem_detail_bool(past->detail, "verifying") ||
			(idem_detail_bool(past->detail, "marked") && !idem_detail_bool(past->detail, "begun")))
			continue;
		tell(story, "Before \"not_happened\": stop the worker of attempt %d%s; it may still act.",
			 past->attempt, by_worker(past->worker));
	}
}

static void
tell_conclusion(Story *story, const IdemAction *a, const IdemRule *rule, const List *history,
				TimestampTz now)
{
	char	   *id = DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&a->action_id)));
	char		provider_key[IDEM_PROVIDER_KEY_SIZE];
	const char *ref = a->external_ref != NULL ?
		psprintf(" (reference %s)", idem_quote_label(text_to_cstring(a->external_ref))) : "";

	idem_provider_key(&a->action_id, a->generation, provider_key);
	switch (a->state)
	{
		case IDEM_COMPLETED:
			if (a->attempt == 0 && history == NIL)
				tell(story, "Known: the action was done before%s: import_actions entered it on %s.", ref,
					 pstrdup(timestamptz_to_str(a->finished_at)));
			else
				tell(story, "Known: the action took effect%s on %s.", ref,
					 pstrdup(timestamptz_to_str(a->finished_at)));
			if (idem_text_is(a->reason, "double_result"))
			{
				tell(story, "Not known: whether it took effect twice; two different successes were reported.");
				tell(story, "Next: look outside for both references, then resolve_action('%s', 'happened', note, " INT64_FORMAT ") says that you have seen it.",
					 id, a->revision);
			}
			else
				tell(story, "Next: nothing. A repeat gets this result; rerun_action does it once more on purpose.");
			break;
		case IDEM_FAILED:
			tell(story, "Known: the action did not take effect and was refused for good%s.",
				 quoted_reason(a->error != NULL ? text_to_cstring(a->error) : NULL));
			tell(story, "Next: nothing, or rerun_action once the cause is gone.");
			break;
		case IDEM_CANCELLED:
			tell(story, a->attempt == 0 && a->generation == 1 ?
				 "Known: the action was cancelled before anybody acted on it." :
				 "Known: the action was cancelled; what its attempts did is told above.");
			tell(story, "Next: nothing; resolve_action('%s', 'not_happened', note, " INT64_FORMAT ") reopens it.",
				 id, a->revision);
			break;
		case IDEM_NEEDS_ATTENTION:
			if (idem_text_is(a->reason, "late_result") || idem_text_is(a->reason, "double_result"))
				tell(story, "Known: a success was reported%s by %s.", ref, late_claim(history));
			else
				tell(story, "Known: nobody acts on it now; reason %s.", text_or(a->reason, "none"));
			if (idem_text_is(a->reason, "double_result"))
				tell(story, "Not known: whether it took effect twice; two different successes were reported.");
			else if (idem_text_is(a->reason, "late_result"))
				tell(story, "Not known: whether another attempt took effect too.");
			else
				tell(story, "Not known: whether %s took effect.",
					 a->attempt > 1 ? "one of its attempts" : "its attempt");
			tell(story, "Next: %s searches outside for %s, then calls resolve_action('%s', 'happened' or 'not_happened' or 'cancel', note, " INT64_FORMAT ").",
				 rule->resolved_by, provider_key, id, a->revision);
			tell_whom_to_stop(story, a, history);
			break;
		case IDEM_IN_PROGRESS:
			tell(story, "Known: %s holds it%s.", a->worker != NULL ? idem_quote_label(text_to_cstring(a->worker)) : "a worker",
				 a->cancel_requested ? ", and a cancel was requested" : "");
			tell(story, "Not known: whether %s has taken effect yet.",
				 a->uncertain ? "it or an earlier attempt" : "it");
			tell(story, "Next: %s", a->lease_until > now ? "wait for its report or the end of its lease." :
				 "the next claim, take or maintenance pass judges it.");
			break;
		case IDEM_PENDING:
			if (a->uncertain)
				tell(story, "Not known: whether an earlier attempt took effect.");
			else if (a->generation > 1)
				tell(story, "Known: generation %d has not taken effect.", a->generation);
			else
				tell(story, "Known: it has not taken effect.");
			if (rule->requires_approval && !a->approved)
				tell(story, "Next: a person approves the draft by approve_action('%s', " INT64_FORMAT ").", id, a->revision);
			else if (idem_start_paused)
				tell(story, "Next: nothing is handed out while idem_action.start_paused is on.");
			else if (idem_is_paused(a->intent))
				tell(story, "Next: nothing is handed out while the intent is paused; resume_intent ends that.");
			else if (a->due_at > now)
				tell(story, "Next: it is handed out after %s.", pstrdup(timestamptz_to_str(a->due_at)));
			else
				tell(story, "Next: the next claim%s gets it%s.", a->purged ? ", which brings the contents anew," : " or take",
					 a->uncertain && rule->on_uncertain == IDEM_SEARCH ? ", to search first" : "");
			break;
	}
}

Datum
idem_explain_action(PG_FUNCTION_ARGS)
{
	Story		story = {.rsinfo = (ReturnSetInfo *) fcinfo->resultinfo};
	IdemLedger *ledger;
	IdemAction	row;
	const IdemRule *rule;
	pg_uuid_t	id;
	TimestampTz now = idem_clock_now();
	List	   *history;

	idem_arg_uuid(fcinfo, 0, "action_id", &id);
	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	ledger = idem_ledger_open(false);
	if (!idem_read_action(ledger, &id, idem_rule_shows, &row, &rule))
		idem_raise_no_such_action(&id);

	tell(&story, "Action %s %s%s%s.", in_quotes(row.intent),
		 row.key != NULL ? psprintf("for key %s", in_quotes(row.key)) : "for a confidential key",
		 VARSIZE_ANY_EXHDR(row.scope) > 0 ? psprintf(" in scope %s", in_quotes(row.scope)) : "",
		 row.generation > 1 ? psprintf(", generation %d", row.generation) : "");
	tell(&story, "%s: first seen%s%s.", pstrdup(timestamptz_to_str(row.created_at)),
		 by_event(text_or(row.event_id, NULL)), from_source(text_or(row.source, NULL)));
	history = idem_ledger_past(&id);
	tell_history(&story, &row, history, now);
	tell_conclusion(&story, &row, rule, history, now);
	idem_ledger_close(ledger);
	PG_RETURN_NULL();
}

/*-------------------------------------------------------------------------
 * search_actions
 *-------------------------------------------------------------------------
 */

/*
 * $1 what, $2 since, $3 the caller, $4 whether the caller sees contents, $5 and
 * $6 what is kept of an event or a source as long as that, in a row and counted
 */
#define SQL_SEARCH \
	"SELECT v.* FROM idem.all_actions v" \
	" WHERE idem.may_see(v.intent, $3) AND (" \
	" v.action_id OPERATOR(pg_catalog.=) (CASE WHEN $1 OPERATOR(pg_catalog.~) '^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$' THEN $1 END)::pg_catalog.uuid" \
	" OR v.created_at OPERATOR(pg_catalog.>=) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) $2) AND (" \
	" v.external_ref OPERATOR(pg_catalog.=) $1 OR v.key OPERATOR(pg_catalog.=) $1" \
	" OR v.event_id OPERATOR(pg_catalog.=) $5 OR v.source OPERATOR(pg_catalog.=) $5" \
	" OR EXISTS (SELECT FROM pg_catalog.generate_series(2, v.generation) g" \
	"  WHERE idem.provider_key(v.action_id, g) OPERATOR(pg_catalog.=) $1)" \
	" OR EXISTS (SELECT FROM idem.idem_events e WHERE e.action_id OPERATOR(pg_catalog.=) v.action_id" \
	"  AND (e.event_id OPERATOR(pg_catalog.=) $5 OR e.source OPERATOR(pg_catalog.=) $5" \
	"   OR (e.detail OPERATOR(pg_catalog.->>) 'external_ref') OPERATOR(pg_catalog.=) $1))" \
	" OR EXISTS (SELECT FROM idem.idem_repeats r WHERE r.action_id OPERATOR(pg_catalog.=) v.action_id" \
	"  AND (r.event_id OPERATOR(pg_catalog.=) $6 OR r.source OPERATOR(pg_catalog.=) $6))" \
	" OR $4 AND EXISTS (SELECT FROM idem.idem_actions a WHERE a.action_id OPERATOR(pg_catalog.=) v.action_id" \
	"  AND idem.holds_value(a.params, $1))))" \
	" ORDER BY v.created_at USING OPERATOR(pg_catalog.>) LIMIT 1000"

Datum
idem_search_actions(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Oid			types[6] = {TEXTOID, INTERVALOID, OIDOID, BOOLOID, TEXTOID, TEXTOID};
	Datum		values[6];
	IdemOwner	caller;
	MemoryContext old;
	int			rc;

	for (int i = 0; i < 2; i++)
	{
		if (PG_ARGISNULL(i))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("what and since must not be null")));
		values[i] = PG_GETARG_DATUM(i);
	}
	values[2] = ObjectIdGetDatum(GetUserId());
	values[3] = BoolGetDatum(idem_is_operator(GetUserId()));
	values[4] = PointerGetDatum(idem_text_cut(DatumGetTextPP(values[0]), IDEM_MAX_LABEL));
	values[5] = PointerGetDatum(idem_text_cut(DatumGetTextPP(values[0]), IDEM_MAX_COUNTED));

	InitMaterializedSRF(fcinfo, 0);
	old = CurrentMemoryContext;
	SPI_connect();
	idem_owner_enter(&caller);
	rc = SPI_execute_with_args(SQL_SEARCH, 6, types, values, NULL, true, 0);
	idem_owner_leave(&caller);
	if (rc != SPI_OK_SELECT)
		elog(ERROR, "SPI_execute_with_args returned %s", SPI_result_code_string(rc));
	MemoryContextSwitchTo(old);
	for (uint64 i = 0; i < SPI_processed; i++)
		tuplestore_puttuple(rsinfo->setResult, SPI_tuptable->vals[i]);
	SPI_finish();
	PG_RETURN_NULL();
}
