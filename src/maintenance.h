/*-------------------------------------------------------------------------
 *
 * maintenance.h
 *	  What the ledger needs done from time to time, in bounded batches.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/maintenance.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_MAINTENANCE_H
#define IDEM_MAINTENANCE_H

#include "datatype/timestamp.h"
#include "storage/block.h"

#define IDEM_BATCH 1000			/* changes, where nobody says how many */

#define IDEM_MAX_BAD_ROWS 256

/* where a pass over the ledger stands, and what it has done */
typedef struct IdemPass
{
	BlockNumber block;			/* where it goes on, or stands in a batch */
	BlockNumber end;			/* and ends, InvalidBlockNumber for the
								 * table's end */
	bool		walking;		/* in the middle of a batch, */
	BlockNumber begun;			/* which began here */
	ItemPointerData row;		/* it is at this one, while walking */
	ItemPointerData bad_rows[IDEM_MAX_BAD_ROWS];	/* passed over */
	int			nbad_rows;
	BlockNumber bad;			/* from here on so many are passed over */
	BlockNumber bad_blocks;
	TimestampTz upcoming;		/* what is due next of what was walked past,
								 * or 0 */
	int64		walked;			/* microseconds of batches with little to do */
	int			cost;			/* of changes since the last rest */
	int64		judged;
	int64		purged;
	int64		forgotten;
} IdemPass;

extern bool idem_maintenance_pass_over(IdemPass *pass, const ErrorData *error);
extern bool idem_maintenance_batch(IdemPass *pass, int batch);
extern void idem_maintenance_rest(IdemPass *pass);

#endif							/* IDEM_MAINTENANCE_H */
