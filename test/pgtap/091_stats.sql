-- Copyright (c) 2026, idem_action contributors

-- What was counted, against a scenario whose numbers are known: repeats of each
-- outcome, rolled-back calls, batches, mismatches, calls that met an open
-- transaction; what is not counted is said.

\pset fieldsep '\n'
SELECT no_plan();

SET client_min_messages = warning;
SELECT count(r) FROM unnest('{mail,other,approve,pause}'::text[]) i,
	LATERAL idem.define_rule(i, 'the event', 'ops', retry_delay => '1 hour', requires_approval => i = 'approve') r \g /dev/null

CREATE TABLE c AS SELECT c.* FROM unnest('{done,held,failed,doubt,cancel,later}'::text[]) k,
	LATERAL idem.claim_action(k, 'mail', '{"to": "a"}', source => 'bus', event_id => 'evt-' || k, lease => '1 hour') c;
CREATE FUNCTION pg_temp.id(k text) RETURNS uuid LANGUAGE sql AS 'SELECT action_id FROM c WHERE key = k';
CREATE FUNCTION pg_temp.claim(k text) RETURNS uuid LANGUAGE sql AS 'SELECT claim_id FROM c WHERE key = k';
SELECT FROM idem.complete_action(pg_temp.id('done'), pg_temp.claim('done'), 'ref') \g /dev/null
SELECT FROM idem.fail_action(pg_temp.id('failed'), pg_temp.claim('failed'), 'no', effect => 'refused') \g /dev/null
SELECT FROM idem.fail_action(pg_temp.id('doubt'), pg_temp.claim('doubt'), 'timeout') \g /dev/null
SELECT FROM idem.fail_action(pg_temp.id('later'), pg_temp.claim('later'), 'busy', effect => 'none') \g /dev/null
SELECT FROM idem.fail_action(pg_temp.id('cancel'), pg_temp.claim('cancel'), 'busy', effect => 'none') \g /dev/null
SELECT FROM idem.cancel_action(pg_temp.id('cancel')) \g /dev/null
SELECT FROM idem.enqueue_action('asks', 'approve', source => 'bus') \g /dev/null
SELECT FROM idem.enqueue_action('paused', 'pause', source => 'bus') \g /dev/null
SELECT FROM idem.pause_intent('pause', 'test') \g /dev/null

-- --- one repeat of each kind, and some more ---------------------------------------

SELECT is(outcome, 'completed', 'completed, by one delivery three times')
FROM generate_series(1, 3) i, LATERAL idem.claim_action('done', 'mail', '{"to": "a"}', source => left('bus', 3 * i), event_id => 'evt-2');
SELECT is(outcome, 'completed', 'completed, by another') FROM idem.claim_action('done', 'mail', '{"to": "a"}', source => 'cron');
SELECT is(outcome, 'completed', 'completed, by one without a name') FROM idem.claim_action('done', 'mail', '{"to": "a"}');
SELECT is(outcome, 'in_progress', 'in_progress, twice') FROM generate_series(1, 2) i, LATERAL idem.claim_action('held', 'mail', '{"to": "a"}', source => left('bus', 3 * i));
SELECT is(outcome, 'failed', 'failed') FROM idem.claim_action('failed', 'mail', '{"to": "a"}', source => 'bus');
SELECT is(outcome, 'needs_attention', 'needs_attention') FROM idem.claim_action('doubt', 'mail', '{"to": "a"}', source => 'bus');
SELECT is(outcome, 'cancelled', 'cancelled') FROM idem.claim_action('cancel', 'mail', '{"to": "a"}', source => 'bus');
SELECT is(outcome, 'not_due', 'not_due') FROM idem.claim_action('later', 'mail', '{"to": "a"}', source => 'bus');
SELECT is(outcome, 'awaiting_approval', 'awaiting_approval') FROM idem.claim_action('asks', 'approve', source => 'bus');
SELECT is(outcome, 'paused', 'paused') FROM idem.claim_action('paused', 'pause', source => 'bus');

-- a repeat that is rolled back was a repeat
BEGIN;
SELECT is(outcome, 'completed', 'completed, rolled back') FROM idem.claim_action('done', 'mail', '{"to": "a"}', source => 'bus', event_id => 'evt-2', in_transaction => true);
ROLLBACK;

-- in a batch: two known ones, one new, the twin of the new one, a mismatch
SELECT is(string_agg(outcome, ' ' ORDER BY n), 'completed in_progress claimed in_progress mismatch', 'a batch')
FROM idem.claim_actions('mail', '{done,held,new,new,failed}',
	ARRAY['{"to": "a"}', '{"to": "a"}', '{"to": "a"}', '{"to": "a"}', '{"to": "else"}']::jsonb[], source => 'batch') WITH ORDINALITY b
	(granted, outcome, action_id, claim_id, attempt, generation, repeat, state, reason, lease_until, retry_after, provider_key, scope, intent, key,
	params, draft, revision, external_ref, result, error, uncertain, source, event_id, worker, claimed_at, first_seen, finished_at, n);

-- an error of the call, and of a caller's transaction
SELECT throws_ok($$SELECT idem.claim_action('held', 'mail', '{"to": "else"}', source => 'error', in_transaction => true)$$, 'IA001', NULL, 'a mismatch');

CALL idem.run_maintenance();
SELECT is(recorded || ' ' || completed || ' ' || in_progress || ' ' || failed || ' ' || needs_attention || ' ' || cancelled || ' ' || not_due,
	'6 4 2 1 1 1 1', 'stat_intents: mail from the bus') FROM idem.stat_intents WHERE intent = 'mail' AND source = 'bus';
SELECT is((SELECT mismatch FROM idem.stat_intents WHERE intent = 'mail' AND source = 'error'), 1::bigint, 'stat_intents: the mismatch that was an error');
SELECT is(completed, 1::bigint, 'stat_intents: mail from cron') FROM idem.stat_intents WHERE intent = 'mail' AND source = 'cron';
SELECT is(recorded || ' ' || completed || ' ' || in_progress || ' ' || mismatch, '1 1 2 1', 'stat_intents: mail from the batch')
FROM idem.stat_intents WHERE intent = 'mail' AND source = 'batch';
SELECT is(completed, 1::bigint, 'stat_intents: mail from nobody') FROM idem.stat_intents WHERE intent = 'mail' AND source IS NULL;
SELECT is(recorded || ' ' || awaiting_approval, '1 1', 'stat_intents: approve') FROM idem.stat_intents WHERE intent = 'approve';
SELECT is(recorded || ' ' || paused, '1 1', 'stat_intents: pause') FROM idem.stat_intents WHERE intent = 'pause';
SELECT is(count(*), 0::bigint, 'stat_intents: of an intent without calls nothing') FROM idem.stat_intents WHERE intent = 'other';
SELECT is(count(DISTINCT day), 1::bigint, 'one day'), is(max(day), (now() AT TIME ZONE 'UTC')::date, 'in UTC') FROM idem.stat_intents;

SELECT is(n, 4::bigint, 'repeats: by delivery'), ok(first_at < last_at AND last_at <= now(), 'repeats: from when to when'), is(key, 'done', 'repeats: of which key')
FROM idem.repeats WHERE event_id = 'evt-2';
SELECT is(sum(n), 7::numeric, 'repeats: of one action') FROM idem.repeats WHERE action_id = pg_temp.id('done');
SELECT is(count(*), 4::bigint, 'repeats: its deliveries') FROM idem.repeats WHERE action_id = pg_temp.id('done');
-- B1: the second run is told of the first
SELECT is(event_id, 'evt-done', 'the repeat is told which delivery was first'), is(source, 'bus', 'and from where'), ok(first_seen <= finished_at, 'and when')
FROM idem.claim_action('done', 'mail', '{"to": "a"}', source => 'bus', event_id => 'evt-2');

-- a second flush adds, it does not count again
CALL idem.run_maintenance();
SELECT is(completed, 5::bigint, 'one more') FROM idem.stat_intents WHERE intent = 'mail' AND source = 'bus';
CALL idem.run_maintenance();
SELECT is(completed, 5::bigint, 'nothing more') FROM idem.stat_intents WHERE intent = 'mail' AND source = 'bus';
SELECT is(count(*), (SELECT count(DISTINCT (day, outcome, action_id, source, event_id)) FROM idem.idem_repeats), 'one row for each delivery, outcome and day') FROM idem.idem_repeats;

-- --- once, enqueue ------------------------------------------------------------------

SELECT ok(idem.once('o', 'other', '{"a": 1}'), 'once');
SELECT ok(NOT idem.once('o', 'other', '{"a": 1}'), 'not twice');
CALL idem.run_maintenance();
SELECT is(recorded || ' ' || completed, '1 1', 'once counts') FROM idem.stat_intents WHERE intent = 'other';

-- --- found by any delivery ---------------------------------------------------------------

-- two events may describe one request; one event may call for two actions
SELECT is((SELECT array_agg(key) FROM idem.search_actions('evt-done')), '{done}'::text[], 'found by the event that brought it');
SELECT is((SELECT array_agg(key) FROM idem.search_actions('evt-2')), '{done}'::text[], 'and by another that was a repeat');
SELECT is((SELECT array_agg(key) FROM idem.search_actions('cron')), '{done}'::text[], 'by the source of a repeat');
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('twice', 'other', event_id => 'evt-a') \gset
SELECT FROM idem.release_action(:'id', :'claim') \g /dev/null
SELECT granted FROM idem.claim_action('twice', 'other', event_id => 'evt-b', worker => 'w2') \g /dev/null
SELECT is((SELECT array_agg(key) FROM idem.search_actions('evt-a')), '{twice}'::text[], 'by the event of a hand-out that ended');
SELECT is((SELECT array_agg(key) FROM idem.search_actions('evt-b')), '{twice}'::text[], 'and of the one that goes on');
SELECT is(string_agg(concat_ws(' ', event, attempt, worker, event_id), ', ' ORDER BY at, id), 'recorded 0 evt-a, claimed 1, released 1, claimed 2 w2 evt-b', 'both are in the history')
FROM idem.history WHERE action_id = :'id';
SELECT is((SELECT count(*) FROM idem.explain_action(:'id') e WHERE e ~ 'first seen, event evt-a|attempt 2 was handed out \(worker w2\), event evt-b'), 2::bigint, 'and in the story');
-- one that judged a lost attempt, and got nothing
SELECT granted FROM idem.claim_action('lost', 'other', event_id => 'evt-c') \g /dev/null
UPDATE idem.idem_actions SET claimed_at = claimed_at - interval '1 hour', first_claimed_at = first_claimed_at - interval '1 hour',
	lease_until = lease_until - interval '1 hour' WHERE key = 'lost';
SELECT is(outcome, 'needs_attention', 'a delivery finds that an attempt was lost') FROM idem.claim_action('lost', 'other', source => 'late', event_id => repeat('d', 2000));
CALL idem.run_maintenance();
SELECT is((SELECT array_agg(key) FROM idem.search_actions(repeat('d', 2000))), '{lost}'::text[], 'and is found, as much as is kept of it');
SELECT is(needs_attention, 1::bigint, 'and counted') FROM idem.stat_intents WHERE intent = 'other' AND source = 'late';
SELECT granted FROM idem.claim_action('done', 'other', source => 'bus', event_id => 'evt-done') \g /dev/null
SELECT is((SELECT array_agg(intent ORDER BY intent) FROM idem.search_actions('evt-done')), '{mail,other}'::text[], 'two actions of one event');

-- --- the cost of a repeat ---------------------------------------------------------------

-- no transaction id, and no WAL of its own (another session's checkpoint may write)
CREATE TABLE wal (at text, lsn pg_lsn);
CHECKPOINT;
DO $$
DECLARE
	before pg_lsn;
	least numeric := 'Infinity';
BEGIN
	FOR attempt IN 1 .. 20 LOOP
		before := pg_current_wal_insert_lsn();
		PERFORM idem.claim_action('done', 'mail', '{"to": "a"}', source => 'bus', event_id => 'evt-' || i, in_transaction => true) FROM generate_series(1, 100) i;
		least := least(least, pg_current_wal_insert_lsn() - before);
	END LOOP;
	PERFORM set_config('test.wal', least::text, false), set_config('test.xid', coalesce(pg_current_xact_id_if_assigned()::text, 'none'), false);
END $$;
SELECT is(current_setting('test.wal'), '0', 'a hundred repeats write no WAL'), is(current_setting('test.xid'), 'none', 'and take no transaction id');

-- --- who may read it -----------------------------------------------------------------------

CREATE ROLE idem_test_analyst;
SELECT FROM idem.grant_access('idem_test_analyst', 'analyst') \g /dev/null
SET ROLE idem_test_analyst;
SELECT lives_ok('SELECT * FROM idem.' || v, 'an analyst reads ' || v) FROM unnest('{repeats,stat_intents,worker_status}'::text[]) v;
SELECT throws_ok('SELECT * FROM idem.idem_repeats', '42501', NULL, 'but not the table');
SELECT throws_ok('CALL idem.run_maintenance()', '42501', NULL, 'nor runs maintenance');
RESET ROLE;
SELECT FROM idem.revoke_access('idem_test_analyst', 'analyst') \g /dev/null
DROP OWNED BY idem_test_analyst;
DROP ROLE idem_test_analyst;

-- --- more than there is room for ------------------------------------------------------------

CALL idem.run_maintenance();
-- other databases share the room
SELECT set_config('test.uncounted', uncounted::text, false) FROM idem.worker_state();
SELECT is(count(*), 9000::bigint, 'nine thousand deliveries of one action') FROM generate_series(1, 9000) i,
	LATERAL idem.claim_action('done', 'mail', '{"to": "a"}', source => 'flood', event_id => 'evt-' || i);
SELECT matches(v.problem, format('%s repeats since the start were not counted: too many at once', w.uncounted), 'overflow is said') FROM idem.worker_status v, idem.worker_state() w;
CALL idem.run_maintenance();
SELECT ok(uncounted > current_setting('test.uncounted')::bigint, 'that is more than there is room for') FROM idem.worker_state();
SELECT is(completed + uncounted - current_setting('test.uncounted')::bigint, 9000::bigint, 'counted and not counted are all') FROM idem.stat_intents, idem.worker_state() WHERE intent = 'mail' AND source = 'flood';

SELECT * FROM finish();
