/*-------------------------------------------------------------------------
 *
 * observer.c
 *	  Others that have to hear of rows which we write without the executor.
 *
 * pg_repack copies a table while it is in use.  A trigger of its own logs what
 * changes meanwhile, and the log is applied to the copy before that takes the
 * table's place: a write that the trigger does not see is lost with the old
 * file.  So we fire it, as the executor would.  It is created, and the files are
 * exchanged, under AccessExclusiveLock; a writer keeps its lock on the table to
 * the end of its transaction, and looks for triggers after it got the lock.  So
 * no write escapes the log.
 *
 * Any other trigger is refused when a table is opened for writing: BEFORE
 * triggers and constraints could not do from here what they promise.
 *
 * Modules that audit or restrict statements, such as pgaudit, do so in
 * ExecutorCheckPerms_hook.  Where there is one, the first write of a kind to a
 * table in a statement also runs a statement of that kind that writes nothing.
 * Calling the hook itself would not do: pgaudit keeps what it is given until the
 * end of the statement around us, in place of what that one reads.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/observer.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "observer.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/pg_proc.h"
#include "commands/extension.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "idem_action.h"
#include "nodes/makefuncs.h"
#include "utils/plancache.h"

/* raises where the table has a trigger that we do not fire */
void
idem_refuse_triggers(Relation rel)
{
	Oid			pg_repack = get_extension_oid("pg_repack", true);

	for (int i = 0; i < rel->trigdesc->numtriggers; i++)
	{
		const Trigger *trigger = &rel->trigdesc->triggers[i];

		if (!OidIsValid(pg_repack) ||
			getExtensionOfObject(ProcedureRelationId, trigger->tgfoid) != pg_repack)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("table %s has trigger \"%s\"", RelationGetRelationName(rel), trigger->tgname),
					 errdetail("The ledger writes its rows directly, so a trigger or a foreign key on them would not fire."),
					 errhint("Drop the trigger, or the foreign key that made it.")));
	}
}

/* as the executor does at the end of a statement that wrote one row */
static void
fire_triggers(Relation rel, ItemPointer old, TupleTableSlot *new)
{
	EState	   *estate = CreateExecutorState();
	MemoryContext caller = MemoryContextSwitchTo(estate->es_query_cxt);
	ResultRelInfo *target = makeNode(ResultRelInfo);

	/* 0: there is no range table to ask for updated columns */
	InitResultRelInfo(target, rel, 0, NULL, 0);
	/* where the trigger manager looks the table up again */
	estate->es_opened_result_relations = list_make1(target);
	AfterTriggerBeginQuery();
	if (old == NULL)
		ExecARInsertTriggers(estate, target, new, NIL, NULL);
	else if (new == NULL)
		ExecARDeleteTriggers(estate, target, old, NULL, NULL, false);
	else
		ExecARUpdateTriggers(estate, target, NULL, NULL, old, NULL, new, NIL, NULL, false);
	AfterTriggerEndQuery(estate);
	ExecResetTupleTable(estate->es_tupleTable, false);
	MemoryContextSwitchTo(caller);
	FreeExecutorState(estate);
}

/* whether it is the first such write of the client's statement */
static bool
is_news(Oid relid, CmdType kind)
{
	static struct
	{
		Oid			relid;
		CmdType		kind;
	}			heard[16];		/* four tables are written directly */
	static int	nheard = 0;
	static TransactionId transaction = InvalidTransactionId;
	static TimestampTz statement = 0;

	if (transaction != GetTopTransactionIdIfAny() ||
		statement != GetCurrentStatementStartTimestamp())
	{
		transaction = GetTopTransactionIdIfAny();
		statement = GetCurrentStatementStartTimestamp();
		nheard = 0;
	}
	for (int i = 0; i < nheard; i++)
	{
		if (heard[i].relid == relid && heard[i].kind == kind)
			return false;
	}
	if (nheard < (int) lengthof(heard))
	{
		heard[nheard].relid = relid;
		heard[nheard].kind = kind;
		nheard++;
	}
	return true;
}

/* every table that is written directly has a column action_id */
#define SQL_INSERT "INSERT INTO idem.%s (action_id) SELECT NULL::pg_catalog.uuid WHERE false"
#define SQL_UPDATE "UPDATE idem.%s SET action_id = NULL WHERE false"
#define SQL_DELETE "DELETE FROM idem.%s WHERE false"

/*
 * Rights are those of the table's owner, as for what a view is made of, and the
 * user stays who it is: pgaudit leaves out what functions do as another user.
 */
static void
run_empty_statement(Relation rel, CmdType kind)
{
	const char *table = RelationGetRelationName(rel);
	SPIPlanPtr	plan;
	CachedPlanSource *source;

	SPI_connect();
	plan = SPI_prepare(kind == CMD_INSERT ? psprintf(SQL_INSERT, table) :
					   kind == CMD_UPDATE ? psprintf(SQL_UPDATE, table) :
					   psprintf(SQL_DELETE, table), 0, NULL);
	source = linitial(SPI_plan_get_plan_sources(plan));
	idem_check_rights_as(linitial_node(Query, source->query_list), rel->rd_rel->relowner);
	if (SPI_execute_plan(plan, NULL, NULL, false, 0) < 0)
		elog(ERROR, "could not run the statement that stands for a write to %s", table);
	SPI_finish();
}

void
idem_tell_observers(Relation rel, ItemPointer old, TupleTableSlot *new)
{
	CmdType		kind = old == NULL ? CMD_INSERT : new == NULL ? CMD_DELETE : CMD_UPDATE;

	if (rel->trigdesc != NULL)
		fire_triggers(rel, old, new);
	if (ExecutorCheckPerms_hook != NULL && is_news(RelationGetRelid(rel), kind))
		run_empty_statement(rel, kind);
}
