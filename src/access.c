/*-------------------------------------------------------------------------
 *
 * access.c
 *	  Acting as the owner of the ledger, and who has which level.
 *
 * Callers have EXECUTE on functions and SELECT on views, never a right on a
 * table.  What a level may do is data: the view idem.privileges, next to the
 * rest of the privilege model in 90_privileges.sql.  grant_access turns it into
 * GRANTs and remembers the level in idem_access, so that an upgrade can apply
 * it to what the new version brings.
 *
 * The code acts as the ledger's owner only between idem_owner_enter and
 * idem_owner_leave, and runs nothing there but statements of its own with every
 * name qualified.  Since the grammar itself looks some operators up by name, as
 * for IS DISTINCT FROM and IN, the search path there is pg_catalog too.  An error
 * in between puts the caller back.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/access.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "access.h"
#include "access/htup_details.h"
#include "arg.h"
#include "catalog/namespace.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_type.h"
#include "detail.h"
#include "executor/spi.h"
#include "idem_action.h"
#include "ledger.h"
#include "miscadmin.h"
#include "nodes/value.h"
#include "parser/parse_func.h"
#include "role.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/tuplestore.h"


#define FETCH_ROWS 1000			/* of a query whose result may be large */

/* GRANT and REVOKE change the same catalog rows whatever the role, and do not
 * wait for each other there: XX000 "tuple concurrently updated" */
#define SQL_LOCK_ACCESS \
	"LOCK TABLE idem.idem_access IN SHARE ROW EXCLUSIVE MODE"
#define HAS_ROLE "idem.role_here(a.role, a.role_oid, a.roles_of) OPERATOR(pg_catalog.=) $1"
#define SQL_LEVEL_EXISTS \
	"SELECT FROM idem.privileges WHERE level OPERATOR(pg_catalog.=) $1 LIMIT 1"
#define SQL_REMEMBER \
	"INSERT INTO idem.idem_access SELECT $4, $2, $3, pg_catalog.clock_timestamp(), $1, $5" \
	" WHERE NOT EXISTS (SELECT FROM idem.idem_access a WHERE " HAS_ROLE " AND a.level OPERATOR(pg_catalog.=) $2)"
#define SQL_FORGET \
	"DELETE FROM idem.idem_access a WHERE (" HAS_ROLE " OR a.roles_of OPERATOR(pg_catalog.=) $3 AND a.role_oid OPERATOR(pg_catalog.=) $1)" \
	" AND a.level OPERATOR(pg_catalog.=) $2"
#define SQL_REVOKES \
	"SELECT pg_catalog.format('REVOKE %s ON %s FROM %I', p.privilege, p.object, pg_catalog.pg_get_userbyid($1))" \
	" FROM idem.privileges p"
#define SQL_GRANTS \
	"SELECT DISTINCT pg_catalog.format('GRANT %s ON %s TO %I', p.privilege, p.object, pg_catalog.pg_get_userbyid($1))" \
	" FROM idem.privileges p JOIN idem.idem_access a ON p.level OPERATOR(pg_catalog.=) a.level" \
	" WHERE " HAS_ROLE

PG_FUNCTION_INFO_V1(idem_grant_access);
PG_FUNCTION_INFO_V1(idem_revoke_access);

static Oid
ledger_owner(void)
{
	Oid			schema = get_namespace_oid(IDEM_SCHEMA, false);
	HeapTuple	tuple = SearchSysCache1(NAMESPACEOID, ObjectIdGetDatum(schema));
	Oid			owner;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for schema %u", schema);
	owner = ((Form_pg_namespace) GETSTRUCT(tuple))->nspowner;
	ReleaseSysCache(tuple);
	return owner;
}

/* whether a role is the ledger's owner, or may do what the owner may */
bool
idem_is_owner(Oid user)
{
	return has_privs_of_role(user, ledger_owner());
}

void
idem_owner_enter(IdemOwner *caller)
{
	Oid			owner = ledger_owner();

	GetUserIdAndSecContext(&caller->user, &caller->sec_context);
	SetUserIdAndSecContext(owner, caller->sec_context |
						   SECURITY_LOCAL_USERID_CHANGE | SECURITY_NOFORCE_RLS);
	caller->guc_level = NewGUCNestLevel();
	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
}

void
idem_owner_leave(const IdemOwner *caller)
{
	AtEOXact_GUC(true, caller->guc_level);
	SetUserIdAndSecContext(caller->user, caller->sec_context);
}

/* whether a role may call a function of the ledger, by its unique name */
bool
idem_may_execute(Oid user, const char *function)
{
	List	   *name = list_make2(makeString(pstrdup(IDEM_SCHEMA)), makeString(pstrdup(function)));
	Oid			any = InvalidOid;
	Oid			oid = LookupFuncName(name, -1, &any, true);

	return OidIsValid(oid) &&
		DatumGetBool(DirectFunctionCall3(has_function_privilege_id_id,
										 ObjectIdGetDatum(user),
										 ObjectIdGetDatum(oid),
										 CStringGetTextDatum("EXECUTE")));
}

/*
 * Whether a role has the level operator, that is, may call resolve_action: the
 * functions that workers share with resolvers ask for it.
 */
bool
idem_is_operator(Oid user)
{
	return idem_may_execute(user, "resolve_action");
}

/*
 * One statement of ours; its result has to be as said.  It sees what is
 * committed now, since the snapshot of the transaction may be older than the
 * rows it asks for.  Caller has connected SPI.
 */
void
idem_run(const char *sql, int nargs, Oid *types, Datum *values, const char *nulls, int expected)
{
	SPIPlanPtr	plan = SPI_prepare(sql, nargs, types);
	Snapshot	latest = RegisterSnapshot(GetLatestSnapshot());
	int			rc = SPI_execute_snapshot(plan, values, nulls, latest, InvalidSnapshot,
										  false, true, 0);

	UnregisterSnapshot(latest);
	SPI_freeplan(plan);
	if (rc != expected)
		elog(ERROR, "SPI_execute_snapshot returned %s", SPI_result_code_string(rc));
}

/*
 * The result of a query of ours, run as the ledger's owner with the snapshot of
 * the calling statement, as the rows of a function that has called
 * InitMaterializedSRF.
 */
void
idem_owner_return_query(ReturnSetInfo *rsinfo, const char *sql, int nargs, Oid *types, Datum *values)
{
	IdemOwner	caller;
	Portal		portal;

	SPI_connect();
	idem_owner_enter(&caller);
	portal = SPI_cursor_open_with_args(NULL, sql, nargs, types, values, NULL, true, 0);
	do
	{
		CHECK_FOR_INTERRUPTS();
		SPI_cursor_fetch(portal, true, FETCH_ROWS);
		for (uint64 i = 0; i < SPI_processed; i++)
			tuplestore_puttuple(rsinfo->setResult, SPI_tuptable->vals[i]);
		SPI_freetuptable(SPI_tuptable);
	} while (SPI_processed > 0);
	SPI_cursor_close(portal);
	idem_owner_leave(&caller);
	SPI_finish();
}

/* runs the statements that a query of ours lists */
static void
run_listed(const char *sql, Oid role)
{
	Oid			type = OIDOID;
	Datum		value = ObjectIdGetDatum(role);
	SPITupleTable *list;

	idem_run(sql, 1, &type, &value, NULL, SPI_OK_SELECT);
	list = SPI_tuptable;
	for (uint64 i = 0; i < list->numvals; i++)
		idem_run(SPI_getvalue(list->vals[i], list->tupdesc, 1), 0, NULL, NULL, NULL, SPI_OK_UTILITY);
}

/* stores or removes a level, then makes the role's rights what is stored */
static void
change_access(FunctionCallInfo fcinfo, bool grant)
{
	Oid			types[5] = {OIDOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID};
	Datum		values[5];
	Oid			role;
	bool		role_exists;
	text	   *level;
	IdemOwner	caller;
	IdemEvent	line = {.event = grant ? "access_granted" : "access_revoked"};
	StringInfoData detail;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("role and level must not be null")));
	role = PG_GETARG_OID(0);
	level = PG_GETARG_TEXT_PP(1);
	role_exists = SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(role));
	if (grant && !role_exists)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("there is no role %u", role)));

	SPI_connect();
	values[0] = ObjectIdGetDatum(role);
	values[1] = PointerGetDatum(level);
	values[2] = CStringGetTextDatum(GetUserNameFromId(GetUserId(), false));
	idem_owner_enter(&caller);
	idem_run(SQL_LOCK_ACCESS, 0, NULL, NULL, NULL, SPI_OK_UTILITY);
	idem_run(SQL_LEVEL_EXISTS, 1, &types[1], &values[1], NULL, SPI_OK_SELECT);
	if (SPI_processed == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("there is no level \"%s\"", idem_shown_text(level)),
				 errhint("SELECT DISTINCT level FROM idem.privileges shows the levels.")));
	if (grant)
	{
		values[3] = CStringGetTextDatum(GetUserNameFromId(role, false));
		values[4] = CStringGetTextDatum(idem_roles_of());
		idem_run(SQL_REMEMBER, 5, types, values, NULL, SPI_OK_INSERT);
	}
	else
	{
		/* of a role that was dropped here, its number is left */
		values[2] = CStringGetTextDatum(idem_roles_of());
		idem_run(SQL_FORGET, 3, types, values, NULL, SPI_OK_DELETE);
	}
	/* the owner has every right already, and would lose some by a revoke */
	if (role_exists && role != GetUserId())
	{
		run_listed(SQL_REVOKES, role);
		run_listed(SQL_GRANTS, role);
	}
	idem_owner_leave(&caller);

	idem_detail_start(&detail);
	idem_detail_add(&detail, "role", role_exists ? GetUserNameFromId(role, false) : "dropped");
	idem_detail_add_text(&detail, "level", level);
	line.detail = idem_detail_end(&detail);
	idem_ledger_append(&line);
	SPI_finish();
}

Datum
idem_grant_access(PG_FUNCTION_ARGS)
{
	change_access(fcinfo, true);
	PG_RETURN_VOID();
}

Datum
idem_revoke_access(PG_FUNCTION_ARGS)
{
	change_access(fcinfo, false);
	PG_RETURN_VOID();
}
