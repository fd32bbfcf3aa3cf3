/*-------------------------------------------------------------------------
 *
 * role.c
 *	  Roles that rules and levels name, through renames, drops and copies.
 *
 * A role's OID means something in one cluster only: in a copy of the ledger it
 * may be somebody else's.  Its name may be given to another role later.  So
 * idem_rules and idem_access keep both, and "roles_of", the system identifier
 * and the database that they were stored in:
 *
 *	stored here		the OID decides; a rename follows, and a role made anew under
 *					the name of one that was dropped is another role
 *	elsewhere		the name decides, until accept_copy() stores the OID that the
 *					name has here
 *	neither			matches nobody
 *
 * A dump carries the name that was stored, so each pass brings it up to date.
 * It also takes the OID from a rule whose role was dropped (0 then, which no
 * name replaces) and removes the levels of such roles: in a copy made later, a
 * role that happens to have the old name is not taken for the dropped one.
 *
 * Rights are GRANTs in the catalog and go along in a dump by name, or not at
 * all; idem_access only remembers the levels.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/role.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "role.h"
#include "access.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "detail.h"
#include "executor/spi.h"
#include "ledger.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "table.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

PG_FUNCTION_INFO_V1(idem_role_here_sql);

/* what "roles_of" is for rows that are stored here */
char *
idem_roles_of(void)
{
	return psprintf(UINT64_FORMAT "/%u", GetSystemIdentifier(), MyDatabaseId);
}

/* the role's OID in this cluster, or InvalidOid */
Oid
idem_role_here(const IdemRole *role)
{
	if (!OidIsValid(role->oid))
		return InvalidOid;
	if (role->is_foreign)
		return get_role_oid(role->name, true);
	return SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(role->oid)) ? role->oid : InvalidOid;
}

/* for people: as the role is called now, or was when it was stored */
const char *
idem_role_name(const IdemRole *role)
{
	Oid			here = idem_role_here(role);

	return OidIsValid(here) ? GetUserNameFromId(here, false) : role->name;
}

/* a role that is not there matches nobody, not even a superuser */
bool
idem_role_has_member(const IdemRole *role, Oid user)
{
	Oid			here = idem_role_here(role);

	return OidIsValid(here) && has_privs_of_role(user, here);
}

/* idem.role_here(role, role_oid, roles_of), null where there is none */
Datum
idem_role_here_sql(PG_FUNCTION_ARGS)
{
	IdemRole	role = {
		.name = text_to_cstring(PG_GETARG_TEXT_PP(0)),
		.oid = PG_GETARG_OID(1),
		.is_foreign = strcmp(text_to_cstring(PG_GETARG_TEXT_PP(2)), idem_roles_of()) != 0,
	};
	Oid			here = idem_role_here(&role);

	if (!OidIsValid(here))
		PG_RETURN_NULL();
	PG_RETURN_OID(here);
}

#define IS_CURRENT(role) \
	"EXISTS (SELECT FROM pg_catalog.pg_roles p" \
	" WHERE p.oid OPERATOR(pg_catalog.=) r." role "_oid AND p.rolname OPERATOR(pg_catalog.=) r." role ")"
#define IS_STALE(role) \
	"(r." role "_oid OPERATOR(pg_catalog.<>) 0 AND NOT " IS_CURRENT(role) ")"
#define SQL_STALE \
	"SELECT FROM idem.idem_rules r WHERE r.roles_of OPERATOR(pg_catalog.=) $1" \
	" AND (" IS_STALE("worker_role") " OR " IS_STALE("resolver_role") ")" \
	" UNION ALL SELECT FROM idem.idem_access r WHERE r.roles_of OPERATOR(pg_catalog.=) $1 AND " IS_STALE("role") \
	" LIMIT 1"

#define HERE(role) "idem.role_here(r." role ", r." role "_oid, r.roles_of)"
#define NAME_HERE(role) \
	"coalesce((SELECT p.rolname::pg_catalog.text FROM pg_catalog.pg_roles p" \
	" WHERE p.oid OPERATOR(pg_catalog.=) " HERE(role) "), r." role ")"
#define OID_HERE(role) \
	"CASE WHEN r." role " IS NOT NULL THEN coalesce(" HERE(role) ", 0::pg_catalog.oid) END"

/* rules with the roles as they are here; $2 is whether of rules from elsewhere */
#define SQL_UPDATE_RULES \
	"UPDATE idem.idem_rules r SET roles_of = $1," \
	" worker_role = " NAME_HERE("worker_role") ", worker_role_oid = " OID_HERE("worker_role") "," \
	" resolver_role = " NAME_HERE("resolver_role") ", resolver_role_oid = " OID_HERE("resolver_role") \
	" WHERE (r.roles_of OPERATOR(pg_catalog.<>) $1) OPERATOR(pg_catalog.=) $2"
/* levels likewise; what is there already stays */
#define SQL_MOVE_ACCESS \
	"INSERT INTO idem.idem_access SELECT " NAME_HERE("role") ", r.level, r.granted_by, r.granted_at, " HERE("role") ", $1" \
	" FROM idem.idem_access r WHERE r.roles_of OPERATOR(pg_catalog.<>) $1 AND " HERE("role") " IS NOT NULL ON CONFLICT DO NOTHING"
#define SQL_RENAME_ACCESS \
	"UPDATE idem.idem_access r SET role = " NAME_HERE("role") " WHERE r.roles_of OPERATOR(pg_catalog.=) $1 AND " IS_STALE("role")
/* levels of roles that are not here; $2 is whether of those from elsewhere */
#define SQL_DROP_ACCESS \
	"DELETE FROM idem.idem_access r WHERE (r.roles_of OPERATOR(pg_catalog.<>) $1) OPERATOR(pg_catalog.=) $2" \
	" AND ($2 OR " HERE("role") " IS NULL) RETURNING r.role, r.level, " HERE("role") " IS NULL"
#define SQL_LOCK \
	"LOCK TABLE idem.idem_rules, idem.idem_access IN SHARE ROW EXCLUSIVE MODE"
/* what a restore of single tables may have left out; see rule.c */
#define SQL_NOTE_RULES \
	"INSERT INTO idem.idem_state (kind, name, role, since)" \
	" SELECT DISTINCT 'ruled', i.intent, CURRENT_USER::pg_catalog.text, pg_catalog.clock_timestamp()" \
	" FROM (SELECT a.intent FROM idem.idem_actions a WHERE a.ruled UNION SELECT r.intent FROM idem.idem_rules r) i" \
	" WHERE NOT EXISTS (SELECT FROM idem.idem_state s WHERE s.kind OPERATOR(pg_catalog.=) 'ruled' AND s.name OPERATOR(pg_catalog.=) i.intent)" \
	" ON CONFLICT DO NOTHING"

/* a line of the history for each level of a role that is not there */
static void
record_dropped(SPITupleTable *rows)
{
	for (uint64 i = 0; i < rows->numvals; i++)
	{
		IdemEvent	line = {.event = "access_revoked"};
		StringInfoData detail;

		if (strcmp(SPI_getvalue(rows->vals[i], rows->tupdesc, 3), "t") != 0)
			continue;
		idem_detail_start(&detail);
		idem_detail_add(&detail, "role", SPI_getvalue(rows->vals[i], rows->tupdesc, 1));
		idem_detail_add(&detail, "level", SPI_getvalue(rows->vals[i], rows->tupdesc, 2));
		idem_detail_add(&detail, "reason", "there is no such role");
		line.detail = idem_detail_end(&detail);
		idem_ledger_append(&line);
	}
}

/* returns how many rows changed; caller has connected SPI and locked both
 * tables, as the owner */
static uint64
store_roles_of_here(bool foreign)
{
	Oid			types[2] = {TEXTOID, BOOLOID};
	Datum		values[2] = {CStringGetTextDatum(idem_roles_of()), BoolGetDatum(foreign)};
	uint64		changed;

	idem_run(SQL_UPDATE_RULES, 2, types, values, NULL, SPI_OK_UPDATE);
	changed = SPI_processed;
	if (foreign)
		idem_run(SQL_MOVE_ACCESS, 1, types, values, NULL, SPI_OK_INSERT);
	else
		idem_run(SQL_RENAME_ACCESS, 1, types, values, NULL, SPI_OK_UPDATE);
	changed += SPI_processed;
	idem_run(SQL_DROP_ACCESS, 2, types, values, NULL, SPI_OK_DELETE_RETURNING);
	changed += SPI_processed;
	record_dropped(SPI_tuptable);
	return changed;
}

/*
 * A pass brings the stored names up to date.  It waits for nobody: while rules
 * or levels are being changed, the next pass does it.  Caller is in a
 * transaction.
 */
void
idem_roles_refresh(void)
{
	IdemOwner	caller;
	Oid			type = TEXTOID;
	Datum		here = CStringGetTextDatum(idem_roles_of());

	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_connect();
	idem_owner_enter(&caller);
	idem_run(SQL_STALE, 1, &type, &here, NULL, SPI_OK_SELECT);
	if (SPI_processed > 0 &&
		ConditionalLockRelationOid(idem_relation_oid("idem_rules"), ShareRowExclusiveLock) &&
		ConditionalLockRelationOid(idem_relation_oid("idem_access"), ShareRowExclusiveLock))
		(void) store_roles_of_here(false);
	idem_owner_leave(&caller);
	SPI_finish();
	PopActiveSnapshot();
}

/*
 * The copy is accepted: what is stored elsewhere is stored here from now on.
 * Returns whether anything changed.
 */
bool
idem_roles_accept(void)
{
	IdemOwner	caller;
	uint64		changed;

	SPI_connect();
	idem_owner_enter(&caller);
	idem_run(SQL_LOCK, 0, NULL, NULL, NULL, SPI_OK_UTILITY);
	changed = store_roles_of_here(true);
	idem_run(SQL_NOTE_RULES, 0, NULL, NULL, NULL, SPI_OK_INSERT);
	changed += SPI_processed;
	idem_owner_leave(&caller);
	SPI_finish();
	return changed > 0;
}
