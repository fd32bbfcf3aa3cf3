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
#include "access/xlogdefs.h"
#include "maintenance.h"
#include "nodes/pg_list.h"
#include "port/atomics.h"

#define IDEM_MAX_PROBLEM 256

/* a database, as the workers left it */
typedef struct IdemDatabase
{
	Oid			dbid;
	bool		used;			/* it has a ledger, for all that is known */
	int			refused;		/* so often in a row no worker got into it */
	TimestampTz last_pass;		/* end of the last whole pass */
	TimestampTz next_pass;		/* the next is to begin then */
	TimestampTz due;			/* or rather when this is due, 0 for nothing, */
	TimestampTz rest_until;		/* but not before this */
	int64		pass_walk;		/* microseconds spent on looking in this pass */
	BlockNumber block;			/* where the pass goes on */
	TimeLineID	said_timeline;	/* left for another, and said so in the log */
	char		problem[IDEM_MAX_PROBLEM];
} IdemDatabase;

#define IDEM_MAX_COUNTED 128	/* bytes kept of source and event_id */

/* how often a delivery met an action already known, not yet in idem_repeats */
typedef struct IdemRepeatKey
{
	Oid			dbid;
	int32		day;			/* DateADT, UTC */
	int32		what;			/* IdemOutcome, or IDEM_AFTER_FORGETTING */
	uint32		pad;
	uint64		delivery;		/* hash of source and event_id */
	pg_uuid_t	action_id;
} IdemRepeatKey;

#define IDEM_AFTER_FORGETTING 100

typedef struct IdemRepeat
{
	IdemRepeatKey key;
	pg_atomic_uint64 n;
	bool		left;			/* of a copy: not written, to be put back */
	TimestampTz first_at;
	pg_atomic_uint64 last_at;
	char		intent[260];
	char		source[IDEM_MAX_COUNTED + 1];	/* '' where NULL */
	char		event_id[IDEM_MAX_COUNTED + 1];
} IdemRepeat;

extern void idem_stats_count(const pg_uuid_t *action_id, text *intent, text *source,
							 text *event_id, int what);
extern List *idem_stats_take_repeats(Oid dbid, int max);
extern void idem_stats_leave(IdemRepeat *copy);
extern void idem_stats_init(void);
extern void idem_stats_note_use(Oid ledger);
extern void idem_stats_due_at_commit(TimestampTz due);
extern uint32 idem_stats_bell_of(const void *name, int len);
extern void idem_stats_ring_at_commit(uint32 bell);
extern void idem_stats_listen(uint32 bell);
extern void idem_stats_await(uint32 bell, long milliseconds, long poll);
extern void idem_stats_stop_listening(void);
extern void idem_stats_launcher_started(void);
extern void idem_stats_keep_only(List *dbids);
extern bool idem_stats_get(Oid dbid, IdemDatabase *database);
extern void idem_stats_expect(Oid dbid, TimestampTz next_pass);
extern void idem_stats_connected(Oid dbid, TimestampTz next_pass);
extern void idem_stats_put(const IdemDatabase *database);

/* of two moments when something is due, 0 for nothing */
static inline TimestampTz
idem_earlier(TimestampTz a, TimestampTz b)
{
	return a == 0 || (b != 0 && b < a) ? b : a;
}

#endif							/* IDEM_STATS_H */
