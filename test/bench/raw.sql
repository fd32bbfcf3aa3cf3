-- The baseline: the facts of idem.idem_actions in plain SQL, with the indexes
-- that finding lapsed leases and expired rows asks for, and each statement as a
-- careful user would write it by hand.  The sections are those of ours.sql;
-- harness.py reads both files and makes pgbench scripts of them.

-- section: setup
CREATE TABLE raw (
	action_id        uuid PRIMARY KEY,
	created_at       timestamptz NOT NULL DEFAULT now(),
	revision         bigint NOT NULL DEFAULT 1,
	generation       int NOT NULL DEFAULT 1,
	attempt          int NOT NULL DEFAULT 1,
	lost             int NOT NULL DEFAULT 0,
	failures         int NOT NULL DEFAULT 0,
	priority         int NOT NULL DEFAULT 0,
	uncertain        boolean NOT NULL DEFAULT false,
	uncertain_before boolean NOT NULL DEFAULT false,
	marked           boolean NOT NULL DEFAULT false,
	begun            boolean NOT NULL DEFAULT false,
	verifying        boolean NOT NULL DEFAULT false,
	approved         boolean NOT NULL DEFAULT false,
	cancel_requested boolean NOT NULL DEFAULT false,
	first_claimed_at timestamptz,
	claimed_at       timestamptz,
	lease_until      timestamptz,
	due_at           timestamptz,
	doubt_until      timestamptz,
	finished_at      timestamptz,
	purge_after      timestamptz,
	forget_after     timestamptz,
	claim_id         uuid,
	call_id          uuid,
	state            text NOT NULL,
	scope            text NOT NULL,
	intent           text NOT NULL,
	key              text NOT NULL,
	reason           text,
	ended_by         text,
	worker           text,
	source           text,
	event_id         text,
	secret_id        text,
	params           jsonb,
	params_digest    bytea,
	draft            jsonb,
	external_ref     text,
	result           jsonb,
	error            text
);
CREATE INDEX ON raw (lease_until) WHERE state = 'in_progress';
CREATE INDEX ON raw (forget_after);

-- the statement for ranges of about 10 000 rows, each committed
CREATE PROCEDURE raw_by_blocks(change text) LANGUAGE plpgsql AS $$
DECLARE
	blocks bigint := pg_relation_size('raw') / current_setting('block_size')::int;
	step   bigint := (SELECT greatest(1, 10000 * blocks / reltuples) FROM pg_class WHERE oid = 'raw'::regclass);
BEGIN
	FOR block IN 0 .. blocks BY step LOOP
		EXECUTE change USING format('(%s,0)', block)::tid, format('(%s,0)', block + step)::tid;
		COMMIT;
	END LOOP;
END $$;

-- section: claim
INSERT INTO raw (action_id, scope, intent, key, state, claim_id,
	first_claimed_at, claimed_at, lease_until, params, params_digest)
SELECT left(encode(sha256(convert_to('/bench/' || key, 'UTF8')), 'hex'), 32)::uuid,
	'', 'bench', key, 'in_progress', gen_random_uuid(),
	now(), now(), now() + interval '5 min',
	params, sha256(convert_to(params::text, 'UTF8'))
FROM (VALUES ('order-' || :n || '-task', :params::jsonb)) AS new (key, params)
ON CONFLICT DO NOTHING RETURNING *

-- section: complete
UPDATE raw SET state = 'completed', external_ref = :ref, result = :result,
	ended_by = 'succeeded', lease_until = NULL, finished_at = now(),
	purge_after = now() + interval '90 days',
	forget_after = now() + interval '400 days', revision = revision + 1
WHERE action_id = :c_action_id AND claim_id = :c_claim_id
RETURNING action_id, true AS accepted, state, revision, NULL::text AS note

-- section: repeat
SELECT * FROM raw
WHERE action_id = left(encode(sha256(convert_to('/bench/' || ('order-' || :n || '-task'), 'UTF8')), 'hex'), 32)::uuid

-- section: repeat with params
SELECT *, params_digest = sha256(convert_to(:params::jsonb::text, 'UTF8')) AS same FROM raw
WHERE action_id = left(encode(sha256(convert_to('/bench/' || ('order-' || :n || '-task'), 'UTF8')), 'hex'), 32)::uuid

-- section: claim batch
INSERT INTO raw (action_id, scope, intent, key, state, claim_id,
	first_claimed_at, claimed_at, lease_until, params, params_digest)
SELECT left(encode(sha256(convert_to('/bench/' || key, 'UTF8')), 'hex'), 32)::uuid,
	'', 'bench', key, 'in_progress', gen_random_uuid(),
	now(), now(), now() + interval '5 min',
	params, sha256(convert_to(params::text, 'UTF8'))
FROM unnest(
	(SELECT array_agg('order-' || (:n::bigint + i) || '-task') FROM generate_series(1, :size::int) AS i),
	array_fill(:params::jsonb, ARRAY[:size::int])) AS new (key, params)
ON CONFLICT DO NOTHING RETURNING *

-- section: complete batch
UPDATE raw SET state = 'completed', external_ref = done.ref, result = done.result,
	ended_by = 'succeeded', lease_until = NULL, finished_at = now(),
	purge_after = now() + interval '90 days',
	forget_after = now() + interval '400 days', revision = revision + 1
FROM unnest(:c_action_ids::uuid[], :c_claim_ids::uuid[],
	array_fill(:ref::text, ARRAY[:size::int]),
	array_fill(:result::jsonb, ARRAY[:size::int])) AS done (action_id, claim_id, ref, result)
WHERE raw.action_id = done.action_id AND raw.claim_id = done.claim_id
RETURNING raw.action_id, true AS accepted, state, revision, NULL::text AS note

-- section: repeat batch
SELECT * FROM raw
WHERE action_id = ANY ((
	SELECT array_agg(left(encode(sha256(convert_to('/bench/' || key, 'UTF8')), 'hex'), 32)::uuid)
	FROM unnest(
		(SELECT array_agg('order-' || (:n::bigint + i) || '-task') FROM generate_series(1, :size::int) AS i)
	) AS key)::uuid[])

-- section: repeat batch with params
SELECT raw.*, params_digest = sha256(convert_to(old.params::text, 'UTF8')) AS same
FROM unnest(
	(SELECT array_agg('order-' || (:n::bigint + i) || '-task') FROM generate_series(1, :size::int) AS i),
	array_fill(:params::jsonb, ARRAY[:size::int])) AS old (key, params)
JOIN raw ON action_id = left(encode(sha256(convert_to('/bench/' || old.key, 'UTF8')), 'hex'), 32)::uuid

-- section: setup queue
CREATE INDEX ON raw (intent, priority DESC, due_at) WHERE state = 'pending';

-- section: enqueue batch
INSERT INTO raw (action_id, scope, intent, key, state, due_at, params, params_digest)
SELECT left(encode(sha256(convert_to('/bench/' || key, 'UTF8')), 'hex'), 32)::uuid,
	'', 'bench', key, 'pending', now(),
	params, sha256(convert_to(params::text, 'UTF8'))
FROM unnest(
	(SELECT array_agg('order-' || (:n::bigint + i) || '-task') FROM generate_series(1, :size::int) AS i),
	array_fill(:params::jsonb, ARRAY[:size::int])) AS new (key, params)
ON CONFLICT DO NOTHING RETURNING *

-- section: take
UPDATE raw SET state = 'in_progress', claim_id = gen_random_uuid(), attempt = attempt + 1,
	first_claimed_at = coalesce(first_claimed_at, now()), claimed_at = now(),
	lease_until = now() + interval '5 min', revision = revision + 1
WHERE action_id = ANY (ARRAY(
	SELECT action_id FROM raw
	WHERE state = 'pending' AND intent = 'bench' AND due_at <= now()
	ORDER BY priority DESC, due_at LIMIT :size::int FOR UPDATE SKIP LOCKED))
RETURNING *

-- section: fill finished
INSERT INTO raw (action_id, scope, intent, key, state, claim_id, revision,
	first_claimed_at, claimed_at, ended_by, finished_at, purge_after, forget_after,
	params, params_digest, external_ref, result)
SELECT left(encode(sha256(convert_to('/bench/' || key, 'UTF8')), 'hex'), 32)::uuid,
	'', 'bench', key, 'completed', gen_random_uuid(), 2,
	now(), now(), 'succeeded', now(), now() + :purge_in::interval, now() + :forget_in::interval,
	:params, sha256(convert_to(:params::jsonb::text, 'UTF8')), :ref, :result
FROM (SELECT 'order-' || (:n::bigint + i) || '-task' FROM generate_series(1, :rows::int) AS i) AS new (key)

-- section: forget
CALL raw_by_blocks('DELETE FROM raw WHERE ctid >= $1 AND ctid < $2 AND forget_after <= now()')

-- section: purge
CALL raw_by_blocks('UPDATE raw SET params = NULL, draft = NULL, result = NULL, error = NULL
	WHERE ctid >= $1 AND ctid < $2 AND purge_after <= now()
		AND (params IS NOT NULL OR draft IS NOT NULL OR result IS NOT NULL OR error IS NOT NULL)')
