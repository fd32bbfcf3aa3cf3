/*
 * What the ledger needs done from time to time: src/maintenance.c.
 */

/*
 * CALL idem.run_maintenance(batch int, max_batches int)
 *
 * One pass over the ledger: lease ends go by the doubt list, contents past
 * keep_content are purged, keys past keep_key forgotten.  Commits batch by batch
 * and can be cancelled at any time; what is done stays done.  Rests as VACUUM
 * does, by vacuum_cost_delay and vacuum_cost_limit.
 *
 *	batch		how many actions one transaction changes at most, 1 to 1000000
 *	max_batches	how many batches at most; null for a whole pass
 *
 * Errors: 25001, an open transaction; 22023, a bad argument; 25006.
 */
CREATE PROCEDURE idem.run_maintenance(batch int DEFAULT 1000, max_batches int DEFAULT NULL)
LANGUAGE C
AS 'MODULE_PATHNAME', 'idem_run_maintenance';

COMMENT ON PROCEDURE idem.run_maintenance(int, int) IS
'one pass over the ledger: lease ends, contents purged, keys forgotten';

/*
 * idem.apply_retention(intent text) returns bigint
 *
 * Retention is computed when an action ends; this rewrites it for the finished
 * actions of an intent by the rule as it is now.
 *
 *	intent	the intent
 *
 * Result: how many changed.
 * Errors: IA005, no rule; 22023, no intent; 25006; 40001.
 * Volatile.
 */
CREATE FUNCTION idem.apply_retention(intent text)
RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_apply_retention';

COMMENT ON FUNCTION idem.apply_retention(text) IS
'rewrites the retention of an intent''s finished actions by its rule as it is now';

/*
 * idem.after_restore(since timestamptz, note text) returns bigint
 *
 * After the database was restored to an older moment: whatever is pending or in
 * progress may have been handed out after it, so all of it goes to
 * needs_attention (ledger_restored).
 *
 *	since	the moment that was restored to, for the history
 *	note	what happened, for whoever looks at the actions
 *
 * Result: how many actions.
 * Errors: 22023, a null, a blank note or a moment that has not come; 25006;
 * 40001.
 * Volatile.
 */
CREATE FUNCTION idem.after_restore(since timestamptz, note text)
RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_after_restore';

COMMENT ON FUNCTION idem.after_restore(timestamptz, text) IS
'after a restore to an older moment: everything open goes to a person';

/*
 * idem.accept_copy(actor text) returns void
 *
 * Says that the actions of this ledger are to be handed out in this database of
 * this cluster.  A ledger that was restored, copied with its database, upgraded
 * by pg_upgrade or filled by a subscription hands nothing to takers until then.
 * Where the place is accepted already, nothing changes.
 *
 *	actor	the person, as the application names them
 *
 * Errors: 25006, a standby or a read-only transaction.
 * Volatile.
 */
CREATE FUNCTION idem.accept_copy(actor text DEFAULT NULL)
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_accept_copy';

COMMENT ON FUNCTION idem.accept_copy(text) IS
'lets takers have the actions of a ledger that was copied or restored';

/*
 * idem.acknowledge_timeline(actor text) returns void
 *
 * Says that a promotion or a recovery has lost nothing; where it has, call
 * after_restore instead.  Where the timeline is known, nothing changes.
 *
 *	actor	the person, as the application names them
 *
 * Errors: 25006, a standby or a read-only transaction.
 * Volatile.
 */
CREATE FUNCTION idem.acknowledge_timeline(actor text DEFAULT NULL)
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_acknowledge_timeline';

COMMENT ON FUNCTION idem.acknowledge_timeline(text) IS
'says that the last change of the timeline has lost nothing';

/*
 * idem.confirm_time(actor text) returns timestamptz
 *
 * Says that the clock of the server is right, where it is not believed: after it
 * was set by more than an hour, or when the ledger was not used for more than 30
 * days.  Until then, or until the clock is back, nothing is forgotten or purged.
 *
 *	actor	the person, for the history
 *
 * Result: the time that was confirmed; look whether it is right.
 * Errors: 25001, an open transaction; 25006.
 * Volatile.
 */
CREATE FUNCTION idem.confirm_time(actor text DEFAULT NULL)
RETURNS timestamptz
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_confirm_time';

COMMENT ON FUNCTION idem.confirm_time(text) IS
'says that the clock of the server is right, where it is not believed';

/*
 * idem.clock_problem() returns text
 *
 * Why the clock is not believed; null while it is, and on a standby.
 *
 * Errors: none.  Volatile.
 */
CREATE FUNCTION idem.clock_problem()
RETURNS text
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_clock_problem';

COMMENT ON FUNCTION idem.clock_problem() IS
'why the clock is not believed; null while it is, and on a standby';

/*
 * idem.worker_state() returns (last_pass, problem, running, uncounted)
 *
 * What the background worker left in shared memory about this database; no row
 * where the library was not preloaded.
 *
 * Errors: none.  Volatile.
 */
CREATE FUNCTION idem.worker_state(
	OUT last_pass timestamptz,
	OUT problem text,
	OUT running boolean,
	OUT uncounted bigint
)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
AS 'MODULE_PATHNAME', 'idem_worker_state';

COMMENT ON FUNCTION idem.worker_state() IS
'what the background worker left in shared memory about this database';

/* the version of the library that this session has loaded */
CREATE FUNCTION idem.library_version()
RETURNS text
LANGUAGE C STABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_library_version';

COMMENT ON FUNCTION idem.library_version() IS
'the version of the library that this session has loaded';

CREATE VIEW idem.worker_status WITH (security_barrier) AS
SELECT current_database() AS database, w.last_pass, b.purge_backlog, b.lease_backlog,
	nullif(concat_ws('; ',
		CASE WHEN current_setting('idem_action.start_paused', true)::boolean THEN 'idem_action.start_paused is on: nothing is handed out' END,
		CASE WHEN s.timeline IS NULL THEN 'this ledger was copied or restored: takes answer nothing until idem.accept_copy()' END,
		CASE WHEN s.timeline <> idem.timeline()::text THEN 'the timeline has changed: the last commits before that may be lost; idem.after_restore() if they are, idem.acknowledge_timeline() if not' END,
		CASE WHEN w IS NULL THEN 'the library is not in shared_preload_libraries: nothing is done in the background and repeats are not counted; CALL idem.run_maintenance()' END,
		CASE WHEN NOT current_setting('idem_action.worker', true)::boolean THEN 'idem_action.worker is off: nothing is done in the background; CALL idem.run_maintenance()' END,
		CASE WHEN pg_is_in_recovery() THEN 'this is a standby: the primary does the maintenance' WHEN NOT w.running THEN 'the launcher is not running: where the log tells of too many background workers, raise max_worker_processes; CALL idem.run_maintenance() until then' END,
		(SELECT format('no rule for %s, which had one: calls about its actions are denied and passes leave them alone until idem.define_rule()', string_agg(DISTINCT quote_literal(m.intent), ', '))
			FROM (SELECT unnest(b.without_rule) UNION ALL SELECT i.name FROM idem.idem_state i WHERE i.kind = 'ruled') AS m (intent)
			WHERE m.intent NOT IN (SELECT r.intent FROM idem.idem_rules r) HAVING count(*) > 0),
		(SELECT format('the rule of %L names %s, which is no role here: nobody is in it until idem.define_rule()', d.intent, d.names)
			|| CASE WHEN d.n > 1 THEN format(', nor are roles of %s other rules', d.n - 1) ELSE '' END
			FROM (SELECT r.intent, concat_ws(' and ', quote_ident(x.role), quote_ident(y.role)) AS names, count(*) OVER () AS n
				FROM idem.idem_rules r
					LEFT JOIN LATERAL (SELECT r.worker_role AS role WHERE idem.role_here(r.worker_role, r.worker_role_oid, r.roles_of) IS NULL) x ON true
					LEFT JOIN LATERAL (SELECT r.resolver_role AS role WHERE idem.role_here(r.resolver_role, r.resolver_role_oid, r.roles_of) IS NULL) y ON true
				WHERE x.role IS NOT NULL OR y.role IS NOT NULL ORDER BY r.intent LIMIT 1) d),
		(SELECT format('idem.access names %s, which is no role here', string_agg(DISTINCT quote_ident(a.role), ', ')) FROM idem.idem_access a WHERE idem.role_here(a.role, a.role_oid, a.roles_of) IS NULL HAVING count(*) > 0),
		w.problem,
		idem.clock_problem(),
		CASE WHEN w.last_pass > clock_timestamp() THEN format('last_pass lies ahead by %s: the clock was set back', w.last_pass - clock_timestamp()) END,
		CASE WHEN w.uncounted > 0 THEN format('%s repeats since the start were not counted: too many at once', w.uncounted) END), '') AS problem,
	idem.library_version() AS library_version,
	(SELECT e.extversion FROM pg_extension e WHERE e.extname = 'idem_action') AS sql_version
FROM (
	SELECT count(*) FILTER (WHERE a.lease_until < now()) AS lease_backlog,
		count(*) FILTER (WHERE a.finished_at IS NOT NULL AND a.reason IS DISTINCT FROM 'double_result'
			AND (a.forget_after < now() OR a.purge_after < now() AND NOT a.purged)) AS purge_backlog,
		array_agg(DISTINCT a.intent) FILTER (WHERE a.ruled AND a.intent NOT IN (SELECT r.intent FROM idem.idem_rules r)) AS without_rule
	FROM idem.idem_actions a
) b
	CROSS JOIN (
		SELECT (SELECT value FROM idem.idem_state WHERE kind = 'accepted' AND name = idem.place()) AS timeline
	) s
	LEFT JOIN idem.worker_state() w ON true;

COMMENT ON VIEW idem.worker_status IS 'how far maintenance is in this database, and what keeps it from going on';
COMMENT ON COLUMN idem.worker_status.last_pass IS 'end of the last whole pass since the server was started';
COMMENT ON COLUMN idem.worker_status.purge_backlog IS 'finished actions whose contents or key should be gone';
COMMENT ON COLUMN idem.worker_status.lease_backlog IS 'leases that are over and not judged';
