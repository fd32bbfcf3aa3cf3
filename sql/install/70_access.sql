/*
 * Who has which level: src/access.c.  What a level may do: 90_privileges.sql.
 */

/*
 * idem.role_here(role text, role_oid oid, roles_of text) returns oid
 *
 * The role that a rule or a level names, as it is stored in idem_rules and
 * idem_access; null where it is none of this cluster's.
 *
 * Errors: none.  Stable.
 */
CREATE FUNCTION idem.role_here(role text, role_oid oid, roles_of text)
RETURNS oid
LANGUAGE C STABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_role_here_sql';

COMMENT ON FUNCTION idem.role_here(text, oid, text) IS
'the role that a rule or a level names; null where it is none of this cluster''s';

/*
 * idem.grant_access(role, level) returns void
 *
 * Gives a role what a level may do, and remembers it.
 *
 *	role	the role
 *	level	worker, operator, admin or analyst
 *
 * Errors: 22023, no such level; 42704, no such role.
 * Volatile.
 */
CREATE FUNCTION idem.grant_access(role regrole, level text)
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_grant_access';

COMMENT ON FUNCTION idem.grant_access(regrole, text) IS
'gives a role what a level may do, and remembers it';

/*
 * idem.revoke_access(role, level) returns void
 *
 * Takes a level back; what the role may do by other levels stays.
 *
 *	role	the role
 *	level	the level to take back
 *
 * Errors: 22023, no such level; 42704, no such role.
 * Volatile.
 */
CREATE FUNCTION idem.revoke_access(role regrole, level text)
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_revoke_access';

COMMENT ON FUNCTION idem.revoke_access(regrole, text) IS
'takes a level back from a role';
