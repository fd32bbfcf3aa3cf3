/*-------------------------------------------------------------------------
 *
 * observer.h
 *	  Others that have to hear of rows which we write without the executor.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/observer.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_OBSERVER_H
#define IDEM_OBSERVER_H

#include "executor/executor.h"
#include "utils/rel.h"

extern void idem_refuse_triggers(Relation rel);
extern void idem_tell_observers(Relation rel, ItemPointer old, TupleTableSlot *new);

/*
 * After a row was written, with its index entries: "old" is the version that is
 * gone, NULL for an insert; "new" the one that came, NULL for a delete.  Mostly
 * there is none to hear of it.
 */
static inline void
idem_row_written(Relation rel, ItemPointer old, TupleTableSlot *new)
{
	if (rel->trigdesc != NULL || ExecutorCheckPerms_hook != NULL)
		idem_tell_observers(rel, old, new);
}

#endif							/* IDEM_OBSERVER_H */
