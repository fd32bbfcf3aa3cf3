/*
 * What analysts read.  No view shows contents: params, draft, result.
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

CREATE VIEW idem.actions WITH (security_barrier) AS
SELECT a.action_id, a.scope, a.intent, a.key, a.generation, a.state, a.reason,
	a.uncertain, a.begun, a.verifying, a.approved, a.cancel_requested,
	a.attempt, a.lost, a.failures, a.worker, a.first_claimed_at, a.claimed_at,
	a.lease_until, a.due_at, a.priority, a.revision, a.external_ref, a.error,
	a.ended_by, a.source, a.event_id, a.created_at, a.finished_at,
	a.purge_after, a.forget_after,
	idem.provider_key(a.action_id, a.generation) AS provider_key
FROM idem.idem_actions a;

COMMENT ON VIEW idem.actions IS 'every action as it is now, without contents';
COMMENT ON COLUMN idem.actions.state IS 'pending, in_progress, completed, needs_attention, failed or cancelled';
COMMENT ON COLUMN idem.actions.uncertain IS 'an attempt may have taken effect and nobody knows';
COMMENT ON COLUMN idem.actions.lost IS 'attempts that ended without a word on their outcome';
COMMENT ON COLUMN idem.actions.failures IS 'attempts that surely did nothing';
COMMENT ON COLUMN idem.actions.provider_key IS 'what a search outside looks for';

/*
 * One timeline out of two sources: what happened before is in idem_events, how
 * the last attempt began and the action ended in its row.  Order by at, id.
 */
CREATE VIEW idem.history WITH (security_barrier) AS
SELECT e.at, e.id, e.action_id, a.scope, e.intent, a.key, e.generation, e.attempt,
	e.event, e.role, e.actor, e.worker, e.source, e.event_id, e.detail
FROM idem.idem_events e LEFT JOIN idem.idem_actions a ON a.action_id = e.action_id
UNION ALL
SELECT a.created_at, 0, a.action_id, a.scope, a.intent, a.key, 1, 0,
	'recorded', NULL, NULL, NULL, a.source, a.event_id, NULL
FROM idem.idem_actions a
UNION ALL
SELECT a.claimed_at, 0, a.action_id, a.scope, a.intent, a.key, a.generation, a.attempt,
	CASE WHEN a.verifying THEN 'handed_out_to_verify' ELSE 'claimed' END, NULL, NULL, a.worker, NULL, NULL,
	jsonb_strip_nulls(jsonb_build_object('lease_until', a.lease_until, 'begun', nullif(a.begun, false)))
FROM idem.idem_actions a WHERE a.claimed_at IS NOT NULL
UNION ALL
SELECT a.finished_at, 9223372036854775807, a.action_id, a.scope, a.intent, a.key, a.generation, a.attempt,
	a.state, NULL, NULL, a.worker, NULL, NULL,
	jsonb_strip_nulls(jsonb_build_object('external_ref', a.external_ref, 'error', a.error))
FROM idem.idem_actions a WHERE a.finished_at IS NOT NULL;

COMMENT ON VIEW idem.history IS 'the whole timeline of actions and rules; order by at, id';
COMMENT ON COLUMN idem.history.id IS 'orders lines of the same instant; 0 and the highest number stand for lines told by the row itself';
COMMENT ON COLUMN idem.history.attempt IS 'the attempt that the line speaks of; 0 for none or for a claim the ledger never issued';
COMMENT ON COLUMN idem.history.role IS 'the database role that made the call';
COMMENT ON COLUMN idem.history.actor IS 'the person, as the application names them';

CREATE VIEW idem.rules WITH (security_barrier) AS
SELECT r.* FROM idem.idem_rules r;

COMMENT ON VIEW idem.rules IS 'the rule of each intent; describe_rule says it in words';

CREATE VIEW idem.access WITH (security_barrier) AS
SELECT a.role, a.level, a.granted_by, a.granted_at FROM idem.idem_access a;

COMMENT ON VIEW idem.access IS 'who was given which level';
