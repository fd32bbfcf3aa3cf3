/*-------------------------------------------------------------------------
 *
 * table.c
 *	  Writing rows of the ledger's tables without the executor.
 *
 * Every index is maintained, also one that a DBA has added.  Constraints are
 * not checked here: who builds the row answers for them.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/table.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "table.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "confirm.h"
#include "idem_action.h"
#include "nodes/makefuncs.h"
#include "utils/lsyscache.h"

/* a relation of the ledger by its name; never a cached OID */
Oid
idem_relation_oid(const char *name)
{
	Oid			schema = get_namespace_oid(IDEM_SCHEMA, true);
	Oid			relid = OidIsValid(schema) ? get_relname_relid(name, schema) : InvalidOid;

	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the ledger's relation \"%s\" is missing", name),
				 errhint("Create the extension idem_action in this database.")));
	return relid;
}

/*
 * A table of the ledger, with the columns that the caller knows: the owner may
 * have changed them, an update may have run while an older library is loaded.
 */
Relation
idem_relation_open(const char *name, int ncols, LOCKMODE lockmode)
{
	Relation	rel = table_open(idem_relation_oid(name), lockmode);
	TupleDesc	desc = RelationGetDescr(rel);
	bool		fits = desc->natts == ncols;

	for (int i = 0; fits && i < ncols; i++)
		fits = !TupleDescAttr(desc, i)->attisdropped;
	if (!fits)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table %s does not fit the loaded library", name),
				 errhint("Run ALTER EXTENSION idem_action UPDATE, or restart sessions that loaded an older library.")));
	if (lockmode != AccessShareLock && rel->trigdesc != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("table %s has trigger \"%s\"", name, rel->trigdesc->triggers[0].tgname),
				 errdetail("The ledger writes its rows directly, so a trigger or a foreign key on them would not fire."),
				 errhint("Drop the trigger, or the foreign key that made it.")));
	return rel;
}

void
idem_table_open(IdemTable *table, const char *name, int ncols, LOCKMODE lockmode)
{
	table->rel = idem_relation_open(name, ncols, lockmode);
	table->slot = NULL;
	table->estate = NULL;
	table->indexes = NULL;
	table->context = CurrentMemoryContext;
}

void
idem_table_close(IdemTable *table, LOCKMODE lockmode)
{
	if (table->slot != NULL)
		ExecDropSingleTupleTableSlot(table->slot);
	if (table->indexes != NULL)
	{
		ExecCloseIndices(table->indexes);
		FreeExecutorState(table->estate);
	}
	table_close(table->rel, lockmode);
}

/* an empty slot to build a row in; stored by ExecStoreVirtualTuple */
TupleTableSlot *
idem_table_slot(IdemTable *table)
{
	if (table->slot == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(table->context);

		table->slot = MakeSingleTupleTableSlot(RelationGetDescr(table->rel), &TTSOpsVirtual);
		MemoryContextSwitchTo(old);
	}
	else
		ExecClearTuple(table->slot);
	return table->slot;
}

static void
open_indexes(IdemTable *table)
{
	MemoryContext old;

	if (table->indexes != NULL)
		return;
	old = MemoryContextSwitchTo(table->context);
	table->estate = CreateExecutorState();
	table->indexes = makeNode(ResultRelInfo);
	/* 0: there is no range table to ask for updated columns */
	InitResultRelInfo(table->indexes, table->rel, 0, NULL, 0);
	ExecOpenIndices(table->indexes, false);
	MemoryContextSwitchTo(old);
}

/*
 * Writes the row in the slot and all its index entries.  With an arbiter, a
 * unique index, a duplicate there makes it false without waiting or raising:
 * the caller then has to delete the row again.
 */
bool
idem_table_insert(IdemTable *table, Oid arbiter)
{
	List	   *arbiters = OidIsValid(arbiter) ? list_make1_oid(arbiter) : NIL;
	bool		conflict = false;

	open_indexes(table);
	idem_confirm_note_write();
	table_tuple_insert(table->rel, table->slot, GetCurrentCommandId(true), 0, NULL);
	if (table->indexes->ri_NumIndices > 0)
		list_free(ExecInsertIndexTuples(table->indexes, table->estate,
										OidIsValid(arbiter) ? EIIT_NO_DUPE_ERROR : 0,
										table->slot, arbiters, &conflict));
	return !conflict;
}

/* after table_tuple_update of the row in the slot */
void
idem_table_index_update(IdemTable *table, TU_UpdateIndexes which)
{
	if (which == TU_None)
		return;
	open_indexes(table);
	list_free(ExecInsertIndexTuples(table->indexes, table->estate,
									EIIT_IS_UPDATE |
									(idem_only_summarizing(which) ? EIIT_ONLY_SUMMARIZING : 0),
									table->slot, NIL, NULL));
}
