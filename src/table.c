/*-------------------------------------------------------------------------
 *
 * table.c
 *	  Writing rows of the ledger's tables without the executor.
 *
 * Every index is maintained, also one that a DBA has added.  Constraints are
 * not checked here: who builds the row answers for them.  What a publication asks
 * of updates and deletes is checked as for SQL.
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
#include "catalog/pg_am.h"
#include "catalog/pg_constraint.h"
#include "commands/comment.h"
#include "confirm.h"
#include "idem_action.h"
#include "nodes/makefuncs.h"
#include "observer.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"

/* what sql/install/15_ledger.sql says of the constraints that the library checks */
#define IDEM_CHECKED "checked by the library too"

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
	if (rel->rd_rel->relam != HEAP_TABLE_AM_OID)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("table %s is not a heap", name),
				 errdetail("The ledger relies on how heaps keep versions of a row."),
				 errhint("Run ALTER TABLE idem.%s SET ACCESS METHOD heap.", name)));
	if (!fits)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table %s does not fit the loaded library", name),
				 errhint("Run ALTER EXTENSION idem_action UPDATE, or restart sessions that loaded an older library.")));
	if (lockmode != AccessShareLock && rel->trigdesc != NULL)
		idem_refuse_triggers(rel);
	return rel;
}

/* the table whose constraints were found to be ours, since it changed last */
static Oid	constraints_checked = InvalidOid;
static bool changed_meanwhile;

static void
forget_constraints(Datum arg, Oid relid)
{
	changed_meanwhile = true;
	if (relid == constraints_checked || !OidIsValid(relid))
		constraints_checked = InvalidOid;
}

/*
 * Refuses a table that has a CHECK constraint which is not the ledger's.  Those
 * that the library checks itself carry a comment from the install script, which
 * goes with the constraint when somebody puts another one in its place.
 */
void
idem_table_check_constraints(Relation rel)
{
	static bool registered = false;
	const TupleConstr *constr = RelationGetDescr(rel)->constr;

	if (RelationGetRelid(rel) == constraints_checked)
		return;
	if (!registered)
		CacheRegisterRelcacheCallback(forget_constraints, (Datum) 0);
	registered = true;
	changed_meanwhile = false;
	for (int i = 0; constr != NULL && i < constr->num_check; i++)
	{
		const char *name = constr->check[i].ccname;
		Oid			oid = get_relation_constraint_oid(RelationGetRelid(rel), name, true);
		char	   *comment = GetComment(oid, ConstraintRelationId, 0);

		if (comment != NULL && strcmp(comment, IDEM_CHECKED) == 0)
			continue;
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("table %s has CHECK constraint \"%s\", which is not the ledger's",
						RelationGetRelationName(rel), name),
				 errdetail("The ledger writes its rows directly, so the constraint would not be checked."),
				 errhint("Drop the constraint.")));
	}
	/* only now: the look-ups may have failed, or have told of changes */
	if (!changed_meanwhile)
		constraints_checked = RelationGetRelid(rel);
}

void
idem_table_open(IdemTable *table, const char *name, int ncols, LOCKMODE lockmode)
{
	table->rel = idem_relation_open(name, ncols, lockmode);
	table->slot = NULL;
	table->estate = NULL;
	table->indexes = NULL;
	table->arbiters = NIL;
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
 * The unique indexes over the columns of the primary key: itself, and what REINDEX
 * CONCURRENTLY or a DBA has put beside it.
 */
static List *
arbiters_of(IdemTable *table)
{
	ResultRelInfo *indexes = table->indexes;
	Oid			pkey = RelationGetPrimaryKeyIndex(table->rel, false);
	Form_pg_index primary = NULL;
	List	   *arbiters = NIL;

	for (int i = 0; i < indexes->ri_NumIndices; i++)
	{
		if (RelationGetRelid(indexes->ri_IndexRelationDescs[i]) == pkey)
			primary = indexes->ri_IndexRelationDescs[i]->rd_index;
	}
	for (int i = 0; primary != NULL && i < indexes->ri_NumIndices; i++)
	{
		Relation	index = indexes->ri_IndexRelationDescs[i];
		Form_pg_index form = index->rd_index;
		bool		same = form->indisunique && form->indimmediate &&
			form->indnkeyatts == primary->indnkeyatts &&
			RelationGetIndexPredicate(index) == NIL;

		for (int j = 0; same && j < form->indnkeyatts; j++)
			same = form->indkey.values[j] == primary->indkey.values[j];
		if (same)
			arbiters = lappend_oid(arbiters, RelationGetRelid(index));
	}
	return arbiters;
}

/*
 * Writes the row in the slot and all its index entries.  With "arbitrate" a
 * duplicate of the primary key makes it false without waiting or raising: the
 * caller then has to retract the row.  Every unique index over the same
 * columns arbitrates, or the one that REINDEX CONCURRENTLY is building would raise.
 */
bool
idem_table_insert(IdemTable *table, bool arbitrate)
{
	bool		conflict = false;

	open_indexes(table);
	if (arbitrate && table->arbiters == NIL)
	{
		MemoryContext old = MemoryContextSwitchTo(table->context);

		table->arbiters = arbiters_of(table);
		MemoryContextSwitchTo(old);
	}
	idem_confirm_note_write();
	table_tuple_insert(table->rel, table->slot, GetCurrentCommandId(true), 0, NULL);
	if (table->indexes->ri_NumIndices > 0)
		list_free(ExecInsertIndexTuples(table->indexes, table->estate,
										arbitrate ? EIIT_NO_DUPE_ERROR : 0,
										table->slot, arbitrate ? table->arbiters : NIL, &conflict));
	if (!conflict)
		idem_row_written(table->rel, NULL, table->slot);
	return !conflict;
}

/*
 * Replaces a version that the caller has locked, or that nobody else can change,
 * by the row in the slot.
 */
void
idem_table_update(IdemTable *table, ItemPointer tid)
{
	TU_UpdateIndexes update_indexes;

	CheckCmdReplicaIdentity(table->rel, CMD_UPDATE);
	simple_table_tuple_update(table->rel, tid, table->slot, SnapshotAny, &update_indexes);
	idem_table_updated(table, tid, update_indexes);
}

/*
 * Removes the row that met a duplicate when it was inserted.  No observer heard
 * of it; pg_repack would take its removal for that of the duplicate.
 */
void
idem_table_retract(Relation rel, ItemPointer tid)
{
	CheckCmdReplicaIdentity(rel, CMD_DELETE);
	simple_table_tuple_delete(rel, tid, SnapshotAny);
}

/* removes a version that nobody else can change */
void
idem_table_delete(Relation rel, ItemPointer tid)
{
	idem_table_retract(rel, tid);
	idem_row_written(rel, tid, NULL);
}

/* after table_tuple_update of "old" by the row in the slot */
void
idem_table_updated(IdemTable *table, ItemPointer old, TU_UpdateIndexes which)
{
	if (which != TU_None)
	{
		open_indexes(table);
		list_free(ExecInsertIndexTuples(table->indexes, table->estate,
										EIIT_IS_UPDATE |
										(idem_only_summarizing(which) ? EIIT_ONLY_SUMMARIZING : 0),
										table->slot, NIL, NULL));
	}
	idem_row_written(table->rel, old, table->slot);
}
