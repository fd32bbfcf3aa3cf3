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
#include "idem_action.h"
#include "nodes/execnodes.h"

/* a table that rows are written to, its indexes opened when first needed */
typedef struct IdemTable
{
	Relation	rel;
	TupleTableSlot *slot;		/* what is being written */
	EState	   *estate;
	ResultRelInfo *indexes;
	List	   *arbiters;		/* see idem_table_insert */
	MemoryContext context;		/* that it was opened in, and lives as long as */
} IdemTable;

extern Oid	idem_relation_oid(const char *name);
extern Relation idem_relation_open(const char *name, int ncols, LOCKMODE lockmode);
extern void idem_table_check_constraints(Relation rel);
extern void idem_table_open(IdemTable *table, const char *name, int ncols, LOCKMODE lockmode);
extern void idem_table_close(IdemTable *table, LOCKMODE lockmode);
extern TupleTableSlot *idem_table_slot(IdemTable *table);
extern bool idem_table_insert(IdemTable *table, bool arbitrate);
extern void idem_table_update(IdemTable *table, ItemPointer tid);
extern void idem_table_retract(Relation rel, ItemPointer tid);
extern void idem_table_delete(Relation rel, ItemPointer tid);
extern void idem_table_updated(IdemTable *table, ItemPointer old, TU_UpdateIndexes which);

/*
 * Filling the values of a row: a NULL pointer, IDEM_NEVER and the all-zero uuid
 * are SQL NULLs.  What is pointed to has to live as long as the values.
 */
static inline void
idem_put(Datum *v, bool *n, int col, Datum value)
{
	v[col] = value;
	n[col] = false;
}

static inline void
idem_put_pointer(Datum *v, bool *n, int col, const void *value)
{
	v[col] = PointerGetDatum(value);
	n[col] = value == NULL;
}

static inline void
idem_put_time(Datum *v, bool *n, int col, TimestampTz value)
{
	v[col] = TimestampTzGetDatum(value);
	n[col] = value == IDEM_NEVER;
}

static inline void
idem_put_uuid(Datum *v, bool *n, int col, const pg_uuid_t *id)
{
	v[col] = UUIDPGetDatum(id);
	n[col] = idem_uuid_is_null(id);
}

static inline void
idem_get_uuid(const Datum *v, const bool *n, int col, pg_uuid_t *id)
{
	if (n[col])
		memset(id, 0, sizeof(*id));
	else
		memcpy(id, DatumGetUUIDP(v[col]), sizeof(*id));
}

#endif							/* IDEM_TABLE_H */
