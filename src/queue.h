/*-------------------------------------------------------------------------
 *
 * queue.h
 *	  The order in which actions are handed out to takers.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/queue.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_QUEUE_H
#define IDEM_QUEUE_H

#include "compat.h"
#include "access/relscan.h"
#include "executor/tuptable.h"
#include "idem_action.h"

/* the due actions of one intent, one after the other */
typedef struct IdemQueueWalk
{
	Relation	rel;
	Relation	index;
	SnapshotData dirty;
	IndexScanDesc scan;
	TupleTableSlot *slot;
	text	   *intent;
	bool		started;
	bool		ended;

	/* the entry it stands on */
	int32		priority;
	TimestampTz due_at;
	pg_uuid_t	action_id;
} IdemQueueWalk;

extern void idem_queue_add(const IdemAction *action);
extern void idem_queue_remove(const IdemAction *action);

extern void idem_queue_start(IdemQueueWalk *walk, text *intent);
extern bool idem_queue_next(IdemQueueWalk *walk, TimestampTz now);
extern void idem_queue_end(IdemQueueWalk *walk);
extern List *idem_queue_of_call(const pg_uuid_t *call_id);

#endif							/* IDEM_QUEUE_H */
