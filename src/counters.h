/*-------------------------------------------------------------------------
 *
 * counters.h
 *	  Counting repeats in shared memory.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/counters.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_COUNTERS_H
#define IDEM_COUNTERS_H

#include "idem_action.h"
#include "nodes/pg_list.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "utils/hsearch.h"

#define IDEM_MAX_COUNTERS 8192
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
	bool		left;			/* not written the last time, somebody held
								 * the action */
	TimestampTz first_at;
	pg_atomic_uint64 last_at;
	char		intent[260];
	char		source[IDEM_MAX_COUNTED + 1];	/* '' where NULL */
	char		event_id[IDEM_MAX_COUNTED + 1];
} IdemRepeat;

extern void idem_counter_add(const pg_uuid_t *action_id, text *intent, text *source,
							 text *event_id, int what);
extern uint64 idem_delivery_hash(text *source, text *event_id);
extern uint64 idem_counters_uncounted(void);
extern List *idem_counters_take(Oid dbid, int max);
extern void idem_counters_leave(IdemRepeat *copy);
extern void idem_counters_keep_only(List *dbids);

extern Size idem_counters_size(void);
extern void idem_counters_start(void *memory, bool fresh, LWLock *its_lock, HTAB *its_table);

#endif							/* IDEM_COUNTERS_H */
