/*-------------------------------------------------------------------------
 *
 * databases.h
 *	  What the launcher and its workers know of each database.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/databases.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_DATABASES_H
#define IDEM_DATABASES_H

#include "idem_action.h"
#include "access/xlogdefs.h"
#include "nodes/pg_list.h"
#include "storage/block.h"
#include "storage/lwlock.h"

#define IDEM_MAX_PROBLEM 256

/* what is known of the clock there, see clock.c */
typedef struct IdemDatabaseClock
{
	Oid			ledger;			/* whose known time was asked, or invalid */
	int64		offset;			/* the baseline, as the clock minus the time
								 * since boot */
	bool		held;			/* it was not believed the last time */
} IdemDatabaseClock;

/* a database, as the workers left it; moments are of idem_clock_monotonic() */
typedef struct IdemDatabase
{
	Oid			dbid;
	Oid			ledger;			/* its idem_actions, once somebody has used it */
	bool		missing;		/* from the last list of databases */
	bool		at_start;		/* there when the server was started, and no
								 * worker was in it since */
	int			refused;		/* so often in a row no worker got into it */
	TimestampTz last_pass;		/* end of the last whole pass, by the clock */
	int64		next_pass;		/* the next is to begin then */
	int64		due;			/* or rather when this is due, 0 for nothing, */
	int64		rest_until;		/* but not before this */
	int64		forgotten;		/* keys, in this pass */
	IdemDatabaseClock clock;
	int64		pass_walk;		/* microseconds spent on looking in this pass */
	BlockNumber block;			/* where the pass goes on */
	bool		passed_over;	/* something was, in this pass */
	TimeLineID	said_timeline;	/* left for another, and said so in the log */
	char		problem[IDEM_MAX_PROBLEM];
} IdemDatabase;

extern void idem_database_note_use(Oid ledger);
extern void idem_database_due_at_commit(TimestampTz due);
extern void idem_databases_launcher_started(void);
extern bool idem_database_get(Oid dbid, IdemDatabase *database);
extern void idem_database_expect(Oid dbid, int64 next_pass);
extern void idem_database_connected(Oid dbid, int64 next_pass);
extern void idem_database_put(const IdemDatabase *database, Oid ledger);
extern void idem_database_get_clock(IdemDatabaseClock *clock);
extern void idem_database_set_clock(Oid ledger, int64 offset);
extern bool idem_database_hold_clock(bool hold);
extern void idem_databases_are(List *dbids);
extern void idem_databases_hurry(int64 next_pass);
extern bool idem_databases_no_worker_slot(bool none);

extern Size idem_databases_size(void);
extern void idem_databases_start(void *memory, LWLock *its_lock);

/* of two moments when something is due, 0 for nothing */
static inline int64
idem_earlier(int64 a, int64 b)
{
	return a == 0 || (b != 0 && b < a) ? b : a;
}

#endif							/* IDEM_DATABASES_H */
