--
-- Limits, wrong arguments, leases, transactions, and what a DBA does to the
-- table: nothing is stored by halves, and no success is lost for its size.
--
SELECT plan(176);

CREATE SCHEMA t;
SET search_path = t, public;
SET timezone = 'UTC';

SELECT idem.define_rule('step', 'event', 'the team', on_uncertain => 'repeat', retry_delay => '0', max_attempts => 100, max_failures => 100) <> '' AS defined \g /dev/null

CREATE FUNCTION a(key text, intent text DEFAULT 'step', scope text DEFAULT '') RETURNS idem.idem_actions LANGUAGE sql AS
	'SELECT * FROM idem.idem_actions WHERE action_id = idem.action_id($1, $2, $3)';
CREATE FUNCTION lapse(key text) RETURNS void LANGUAGE sql AS $$
	UPDATE idem.idem_actions SET claimed_at = claimed_at - interval '1 day', lease_until = clock_timestamp() - interval '1 s'
	WHERE action_id = idem.action_id($1, 'step') AND state = 'in_progress'
$$;
/* a call that must be refused and store nothing */
CREATE FUNCTION refused(command text, state text, name text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	n	bigint := (SELECT count(*) FROM idem.idem_actions);
	m	bigint := (SELECT count(*) FROM idem.idem_events);
BEGIN
	RETURN NEXT throws_ok(command, state, NULL, name);
	IF n <> (SELECT count(*) FROM idem.idem_actions) OR m <> (SELECT count(*) FROM idem.idem_events) THEN
		RETURN NEXT fail('and stores nothing: ' || name);
	END IF;
END
$$;

--
-- Key, intent, scope (IA006)
--
SELECT refused(format('SELECT idem.%s', replace(replace(replace(call, 'KEY', key), 'INTENT', intent), 'SCOPE', scope)), 'IA006',
	concat_ws(' ', split_part(call, '(', 1), 'refuses', what))
FROM (VALUES
	('claim_action(KEY, INTENT, scope => SCOPE, in_transaction => true)'),
	('claim_actions(INTENT, ARRAY[KEY], scope => SCOPE, in_transaction => true)'),
	('once(KEY, INTENT, scope => SCOPE)'),
	('find_action(KEY, INTENT, SCOPE)'),
	('action_id(KEY, INTENT, SCOPE)')) AS c (call),
	(VALUES
	('NULL::text', '''step''', '''''', 'no key'),
	('''''', '''step''', '''''', 'an empty key'),
	('repeat(''x'', 16385)', '''step''', '''''', 'a key of 16 kB and a byte'),
	('repeat(''ü'', 8193)', '''step''', '''''', 'a key of 8193 characters of two bytes'),
	('''k''', 'NULL', '''''', 'no intent'),
	('''k''', '''''', '''''', 'an empty intent'),
	('''k''', 'repeat(''x'', 257)', '''''', 'an intent of 257 bytes'),
	('''k''', '''step''', 'NULL', 'a NULL scope'),
	('''k''', '''step''', 'repeat(''x'', 257)', 'a scope of 257 bytes')) AS v (key, intent, scope, what);

SELECT idem.define_rule(repeat('i', 256), 'event', 'the team') <> '' AS defined \g /dev/null
SELECT is((SELECT outcome FROM idem.claim_action(repeat('x', 16384), repeat('i', 256), scope => repeat('s', 256))), 'claimed', 'the longest ones are allowed');
SELECT is((SELECT octet_length(key) || ' ' || octet_length(intent) || ' ' || octet_length(scope) FROM idem.find_action(repeat('x', 16384), repeat('i', 256), repeat('s', 256))), '16384 256 256', 'and kept whole');
SELECT is((SELECT outcome FROM idem.claim_action('x', 'step')), 'claimed', 'so is one byte');
SELECT is((SELECT count(DISTINCT action_id) FROM unnest(ARRAY['e', 'E', ' e', 'e ', 'é', U&'e\0301', 'ⅇ']) AS k, LATERAL idem.claim_action(k, 'step')), 7::bigint, 'keys count by their bytes: no folding, trimming or normalising');

--
-- Contents (IA010)
--
SET idem_action.max_content = 1024;
SELECT refused(format('SELECT %s', call), 'IA010', 'too large: ' || call)
FROM unnest(ARRAY[
	$$idem.claim_action('c', 'step', jsonb_build_object('a', repeat('x', 2000)), in_transaction => true)$$,
	$$idem.claim_action('c', 'step', draft => jsonb_build_object('a', repeat('x', 2000)), in_transaction => true)$$,
	$$idem.claim_actions('step', '{c 1,c 2}', ARRAY['{}', jsonb_build_object('a', repeat('x', 2000))], in_transaction => true)$$,
	$$idem.claim_actions('step', '{c 1,c 2}', drafts => ARRAY['{}', jsonb_build_object('a', repeat('x', 2000))], in_transaction => true)$$,
	$$idem.once('c', 'step', jsonb_build_object('a', repeat('x', 2000)))$$]) AS call;
SELECT is((SELECT outcome FROM idem.claim_action('c 3', 'step', jsonb_build_object('a', repeat('x', 900)), jsonb_build_object('a', repeat('x', 900)))), 'claimed', 'each has the whole size for itself');

-- a success is never lost for being too large: what is too large is left out
CREATE FUNCTION complete(key text, ref text, result jsonb, batch boolean DEFAULT false) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	c	idem.claim := idem.claim_action(key, 'step');
	r	idem.report;
BEGIN
	IF batch THEN
		SELECT * INTO STRICT r FROM idem.complete_actions(ARRAY[c.action_id], ARRAY[c.claim_id], ARRAY[ref], ARRAY[result]);
	ELSE
		r := idem.complete_action(c.action_id, c.claim_id, ref, result);
	END IF;
	RETURN concat_ws(' ', r.accepted, r.state, octet_length((a(key)).external_ref), (a(key)).result, CASE WHEN r.note ~ 'external_ref' THEN 'ref' END,
		CASE WHEN r.note ~ 'result' THEN 'result' END, CASE WHEN r.note ~ 'not kept' THEN 'not kept' END);
END
$$;
SELECT is(complete('s 1', repeat('r', 2048), '1'), 't completed 2048 1', 'an external_ref of 2 kB is kept');
SELECT is(complete('s 2', repeat('r', 2049), '1'), 't completed 1 ref not kept', 'one byte more is dropped, the success stands, the note says so');
SELECT is(complete('s 3', 'r', jsonb_build_object('a', repeat('x', 2000))), 't completed 1 result not kept', 'a result that is too large likewise');
SELECT is(complete('s 4', repeat('ü', 1025), jsonb_build_object('a', repeat('x', 2000))), 't completed ref result not kept', 'both');
SELECT is(complete('s 5', repeat('r', 2049), jsonb_build_object('a', repeat('x', 2000)), true), 't completed ref result not kept', 'both in a batch');
SELECT is(complete('s 6', '', '1'), 't completed 1', 'an empty external_ref is none');

-- the note says so whatever else it has to say
SELECT idem.define_rule('noted', 'event', 'the team', retry_delay => '0') <> '' AS defined \g /dev/null
CREATE FUNCTION noted(key text, change text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	c	idem.claim := idem.claim_action(key, 'noted');
	r	idem.report;
BEGIN
	IF change = 'release' THEN
		PERFORM idem.release_action(c.action_id, c.claim_id);
	ELSIF change = 'fail' THEN
		PERFORM idem.fail_action(c.action_id, c.claim_id, 'no', 'refused');
	ELSE
		EXECUTE format('UPDATE idem.idem_actions SET %s WHERE action_id = %L', change, c.action_id);
	END IF;
	r := idem.complete_action(c.action_id, c.claim_id, repeat('r', 2049), jsonb_build_object('a', repeat('x', 2000)));
	RETURN CASE WHEN r.note ~ 'too large|not kept' THEN 'told' ELSE r.note END;
END
$$;
SELECT is(noted('1', 'lease_until = clock_timestamp() - interval ''1 s'''), 'told', 'what was dropped is told also when it was late');
SELECT is(noted('2', 'cancel_requested = true'), 'told', 'also when a cancel came too late');
SELECT is(noted('3', 'release'), 'told', 'also when a person has to look');
SELECT is(noted('4', 'fail'), 'told', 'also when it had failed');
CREATE FUNCTION noted_again() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	c	idem.claim := idem.claim_action('again', 'noted');
	r	idem.report;
BEGIN
	PERFORM idem.complete_action(c.action_id, c.claim_id);
	r := idem.complete_action(c.action_id, c.claim_id, repeat('r', 2049));
	RETURN CASE WHEN r.note ~ 'too large|not kept' THEN 'told' ELSE coalesce(r.note, 'nothing') END;
END
$$;
SELECT is(noted_again(), 'told', 'also when the action was completed without a reference before');
RESET idem_action.max_content;

-- only a superuser lifts the limit
CREATE ROLE regress_idem_nobody;
SET ROLE regress_idem_nobody;
DO $$
BEGIN
	SET idem_action.max_content = 2048;
	RAISE 'was allowed';
EXCEPTION WHEN insufficient_privilege THEN NULL;
END
$$;
RESET ROLE;
DROP ROLE regress_idem_nobody;
SELECT pass('max_content is the superuser''s');

--
-- Errors: cleaned and cut, the state change is never lost
--
CREATE FUNCTION error_of(key text, error text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	c	idem.claim := idem.claim_action(key, 'step');
BEGIN
	PERFORM idem.fail_action(c.action_id, c.claim_id, error, 'refused');
	RETURN (a(key)).error;
END
$$;
SELECT is(octet_length(error_of('e 1', repeat('x', 100000))), 8192, 'an error is cut at 8 kB');
SELECT is(error_of('e 2', 'x' || repeat('ü', 5000)), 'x' || repeat('ü', 4095), 'not within a character');
SELECT is(error_of('e 3', repeat('x', 8190) || '😀'), repeat('x', 8190), 'of whatever length');
SELECT is(error_of('e 4', E'a\tb\nc\x01\x02\x1b[31m\x7f' || 'd' || E'\r\n'), E'a\tb\nc   [31m d \n', 'control characters become spaces, tab and newline stay');
SELECT is(error_of('e 5', NULL), NULL, 'no error is no error');
SELECT is(error_of('e 6', ''), '', 'nor is an empty one');
SELECT is((SELECT count(*) FROM idem.idem_actions WHERE key LIKE 'e _' AND state = 'failed'), 6::bigint, 'and each of them has failed');
SELECT is((SELECT detail->>'error' FROM idem.history WHERE key = 'e 2' AND event = 'failed' AND detail ? 'effect'), 'x' || repeat('ü', 4095), 'the history holds the same');

--
-- Labels are cut at 1 kB, never within a character
--
SELECT is((octet_length(worker), octet_length(source), octet_length(event_id))::text, '(1024,1024,1024)', 'worker, source, event_id are cut at 1 kB')
FROM idem.claim_action('l 1', 'step', worker => repeat('w', 5000), source => repeat('s', 5000), event_id => repeat('e', 5000));
SELECT is((worker, source, event_id)::text, ROW ('w' || repeat('ü', 511), 's' || repeat('ü', 511), 'e' || repeat('ü', 511))::text, 'not within a character')
FROM idem.claim_action('l 2', 'step', worker => 'w' || repeat('ü', 600), source => 's' || repeat('ü', 600), event_id => 'e' || repeat('ü', 600));
SELECT is((octet_length(worker), octet_length(source), octet_length(event_id))::text, '(1024,1024,1024)', 'in a batch likewise')
FROM idem.claim_actions('step', '{l 3}', worker => repeat('w', 5000), source => repeat('s', 5000), event_ids => ARRAY[repeat('e', 5000)]);
SELECT is((worker, source, event_id)::text, '(,,)', 'an empty one is none') FROM idem.claim_action('l 4', 'step', worker => '', source => '', event_id => '');
SELECT r.state FROM a('l 1') AS a, idem.release_action(a.action_id, a.claim_id, repeat('r', 5000)) AS r \g /dev/null
SELECT is(octet_length(detail->>'reason'), 1024, 'the reason of a release is cut at 1 kB') FROM idem.idem_events WHERE action_id = (a('l 1')).action_id;

--
-- Leases and waits
--
SELECT refused(format('SELECT * FROM idem.%s', replace(call, 'LEASE', quote_literal(lease))), '22023', format('a lease of %s is refused: %s', lease, split_part(call, '(', 1)))
FROM (VALUES
	('claim_action(''n'', ''step'', lease => LEASE, in_transaction => true)'),
	('claim_actions(''step'', ''{n}'', lease => LEASE, in_transaction => true)'),
	('extend_claim(gen_random_uuid(), gen_random_uuid(), LEASE)'),
	('extend_claims(''{}'', ''{}'', LEASE)')) AS c (call),
	unnest('{0,-1 s,-1 month 1 day,100000 years}'::text[]) AS lease;
SELECT is((SELECT lease_until - claimed_at FROM idem.claim_action(lease, 'step', lease => lease::interval)), elapsed::interval, format('a lease of %s', lease))
FROM (VALUES ('1 microsecond', '0.000001'), ('90 s', '90 s'), ('1 day', '24:00'), ('1 month', '720:00'), ('1 year', '8640:00')) AS v (lease, elapsed);
SELECT is((SELECT lease_until - claimed_at FROM idem.claim_action('default', 'step', lease => NULL)), '5 min'::interval, 'NULL is the rule''s');
SELECT CASE WHEN current_setting('server_version_num')::int >= 170000
	THEN throws_ok($$SELECT idem.claim_action('n', 'step', lease => 'infinity', in_transaction => true)$$, '22023', NULL, 'an endless lease is refused')
	ELSE pass('no endless interval before PostgreSQL 17') END;
SELECT refused(format('SELECT * FROM idem.claim_action(''n'', ''step'', wait => %L, in_transaction => true)', wait), '22023', format('a wait of %s is refused', wait))
FROM unnest('{-1 ms,30.001 s,1 day}'::text[]) AS wait;
SELECT is((SELECT outcome FROM idem.claim_action('w 1', 'step', wait => '30 s')), 'claimed', 'wait of 30 s');
SELECT is((SELECT outcome FROM idem.claim_action('w 1', 'step', wait => NULL)), 'in_progress', 'wait of NULL is none');
SELECT clock_timestamp() AS before \gset
SELECT is((SELECT outcome FROM idem.claim_action('w 1', 'step', wait => '0.3 s')), 'in_progress', 'waiting for another holder in vain');
SELECT is(clock_timestamp() - :'before' BETWEEN '0.3 s' AND '20 s', true, 'takes as long as was said');
SELECT is((SELECT outcome FROM idem.claim_action('s 1', 'step', wait => '30 s')), 'completed', 'what is at rest is not waited for');
SELECT is(clock_timestamp() - :'before' < '25 s', true, 'not at all');

-- a lease runs from the call, not from the start of the transaction
BEGIN;
SELECT clock_timestamp() AS before \gset
SELECT is(now() < :'before' AND lease_until >= :'before'::timestamptz + '60 s' AND lease_until <= clock_timestamp() + '60 s', true, 'a lease ends that long after the call')
FROM idem.claim_action('long transaction', 'step', lease => '60 s', in_transaction => true);
COMMIT;

-- extend
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('extended', 'step', lease => '90 s') \gset
SELECT revision AS revision FROM a('extended') \gset
SELECT is(idem.extend_claim(:'id', :'claim') BETWEEN 100 AND 300, true, 'extend_claim: the rule''s lease');
SELECT is((a('extended')).lease_until - clock_timestamp() BETWEEN '100 s' AND '300 s', true, 'from now on');
SELECT is(idem.extend_claim(:'id', :'claim', '1 hour') BETWEEN 3000 AND 3600, true, 'or the one asked for');
SELECT is((a('extended')).revision, :'revision'::bigint, 'which is no change that a person has to see');
SELECT is((SELECT count(*) FROM idem.idem_events WHERE action_id = :'id'), 0::bigint, 'nor one for the history');
SELECT is(idem.begin_effect(:'id', :'claim') BETWEEN 3000 AND 3600, true, 'begin_effect leaves the lease as it is');
SELECT is(idem.begin_effect(:'id', :'claim', lease => '2 hours') BETWEEN 7000 AND 7200, true, 'or renews it');

--
-- Transactions
--
BEGIN;
SELECT throws_ok($$SELECT idem.claim_action('tx', 'step')$$, '25001', NULL, 'a claim in an open transaction');
SELECT throws_ok($$SELECT idem.claim_action('tx', 'step', in_transaction => NULL)$$, '25001', NULL, 'NULL is false');
SELECT throws_ok($$SELECT * FROM idem.claim_actions('step', '{tx}')$$, '25001', NULL, 'a batch of claims');
SELECT throws_ok($$SELECT idem.claim_action('s 1', 'step')$$, '25001', NULL, 'also where it is completed');
SELECT throws_ok(format('SELECT idem.begin_effect(%L, %L)', :'id', :'claim'), '25001', NULL, 'begin_effect always');
COMMIT;
BEGIN;
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('tx', 'step', in_transaction => true) \gset
SELECT is((SELECT state FROM idem.complete_action(:'id', :'claim', 'r')), 'completed', 'with in_transaction it is normal: claim, write, complete');
SELECT is((SELECT outcome FROM idem.claim_action('tx', 'step', in_transaction => true)), 'completed', 'and seen');
ROLLBACK;
SELECT is((SELECT outcome FROM idem.find_action('tx', 'step')), 'unknown', 'what is rolled back is forgotten');
SELECT is((SELECT outcome FROM idem.claim_action('tx', 'step')), 'claimed', 'and free');
BEGIN;
SELECT is((SELECT outcome FROM idem.claim_action('tx 2', 'step', in_transaction => true)), 'claimed', 'in a transaction');
SAVEPOINT s;
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('tx 3', 'step', in_transaction => true) \gset
SELECT state FROM idem.complete_action((a('tx 2')).action_id, (a('tx 2')).claim_id) \g /dev/null
SELECT is((SELECT string_agg(state, ' ' ORDER BY key) FROM idem.idem_actions WHERE key LIKE 'tx _'), 'completed in_progress', 'what a subtransaction did');
ROLLBACK TO s;
SELECT is((SELECT string_agg(state, ' ' ORDER BY key) FROM idem.idem_actions WHERE key LIKE 'tx _'), 'in_progress', 'goes with it');
SELECT is((SELECT outcome FROM idem.claim_action('tx 3', 'step', in_transaction => true)), 'claimed', 'and can be done again');
COMMIT;
-- what the own transaction has locked or changed is not held by somebody else
CREATE FUNCTION one_transaction(key text, what text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	c	idem.claim := idem.claim_action(key, 'step');
BEGIN
	CASE what
		WHEN 'release' THEN PERFORM idem.release_action(c.action_id, c.claim_id);
		WHEN 'evidence' THEN
			PERFORM idem.release_action(c.action_id, c.claim_id);
			PERFORM idem.fail_action(c.action_id, c.claim_id, 'too late', 'none');
		WHEN 'lock' THEN
			PERFORM idem.release_action(c.action_id, c.claim_id);
			PERFORM FROM idem.idem_actions WHERE action_id = c.action_id FOR UPDATE;
		WHEN 'update' THEN
			UPDATE idem.idem_actions SET claimed_at = claimed_at - interval '1 day', lease_until = clock_timestamp() - interval '1 s' WHERE action_id = c.action_id;
	END CASE;
	RETURN (SELECT outcome || ' ' || coalesce(attempt::text, '') FROM idem.claim_action(key, 'step'));
END
$$;
SELECT is(one_transaction('own 1', 'release'), 'claimed 2', 'released and claimed in one transaction');
SELECT is(one_transaction('own 2', 'evidence'), 'claimed 2', 'evidence, then a claim in one transaction');
SELECT is(one_transaction('own 3', 'lock'), 'claimed 2', 'locked by the caller, then claimed by it');
SELECT is(one_transaction('own 4', 'update'), 'claimed 2', 'changed by the caller, then claimed by it');

--
-- Rules: required, scoped
--
SELECT refused(format('SELECT * FROM idem.%s', call), 'IA005', 'A8: no claim without a rule: ' || call)
FROM unnest(ARRAY[$$claim_action('k', 'unruled', in_transaction => true)$$, $$claim_actions('unruled', '{k}', in_transaction => true)$$,
	$$once('k', 'unruled')$$, $$find_action('k', 'unruled')$$, $$describe_rule('unruled')$$]) AS call;
SET idem_action.require_rule = off;
SELECT is((outcome, lease_until - claimed_at)::text, '(claimed,00:05:00)', 'unless require_rule is off: then the defaults hold') FROM idem.claim_action('k', 'unruled');
RESET idem_action.require_rule;
SELECT is((SELECT state FROM idem.fail_action((a('k', 'unruled')).action_id, (a('k', 'unruled')).claim_id, 'x')), 'needs_attention', 'a report is taken without a rule: it must not get lost');
SELECT idem.define_rule('tenants', 'event', 'the team', scoped => true) <> '' AS defined \g /dev/null
SELECT refused(format('SELECT * FROM idem.%s', call), 'IA006', 'a scoped rule wants a scope: ' || call)
FROM unnest(ARRAY[$$claim_action('k', 'tenants', in_transaction => true)$$, $$claim_actions('tenants', '{k}', in_transaction => true)$$,
	$$once('k', 'tenants')$$, $$find_action('k', 'tenants')$$]) AS call;
SELECT is((SELECT string_agg(outcome, ' ') FROM (VALUES ('a'), ('b'), ('a')) AS v (scope), LATERAL idem.claim_action('k', 'tenants', scope => scope)), 'claimed claimed in_progress', 'and keeps them apart');

--
-- What a DBA does to the table
--
-- an index of their own is maintained, whatever moves
CREATE INDEX dba_state ON idem.idem_actions (state, worker);
CREATE INDEX dba_partial ON idem.idem_actions ((result->>'a')) WHERE result IS NOT NULL;
SELECT idem.define_rule('dba', 'event', 'the team') <> '' AS defined \g /dev/null
SELECT count(*) FROM idem.claim_actions('dba', (SELECT array_agg(i::text) FROM generate_series(1, 100) AS i), worker => 'dba') \g /dev/null
SELECT count(*) FROM idem.idem_actions, idem.complete_action(action_id, claim_id, 'r', jsonb_build_object('a', key)) WHERE intent = 'dba' AND key::int % 2 = 0 \g /dev/null
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SELECT is((SELECT array_agg(state || ' ' || n ORDER BY state) FROM (SELECT state, count(*) AS n FROM idem.idem_actions WHERE worker = 'dba' AND state = ANY ('{in_progress,completed}') GROUP BY state) AS s),
	'{"completed 50","in_progress 50"}', 'an index that a DBA adds is maintained');
SELECT is((SELECT count(*) FROM generate_series(1, 100) AS i WHERE EXISTS (SELECT FROM idem.idem_actions WHERE result->>'a' = i::text)), 50::bigint, 'a partial one on an expression too');
RESET enable_seqscan;
RESET enable_bitmapscan;
DROP INDEX idem.dba_state, idem.dba_partial;

-- a row that outgrows its page moves to another one
SELECT idem.define_rule('wide', 'event', 'the team') <> '' AS defined \g /dev/null
CREATE FUNCTION wide(seed text) RETURNS jsonb LANGUAGE sql IMMUTABLE AS
	$$SELECT jsonb_build_object('a', string_agg(md5(seed || i), '')) FROM generate_series(1, 25) AS i$$;
SELECT count(*) FROM generate_series(1, 200) AS i, LATERAL idem.claim_action(i::text, 'wide', wide('params' || i)) \g /dev/null
SELECT count(*) FROM idem.idem_actions a, LATERAL idem.complete_action(action_id, claim_id, key, wide('result' || key)) WHERE intent = 'wide' \g /dev/null
SELECT is((SELECT count(*) FROM idem.idem_actions WHERE intent = 'wide' AND state = 'completed' AND result = wide('result' || key)), 200::bigint, 'two hundred of them');
SELECT is((SELECT string_agg(DISTINCT outcome, ' ') FROM generate_series(1, 200) AS i, LATERAL idem.claim_action(i::text, 'wide')), 'completed', 'and each is found again');

-- what a rollback has left in the index is stepped over, by batches too
BEGIN;
SELECT count(*) FROM idem.claim_actions('wide', '{r 1,r 2,r 3,r 4}', in_transaction => true) \g /dev/null
ROLLBACK;
SELECT is((SELECT string_agg(outcome, ' ') FROM idem.claim_actions('wide', '{r 1,r 2,r 3,r 4}')), 'claimed claimed claimed claimed', 'a batch that was rolled back is claimed again');
BEGIN;
SELECT count(*) FROM idem.claim_actions('wide', '{r 5,r 6,r 7,r 8}', in_transaction => true) \g /dev/null
ROLLBACK;
SELECT count(*) FROM (VALUES ('r 5'), ('r 6'), ('r 7'), ('r 8')) AS v (k), LATERAL idem.claim_action(k, 'wide') \g /dev/null
SELECT array_agg(action_id) AS ids, array_agg(claim_id) AS claims FROM idem.idem_actions WHERE key ~ '^r [5-8]$' \gset
SELECT is((SELECT count(seconds_left) FROM idem.extend_claims(:'ids', :'claims')), 4::bigint, 'and extended');
SELECT is((SELECT count(*) FROM idem.complete_actions(:'ids', :'claims') WHERE accepted), 4::bigint, 'and completed');

-- triggers and foreign keys would not fire: refused by name
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER audit_me AFTER INSERT ON idem.idem_actions FOR EACH ROW EXECUTE FUNCTION nothing();
SELECT throws_like($$SELECT idem.claim_action('trigger', 'step', in_transaction => true)$$, '%audit_me%', 'a trigger on idem_actions is refused by its name');
SELECT throws_like($$SELECT idem.once('trigger', 'step')$$, '%audit_me%', 'once too');
SELECT throws_like(format('SELECT idem.complete_action(%L, %L)', (a('x')).action_id, (a('x')).claim_id), '%audit_me%', 'a report too');
DROP TRIGGER audit_me ON idem.idem_actions;
CREATE TABLE refers (action_id uuid REFERENCES idem.idem_actions);
SELECT throws_ok($$SELECT idem.claim_action('trigger', 'step', in_transaction => true)$$, '0A000', NULL, 'a foreign key to it likewise');
DROP TABLE refers;
SELECT is((SELECT outcome FROM idem.claim_action('trigger', 'step')), 'claimed', 'without them all is well');

--
-- Other sessions, and roles that go
--
CREATE EXTENSION dblink;
SELECT dblink_connect('other', format('host=%s port=%s dbname=%s user=%s', current_setting('unix_socket_directories'),
	current_setting('port'), current_database(), current_user)) = 'OK' AS connected \g /dev/null
CREATE FUNCTION other(command text) RETURNS text LANGUAGE sql AS 'SELECT * FROM dblink(''other'', command) AS d (answer text)';
SELECT idem.define_rule('shared', 'event', 'the team', lease => '1 h') <> '' AS defined \g /dev/null
SELECT is(other($$SELECT lease_until - claimed_at FROM idem.claim_action('1', 'shared')$$), '01:00:00', 'another session has cached a rule');
SELECT idem.define_rule('shared', 'event', 'the team', lease => '2 h') <> '' AS defined \g /dev/null
SELECT is(other($$SELECT lease_until - claimed_at FROM idem.claim_action('2', 'shared')$$), '02:00:00', 'a change holds from its next call on');
SELECT is(other($$SELECT outcome FROM idem.claim_action('1', 'shared')$$), 'in_progress', 'an open claim of the rule stays');
UPDATE idem.idem_rules SET lease = '3 h' WHERE intent = 'shared';
SELECT is(other($$SELECT lease_until - claimed_at FROM idem.claim_action('3', 'shared')$$), '03:00:00', 'also one written by a DBA');
DELETE FROM idem.idem_actions WHERE intent = 'shared';
DELETE FROM idem.idem_queue WHERE intent = 'shared';
SELECT idem.drop_rule('shared') \g /dev/null
SELECT throws_ok($$SELECT t.other('SELECT outcome FROM idem.claim_action(''4'', ''shared'')')$$, 'IA005', NULL, 'and so does the end of a rule');
BEGIN;
SELECT idem.define_rule('shared', 'event', 'the team') <> '' AS defined \g /dev/null
SELECT throws_ok($$SELECT t.other('SELECT outcome FROM idem.claim_action(''4'', ''shared'')')$$, 'IA005', NULL, 'what is not committed does not hold there');
COMMIT;
SELECT is(other($$SELECT outcome FROM idem.claim_action('4', 'shared')$$), 'claimed', 'what is does');
-- waiting for another session's open claim, and for its end
SELECT dblink_exec('other', 'BEGIN') \g /dev/null
SELECT is(other($$SELECT outcome FROM idem.claim_action('5', 'shared', in_transaction => true)$$), 'claimed', 'another session claims in an open transaction');
SELECT is((outcome, granted, claim_id, state, retry_after IS NOT NULL, key)::text, '(contended,f,,,t,5)', 'contended: nothing is known yet, ask again') FROM idem.claim_action('5', 'shared');
SELECT is((SELECT outcome FROM idem.find_action('5', 'shared')), 'contended', 'the same to find');
SELECT is((SELECT string_agg(outcome, ' ') FROM idem.claim_actions('shared', '{6,5,7}')), 'claimed contended claimed', 'in a batch it stops nobody else');
SELECT dblink_exec('other', 'ROLLBACK') \g /dev/null
SELECT is((SELECT outcome FROM idem.claim_action('5', 'shared')), 'claimed', 'rolled back: free');
SELECT dblink_disconnect('other') \g /dev/null

-- a role that was dropped leaves nothing that cannot be taken back
CREATE ROLE regress_idem_gone;
SELECT idem.grant_access('regress_idem_gone', 'worker') \g /dev/null
SELECT 'regress_idem_gone'::regrole::oid AS gone \gset
DROP OWNED BY regress_idem_gone;
DROP ROLE regress_idem_gone;
SELECT lives_ok(format('SELECT idem.revoke_access(%s, %L)', :'gone', 'worker'), 'the access of a role that was dropped can be revoked');
SELECT is_empty('SELECT * FROM idem.access', 'and then it is not shown any more');

SELECT is_empty('SELECT a.* FROM idem.idem_actions a WHERE idem.violated_invariant(a) IS NOT NULL', 'no row breaks an invariant');

SELECT * FROM finish();
