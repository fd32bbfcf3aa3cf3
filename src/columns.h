/*-------------------------------------------------------------------------
 *
 * columns.h
 *	  The columns of idem_actions and what an open ledger consists of: for
 *	  ledger.c and ledger_scan.c only.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/columns.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_COLUMNS_H
#define IDEM_COLUMNS_H

#include "confirm.h"
#include "access/relscan.h"
#include "ledger.h"
#include "table.h"
#include "utils/snapshot.h"

/* columns of idem_actions */
enum
{
	COL_ACTION_ID,
	COL_CREATED_AT,
	COL_REVISION,
	COL_GENERATION,
	COL_ATTEMPT,
	COL_LOST,
	COL_FAILURES,
	COL_PRIORITY,
	COL_UNCERTAIN,
	COL_UNCERTAIN_BEFORE,
	COL_MARKED,
	COL_BEGUN,
	COL_VERIFYING,
	COL_APPROVED,
	COL_CANCEL_REQUESTED,
	COL_PURGED,
	COL_RULED,
	COL_FIRST_CLAIMED_AT,
	COL_CLAIMED_AT,
	COL_LEASE_UNTIL,
	COL_DUE_AT,
	COL_DOUBT_UNTIL,
	COL_FINISHED_AT,
	COL_PURGE_AFTER,
	COL_FORGET_AFTER,
	COL_CLAIM_ID,
	COL_CALL_ID,
	COL_STATE,
	COL_SCOPE,
	COL_INTENT,
	COL_KEY,
	COL_REASON,
	COL_ENDED_BY,
	COL_WORKER,
	COL_SOURCE,
	COL_EVENT_ID,
	COL_SECRET_ID,
	COL_PARAMS,
	COL_PARAMS_DIGEST,
	COL_DRAFT,
	COL_EXTERNAL_REF,
	COL_RESULT,
	COL_ERROR,
	ACTION_NCOLS
};


struct IdemLedger
{
	IdemTable	actions;
	LOCKMODE	lockmode;
	bool		wrote;			/* the locks stay to the end of the
								 * transaction */
	TupleTableSlot *locked;		/* for locking a version, or NULL */
	Relation	pkey;
	SnapshotData dirty;
	IndexScanDesc scan;
	TupleTableSlot *found;		/* the version last read, its buffer pinned */
	text	   *held_intent;	/* of the last row that was being inserted */
	bool		held_ruled;		/* likewise: whether a rule made it */
	IdemReliance reliance;		/* what idem_ledger_close waits for */
};

extern void idem_ledger_open_scan(IdemLedger *ledger);
extern void idem_action_from_slot(TupleTableSlot *slot, IdemAction *action);

#endif							/* IDEM_COLUMNS_H */
