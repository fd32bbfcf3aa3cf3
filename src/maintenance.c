/*-------------------------------------------------------------------------
 *
 * maintenance.c
 *	  What the ledger needs done from time to time, in bounded batches: lease
 *	  ends by the doubt list, contents purged, keys forgotten, repeats flushed.
 *
 * A batch is one transaction of its caller's.  It walks over the actions from
 * where the last one stopped and changes at most so many rows, lines of history
 * and counted repeats among them; each change is a
 * compare-and-swap on the row it was decided on, so a row that moved on in the
 * meantime, or that somebody holds, is left to the next pass.  What belongs to
 * an action (history, counted repeats) goes in the same transaction as its row:
 * a crash leaves an action whole or gone.
 *
 * Nothing here knows of processes.  CALL run_maintenance() does by hand what a
 * background worker does, and a site without one can schedule it.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/maintenance.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "maintenance.h"
#include "access.h"
#include "access/xact.h"
#include "apply.h"
#include "arg.h"
#include "clock.h"
#include "commands/dbcommands.h"
#include "common/pg_prng.h"
#include "databases.h"
#include "detail.h"
#include "executor/spi.h"
#include "key.h"
#include "ledger_scan.h"
#include "miscadmin.h"
#include "place.h"
#include "repeats.h"
#include "role.h"
#include "settings.h"
#include "transition.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/wait_event.h"

#define BLOCKS_PER_BATCH 4096	/* walked over at most, whether due or not */
#define MAX_BATCH 1000000

PG_FUNCTION_INFO_V1(idem_run_maintenance);
PG_FUNCTION_INFO_V1(idem_apply_retention);
PG_FUNCTION_INFO_V1(idem_after_restore);

/* a lease that is over: what the doubt list says, handing out nothing */
static bool
sweep(IdemLedger *ledger, const IdemAction *row)
{
	IdemRequest r = {.call = IDEM_CALL_SWEEP,.retry_after = -1};
	IdemVerdict v;

	r.rule = idem_rule_of_action(row);
	r.now = idem_clock_now();
	idem_decide(row, &r, &v);
	if (!v.changes || idem_ledger_update(ledger, row, &v.after, false) != IDEM_WRITTEN)
		return false;
	idem_append_lines(row, &r, &v);
	return true;
}

/*
 * Contents go; key, fingerprint and external_ref stay, the revision too.  A long
 * history goes first, over as many batches as it takes: the row says that the
 * contents are gone when they are.  Counts in "left" what else may be changed.
 */
static bool
purge(IdemLedger *ledger, const IdemAction *row, int *left)
{
	IdemAction	after = *row;

	after.params = NULL;
	after.draft = NULL;
	after.result = NULL;
	after.error = NULL;
	after.purged = true;
	if (idem_ledger_lock(ledger, false) != IDEM_WRITTEN)
		return false;
	*left -= idem_ledger_redact_past(&row->action_id, false, *left);
	if (*left <= 0 || idem_ledger_update(ledger, row, &after, false) != IDEM_WRITTEN)
		return false;
	(*left)--;
	return true;
}

/*
 * The key is forgotten, and everything that was about it: the row last, so that
 * the key blocks until then.
 */
static bool
forget(IdemLedger *ledger, const IdemAction *row, int *left)
{
	if (idem_ledger_lock(ledger, false) != IDEM_WRITTEN)
		return false;
	*left -= idem_ledger_forget_past(&row->action_id, *left);
	if (*left > 0)
		*left -= idem_repeats_forget(&row->action_id, *left);
	if (*left <= 0 || idem_ledger_delete(ledger) != IDEM_WRITTEN)
		return false;
	/* deliveries that were counted meanwhile */
	*left -= idem_repeats_forget(&row->action_id, PG_INT32_MAX) + 1;
	return true;
}

/*
 * A change costs what VACUUM reckons for a page it has to read, and the pass
 * rests as VACUUM would, by vacuum_cost_delay and vacuum_cost_limit.  A batch is
 * no larger than the limit pays for, so the rests are between batches: nothing
 * is held then.
 */
static int
paid_for(int batch)
{
	if (VacuumCostDelay <= 0 || VacuumCostPageMiss <= 0)
		return batch;
	return Min(batch, Max(VacuumCostLimit / VacuumCostPageMiss, 1));
}

/* what is due after so many changes; caller has committed them */
void
idem_maintenance_rest(IdemPass *pass)
{
	if (VacuumCostDelay <= 0 || pass->cost < VacuumCostLimit)
		return;
	pass->cost = 0;
	pgstat_report_wait_start(WAIT_EVENT_VACUUM_DELAY);
	pg_usleep(VacuumCostDelay * 1000);
	pgstat_report_wait_end();
}

/* whether an error can be about what is stored, and not about where we are */
static bool
is_about_data(const ErrorData *error)
{
	switch (ERRCODE_TO_CATEGORY(error->sqlerrcode))
	{
		case ERRCODE_INTERNAL_ERROR:
		case ERRCODE_DATA_EXCEPTION:
		case ERRCODE_INTEGRITY_CONSTRAINT_VIOLATION:
		case ERRCODE_PROGRAM_LIMIT_EXCEEDED:
		case ERRCODE_SYSTEM_ERROR:
			return true;
		default:
			return false;
	}
}

/*
 * After an error in a batch, whose changes are rolled back: true where it is about
 * a row, or about pages that cannot be read.  The pass then goes back to where
 * the batch began, and passes that over.
 */
bool
idem_maintenance_pass_over(IdemPass *pass, const ErrorData *error)
{
	BlockNumber behind = pass->bad + pass->bad_blocks;

	if (!pass->walking || !is_about_data(error))
		return false;
	pass->walking = false;
	if (ItemPointerIsValid(&pass->row) && pass->nbad_rows < IDEM_MAX_BAD_ROWS)
		pass->bad_rows[pass->nbad_rows++] = pass->row;
	else if (pass->bad_blocks > 0 && pass->block >= pass->bad && pass->block <= behind)
		pass->bad_blocks *= 2;	/* still there: go further */
	else
	{
		/* one stretch is known at a time */
		if (pass->bad_blocks > 0 && pass->begun >= pass->bad)
			pass->begun = Max(pass->begun, behind);
		pass->bad = pass->block;
		pass->bad_blocks = 2;
	}
	pass->block = pass->begun;
	return true;
}

/* lets go of bad rows that the pass has left behind */
static void
forget_bad_rows(IdemPass *pass)
{
	int			kept = 0;

	for (int i = 0; i < pass->nbad_rows; i++)
	{
		if (ItemPointerGetBlockNumber(&pass->bad_rows[i]) >= pass->block)
			pass->bad_rows[kept++] = pass->bad_rows[i];
	}
	pass->nbad_rows = kept;
}

/*
 * One batch; true while there is more of the table.  Caller is in a
 * transaction, and commits it.  After an error the pass stands where it happened.
 */
bool
idem_maintenance_batch(IdemPass *pass, int batch)
{
	IdemLedger *ledger;
	IdemWalk	walk;
	IdemAction	row;
	MemoryContext outer = CurrentMemoryContext;
	MemoryContext row_context;
	BlockNumber end;
	int64		began_at = idem_clock_monotonic();
	bool		believed;
	int			left;
	bool		at_end;

	left = batch = paid_for(batch);
	PushActiveSnapshot(GetTransactionSnapshot());
	ledger = idem_ledger_open(true);
	row_context = AllocSetContextCreate(outer, "idem_action row of maintenance",
										ALLOCSET_SMALL_SIZES);
	end = pass->end;
	if (pass->bad_blocks > 0 && pass->block < pass->bad)
		end = Min(end, pass->bad);
	else if (pass->bad_blocks > 0 && pass->block < pass->bad + pass->bad_blocks)
		pass->block = pass->bad + pass->bad_blocks;
	pass->begun = pass->block;
	forget_bad_rows(pass);
	idem_walk_start(&walk, ledger, IDEM_WANT_DUE, &pass->block,
					Min(BLOCKS_PER_BATCH, Max(end, pass->block) - pass->block));
	walk.row = &pass->row;
	walk.skip = pass->bad_rows;
	walk.nskip = pass->nbad_rows;
	believed = idem_clock_believed();
	if (believed)
		idem_clock_record(GetCurrentTimestamp());
	pass->walking = true;
	MemoryContextSwitchTo(row_context);
	while (left > 0 && idem_walk_next(&walk, &row))
	{
		bool		done;

		/*
		 * an open double success is for a person to see first, and an action
		 * whose rule is missing for an admin
		 */
		if ((row.finished_at != IDEM_NEVER && idem_double_open(&row)) ||
			(row.ruled && idem_rule_of_action(&row)->is_missing))
			done = false;
		else if (row.lease_until != IDEM_NEVER)
		{
			done = sweep(ledger, &row);
			left -= done;
			pass->judged += done;
		}
		else if (!believed)
			done = false;
		else if (row.forget_after <= walk.now)
		{
			done = forget(ledger, &row, &left);
			pass->forgotten += done;
		}
		else
		{
			done = purge(ledger, &row, &left);
			pass->purged += done;
		}
		MemoryContextReset(row_context);
	}
	MemoryContextSwitchTo(outer);
	pass->walking = false;

	/* full: the rest of the block comes next time */
	if (left <= 0)
	{
		(void) idem_walk_end(&walk);
		at_end = false;
	}
	else
	{
		pass->block = walk.end;
		at_end = idem_walk_end(&walk) || pass->block >= pass->end;
	}
	pass->upcoming = idem_earlier(pass->upcoming, walk.upcoming);
	pass->cost = Min(pass->cost + (int64) (batch - left) * VacuumCostPageMiss, VacuumCostLimit);
	if (left >= batch / 2)
		pass->walked += idem_clock_monotonic() - began_at;
	MemoryContextDelete(row_context);
	idem_ledger_close(ledger);
	PopActiveSnapshot();
	return !at_end;
}

static int
positive_arg(FunctionCallInfo fcinfo, int n, const char *name, int otherwise)
{
	if (PG_ARGISNULL(n))
		return otherwise;
	if (PG_GETARG_INT32(n) < 1 || PG_GETARG_INT32(n) > MAX_BATCH)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be between 1 and %d", name, MAX_BATCH)));
	return PG_GETARG_INT32(n);
}

/* a block to begin at, any of a table that one batch cannot walk over */
static BlockNumber
anywhere(void)
{
	IdemLedger *ledger = idem_ledger_open(true);
	BlockNumber total = idem_ledger_blocks(ledger);

	idem_ledger_close(ledger);
	if (total <= BLOCKS_PER_BATCH)
		return 0;
	return (BlockNumber) pg_prng_uint64_range(&pg_global_prng_state, 0, total - 1);
}

/*
 * A batch, and its commit.  What cannot be read or worked on, as after a fault of
 * the disk, must not keep all others from being judged: it is said, and passed over.
 */
static bool
try_batch(IdemPass *pass, int batch)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;
	volatile bool more = true;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		more = idem_maintenance_batch(pass, batch);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	if (error != NULL)
	{
		if (!idem_maintenance_pass_over(pass, error))
			ReThrowError(error);
		ereport(WARNING,
				(errcode(error->sqlerrcode),
				 errmsg("maintenance passed over a part of idem_actions: %s", error->message),
				 ItemPointerIsValid(&pass->row) ?
				 errdetail("The row at ctid (%u,%u).", ItemPointerGetBlockNumber(&pass->row),
						   ItemPointerGetOffsetNumber(&pass->row)) :
				 errdetail("%u blocks from block %u on.", pass->bad_blocks, pass->bad)));
	}
	SPI_commit();
	return more;
}

/*
 * CALL run_maintenance: one pass, committed batch by batch.  It begins anywhere
 * and comes round to there, so that calls which are cut off each time, by
 * max_batches or by a timeout, still get everywhere.
 */
Datum
idem_run_maintenance(PG_FUNCTION_ARGS)
{
	int			batch = positive_arg(fcinfo, 0, "batch", IDEM_BATCH);
	int			left = positive_arg(fcinfo, 1, "max_batches", PG_INT32_MAX);
	IdemPass	pass = {.end = InvalidBlockNumber};
	BlockNumber begun_at;
	bool		more;

	if (fcinfo->context == NULL || !IsA(fcinfo->context, CallContext) ||
		castNode(CallContext, fcinfo->context)->atomic)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("run_maintenance cannot run in an open transaction"),
				 errdetail("It commits its batches one by one."),
				 errhint("CALL it by itself.")));
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	begun_at = pass.block = anywhere();
	do
	{
		more = try_batch(&pass, batch);
		idem_maintenance_rest(&pass);
		if (!more && begun_at > 0)
		{
			pass.block = 0;
			pass.end = begun_at;
			begun_at = 0;
			more = true;
		}
	} while (more && --left > 0);
	idem_roles_refresh();
	SPI_commit();
	do
	{
		more = idem_repeats_write();
		SPI_commit();
	} while (more);
	SPI_finish();
	if (pass.forgotten > 0)
		ereport(LOG,
				(errmsg("idem_action maintenance forgot %lld keys in \"%s\"",
						(long long) pass.forgotten, get_database_name(MyDatabaseId))));
	ereport(DEBUG1,
			(errmsg_internal("maintenance judged %lld, purged %lld, forgot %lld",
							 (long long) pass.judged, (long long) pass.purged,
							 (long long) pass.forgotten)));
	PG_RETURN_VOID();
}

/*-------------------------------------------------------------------------
 * Changes of many actions in the caller's transaction
 *-------------------------------------------------------------------------
 */

/* the change of one action; false where the row, as it is, needs none */
typedef bool (*IdemChange) (const IdemAction *row, IdemAction *after, void *arg);

/* the row as it is once nobody holds it; false where it is gone */
static bool
read_again(IdemLedger *ledger, const pg_uuid_t *id, IdemAction *row)
{
	for (;;)
	{
		TransactionId holder;

		CHECK_FOR_INTERRUPTS();
		switch (idem_ledger_probe(ledger, id, row, &holder))
		{
			case IDEM_PRESENT:
				return true;
			case IDEM_HELD:
			case IDEM_HELD_NEW:
				idem_ledger_rest(ledger);
				idem_ledger_wait(holder);
				break;
			case IDEM_ABSENT:
				if (idem_ledger_surely_absent(ledger, id))
					return false;
				break;
		}
	}
}

/* a row that somebody else changes meanwhile is decided on again */
static bool
change_one(IdemLedger *ledger, IdemAction *row, IdemChange change, void *arg)
{
	pg_uuid_t	id = row->action_id;

	do
	{
		IdemAction	after = *row;

		if (!change(row, &after, arg))
			return false;
		if (idem_ledger_update(ledger, row, &after, true) == IDEM_WRITTEN)
			return true;
	} while (read_again(ledger, &id, row));
	return false;
}

/* returns how many changed; "written" is called for each, or is NULL */
static int64
change_all(IdemWanted wanted, IdemChange change, void (*written) (const IdemAction *row, void *arg), void *arg)
{
	IdemLedger *ledger = idem_ledger_open(true);
	MemoryContext row_context = AllocSetContextCreate(CurrentMemoryContext, "idem_action row",
													  ALLOCSET_SMALL_SIZES);
	MemoryContext outer = CurrentMemoryContext;
	IdemWalk	walk;
	IdemAction	row;
	BlockNumber at = 0;
	int64		changed = 0;

	idem_walk_start(&walk, ledger, wanted, &at, InvalidBlockNumber);
	MemoryContextSwitchTo(row_context);
	while (idem_walk_next(&walk, &row))
	{
		if (change_one(ledger, &row, change, arg))
		{
			if (written != NULL)
				written(&row, arg);
			changed++;
		}
		MemoryContextReset(row_context);
	}
	MemoryContextSwitchTo(outer);
	(void) idem_walk_end(&walk);
	MemoryContextDelete(row_context);
	idem_ledger_close(ledger);
	return changed;
}

static bool
restart_retention(const IdemAction *row, IdemAction *after, void *intent)
{
	const IdemRule *rule;

	if (row->finished_at == IDEM_NEVER || !idem_text_equal(row->intent, intent))
		return false;
	rule = idem_rule_of_action(row);
	if (rule->is_missing)
		return false;
	idem_rule_start_retention(rule, after);
	return after->purge_after != row->purge_after || after->forget_after != row->forget_after;
}

/* rewrites the retention of an intent's finished actions by its rule */
Datum
idem_apply_retention(PG_FUNCTION_ARGS)
{
	text	   *intent;

	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("intent must not be null")));
	intent = PG_GETARG_TEXT_PP(0);
	idem_check_intent(intent);
	(void) idem_rule_of(VARDATA_ANY(intent), VARSIZE_ANY_EXHDR(intent), true);
	PG_RETURN_INT64(change_all(IDEM_WANT_FINAL, restart_retention, NULL, intent));
}

typedef struct Restore
{
	TimestampTz since;
	text	   *note;
} Restore;

static bool
put_before_a_person(const IdemAction *row, IdemAction *after, void *arg)
{
	if (row->state != IDEM_PENDING && row->state != IDEM_IN_PROGRESS)
		return false;
	after->uncertain = true;
	if (row->state == IDEM_IN_PROGRESS)
		idem_end_claim(after, "interrupted");
	idem_to_attention(after, "ledger_restored");
	after->revision++;
	return true;
}

static void
record_restore(const IdemAction *row, void *arg)
{
	const Restore *restore = arg;
	IdemEvent	event = {
		.event = "restored",
		.action = row,
		.claim_id = row->claim_id,
		.attempt = row->attempt,
		.worker = row->worker,
	};
	StringInfoData detail;

	idem_detail_start(&detail);
	if (row->state == IDEM_IN_PROGRESS)
	{
		event.claimed_at = row->claimed_at;
		idem_detail_add_bool(&detail, "verifying", row->verifying);
	}
	idem_detail_add_time(&detail, "since", restore->since);
	idem_detail_add_text(&detail, "reason", restore->note);
	event.detail = idem_detail_end(&detail);
	idem_ledger_append(&event);
}

/*
 * The ledger was put back to an older moment: what is open may have been handed
 * out, and done, after it.  All of it is for people to look at.
 */
Datum
idem_after_restore(PG_FUNCTION_ARGS)
{
	Restore		restore;
	int64		changed;

	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("since must not be null"),
				 errhint("Pass the moment that the ledger was restored to.")));
	restore.since = PG_GETARG_TIMESTAMPTZ(0);
	if (restore.since > GetCurrentTimestamp())
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("since lies in the future"),
				 errhint("Pass the moment that the ledger was restored to.")));
	restore.note = idem_arg_sentence(fcinfo, 1, "note", "Say what happened, for whoever looks at the actions.");
	changed = change_all(IDEM_WANT_OPEN, put_before_a_person, record_restore, &restore);
	idem_acknowledge_left_timeline(NULL);
	ForceSyncCommit();
	PG_RETURN_INT64(changed);
}
