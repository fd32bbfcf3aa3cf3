/*-------------------------------------------------------------------------
 *
 * apply.c
 *	  Deciding and writing, until both meet on one version of the row.
 *
 * What holders report and people decide goes the same way: read the row, let
 * state.c decide, write the verdict as a compare-and-swap, and start over
 * where the row was changed meanwhile.  Who holds the row open is waited for.
 * What the history has a part in is decided once more under the row's lock
 * before it is written, so that two equal calls are recorded once; what writes
 * nothing locks nothing.
 *
 * Who may not see the intent is told that there is no such action, without
 * waiting: neither a wait nor lock_timeout tells that the row is there.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/apply.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "apply.h"
#include "access/xact.h"
#include "clock.h"
#include "errors.h"
#include "miscadmin.h"
#include "pause.h"
#include "utils/builtins.h"

/* a history is thinned at every so many attempts, and where it is read and longer */
#define THIN_EACH 256
#define THIN_LENGTH 1000

/* what a verdict adds to the history; caller has written or locked the row */
void
idem_append_lines(const IdemAction *row, const IdemRequest *r, const IdemVerdict *v)
{
	for (int i = 0; i < v->nlines; i++)
	{
		IdemEvent	event = {
			.at = v->lines[i].at != 0 ? v->lines[i].at : r->now,
			.claimed_at = v->lines[i].claimed_at,
			.event = v->lines[i].event,
			.action = row,
			.claim_id = v->lines[i].claim_id,
			.attempt = v->lines[i].attempt,
			.actor = v->lines[i].actor,
			.generation = v->lines[i].generation,
			.worker = v->lines[i].worker,
			.source = v->lines[i].source,
			.event_id = v->lines[i].event_id,
			.detail = v->lines[i].detail,
			.content = v->lines[i].content,
		};

		idem_ledger_append(&event);
	}
	/* what loops makes attempts, or has its history read at each call */
	if (v->nlines > 0 &&
		((v->after.attempt > 0 && v->after.attempt % THIN_EACH == 0) ||
		 list_length(r->past) > THIN_LENGTH))
		idem_ledger_thin_past(&v->after);
}

/* inserts the row that a verdict has made, and its lines; see idem_ledger_insert */
IdemWrite
idem_insert_new(IdemLedger *ledger, const IdemRequest *r, const IdemVerdict *v, bool wait)
{
	IdemWrite	written = idem_ledger_insert(ledger, &v->after, wait);

	if (written == IDEM_WRITTEN)
		idem_append_lines(&v->after, r, v);
	return written;
}

/*
 * Whether the action exists for the caller.  Whether a rerun is for this one of
 * those who may see it, the rule's rerun_by says; see cell_decision.c.
 */
static bool
is_permitted(const IdemRequest *r)
{
	switch (r->call)
	{
		case IDEM_CALL_REVISE:
		case IDEM_CALL_CANCEL:
		case IDEM_CALL_RERUN:
			return idem_rule_lets_act(r->rule) || idem_rule_lets_decide(r->rule);
		case IDEM_CALL_APPROVE:
		case IDEM_CALL_RESOLVE:
		case IDEM_CALL_ERASE:
			return idem_rule_lets_decide(r->rule);
		default:
			return idem_rule_lets_act(r->rule);
	}
}

/*
 * An action that the caller may not see is looked for as often as one that the
 * ledger does not have.
 */
static void
look_in_vain(IdemLedger *ledger, const pg_uuid_t *id)
{
	(void) idem_ledger_surely_absent(ledger, id);
}

static void
decide_by_past(const IdemAction *row, IdemRequest *r, IdemVerdict *v)
{
	r->past = idem_ledger_past(&row->action_id);
	r->past_read = true;
	idem_decide(row, r, v);
}

/*
 * Decides and writes; false where the ledger knows no such action, or none for
 * this caller.  The verdict's row is what is stored afterwards, valid until the
 * next use of the ledger.
 */
bool
idem_apply(IdemLedger *ledger, const pg_uuid_t *id, IdemRequest *r, IdemVerdict *v)
{
	for (;;)
	{
		IdemAction	row;
		IdemFound	found;
		TransactionId holder;

		CHECK_FOR_INTERRUPTS();
		r->now = idem_clock_now();
		r->past_read = false;
		found = idem_ledger_probe(ledger, id, NULL, &holder);
		if (found == IDEM_ABSENT)
		{
			if (idem_ledger_surely_absent(ledger, id))
				return false;
			continue;
		}
		/* before any wait: it would tell that there is a row */
		idem_ledger_peek(ledger, found, &row);
		r->rule = idem_rule_of_action(&row);
		if (!is_permitted(r))
		{
			look_in_vain(ledger, id);
			return false;
		}
		if (found != IDEM_PRESENT)
		{
			idem_ledger_rest(ledger);
			idem_ledger_wait(holder);
			continue;
		}
		idem_ledger_read(ledger, &row);
		r->paused = idem_is_paused(row.intent);
		if (idem_class_of(r->call) == IDEM_CLASS_DECISION)
		{
			r->role = GetUserNameFromId(GetUserId(), false);
			r->by_resolver = idem_rule_lets_decide(r->rule);
		}
		idem_decide(&row, r, v);
		if (v->needs_past)
		{
			decide_by_past(&row, r, v);
			if (v->changes || v->nlines > 0)
			{
				/* what is written is decided on under the row's lock */
				if (idem_ledger_lock(ledger, true) != IDEM_WRITTEN)
					continue;
				r->now = idem_clock_now();
				decide_by_past(&row, r, v);
			}
		}
		if (v->problem != IDEM_NO_PROBLEM)
			return true;
		if (!v->changes && v->nlines == 0)
			idem_ledger_rely(ledger);
		if (v->changes)
		{
			IdemWrite	written = idem_ledger_update(ledger, &row, &v->after, false);

			/*
			 * whoever has it locked takes time: decide by the clock
			 * afterwards
			 */
			if (written == IDEM_BUSY)
				(void) idem_ledger_lock(ledger, true);
			if (written != IDEM_WRITTEN)
				continue;
		}
		if (v->erases)
			(void) idem_ledger_redact_past(id, true, PG_INT32_MAX);
		idem_append_lines(&row, r, v);
		if ((v->changes || v->nlines > 0) &&
			!(r->call == IDEM_CALL_COMPLETE && idem_async_complete))
			ForceSyncCommit();
		return true;
	}
}

/*
 * The latest committed row and its rule, for calls that only read; false where
 * there is none, or none for this caller, which "lets" says.
 */
bool
idem_read_action(IdemLedger *ledger, const pg_uuid_t *id, bool (*lets) (const IdemRule *rule),
				 IdemAction *row, const IdemRule **rule)
{
	for (;;)
	{
		TransactionId holder;
		IdemFound	found = idem_ledger_probe(ledger, id, NULL, &holder);

		CHECK_FOR_INTERRUPTS();
		if (found == IDEM_PRESENT || found == IDEM_HELD)
			break;
		if (idem_ledger_surely_absent(ledger, id))
			return false;
	}
	idem_ledger_peek(ledger, IDEM_PRESENT, row);
	*rule = idem_rule_of_action(row);
	if (!lets(*rule))
	{
		look_in_vain(ledger, id);
		return false;
	}
	idem_ledger_read(ledger, row);
	return true;
}

void
idem_raise_no_such_action(const pg_uuid_t *id)
{
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_NO_SUCH_ACTION),
			 errmsg("there is no action %s, or it is not yours to see",
					DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(id)))),
			 errhint("If it happened, import_actions makes it known to the ledger.")));
}
