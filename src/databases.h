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

/* a database, as the workers left it */
typedef struct IdemDatabase
{
	Oid			dbid;
	Oid			ledger;			/* its idem_actions, once somebody has used it */
	bool		missing;		/* from the last list of databases */
	bool		at_start;		/* there when the server was started, and no
								 * worker was in it since */
	int			refused;		/* so often in a row no worker got into it */
	TimestampTz last_pass;		/* end of the last whole pass */
	TimestampTz next_pass;		/* the next is to begin then */
	TimestampTz due;			/* or rather when this is due, 0 for nothing, */
	TimestampTz rest_until;		/* but not before this */
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
extern void idem_database_expect(Oid dbid, TimestampTz next_pass);
extern void idem_database_connected(Oid dbid, TimestampTz next_pass);
extern void idem_database_put(const IdemDatabase *database, Oid ledger);
extern void idem_databases_are(List *dbids);
extern void idem_databases_hurry(TimestampTz next_pass);
extern bool idem_databases_no_worker_slot(bool none);

extern Size idem_databases_size(void);
extern void idem_databases_start(void *memory, LWLock *its_lock);

/* of two moments when something is due, 0 for nothing */
static inline TimestampTz
idem_earlier(TimestampTz a, TimestampTz b)
{
	return a == 0 || (b != 0 && b < a) ? b : a;
}

#endif							/* IDEM_DATABASES_H */
