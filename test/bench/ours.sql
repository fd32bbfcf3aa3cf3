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
