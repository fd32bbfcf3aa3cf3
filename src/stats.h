/*-------------------------------------------------------------------------
 *
 * stats.h
 *	  Shared memory: what is known of each database.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/stats.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STATS_H
#define IDEM_STATS_H

#include "idem_action.h"
#include "maintenance.h"

#define IDEM_MAX_PROBLEM 256

/* a database, as the workers left it */
typedef struct IdemDatabase
{
	Oid			dbid;
	bool		used;			/* a backend has used its ledger */
	TimestampTz last_pass;		/* end of the last whole pass */
	TimestampTz next_pass;		/* not before this */
	TimestampTz pass_started;
	int64		pass_work;		/* microseconds of work in this pass so far */
	BlockNumber block;			/* where the pass goes on */
	char		problem[IDEM_MAX_PROBLEM];
} IdemDatabase;

extern void idem_stats_init(void);
extern void idem_stats_note_use(void);
extern void idem_stats_launcher_started(void);
extern bool idem_stats_get(Oid dbid, IdemDatabase *database);
extern void idem_stats_put(const IdemDatabase *database);

#endif							/* IDEM_STATS_H */
