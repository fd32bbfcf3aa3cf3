/*-------------------------------------------------------------------------
 *
 * confirm.c
 *	  An answer waits until what it tells is durable.
 *
 * A call that writes is as durable as its commit.  A call that only reads, such
 * as a repeat, has no commit of its own to wait for, but its caller acts on the
 * answer or acknowledges a message because of it.  So the version that the
 * answer relies on has to be flushed here, and replicated as far as the
 * session's synchronous_commit asks of its own commits.
 *
 * Usually it is: a transaction becomes visible only after it has waited for its
 * flush and for the synchronous standbys.  The exceptions are
 *
 *		a commit with synchronous_commit = off: visible before it is flushed;
 *		a commit with a lower synchronous_commit than that of the reader;
 *		a commit while no synchronous standby was configured;
 *		a commit whose wait for the standby was cancelled or terminated;
 *		what was recovered after a crash, or replayed before a promotion.
 *
 * Here.  The transaction log keeps for each group of asynchronous commits a WAL
 * position that is not before their commit records.  The page's LSN would not
 * do: the commit record comes after the change of the page.
 *
 * Standbys.  Shared memory keeps, for each level of synchronous_commit, the
 * highest end of a commit of ours that returned while the standbys had not
 * confirmed it.  An answer waits while the standbys are behind that.
 *
 * Such a commit is visible a moment before its backend can record it, as
 * PostgreSQL calls nobody in between.  So a committing backend publishes its
 * transaction ids beforehand and withdraws them after it has recorded the
 * commit.  A reader that finds the xmin of its version among them waits for the
 * flush position instead, which is not before the commit record of anything
 * visible.  It does the same for a transaction that was prepared, since COMMIT
 * PREPARED calls no callback for it; and without shared memory, always.
 *
 * A crash clears shared memory.  The first to need it afterwards, or after a
 * promotion, takes the flush position as unconfirmed, and the transactions
 * that are open as prepared, since those that were are among them.
 *
 * Nothing in the callbacks raises: an error after a commit is a PANIC.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/confirm.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "confirm.h"
#include "access/transam.h"
#include "access/twophase.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "replication/syncrep.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/lwlock.h"
#include "storage/proc.h"

/* the bits that say so came with the minor releases of May 2025 */
#ifdef SYNC_STANDBY_INIT
#define commits_wait() \
	((WalSndCtl->sync_standbys_status & (SYNC_STANDBY_INIT | SYNC_STANDBY_DEFINED)) != SYNC_STANDBY_INIT)
#else
#define commits_wait() (WalSndCtl->sync_standbys_defined)
#endif

/*
 * Transaction ids from .. to in one word, so that it is read and written at
 * once; 0 is an empty range.  All arithmetic wraps, as the ids do.
 */
typedef uint64 XidRange;

#define XID_RANGE(from, to) ((XidRange) (from) << 32 | (to))
#define RANGE_FROM(range) ((uint32) ((range) >> 32))
#define RANGE_TO(range) ((uint32) (range))

typedef struct Confirmations
{
	/* ends of commits that the standbys had not confirmed; 0 only at start */
	pg_atomic_uint64 unconfirmed[NUM_SYNC_REP_WAIT_MODE];
	pg_atomic_uint64 open_at_start; /* XidRanges that were or may be prepared, */
	pg_atomic_uint64 prepared;	/* and from the first to the last since */
	pg_atomic_uint64 committing[FLEXIBLE_ARRAY_MEMBER]; /* an XidRange for each
														 * backend */
} Confirmations;

static Confirmations *shared = NULL;
static bool wrote = false;		/* so did this transaction */

Size
idem_confirm_size(void)
{
	return add_size(offsetof(Confirmations, committing),
					mul_size(MaxBackends, sizeof(pg_atomic_uint64)));
}

void
idem_confirm_start(void *memory, bool fresh)
{
	shared = memory;
	if (!fresh)
		return;
	for (int i = 0; i < NUM_SYNC_REP_WAIT_MODE; i++)
		pg_atomic_init_u64(&shared->unconfirmed[i], 0);
	pg_atomic_init_u64(&shared->open_at_start, 0);
	pg_atomic_init_u64(&shared->prepared, 0);
	for (int i = 0; i < MaxBackends; i++)
		pg_atomic_init_u64(&shared->committing[i], 0);
}

static bool
in_range(XidRange range, TransactionId xid)
{
	return range != 0 && xid - RANGE_FROM(range) <= RANGE_TO(range) - RANGE_FROM(range);
}

/*-------------------------------------------------------------------------
 * What is not confirmed
 *-------------------------------------------------------------------------
 */

static void
raise_to(pg_atomic_uint64 *highest, uint64 value)
{
	uint64		old = pg_atomic_read_u64(highest);

	while (old < value && !pg_atomic_compare_exchange_u64(highest, &old, value))
		;
}

static void
add_prepared(XidRange added)
{
	uint64		old = pg_atomic_read_u64(&shared->prepared);
	XidRange	range;

	do
	{
		range = added;
		if (old != 0)
		{
			if (TransactionIdPrecedes(RANGE_FROM(old), RANGE_FROM(range)))
				range = XID_RANGE(RANGE_FROM(old), RANGE_TO(range));
			if (TransactionIdFollows(RANGE_TO(old), RANGE_TO(range)))
				range = XID_RANGE(RANGE_FROM(range), RANGE_TO(old));
		}
		/* an older xmin than this is frozen */
		if (RANGE_TO(range) - RANGE_FROM(range) > PG_INT32_MAX)
			range = XID_RANGE(RANGE_TO(range) - PG_INT32_MAX, RANGE_TO(range));
	} while (!pg_atomic_compare_exchange_u64(&shared->prepared, &old, range));
}

/* once after a start or a promotion; unconfirmed[0] says that it is done */
static void
take_over(void)
{
	XLogRecPtr	end;

	if (pg_atomic_read_u64(&shared->unconfirmed[0]) != 0)
		return;
	LWLockAcquire(SyncRepLock, LW_EXCLUSIVE);
	if (pg_atomic_read_u64(&shared->unconfirmed[0]) == 0)
	{
		if (max_prepared_xacts > 0)
		{
			TransactionId oldest = GetOldestActiveTransactionId(false, true);
			TransactionId next = ReadNextTransactionId();

			if (TransactionIdPrecedes(oldest, next))
				pg_atomic_write_u64(&shared->open_at_start, XID_RANGE(oldest, next - 1));
		}
		/* read after the list: what has left it meanwhile lies before */
		end = GetFlushRecPtr(NULL);
		for (int mode = NUM_SYNC_REP_WAIT_MODE - 1; mode >= 0; mode--)
			raise_to(&shared->unconfirmed[mode], end);
	}
	LWLockRelease(SyncRepLock);
}

static void
record_commit(XLogRecPtr end)
{
	XLogRecPtr	confirmed[NUM_SYNC_REP_WAIT_MODE];

	take_over();
	LWLockAcquire(SyncRepLock, LW_SHARED);
	memcpy(confirmed, WalSndCtl->lsn, sizeof(confirmed));
	LWLockRelease(SyncRepLock);
	for (int mode = 0; mode < NUM_SYNC_REP_WAIT_MODE; mode++)
	{
		if (confirmed[mode] < end)
			raise_to(&shared->unconfirmed[mode], end);
	}
}

/* the ids that this transaction writes rows under */
static XidRange
own_xids(void)
{
	TransactionId *children;
	int			n = xactGetCommittedChildren(&children);
	TransactionId top = GetTopTransactionIdIfAny();

	return XID_RANGE(top, n > 0 ? children[n - 1] : top);
}

static void
follow_commit(XactEvent event, void *arg)
{
	pg_atomic_uint64 *committing;

	if (!wrote)
		return;
	committing = &shared->committing[MyProc - ProcGlobal->allProcs];
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			/* an exchange is a barrier: before the commit is visible */
			(void) pg_atomic_exchange_u64(committing, own_xids());
			return;
		case XACT_EVENT_PRE_PREPARE:
			add_prepared(own_xids());
			return;
		case XACT_EVENT_COMMIT:
			record_commit(XactLastCommitEnd);
			(void) pg_atomic_exchange_u64(committing, 0);
			break;
		case XACT_EVENT_ABORT:
			pg_atomic_write_u64(committing, 0);
			break;
		case XACT_EVENT_PREPARE:
			break;
		default:
			return;
	}
	wrote = false;
}

/* this transaction has written what answers rely on */
void
idem_confirm_note_write(void)
{
	static bool registered = false;

	if (shared == NULL)
		return;
	if (!registered)
		RegisterXactCallback(follow_commit, NULL);
	registered = wrote = true;
}

/*-------------------------------------------------------------------------
 * Waiting
 *-------------------------------------------------------------------------
 */

/* the level that the session's commits wait for; -1 for none */
static int
wait_mode(void)
{
	if (!SyncRepRequested() || SyncRepStandbyNames == NULL || SyncRepStandbyNames[0] == '\0')
		return SYNC_REP_NO_WAIT;
	switch (synchronous_commit)
	{
		case SYNCHRONOUS_COMMIT_REMOTE_WRITE:
			return SYNC_REP_WAIT_WRITE;
		case SYNCHRONOUS_COMMIT_REMOTE_FLUSH:
			return SYNC_REP_WAIT_FLUSH;
		case SYNCHRONOUS_COMMIT_REMOTE_APPLY:
			return SYNC_REP_WAIT_APPLY;
		default:
			return SYNC_REP_NO_WAIT;
	}
}

/* whether the commit of a visible version may not be recorded yet */
static bool
may_be_missing(TransactionId xmin)
{
	if (shared == NULL)
		return true;
	pg_read_barrier();
	if (in_range(pg_atomic_read_u64(&shared->prepared), xmin) ||
		in_range(pg_atomic_read_u64(&shared->open_at_start), xmin))
		return true;
	for (int i = 0; i < MaxBackends; i++)
	{
		if (in_range(pg_atomic_read_u64(&shared->committing[i]), xmin))
			return true;
	}
	return false;
}

/* the answer relies on a version that was read as committed, or as our own */
void
idem_confirm_rely(IdemReliance *reliance, TransactionId xmin)
{
	/* read-only answers of a standby stay as they are */
	if (TransactionIdIsCurrentTransactionId(xmin) || RecoveryInProgress())
		return;
	reliance->any = true;
	reliance->flush = Max(reliance->flush, TransactionIdGetCommitLSN(xmin));
	if (wait_mode() != SYNC_REP_NO_WAIT && may_be_missing(xmin))
		reliance->unsure = true;
}

static bool
is_confirmed(int mode, XLogRecPtr end)
{
	bool		confirmed;

	LWLockAcquire(SyncRepLock, LW_SHARED);
	confirmed = end <= WalSndCtl->lsn[mode] || !commits_wait();
	LWLockRelease(SyncRepLock);
	return confirmed;
}

/*
 * Waits for what the answer relies on.  To be called without a pin, and before
 * the answer is given: where the wait is cancelled, there is none.
 */
void
idem_confirm(const IdemReliance *reliance)
{
	int			mode = wait_mode();
	XLogRecPtr	end;

	if (!reliance->any)
		return;
	if (XLogNeedsFlush(reliance->flush))
		XLogFlush(reliance->flush);
	if (mode == SYNC_REP_NO_WAIT)
		return;
	if (shared != NULL)
		take_over();
	end = reliance->unsure || shared == NULL ? GetFlushRecPtr(NULL) :
		pg_atomic_read_u64(&shared->unconfirmed[mode]);
	if (is_confirmed(mode, end))
		return;

	/* the standby gets only what is flushed here */
	XLogFlush(end);
	HOLD_INTERRUPTS();
	SyncRepWaitForLSN(end, true);
	RESUME_INTERRUPTS();
	CHECK_FOR_INTERRUPTS();
	/* a cancelled wait has taken the interrupt and warned, but not raised */
	if (!is_confirmed(mode, end))
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("canceled the wait for a synchronous standby"),
				 errdetail("The answer would rely on a commit that the standby has not confirmed."),
				 errhint("Call again.")));
}

/*
 * The answer relies on a change that another call has made, whichever it was:
 * for repeated calls that find a rule or a pause as it should be.
 */
void
idem_confirm_all(void)
{
	const IdemReliance reliance = {.any = true,.unsure = true};

	idem_confirm(&reliance);
}
