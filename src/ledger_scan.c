/*-------------------------------------------------------------------------
 *
 * ledger_scan.c
 *	  Walking over the actions in the order in which they are stored.
 *
 * Lease ends and retention have no index, since one would end HOT updates
 * (see ledger.c).  They are found by walking over ranges of blocks; a row is
 * looked at by its fixed columns first, and read whole only where it is wanted.
 *
 * The walk reads by a snapshot of its own and holds nothing.  The row it stops
 * at is the ledger's "version last probed", so what is then written is a
 * compare-and-swap on it like any other change: a row that was changed since is
 * left to the next walk.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/ledger_scan.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "ledger_scan.h"
#include "clock.h"
#include "columns.h"
#include "databases.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/snapmgr.h"

BlockNumber
idem_ledger_blocks(IdemLedger *ledger)
{
	return RelationGetNumberOfBlocks(ledger->actions.rel);
}

/* over nblocks blocks from "*at" on, or to the end of the table */
void
idem_walk_start(IdemWalk *walk, IdemLedger *ledger, IdemWanted wanted,
				BlockNumber *at, BlockNumber nblocks)
{
	Relation	rel = ledger->actions.rel;
	BlockNumber from = *at;
	BlockNumber total = RelationGetNumberOfBlocks(rel);
	ItemPointerData first;
	ItemPointerData last;

	if (ledger->pkey == NULL)
		idem_ledger_open_scan(ledger);
	walk->ledger = ledger;
	walk->wanted = wanted;
	walk->now = idem_clock_now();
	walk->upcoming = 0;
	walk->at = at;
	walk->end = from < total && nblocks < total - from ? from + nblocks : total;
	walk->scan = NULL;
	walk->row = NULL;
	if (from >= walk->end)
		return;
	ItemPointerSet(&first, from, FirstOffsetNumber);
	ItemPointerSet(&last, walk->end - 1, MaxOffsetNumber);
	walk->snapshot = RegisterSnapshot(GetLatestSnapshot());
	walk->slot = table_slot_create(rel, NULL);
	walk->scan = table_beginscan_tidrange(rel, walk->snapshot, &first, &last, 0);
}

/* a moment that is over; one that is not is kept where it is the next */
static bool
is_past(IdemWalk *walk, int col)
{
	TupleTableSlot *slot = walk->slot;
	TimestampTz due = DatumGetTimestampTz(slot->tts_values[col]);

	if (slot->tts_isnull[col])
		return false;
	if (due > walk->now)
		walk->upcoming = idem_earlier(walk->upcoming, due);
	return due <= walk->now;
}

static bool
is_wanted(IdemWalk *walk)
{
	TupleTableSlot *slot = walk->slot;

	slot_getsomeattrs(slot, COL_FORGET_AFTER + 1);
	switch (walk->wanted)
	{
		case IDEM_WANT_DUE:
			return is_past(walk, COL_LEASE_UNTIL) ||
				is_past(walk, COL_FORGET_AFTER) ||
				(is_past(walk, COL_PURGE_AFTER) &&
				 (!DatumGetBool(slot->tts_values[COL_PURGED]) ||
				  !slot_attisnull(slot, COL_DRAFT + 1)));	/* of a rerun after a
															 * purge */
		case IDEM_WANT_OPEN:
			return !slot->tts_isnull[COL_DUE_AT] || !slot->tts_isnull[COL_LEASE_UNTIL];
		case IDEM_WANT_FINAL:
			return !slot->tts_isnull[COL_FINISHED_AT];
	}
	return false;
}

/* the next row that is not to be passed over */
static bool
next_row(IdemWalk *walk)
{
	bool		more;
	bool		skipped;

	do
	{
		if (walk->row != NULL)
			ItemPointerSetInvalid(walk->row);
		more = table_scan_getnextslot_tidrange(walk->scan, ForwardScanDirection, walk->slot);
		skipped = false;
		if (!more || walk->row == NULL)
			break;
		*walk->row = walk->slot->tts_tid;
		for (int i = 0; !skipped && i < walk->nskip; i++)
			skipped = ItemPointerEquals(walk->row, &walk->skip[i]);
	} while (skipped);
	return more;
}

/*
 * The next action that is wanted; false at the end of the range.  Its texts and
 * contents live until the next use of the ledger.
 */
bool
idem_walk_next(IdemWalk *walk, IdemAction *action)
{
	while (walk->scan != NULL && next_row(walk))
	{
		CHECK_FOR_INTERRUPTS();
		*walk->at = ItemPointerGetBlockNumber(&walk->slot->tts_tid);
		if (!is_wanted(walk))
			continue;
		ExecCopySlot(walk->ledger->found, walk->slot);
		idem_action_from_slot(walk->ledger->found, action);
		return true;
	}
	return false;
}

/* true where the range reached the end of the table */
bool
idem_walk_end(IdemWalk *walk)
{
	if (walk->scan != NULL)
	{
		table_endscan(walk->scan);
		ExecDropSingleTupleTableSlot(walk->slot);
		UnregisterSnapshot(walk->snapshot);
	}
	return walk->end >= RelationGetNumberOfBlocks(walk->ledger->actions.rel);
}
