-- Our calls, section by section the counterpart of raw.sql.

-- section: setup
CREATE EXTENSION idem_action;
SELECT idem.define_rule('bench', unique_by => 'bench', resolved_by => 'bench');

-- section: claim
SELECT * FROM idem.claim_action('order-' || :n || '-task', 'bench', params => :params)

-- section: complete
SELECT * FROM idem.complete_action(:c_action_id, :c_claim_id, :ref, :result)

-- section: repeat
SELECT * FROM idem.claim_action('order-' || :n || '-task', 'bench')

-- section: repeat with params
SELECT * FROM idem.claim_action('order-' || :n || '-task', 'bench', params => :params)

-- section: claim batch
SELECT * FROM idem.claim_actions('bench',
	(SELECT array_agg('order-' || (:n::bigint + i) || '-task') FROM generate_series(1, :size::int) AS i),
	array_fill(:params::jsonb, ARRAY[:size::int]))

-- section: complete batch
SELECT * FROM idem.complete_actions(:c_action_ids, :c_claim_ids,
	array_fill(:ref::text, ARRAY[:size::int]),
	array_fill(:result::jsonb, ARRAY[:size::int]))

-- section: repeat batch
SELECT * FROM idem.claim_actions('bench',
	(SELECT array_agg('order-' || (:n::bigint + i) || '-task') FROM generate_series(1, :size::int) AS i))

-- section: repeat batch with params
SELECT * FROM idem.claim_actions('bench',
	(SELECT array_agg('order-' || (:n::bigint + i) || '-task') FROM generate_series(1, :size::int) AS i),
	array_fill(:params::jsonb, ARRAY[:size::int]))

-- section: contended
SELECT 1 / (outcome = 'contended')::int
FROM idem.claim_action('order-' || :n || '-task', 'bench', params => :params)

-- section: enqueue batch
SELECT * FROM idem.enqueue_actions('bench',
	(SELECT array_agg('order-' || (:n::bigint + i) || '-task') FROM generate_series(1, :size::int) AS i),
	array_fill(:params::jsonb, ARRAY[:size::int]))

-- section: take
SELECT * FROM idem.take_actions('{bench}', :size::int)

-- section: fill finished
INSERT INTO idem.idem_actions (action_id, created_at, revision, generation, attempt, lost, failures, priority,
	uncertain, uncertain_before, marked, begun, verifying, approved, cancel_requested, purged, ruled,
	first_claimed_at, claimed_at, claim_id, ended_by, finished_at, purge_after, forget_after,
	state, scope, intent, key, params, params_digest, external_ref, result)
SELECT idem.action_id(key, 'bench'), now(), 2, 1, 1, 0, 0, 0,
	false, false, false, false, false, false, false, false, true,
	now(), now(), gen_random_uuid(), 'succeeded', now(),
	now() + :purge_in::interval, now() + :forget_in::interval,
	'completed', '', 'bench', key, :params, substr(sha256(:params), 1, 16), :ref, :result
FROM (SELECT 'order-' || (:n::bigint + i) || '-task' FROM generate_series(1, :rows::int) AS i) AS new (key)

-- section: forget
CALL idem.run_maintenance(10000)

-- section: purge
CALL idem.run_maintenance(10000)
