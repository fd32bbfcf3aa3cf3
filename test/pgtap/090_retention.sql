-- Copyright (c) 2026, idem_action contributors

-- What retention means for one action: two stages, from its end on; what is
-- unresolved stays; what is past its time counts as gone at once.  Rows are
-- aged by hand, which only the owner can do.

\pset fieldsep '\n'
SELECT no_plan();

SET client_min_messages = warning;
SELECT FROM idem.define_rule('mail', 'the event', 'ops', keep_content => '10 days', keep_key => '100 days') \g /dev/null
SELECT FROM idem.define_rule('forever', 'the event', 'ops', keep_content => '0 s', keep_key => '99 years') \g /dev/null
SELECT FROM idem.define_rule('again', 'the event', 'ops', on_uncertain => 'repeat', keep_content => '10 days', keep_key => '100 days') \g /dev/null

-- one action each, held or ended
CREATE TABLE held AS SELECT c.* FROM unnest('{done,failed,cancelled,open,attention,double,events,at_once}'::text[]) k,
	LATERAL idem.claim_action(k, 'mail', '{"to": "a@b", "n": 1}', '{"text": "hello"}', source => 'bus', event_id => 'evt-' || k, lease => '1 hour') c;
CREATE FUNCTION pg_temp.id(k text) RETURNS uuid LANGUAGE sql AS 'SELECT action_id FROM held WHERE key = k';
CREATE FUNCTION pg_temp.claim(k text) RETURNS uuid LANGUAGE sql AS 'SELECT claim_id FROM held WHERE key = k';
-- back by so many days, all its moments
CREATE FUNCTION pg_temp.age(k text, days int) RETURNS void LANGUAGE sql AS $$
	UPDATE idem.idem_actions SET created_at = created_at - days * interval '1 day', finished_at = finished_at - days * interval '1 day',
		purge_after = purge_after - days * interval '1 day', forget_after = forget_after - days * interval '1 day',
		claimed_at = claimed_at - days * interval '1 day', first_claimed_at = first_claimed_at - days * interval '1 day'
	WHERE key = k $$;

-- --- from the end on ---------------------------------------------------------

SELECT is(count(*), 0::bigint, 'no retention before the end') FROM idem.idem_actions WHERE purge_after IS NOT NULL OR forget_after IS NOT NULL;
SELECT pg_temp.age('done', 5);
SELECT ok(accepted, 'completed') FROM idem.complete_action(pg_temp.id('done'), pg_temp.claim('done'), 'msg-1', '{"ok": true}');
SELECT ok(accepted, 'failed') FROM idem.fail_action(pg_temp.id('failed'), pg_temp.claim('failed'), 'no such box: a@b', effect => 'refused');
SELECT FROM idem.enqueue_action('cancelled-2', 'mail', '{"to": "a@b"}') \g /dev/null
SELECT is(state, 'cancelled', 'cancelled') FROM idem.cancel_action(idem.action_id('cancelled-2', 'mail'), 'no need');
SELECT ok(accepted AND state = 'needs_attention', 'unknown') FROM idem.fail_action(pg_temp.id('attention'), pg_temp.claim('attention'), 'timeout', effect => 'unknown');
SELECT ok(accepted, 'a success') FROM idem.complete_action(pg_temp.id('double'), pg_temp.claim('double'), 'msg-2', '{"ok": true}');
SELECT is(state, 'completed', 'and another one') FROM idem.complete_action(pg_temp.id('double'), pg_temp.claim('double'), 'msg-3', '{"ok": true}');
SELECT is(reason, 'double_result', 'is a double result') FROM idem.actions WHERE key = 'double';

SELECT is(purge_after - finished_at, interval '10 days', key || ': contents from its end on'),
	is(forget_after - finished_at, interval '100 days', key || ': key from its end on'),
	ok(finished_at > now() - interval '1 hour', key || ': its end is what counts, not its begin')
FROM (SELECT * FROM idem.idem_actions WHERE key IN ('done', 'failed', 'cancelled-2', 'double') ORDER BY key) a;

-- --- unresolved never expires --------------------------------------------------

SELECT pg_temp.age(k, 4000) FROM unnest('{open,attention,double}'::text[]) k;
SELECT FROM idem.enqueue_action('waits', 'mail', '{"to": "a@b"}', '{"text": "hello"}') \g /dev/null
SELECT pg_temp.age('waits', 4000);
CALL idem.run_maintenance();
SELECT is(state, s, k || ': kept after ten years'), isnt(params, NULL, k || ': with what it says')
FROM (SELECT * FROM (VALUES ('open', 'in_progress'), ('attention', 'needs_attention'), ('waits', 'pending'), ('double', 'completed')) v (k, s)
	LEFT JOIN idem.idem_actions ON key = k ORDER BY k) a;
SELECT is(count(*), 1::bigint, 'the open double result waits for a person') FROM idem.attention WHERE key = 'double';
-- it is acknowledged: now retention goes on
SELECT ok((idem.resolve_action(action_id, 'happened', 'both seen', revision)).accepted, 'acknowledged') FROM idem.actions WHERE key = 'double';
CALL idem.run_maintenance();
SELECT is(count(*), 0::bigint, 'a double result that was acknowledged long ago goes') FROM idem.idem_actions WHERE key = 'double'
	AND forget_after < now();

-- an attempt that failed before the one that was completed
SELECT action_id AS retried_id, claim_id AS retried_claim FROM idem.claim_action('retried', 'mail', lease => '1 hour') \gset
SELECT FROM idem.fail_action(:'retried_id', :'retried_claim', 'mailbox of a@b is full', 'none', '0') \g /dev/null
SELECT claim_id AS retried_claim FROM idem.claim_action('retried', 'mail') \gset
SELECT FROM idem.complete_action(:'retried_id', :'retried_claim') \g /dev/null
SELECT is(count(*), 1::bigint, 'the history has the error of an earlier attempt') FROM idem.history WHERE key = 'retried' AND detail ->> 'error' LIKE '%a@b%';
SELECT pg_temp.age('retried', 11);
CALL idem.run_maintenance();
SELECT is(count(*), 0::bigint, 'it goes with the contents') FROM idem.history WHERE key = 'retried' AND detail::text LIKE '%a@b%';
SELECT is(detail ->> 'effect', 'none', 'that it failed stays') FROM idem.history WHERE key = 'retried' AND event = 'failed';
SELECT pg_temp.age('retried', 100);
CALL idem.run_maintenance();

-- --- the contents go -----------------------------------------------------------

SELECT pg_temp.age('done', 11);
SELECT pg_temp.age('failed', 11);
SELECT is(outcome || ' ' || (result IS NOT NULL), 'completed true', 'not purged yet: the result is answered') FROM idem.claim_action('done', 'mail', '{"to": "a@b", "n": 1}');
SELECT set_config('test.revision', revision::text, false) FROM idem.actions WHERE key = 'done';
CALL idem.run_maintenance();
SELECT ok(params IS NULL AND draft IS NULL AND result IS NULL AND error IS NULL, key || ': contents are gone'),
	ok(purged, key || ': said so'), isnt(params_digest, NULL, key || ': the fingerprint is kept')
FROM (SELECT * FROM idem.idem_actions WHERE key IN ('done', 'failed') ORDER BY key) a;
SELECT is(revision::text, current_setting('test.revision'), 'the revision is as it was') FROM idem.actions WHERE key = 'done';
SELECT is(outcome, 'completed', 'purged: still completed'), is(reason, 'content_purged', 'purged: the reason'),
	is(external_ref, 'msg-1', 'purged: the reference stays'), is(result, NULL, 'purged: no result'),
	is(event_id, 'evt-done', 'purged: who was first'), ok(repeat AND NOT granted, 'purged: a repeat')
FROM idem.claim_action('done', 'mail', '{"n": 1.0, "to": "a@b"}');
SELECT is(outcome, 'failed', 'purged: still failed') FROM idem.claim_action('failed', 'mail', '{"to": "a@b", "n": 1}');
DO $$
DECLARE
	detail text;
BEGIN
	PERFORM idem.claim_action('done', 'mail', '{"to": "x@y", "n": 1}', in_transaction => true);
	RAISE 'not noticed';
EXCEPTION WHEN SQLSTATE 'IA001' THEN
	GET STACKED DIAGNOSTICS detail = pg_exception_detail;
	PERFORM set_config('test.detail', detail, false);
END $$;
SELECT unalike(current_setting('test.detail'), '%"to"%', 'purged: a mismatch is found, no names');
SELECT throws_ok($$SELECT idem.claim_action('done', 'mail', '{"to": "x@y", "n": 1}', in_transaction => true)$$, 'IA001', NULL, 'purged: a mismatch is an error');
SELECT is(outcome, 'mismatch', 'purged: a mismatch in a batch') FROM idem.claim_actions('mail', '{done}', ARRAY['{"to": "x@y"}'::jsonb]);
SELECT ok(accepted, 'purged: the same success again') FROM idem.complete_action(pg_temp.id('done'), pg_temp.claim('done'), 'msg-1', '{"ok": true}');
SELECT ok(result IS NULL AND error IS NULL, 'purged: a later result is dropped') FROM idem.idem_actions WHERE key = 'done';
-- a late success of what had failed: its reference is kept, its result is not
CREATE TABLE late AS SELECT * FROM idem.complete_action(pg_temp.id('failed'), pg_temp.claim('failed'), 'msg-9', '{"ok": true}');
SELECT is(state, 'needs_attention', 'purged: a late success is for a person') FROM late;
SELECT matches(note, 'result|contents|purged', 'purged: the note says what was dropped') FROM late;
SELECT is(external_ref, 'msg-9', 'purged: its reference is kept'), is(result, NULL, 'purged: its result is not') FROM idem.idem_actions WHERE key = 'failed';
SELECT is(count(*), 0::bigint, 'purged: nor is it in the history') FROM idem.idem_events WHERE action_id = pg_temp.id('failed') AND content IS NOT NULL;
SELECT ok(accepted, 'purged: a rerun') FROM idem.rerun_action(pg_temp.id('done'), 'asked for', (SELECT revision FROM idem.actions WHERE key = 'done'));
SELECT is(count(*), 0::bigint, 'purged: a rerun is never taken') FROM idem.take_actions('{mail}', max => 10) WHERE key = 'done';
SELECT is(outcome, 'claimed', 'purged: it is claimed, by who knows the contents') FROM idem.claim_action('done', 'mail', '{"to": "a@b", "n": 1}');

-- contents of zero days go with the first pass
CREATE TABLE f AS SELECT * FROM idem.claim_action('k', 'forever', '{"to": "a"}');
SELECT ok(accepted, 'keep_content 0') FROM f, LATERAL idem.complete_action(f.action_id, f.claim_id, result => '{"ok": 1}');
CALL idem.run_maintenance();
SELECT is(result, NULL, 'keep_content 0: gone with the next pass'), ok(forget_after > now() + interval '90 years', 'keep_key of 99 years') FROM idem.idem_actions WHERE intent = 'forever';

-- --- the key goes ----------------------------------------------------------------

CREATE TABLE e AS SELECT * FROM idem.claim_action('told', 'again', '{"to": "a"}', lease => '1 ms');
CREATE TABLE e2 AS SELECT * FROM idem.claim_action('told', 'again', '{"to": "a"}', wait => '10 s');
SELECT is(attempt, 2, 'a second attempt') FROM e2;
SELECT ok(accepted, 'completed') FROM e2, LATERAL idem.complete_action(e2.action_id, e2.claim_id, 'r');
SELECT is(outcome, 'completed', 'a repeat') FROM idem.claim_action('told', 'again', '{"to": "a"}', source => 'bus', event_id => 'evt-r');
CALL idem.run_maintenance();
SELECT ok(count(*) > 0, 'it has a history') FROM idem.idem_events JOIN e USING (action_id);
SELECT ok(count(*) > 0 OR (SELECT problem FROM idem.worker_status) LIKE '%shared_preload_libraries%', 'and a counted repeat') FROM idem.idem_repeats JOIN e USING (action_id);
SELECT pg_temp.age('told', 101);
SELECT is(outcome, 'unknown', 'past its time, the row still there: unknown') FROM idem.find_action('told', 'again');
CALL idem.run_maintenance();
SELECT is(count(*), 0::bigint, 'forgotten: the row') FROM idem.idem_actions JOIN e USING (action_id);
SELECT is(count(*), 0::bigint, 'forgotten: the history') FROM idem.idem_events JOIN e USING (action_id);
SELECT is(count(*), 0::bigint, 'forgotten: the repeats') FROM idem.idem_repeats JOIN e USING (action_id);
SELECT is(outcome, 'claimed', 'forgotten: a new action'), is(attempt || ' ' || generation, '1 1', 'from the beginning'), ok(NOT repeat, 'no repeat')
FROM idem.claim_action('told', 'again', '{"to": "other"}');

-- at once, before any pass; and counted
SELECT ok(accepted, 'completed') FROM idem.complete_action(pg_temp.id('at_once'), pg_temp.claim('at_once'), 'msg-4');
SELECT is(outcome, 'completed', 'a repeat of it') FROM idem.claim_action('at_once', 'mail', '{"to": "a@b", "n": 1}', source => 'bus', event_id => 'evt-late');
SELECT pg_temp.age('at_once', 101);
SELECT is(outcome, 'claimed', 'past its time, the row still there: granted'), is(attempt || ' ' || generation, '1 1', 'as a new action'),
	ok(NOT repeat, 'no repeat'), is(external_ref, NULL, 'nothing of the old one'), is(event_id, 'evt-new', 'seen first now')
FROM idem.claim_action('at_once', 'mail', '{"to": "else"}', source => 'bus', event_id => 'evt-new');
SELECT is(count(*), 0::bigint, 'its history is gone') FROM idem.idem_events WHERE action_id = pg_temp.id('at_once');
CALL idem.run_maintenance();
SELECT ok(sum(claimed_after_forgetting) = 1 OR (SELECT problem FROM idem.worker_status) LIKE '%shared_preload_libraries%', 'claimed_after_forgetting is counted')
FROM idem.stat_intents WHERE intent = 'mail';
-- the old holder comes back: nothing of its attempt counts
SELECT ok(NOT accepted, 'the old holder is outrun') FROM idem.complete_action(pg_temp.id('at_once'), pg_temp.claim('at_once'), 'msg-4');

-- what was counted of an action that is gone must go with it: here in one pass
CREATE TABLE g AS SELECT * FROM idem.claim_action('counted', 'mail', '{"to": "a"}');
SELECT ok(accepted, 'completed') FROM g, LATERAL idem.complete_action(g.action_id, g.claim_id);
SELECT is(outcome, 'completed', 'a repeat not written yet') FROM idem.claim_action('counted', 'mail', '{"to": "a"}');
SELECT pg_temp.age('counted', 101);
CALL idem.run_maintenance();
SELECT is(count(*), 0::bigint, 'forgotten: the row') FROM idem.idem_actions JOIN g USING (action_id);
SELECT is(count(*), 0::bigint, 'forgotten: repeats that were still in memory') FROM idem.idem_repeats JOIN g USING (action_id);

-- the same by once
SELECT ok(idem.once('o', 'again'), 'once');
SELECT ok(NOT idem.once('o', 'again'), 'not twice');
CALL idem.run_maintenance();
SELECT pg_temp.age('o', 101);
SELECT ok(idem.once('o', 'again'), 'past its time: once more');
CALL idem.run_maintenance();
SELECT ok(sum(claimed_after_forgetting) = 1 OR (SELECT problem FROM idem.worker_status) LIKE '%shared_preload_libraries%', 'claimed_after_forgetting is counted')
FROM idem.stat_intents WHERE intent = 'again';
SELECT is(count(*), 0::bigint, 'repeats of the old one are gone') FROM idem.idem_repeats WHERE action_id = idem.action_id('o', 'again') AND outcome = 'completed';

-- --- a rule that changes ------------------------------------------------------------

CREATE TABLE r AS SELECT c.* FROM generate_series(1, 3) i, LATERAL idem.claim_action('rule-' || i, 'mail') c;
SELECT ok(bool_and(accepted), 'three completed') FROM (SELECT array_agg(action_id) a, array_agg(claim_id) c FROM r) x, LATERAL idem.complete_actions(a, c);
SELECT FROM idem.define_rule('mail', 'the event', 'ops', keep_content => '1 day', keep_key => '2 days') \g /dev/null
SELECT is(min(forget_after - finished_at), interval '100 days', 'a changed rule leaves what has ended') FROM idem.idem_actions WHERE key LIKE 'rule-%';
SELECT ok(idem.apply_retention('mail') >= 3, 'apply_retention says how many');
SELECT is(min(forget_after - finished_at), interval '2 days', 'key as the rule says now'), is(max(purge_after - finished_at), interval '1 day', 'contents too')
FROM idem.idem_actions WHERE key LIKE 'rule-%';
SELECT is(idem.apply_retention('mail'), 0::bigint, 'again: nothing to do');
SELECT is(count(*), 0::bigint, 'what is open has none') FROM idem.idem_actions WHERE intent = 'mail' AND finished_at IS NULL AND forget_after IS NOT NULL;
SELECT is(forget_after > now() + interval '90 years', true, 'other intents are left alone') FROM idem.idem_actions WHERE intent = 'forever';
SELECT throws_ok('SELECT idem.apply_retention(NULL)', '22023', NULL, 'apply_retention without an intent');
SELECT throws_ok('SELECT idem.apply_retention(''nobody knows'')', 'IA005', NULL, 'apply_retention without a rule');

-- --- run_maintenance ------------------------------------------------------------------

SELECT throws_ok('CALL idem.run_maintenance(0)', '22023', NULL, 'batch of 0');
SELECT throws_ok('CALL idem.run_maintenance(-1)', '22023', NULL, 'batch of -1');
SELECT throws_ok('CALL idem.run_maintenance(1000001)', '22023', NULL, 'batch of a million and one');
SELECT throws_ok('CALL idem.run_maintenance(1, 0)', '22023', NULL, 'no batch at all');
SELECT throws_ok('CALL idem.run_maintenance()', '25001', NULL, 'not in an open transaction');
BEGIN;
SELECT throws_ok('CALL idem.run_maintenance()', '25001', NULL, 'nor in one that the client opened');
ROLLBACK;
-- so many batches of so many, and no more
CREATE TABLE b AS SELECT c.* FROM generate_series(1, 7) i, LATERAL idem.claim_action('batch-' || i, 'mail', lease => '1 ms') c;
UPDATE idem.idem_actions SET lease_until = lease_until - interval '1 s' WHERE key LIKE 'batch-%';
CALL idem.run_maintenance(2, 1);
SELECT is(count(*), 5::bigint, 'one batch of two') FROM idem.idem_actions WHERE key LIKE 'batch-%' AND state = 'in_progress';
CALL idem.run_maintenance(1, 2);
SELECT is(count(*), 3::bigint, 'two batches of one') FROM idem.idem_actions WHERE key LIKE 'batch-%' AND state = 'in_progress';
CALL idem.run_maintenance(NULL, NULL);
SELECT is(count(*), 0::bigint, 'a whole pass') FROM idem.idem_actions WHERE key LIKE 'batch-%' AND state = 'in_progress';
SELECT is(lease_backlog || ' ' || purge_backlog, '0 0', 'nothing is left to do') FROM idem.worker_status;

-- --- a table that no call gets through -----------------------------------------------------

-- six thousand blocks; due is what lies at their end
INSERT INTO idem.idem_actions (action_id, created_at, revision, generation, attempt, lost, failures,
	priority, uncertain, uncertain_before, marked, begun, verifying, approved, cancel_requested, purged, ruled,
	first_claimed_at, claimed_at, claim_id, ended_by, finished_at, purge_after, forget_after, state, scope, intent, key, params)
SELECT idem.action_id('fat-' || i, 'fat'), t, 2, 1, 1, 0, 0,
	0, false, false, false, false, false, false, false, false, false,
	t, t, gen_random_uuid(), 'succeeded', t, d, d, 'completed', '', 'fat', 'fat-' || i, jsonb_build_object('n', (SELECT string_agg(md5(i::text || j), '') FROM generate_series(1, 45) j))
FROM generate_series(1, 30000) i, (SELECT now() - interval '1 day') AS s (t), LATERAL (SELECT CASE WHEN i > 29990 THEN t ELSE now() + '1 day' END) AS l (d)
ORDER BY i;
SELECT cmp_ok(pg_relation_size('idem.idem_actions') / 8192, '>', 5500::bigint, 'more than one batch walks over');
-- each call by itself is one batch only
SELECT 'CALL idem.run_maintenance(max_batches => 1)' FROM generate_series(1, 60) \gexec
SELECT is(count(*), 0::bigint, 'calls that are cut off each time get everywhere') FROM idem.idem_actions WHERE key ~ '^fat-2999[1-9]|^fat-30000';
DELETE FROM idem.idem_actions WHERE intent = 'fat';

SELECT * FROM finish();
