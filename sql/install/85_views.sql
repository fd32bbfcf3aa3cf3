/*
 * What analysts read.  No view shows contents: params, draft, result.
 *
 * Each view X is made of idem.all_X, to which no level has access, and of what
 * lets a caller see no more of it than the rules allow: see the end of this page
 * and src/visible.c.
 */

/*
 * The provider key of an action's generation, as src/key.c makes it:
 * docs/action-id.md has the bytes.
 */
CREATE FUNCTION idem.provider_key(action_id uuid, generation int)
RETURNS text
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_provider_key_of';

COMMENT ON FUNCTION idem.provider_key(uuid, int) IS
'the idempotency key that every attempt of a generation passes to the outside';

/*
 * A name as its caller spelled it, for a sentence: more than letters, digits and
 * the usual marks is shown as a string literal, on one line.
 */
CREATE FUNCTION idem.quote_label(label text)
RETURNS text
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_quote_label_of';

COMMENT ON FUNCTION idem.quote_label(text) IS
'a name from outside as it can stand in a sentence: as it is, or as a literal on one line';

CREATE VIEW idem.all_actions AS
SELECT a.action_id, a.scope, a.intent, a.key, a.generation, a.state, a.reason,
	a.uncertain, a.begun, a.verifying, a.approved, a.cancel_requested,
	a.attempt, a.lost, a.failures, a.worker, a.first_claimed_at, a.claimed_at,
	a.lease_until, a.due_at, a.priority, a.revision, a.external_ref, a.error,
	a.ended_by, a.source, a.event_id, a.created_at, a.finished_at,
	a.purge_after, a.forget_after, a.purged,
	idem.provider_key(a.action_id, a.generation) AS provider_key
FROM idem.idem_actions a;

/*
 * One timeline out of two sources: what happened before is in idem_events, how
 * the last attempt began and the action ended in its row.  Order by at, id.
 *
 * A hand-out is one line.  The row tells the last one; of each other attempt the
 * first line that knows when it was handed out.  The delivery that was handed it,
 * if not the first arrival, stands in a line "redelivered" of its own, which is
 * put to the hand-out here; and whether it was to be searched for is known from
 * any line of the attempt, since a search may turn into a grant.
 *
 * The digest of a draft, by which a decision is known again, is kept from guessing.
 */
CREATE VIEW idem.all_history AS
SELECT e.at, e.action_id, a.scope, e.intent, a.key, e.generation, e.attempt,
	e.event, e.role, e.actor, e.worker, e.source, e.event_id, e.detail - 'draft_digest' AS detail, 2 * e.id AS id
FROM idem.idem_events e LEFT JOIN idem.idem_actions a ON a.action_id = e.action_id
WHERE e.event <> 'redelivered'
UNION ALL
SELECT e.claimed_at, e.action_id, a.scope, e.intent, a.key, e.generation, e.attempt,
	CASE WHEN t.searching THEN 'handed_out_to_verify' ELSE 'claimed' END,
	NULL, NULL, e.worker, t.source, t.event_id, NULL, 2 * e.id - 1
FROM idem.idem_events e JOIN idem.idem_actions a ON a.action_id = e.action_id
	CROSS JOIN LATERAL (
		SELECT bool_or((x.detail ->> 'verifying')::boolean) AS searching,
			min(x.id) FILTER (WHERE x.claimed_at IS NOT NULL) AS first,
			max(x.source) FILTER (WHERE x.event = 'redelivered') AS source,
			max(x.event_id) FILTER (WHERE x.event = 'redelivered') AS event_id
		FROM idem.idem_events x
		WHERE x.action_id = e.action_id AND x.generation = e.generation AND x.attempt = e.attempt
	) t
WHERE e.claimed_at IS NOT NULL AND (e.generation, e.attempt) IS DISTINCT FROM (a.generation, a.attempt)
	AND e.id = t.first
UNION ALL
SELECT a.created_at, a.action_id, a.scope, a.intent, a.key, 1, 0,
	'recorded', NULL, NULL, NULL, a.source, a.event_id, NULL, 0
FROM idem.idem_actions a
UNION ALL
SELECT a.claimed_at, a.action_id, a.scope, a.intent, a.key, a.generation, a.attempt,
	CASE WHEN a.verifying OR t.searching THEN 'handed_out_to_verify' ELSE 'claimed' END,
	NULL, NULL, a.worker, t.source, t.event_id,
	jsonb_strip_nulls(jsonb_build_object('lease_until', a.lease_until, 'begun', nullif(a.begun, false))), 9223372036854775806
FROM idem.idem_actions a
	CROSS JOIN LATERAL (
		SELECT bool_or((x.detail ->> 'verifying')::boolean) AS searching,
			max(x.source) FILTER (WHERE x.event = 'redelivered') AS source,
			max(x.event_id) FILTER (WHERE x.event = 'redelivered') AS event_id
		FROM idem.idem_events x
		WHERE x.action_id = a.action_id AND x.generation = a.generation AND x.attempt = a.attempt
	) t
WHERE a.claimed_at IS NOT NULL
UNION ALL
SELECT a.finished_at, a.action_id, a.scope, a.intent, a.key, a.generation, a.attempt,
	a.state, NULL, NULL, a.worker, NULL, NULL,
	jsonb_strip_nulls(jsonb_build_object('external_ref', a.external_ref, 'error', a.error)), 9223372036854775807
FROM idem.idem_actions a WHERE a.state = 'completed' AND coalesce(a.ended_by, 'succeeded') = 'succeeded';

CREATE VIEW idem.all_rules AS
SELECT r.intent, r.unique_by, r.resolved_by, r.new_when, r.on_uncertain, r.provider_window, r.settle, r.lease,
	r.marks_effect, r.max_attempts, r.max_failures, r.retry_delay, r.keep_content, r.keep_key,
	r.requires_approval, r.scoped, r.rerun_by,
	coalesce(pg_get_userbyid(idem.role_here(r.worker_role, r.worker_role_oid, r.roles_of)), r.worker_role) AS worker_role,
	coalesce(pg_get_userbyid(idem.role_here(r.resolver_role, r.resolver_role_oid, r.roles_of)), r.resolver_role) AS resolver_role,
	r.confidential_key, r.confidential_fields, r.four_eyes
FROM idem.idem_rules r;

CREATE VIEW idem.access WITH (security_barrier) AS
SELECT coalesce(pg_get_userbyid(h.role_id), a.role) AS role, a.level, a.granted_by, a.granted_at, h.role_id
FROM idem.idem_access a, LATERAL (SELECT idem.role_here(a.role, a.role_oid, a.roles_of)::regrole AS role_id) h;

COMMENT ON VIEW idem.access IS 'who was given which level';
COMMENT ON COLUMN idem.access.role IS 'its name';
COMMENT ON COLUMN idem.access.role_id IS 'the role, to pass to grant_access and revoke_access; null where there is none';

/*
 * What waits for a person: who resolves it, what to search for, and the exact
 * calls that decide it.
 */
CREATE VIEW idem.all_attention AS
SELECT a.action_id, a.scope, a.intent, a.key, a.source, a.event_id, a.reason,
	coalesce(e.at, a.finished_at, a.claimed_at, a.created_at) AS since,
	clock_timestamp() - coalesce(e.at, a.finished_at, a.claimed_at, a.created_at) AS age,
	a.attempt, a.revision,
	idem.provider_key(a.action_id, a.generation) AS provider_key,
	r.resolved_by, a.error,
	format('Search outside for %s. Then: ', idem.provider_key(a.action_id, a.generation))
	|| CASE WHEN a.state = 'completed' THEN
		format('SELECT idem.resolve_action(%L, ''happened'', ''how you know'', %s);', a.action_id, a.revision)
	ELSE
		format('SELECT idem.resolve_action(%L, ''happened'', ''how you know'', %s); or ''not_happened''; or ''cancel''.', a.action_id, a.revision)
		|| coalesce(' Before ''not_happened'' stop ' || e.lapsed || ': it may still act.', '')
	END
	|| CASE WHEN a.event_id IS NULL THEN '' ELSE
		format(' Then, if it was claimed and not enqueued, replay event %s%s.', idem.quote_label(a.event_id), coalesce(' of ' || idem.quote_label(a.source), '')) END AS advice
FROM idem.idem_actions a
	LEFT JOIN idem.idem_rules r ON r.intent = a.intent
	LEFT JOIN LATERAL (
		SELECT max(e.at) AS at,
			/* whose claim ended without a report, and who was not to call begin_effect first */
			string_agg(DISTINCT coalesce('worker ' || idem.quote_label(e.worker), 'the worker, which gave no name'), ' and ')
				FILTER (WHERE e.event = ANY (ARRAY['expired', 'interrupted']) AND e.generation = a.generation
					AND NOT coalesce((e.detail ->> 'verifying')::boolean, false)
					AND (NOT coalesce((e.detail ->> 'marked')::boolean, false) OR (e.detail ->> 'begun')::boolean)) AS lapsed
		FROM idem.idem_events e WHERE e.action_id = a.action_id
	) e ON true
WHERE a.state = 'needs_attention' OR a.reason = 'double_result';

CREATE VIEW idem.all_stuck AS
SELECT s.action_id, s.intent, s.key, s.state, s.waits_for, s.worker, s.since,
	clock_timestamp() - s.since AS overdue
FROM (
	SELECT a.action_id, a.intent, a.key, a.state, a.worker,
		CASE
			WHEN a.state = 'in_progress' AND a.verifying THEN 'verifier'
			WHEN a.state = 'in_progress' THEN 'holder'
			WHEN coalesce(r.requires_approval, false) AND NOT a.approved THEN 'approval'
			WHEN EXISTS (SELECT FROM idem.idem_events e WHERE e.action_id = a.action_id
				AND e.event = 'passed_over' AND (e.detail ->> 'revision')::bigint = a.revision) THEN 'another_taker'
			WHEN a.uncertain AND r.on_uncertain = 'verify' THEN 'verifier'
			ELSE 'taker'
		END AS waits_for,
		coalesce(a.lease_until, a.due_at) AS since
	FROM idem.idem_actions a LEFT JOIN idem.idem_rules r ON r.intent = a.intent
	WHERE a.state = ANY (ARRAY['pending', 'in_progress'])
		AND coalesce(a.lease_until, a.due_at) < clock_timestamp()
) s;

CREATE VIEW idem.all_backlog AS
SELECT a.intent, a.state, count(*) AS n, min(a.created_at) AS oldest,
	count(*) FILTER (WHERE coalesce(a.lease_until, a.due_at) < clock_timestamp()) AS overdue
FROM idem.idem_actions a
WHERE a.state = ANY (ARRAY['pending', 'in_progress', 'needs_attention'])
GROUP BY a.intent, a.state;

CREATE VIEW idem.all_repeats AS
SELECT nullif(r.action_id, '00000000-0000-0000-0000-000000000000') AS action_id, r.intent, max(a.key) AS key, r.source, r.event_id,
	sum(r.n)::bigint AS n, min(r.first_at) AS first_at, max(r.last_at) AS last_at
FROM idem.idem_repeats r LEFT JOIN idem.idem_actions a ON a.action_id = r.action_id
WHERE r.outcome <> 'claimed_after_forgetting'
GROUP BY r.action_id, r.intent, r.source, r.event_id;

CREATE VIEW idem.all_stat_intents AS
SELECT s.day, s.intent, s.source,
	sum(s.n) FILTER (WHERE s.outcome = 'recorded')::bigint AS recorded,
	sum(s.n) FILTER (WHERE s.outcome = 'completed')::bigint AS completed,
	sum(s.n) FILTER (WHERE s.outcome = 'in_progress')::bigint AS in_progress,
	sum(s.n) FILTER (WHERE s.outcome = 'contended')::bigint AS contended,
	sum(s.n) FILTER (WHERE s.outcome = 'not_due')::bigint AS not_due,
	sum(s.n) FILTER (WHERE s.outcome = 'paused')::bigint AS paused,
	sum(s.n) FILTER (WHERE s.outcome = 'pending')::bigint AS pending,
	sum(s.n) FILTER (WHERE s.outcome = 'awaiting_approval')::bigint AS awaiting_approval,
	sum(s.n) FILTER (WHERE s.outcome = 'needs_attention')::bigint AS needs_attention,
	sum(s.n) FILTER (WHERE s.outcome = 'failed')::bigint AS failed,
	sum(s.n) FILTER (WHERE s.outcome = 'cancelled')::bigint AS cancelled,
	sum(s.n) FILTER (WHERE s.outcome = 'mismatch')::bigint AS mismatch,
	sum(s.n) FILTER (WHERE s.outcome = 'claimed_after_forgetting')::bigint AS claimed_after_forgetting
FROM (
	SELECT r.day, r.intent, r.source, r.outcome, r.n FROM idem.idem_repeats r
	UNION ALL
	SELECT (a.created_at AT TIME ZONE 'UTC')::date, a.intent, a.source, 'recorded', 1 FROM idem.idem_actions a
) s
GROUP BY s.day, s.intent, s.source;

/*
 * The planner's estimates are shown by EXPLAIN to everybody who may read a view,
 * whether or not they may see the rows.  So none are made of what is in the rows:
 * a bound of a histogram is somebody's key.  Little is lost by it: the tables
 * have indexes for single actions only, and all else is a sequential scan.
 */
DO $statistics$
DECLARE
	col	record;
BEGIN
	FOR col IN
		SELECT a.attrelid::regclass AS tab, a.attname
		FROM pg_attribute a
		WHERE a.attrelid = ANY ('{idem.idem_actions,idem.idem_events,idem.idem_queue,idem.idem_repeats,idem.idem_rules}'::regclass[])
			AND a.attnum > 0
	LOOP
		EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET STATISTICS 0', col.tab, col.attname);
	END LOOP;
END
$statistics$;

/*
 * idem.sees_all() returns boolean
 *
 * Whether no intent is hidden from the caller: which branch of the views runs.
 *
 * Errors: none.  Stable.
 */
CREATE FUNCTION idem.sees_all()
RETURNS boolean
LANGUAGE C STABLE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_sees_all';

COMMENT ON FUNCTION idem.sees_all() IS
'whether no intent is hidden from the caller';

/*
 * idem.visible_X() returns setof idem.all_X
 *
 * The rows of a view whose intent the caller may see, for each X.
 *
 * Errors: none.  Stable.
 */
DO $views$
DECLARE
	x	text;
BEGIN
	FOREACH x IN ARRAY ARRAY['actions', 'history', 'rules', 'attention', 'stuck', 'backlog', 'repeats', 'stat_intents']
	LOOP
		EXECUTE format($$
			CREATE FUNCTION idem.visible_%1$s()
			RETURNS SETOF idem.all_%1$s
			LANGUAGE C STABLE PARALLEL UNSAFE
			AS 'MODULE_PATHNAME', 'idem_visible_rows';

			COMMENT ON FUNCTION idem.visible_%1$s() IS
			'what view %1$s shows a caller who may not see every intent';

			COMMENT ON VIEW idem.all_%1$s IS
			'view %1$s as it is for a caller who may see every intent; no level may read it';

			CREATE VIEW idem.%1$s WITH (security_barrier) AS
			SELECT * FROM idem.all_%1$s WHERE idem.sees_all() AND idem.may_see(intent)
			UNION ALL
			SELECT * FROM idem.visible_%1$s() WHERE NOT idem.sees_all();
			$$, x);
	END LOOP;
END
$views$;

COMMENT ON VIEW idem.actions IS 'every action as it is now, without contents';
COMMENT ON COLUMN idem.actions.state IS 'pending, in_progress, completed, needs_attention, failed or cancelled';
COMMENT ON COLUMN idem.actions.uncertain IS 'an attempt may have taken effect and nobody knows';
COMMENT ON COLUMN idem.actions.lost IS 'attempts that ended without a word on their outcome';
COMMENT ON COLUMN idem.actions.failures IS 'attempts that surely did nothing';
COMMENT ON COLUMN idem.actions.provider_key IS 'what a search outside looks for';
COMMENT ON VIEW idem.history IS 'the whole timeline of actions and rules; order by at, id';
COMMENT ON COLUMN idem.history.id IS 'orders lines of the same instant; 0 and the two highest numbers stand for lines told by the row itself';
COMMENT ON COLUMN idem.history.attempt IS 'the attempt that the line speaks of; 0 for none or for a claim the ledger never issued';
COMMENT ON COLUMN idem.history.event_id IS 'of the delivery: the first arrival (recorded), or a later one that was handed the action (claimed, handed_out_to_verify) or brought its params (params_added)';
COMMENT ON COLUMN idem.history.role IS 'the database role that made the call';
COMMENT ON COLUMN idem.history.actor IS 'the person, as the application names them';
COMMENT ON VIEW idem.rules IS 'the rule of each intent; describe_rule says it in words';
COMMENT ON VIEW idem.attention IS 'what waits for a person, and the calls that decide it';
COMMENT ON COLUMN idem.attention.since IS 'when it last happened that something was said about it';
COMMENT ON COLUMN idem.attention.provider_key IS 'what to search for outside';
COMMENT ON COLUMN idem.attention.advice IS 'the exact calls, and then the event to replay';
COMMENT ON VIEW idem.stuck IS 'what should have moved on by now, and whom it waits for';
COMMENT ON COLUMN idem.stuck.waits_for IS 'holder, taker, verifier, approval or another_taker: one whose client can be sent it, the history says why (passed_over)';
COMMENT ON COLUMN idem.stuck.since IS 'end of the lease, or when it became due';
COMMENT ON VIEW idem.backlog IS 'what is not finished, by intent and state';
COMMENT ON VIEW idem.repeats IS 'which deliveries met an action already known, and how often; counted where the library is preloaded, lost in a crash, here after the next pass';
COMMENT ON COLUMN idem.repeats.source IS 'of the repeated delivery, cut at 128 bytes; null where it named none';
COMMENT ON COLUMN idem.repeats.n IS 'answers to this delivery, rolled-back calls included';
COMMENT ON VIEW idem.stat_intents IS 'by day (UTC), intent and source: actions first seen, and answers to repeats by outcome';
COMMENT ON COLUMN idem.stat_intents.recorded IS 'actions first seen that day';
COMMENT ON COLUMN idem.stat_intents.claimed_after_forgetting IS 'claims of a key that keep_key had let go and whose row was still there: a sign that it is too short; none proves nothing, as the next pass removes the row';

/*
 * Whether a string somewhere in a content is just this text, names of fields
 * apart; for search_actions.
 */
CREATE FUNCTION idem.holds_value(content jsonb, what text)
RETURNS boolean
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_holds_value';

COMMENT ON FUNCTION idem.holds_value(jsonb, text) IS
'whether a string somewhere in a content is just this text';

/*
 * idem.search_actions(what, since) returns setof idem.actions
 *
 * Finds actions by action_id, provider key of any generation, external_ref, key,
 * and by event_id or source of whatever delivery met them: one that was handed
 * the action, or a repeat that has been counted and written down (idem.repeats).
 * Operators find them by a value in params too.
 *
 *	what	what to look for, exactly
 *	since	how far back, by first sight; an action_id is found at any age
 *
 * Result: at most 1000, the youngest first.
 * Errors: 22023, a null.  Volatile.
 */
CREATE FUNCTION idem.search_actions(what text, since interval DEFAULT '30 days')
RETURNS SETOF idem.actions
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10
AS 'MODULE_PATHNAME', 'idem_search_actions';

COMMENT ON FUNCTION idem.search_actions(text, interval) IS
'finds actions by an id, key, reference, event or source; operators also by a value in params';

/*
 * idem.history_horizon() returns timestamptz
 *
 * Up to when the history is whole: no line with an earlier time will be added any
 * more.  For copying it elsewhere; ask in a statement of its own, before the one
 * that reads.
 *
 * Result: not later than the start of the oldest transaction that has written to
 * the ledger and is still open; null while that cannot be known, as a prepared
 * transaction or a session with track_activities off has written to it.
 * Errors: 55000, a standby.  Volatile.
 */
CREATE FUNCTION idem.history_horizon()
RETURNS timestamptz
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_history_horizon';

COMMENT ON FUNCTION idem.history_horizon() IS
'up to when the history is whole; null while that cannot be known';
