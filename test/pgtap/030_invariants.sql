--
-- What a row of idem_actions can never be.
--
-- The library writes rows without the executor, so it checks them itself:
-- idem.violated_invariant() shows its list, which has to say the same as the
-- CHECK constraints of the table.  Rows are made out of valid ones by changing
-- a few fields.
--
SELECT plan(26);

CREATE SCHEMA t;

--
-- Valid rows, one of each kind, made by calls where there is one
--
DO $$
DECLARE
	c	idem.claim;
BEGIN
	PERFORM idem.define_rule('step', 'event', 'the team', on_uncertain => 'repeat', marks_effect => true);
	PERFORM idem.define_rule('review', 'event', 'the team');
	FOR i IN 1..6 LOOP
		c := idem.claim_action(i::text, 'review', '{"to": "a"}', '"draft"', worker => 'w', source => 's', event_id => 'e');
		CASE i
			WHEN 1 THEN NULL;
			WHEN 2 THEN PERFORM idem.complete_action(c.action_id, c.claim_id, 'ref', '{"n": 1}');
			WHEN 3 THEN PERFORM idem.fail_action(c.action_id, c.claim_id, 'no', 'refused');
			WHEN 4 THEN PERFORM idem.fail_action(c.action_id, c.claim_id, 'who knows');
			WHEN 5 THEN PERFORM idem.fail_action(c.action_id, c.claim_id, 'no', 'none');
			WHEN 6 THEN
				UPDATE idem.idem_actions SET cancel_requested = true WHERE action_id = c.action_id;
				PERFORM idem.release_action(c.action_id, c.claim_id);
		END CASE;
	END LOOP;
	c := idem.claim_action('7', 'step');
	PERFORM idem.begin_effect(c.action_id, c.claim_id);
	PERFORM idem.fail_action(c.action_id, c.claim_id, 'who knows');
	c := idem.claim_action('8', 'step');
	PERFORM idem.begin_effect(c.action_id, c.claim_id);
	PERFORM idem.fail_action(c.action_id, c.claim_id, 'who knows', retry_after => '0');
	c := idem.claim_action('8', 'step');
	PERFORM idem.once('9', 'step');
END
$$;
/* and what no call makes yet: never handed out, confidential, verifying */
INSERT INTO idem.idem_actions
SELECT (jsonb_populate_record(a, change || jsonb_build_object('action_id', gen_random_uuid()))).*
FROM idem.idem_actions a, (VALUES
	('{"state": "pending", "lease_until": null, "due_at": "now", "claim_id": null, "claimed_at": null, "first_claimed_at": null, "attempt": 0}'::jsonb),
	('{"key": null, "secret_id": "s1"}'),
	('{"verifying": true, "uncertain": true}'),
	('{"state": "needs_attention", "reason": "ledger_restored", "lease_until": null}')) AS v (change)
WHERE a.key = '1';

SELECT set_eq('SELECT DISTINCT state FROM idem.idem_actions',
	'{pending,in_progress,completed,failed,needs_attention,cancelled}'::text[], 'a valid row of each state');
SELECT is_empty('SELECT a.*, idem.violated_invariant(a) FROM idem.idem_actions a WHERE idem.violated_invariant(a) IS NOT NULL',
	'which the library finds valid');

--
-- Rows near the valid ones
--
CREATE TABLE t.field (name text, value jsonb);
INSERT INTO t.field
SELECT name, unnest(values)::jsonb FROM (VALUES
	('revision', '{0,1,2,-1}'::text[]),
	('generation', '{0,1,2,-1}'),
	('attempt', '{0,1,2,-1}'),
	('lost', '{0,1,-1}'),
	('failures', '{0,1,-1}'),
	('priority', '{0,-7}'),
	('state', '{"\"pending\"","\"in_progress\"","\"completed\"","\"failed\"","\"needs_attention\"","\"cancelled\""}'),
	('uncertain', '{true,false}'),
	('uncertain_before', '{true,false}'),
	('marked', '{true,false}'),
	('begun', '{true,false}'),
	('verifying', '{true,false}'),
	('approved', '{true,false}'),
	('cancel_requested', '{true,false}'),
	('first_claimed_at', '{null,"\"-infinity\"","\"2026-11-29 12:00+00\""}'),
	('claimed_at', '{null,"\"-infinity\"","\"2026-11-29 12:00+00\""}'),
	('lease_until', '{null,"\"-infinity\"","\"2026-11-29 12:00+00\"","\"infinity\""}'),
	('due_at', '{null,"\"-infinity\"","\"2026-11-29 12:00+00\"","\"infinity\""}'),
	('doubt_until', '{null,"\"-infinity\"","\"2026-11-29 12:00+00\""}'),
	('finished_at', '{null,"\"-infinity\"","\"2026-11-29 12:00+00\""}'),
	('purge_after', '{null,"\"-infinity\"","\"2026-11-29 12:00+00\"","\"infinity\""}'),
	('forget_after', '{null,"\"-infinity\"","\"2026-11-29 12:00+00\"","\"infinity\""}'),
	('claim_id', '{null,"\"00000000-0000-0000-0000-000000000000\"","\"00000000-0000-4000-8000-000000000001\""}'),
	('call_id', '{null,"\"00000000-0000-0000-0000-000000000000\"","\"00000000-0000-4000-8000-000000000001\""}'),
	('key', '{null,"\"k\""}'),
	('reason', '{null,"\"late_result\""}'),
	('ended_by', '{null,"\"released\""}'),
	('worker', '{null,"\"w\""}'),
	('secret_id', '{null,"\"s1\""}'),
	('params', '{null,"{\"a\": 1}"}'),
	('params_digest', '{null,"\"\\\\x00\""}'),
	('draft', '{null,"\"d\""}'),
	('external_ref', '{null,"\"r\""}'),
	('result', '{null,"7"}'),
	('error', '{null,"\"e\""}')) AS v (name, values);

SELECT setseed(0.2026);
CREATE TABLE t.near AS
WITH valid AS MATERIALIZED (SELECT row_number() OVER (ORDER BY action_id) AS n, a FROM idem.idem_actions a),
	field AS MATERIALIZED (SELECT row_number() OVER (ORDER BY name, value) AS n, * FROM t.field),
	drawn AS MATERIALIZED (
		SELECT i, (SELECT count(*) FROM valid) AS nvalid, 1 + floor(random() * (SELECT count(*) FROM field)) AS pick,
			CASE WHEN change = 1 THEN 1 + floor(random() * (SELECT count(*) FROM valid)) END AS base
		FROM generate_series(1, 30000) AS i, generate_series(1, 1 + i % 5) AS change),
	changes AS (
		SELECT i, max(base) AS base, jsonb_object_agg(name, value) AS change
		FROM drawn JOIN field ON field.n = pick GROUP BY i)
SELECT i, change, jsonb_populate_record(a, change || jsonb_build_object('action_id', gen_random_uuid())) AS r
FROM changes JOIN valid ON valid.n = base;

/* all the constraints that a row violates, as the table's own expressions say */
DO $$
BEGIN
	EXECUTE (
		SELECT format('CREATE FUNCTION t.violates(idem.idem_actions) RETURNS text[] LANGUAGE sql AS $f$
				SELECT array_remove(ARRAY[%s], NULL) FROM (SELECT ($1).*) AS a $f$',
			string_agg(format('CASE WHEN NOT (%s) THEN %L END', pg_get_expr(conbin, conrelid), conname), ', '))
		FROM pg_constraint WHERE conrelid = 'idem.idem_actions'::regclass AND contype = 'c');
END
$$;
CREATE TABLE t.judged AS
SELECT i, change, r, idem.violated_invariant(r) AS library, t.violates(r) AS list FROM t.near;

SELECT cmp_ok(count(*) FILTER (WHERE library IS NULL), '>=', 3000::bigint, 'thousands of rows are still valid')
FROM t.judged;
SELECT cmp_ok(count(*) FILTER (WHERE library IS NOT NULL), '>=', 3000::bigint, 'thousands are not')
FROM t.judged;
SELECT is_empty($$SELECT change, library, list, r FROM t.judged WHERE library IS NULL AND list <> '{}' LIMIT 5$$,
	'what violates a CHECK constraint violates an invariant of the library');
SELECT is_empty($$SELECT change, library, list, r FROM t.judged WHERE library IS NOT NULL AND library <> ALL (list) LIMIT 5$$,
	'what violates an invariant of the library violates the CHECK constraint of that name');
SELECT is_empty($$
	SELECT conname FROM pg_constraint
	WHERE conrelid = 'idem.idem_actions'::regclass AND contype = 'c' AND conname <> 'state_known'
		AND NOT EXISTS (SELECT FROM t.judged WHERE list = ARRAY[conname::text] AND library = conname)
	$$, 'each constraint was violated alone, and the library named it');

/* an INSERT does not get any of them past the table */
CREATE FUNCTION t.try_insert(r idem.idem_actions) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	violated	text;
BEGIN
	BEGIN
		INSERT INTO idem.idem_actions SELECT (r).*;
		RAISE SQLSTATE 'TTTTT';
	EXCEPTION
		WHEN SQLSTATE 'TTTTT' THEN RETURN NULL;
		WHEN check_violation THEN
			GET STACKED DIAGNOSTICS violated = CONSTRAINT_NAME;
			RETURN violated;
	END;
END
$$;
SELECT is_empty($$
	SELECT * FROM (
		SELECT change, library, list, t.try_insert(r) AS refused_by FROM t.judged WHERE i % 6 = 0) AS s
	WHERE (refused_by IS NULL) <> (library IS NULL) OR (refused_by IS NOT NULL AND refused_by <> ALL (list))
	LIMIT 5$$, '5000 of them inserted: refused where the library finds a violation, and only there');

/* two values that could be taken for NULL: every one of them */
SELECT is_empty($$
	SELECT change, library, list FROM (
		SELECT change, idem.violated_invariant(r) AS library, t.violates(r) AS list
		FROM idem.idem_actions a,
			(SELECT jsonb_build_object(column_name, '-infinity') AS change FROM information_schema.columns
				WHERE (table_schema, table_name, data_type) = ('idem', 'idem_actions', 'timestamp with time zone')
					AND is_nullable = 'YES'
				UNION ALL VALUES ('{"claim_id": "00000000-0000-0000-0000-000000000000"}'::jsonb)) AS c,
			jsonb_populate_record(a, change) AS r) AS s
	WHERE (library IS NULL) <> (list = '{}')
	LIMIT 5$$, 'both lists agree on -infinity and on the nil uuid');

/* the state names are a list of their own */
SELECT throws_ok($$INSERT INTO idem.idem_actions SELECT (jsonb_populate_record(a,
	jsonb_build_object('state', 'done', 'action_id', gen_random_uuid()))).* FROM idem.idem_actions a WHERE key = '4'$$,
	'23514', 'new row for relation "idem_actions" violates check constraint "state_known"', 'a state of no name is refused by the table');
SELECT throws_ok($$SELECT idem.violated_invariant(jsonb_populate_record(a, '{"state": "done"}')) FROM idem.idem_actions a WHERE key = '4'$$,
	NULL, NULL, 'and by the library');

--
-- A7: the check is a constraint, and workers cannot get around the functions
--
SELECT throws_ok($$INSERT INTO idem.idem_actions SELECT (a).* FROM idem.idem_actions a WHERE key = '2'$$,
	'23505', NULL, 'a twin of an action cannot be inserted');
SELECT throws_ok($$
	WITH id AS (SELECT idem.action_id('2', 'review') AS id)
	INSERT INTO idem.idem_actions SELECT (jsonb_populate_record(a, jsonb_build_object('action_id', id))).* FROM id, idem.idem_actions a
	WHERE key = '1'$$, '23505', NULL, 'nor another row under its action_id');

CREATE ROLE regress_idem_invariants;
SELECT idem.grant_access('regress_idem_invariants', 'worker');
CREATE FUNCTION t.as_worker(command text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	SET LOCAL ROLE regress_idem_invariants;
	EXECUTE command;
	RESET ROLE;
	RETURN 'done';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END
$$;
SELECT is(t.as_worker(command), '42501', 'a worker may not: ' || command)
FROM unnest(ARRAY[
	'SELECT FROM idem.idem_actions',
	'SELECT FROM idem.idem_actions FOR UPDATE',
	'INSERT INTO idem.idem_actions SELECT * FROM idem.idem_actions',
	'UPDATE idem.idem_actions SET uncertain = false',
	'DELETE FROM idem.idem_actions',
	'TRUNCATE idem.idem_actions',
	'LOCK TABLE idem.idem_actions',
	'DELETE FROM idem.idem_events',
	'UPDATE idem.idem_rules SET max_attempts = 1000',
	'SELECT nextval(''idem.idem_events_id_seq'')',
	'SELECT idem.define_rule(''a'', ''b'', ''c'')']) AS command;
SELECT is(t.as_worker($$SELECT idem.find_action('1', 'review')$$), 'done', 'but may call what its level has');

--
-- What the library itself wrote
--
SELECT is_empty('SELECT a.*, t.violates(a) FROM idem.idem_actions a WHERE t.violates(a) <> ''{}''',
	'every row that calls have written passes the constraints');

SELECT * FROM finish();
DROP OWNED BY regress_idem_invariants;
DROP ROLE regress_idem_invariants;
