/*-------------------------------------------------------------------------
 *
 * ledger_scan.h
 *	  Walking over the actions in the order in which they are stored.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/ledger_scan.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_LEDGER_SCAN_H
#define IDEM_LEDGER_SCAN_H

#include "ledger.h"
#include "access/tableam.h"
#include "storage/block.h"

/* which actions a walk stops at */
typedef enum IdemWanted
{
	IDEM_WANT_DUE,				/* lease over, contents or key past retention */
	IDEM_WANT_OPEN,				/* pending or in progress */
	IDEM_WANT_FINAL
} IdemWanted;

typedef struct IdemWalk
{
	IdemLedger *ledger;
	IdemWanted	wanted;
	TimestampTz now;
	TimestampTz upcoming;		/* what IDEM_WANT_DUE will want first, 0 for
								 * nothing */
	Snapshot	snapshot;
	TableScanDesc scan;
	TupleTableSlot *slot;
	BlockNumber end;			/* the first block not walked over */
	BlockNumber *at;			/* the caller's: the last one that a row was
								 * read from, also after an error */

	/*
	 * where the caller steps over rows, else NULL: the one it is at, invalid
	 * while it looks for the next, and those to pass over
	 */
	ItemPointer row;
	ItemPointer skip;
	int			nskip;
} IdemWalk;

extern BlockNumber idem_ledger_blocks(IdemLedger *ledger);
extern void idem_walk_start(IdemWalk *walk, IdemLedger *ledger, IdemWanted wanted,
							BlockNumber *at, BlockNumber nblocks);
extern bool idem_walk_next(IdemWalk *walk, IdemAction *action);
extern bool idem_walk_end(IdemWalk *walk);

#endif							/* IDEM_LEDGER_SCAN_H */
