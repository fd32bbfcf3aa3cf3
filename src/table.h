/*-------------------------------------------------------------------------
 *
 * table.h
 *	  Writing rows of the ledger's tables without the executor.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/table.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_TABLE_H
#define IDEM_TABLE_H

#include "compat.h"
#include "executor/tuptable.h"
#include "nodes/execnodes.h"

/* a table that rows are written to, its indexes opened when first needed */
typedef struct IdemTable
{
	Relation	rel;
	TupleTableSlot *slot;		/* what is being written */
	EState	   *estate;
	ResultRelInfo *indexes;
} IdemTable;

extern Oid	idem_relation_oid(const char *name);
extern void idem_table_open(IdemTable *table, const char *name, LOCKMODE lockmode);
extern void idem_table_close(IdemTable *table, LOCKMODE lockmode);
extern TupleTableSlot *idem_table_slot(IdemTable *table);
extern bool idem_table_insert(IdemTable *table, Oid arbiter);
extern void idem_table_index_update(IdemTable *table, TU_UpdateIndexes which);

#endif							/* IDEM_TABLE_H */
