--
-- Actions that a rule made, and whose rule is missing since a restore of single
-- tables or a DELETE: they are denied to every call, left alone by the pass and
-- told of in worker_status.problem, also where require_rule is off, until
-- define_rule states the rule again; a new key of the intent is refused, since a
-- confidential one could be in the ledger under another id.  Actions that no
-- rule made go on by the defaults.
--
SELECT plan(29);
CREATE SCHEMA t;
SET search_path = t, public;

CREATE ROLE regress_idem_workers;
CREATE ROLE regress_idem_worker;
CREATE ROLE regress_idem_analyst;
SELECT idem.grant_access('regress_idem_worker', 'worker'), idem.grant_access('regress_idem_analyst', 'analyst') \g /dev/null

CREATE FUNCTION problem() RETURNS text LANGUAGE sql AS 'SELECT problem FROM idem.worker_status';
CREATE FUNCTION stored(i text) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(concat(a, (SELECT count(*) FROM idem.idem_events e WHERE e.action_id = a.action_id)), ',' ORDER BY action_id)
	FROM idem.idem_actions a WHERE intent = i
$$;

SELECT idem.define_rule('charge', 'the invoice', 'billing', worker_role => 'regress_idem_workers', on_uncertain => 'repeat', keep_content => '0', keep_key => '1 us') \g /dev/null
SELECT action_id AS lapsed, claim_id FROM idem.claim_action('lapsed', 'charge', '{"n": 1}') \gset
UPDATE idem.idem_actions SET lease_until = lease_until - interval '1 day' WHERE action_id = :'lapsed';
SELECT idem.import_actions('charge', '{done}') \g /dev/null
SELECT outcome FROM idem.enqueue_action('queued', 'charge') \g /dev/null
SELECT is(problem() ~ 'no rule', false, 'nothing is said while the rule is there');
SELECT is((SELECT count(*) FROM idem.idem_actions WHERE ruled), 3::bigint, 'the rows remember that a rule made them');

-- deleted by hand
DELETE FROM idem.idem_rules;
SELECT stored('charge') AS before \gset
SELECT matches(problem(), 'no rule for ''charge'', which had one', 'the problem names the intent');
SET idem_action.require_rule = off;
SELECT throws_ok($$SELECT idem.claim_action('lapsed', 'charge', in_transaction => true)$$, 'IA005', 'intent "charge" has no rule', 'a known key is refused');
SELECT throws_ok($$SELECT idem.claim_action('new', 'charge', in_transaction => true)$$, 'IA005', 'intent "charge" has no rule', 'and a new one');
SELECT throws_ok($$SELECT idem.enqueue_action('new', 'charge')$$, 'IA005', NULL, 'also to enqueue');
SELECT throws_ok($$SELECT * FROM idem.take_actions('{charge}', in_transaction => true)$$, 'IA005', NULL, 'takers get nothing');
SELECT throws_ok(format('SELECT idem.complete_action(%L, %L)', :'lapsed', :'claim_id'), 'IA016', NULL, 'nor is a report heard');
SELECT throws_ok(format('SELECT idem.resolve_action(%L, ''happened'', ''seen'', 1)', :'lapsed'), 'IA016', NULL, 'nor a decision');
SELECT throws_ok($$SELECT idem.apply_retention('charge')$$, 'IA005', NULL, 'no retention is rewritten');
CALL idem.run_maintenance();
SELECT is(stored('charge'), :'before', 'the pass neither judges nor purges nor forgets them');
SELECT is((SELECT count(*) FROM idem.actions), 3::bigint, 'a superuser sees them');
SET ROLE regress_idem_analyst;
SELECT is((SELECT count(*) FROM idem.actions), 0::bigint, 'an analyst does not');
RESET ROLE;

-- restored without idem_rules and idem_state: only the rows know
DELETE FROM idem.idem_state WHERE kind = 'ruled';
SELECT matches(problem(), 'no rule for ''charge'', which had one', 'the problem names it by its actions alone');
SELECT throws_ok($$SELECT idem.claim_action('lapsed', 'charge', '{"n": 1}', in_transaction => true)$$, 'IA005', NULL, 'a known key is refused');
SELECT throws_ok($$SELECT idem.enqueue_action('queued', 'charge')$$, 'IA005', NULL, 'also to enqueue');
SELECT throws_ok($$SELECT idem.once('lapsed', 'charge')$$, 'IA005', NULL, 'and to do it once');
SELECT is((SELECT count(*) FROM idem.take_actions('{charge}', in_transaction => true)), 0::bigint, 'takers get nothing');
SET ROLE regress_idem_worker;
SELECT throws_ok(format('SELECT idem.cancel_action(%L)', :'lapsed'), 'IA016', NULL, 'nor does a worker cancel');
RESET ROLE;
CALL idem.run_maintenance();
SELECT is(stored('charge'), :'before', 'the pass leaves them alone');
RESET idem_action.require_rule;

-- stated again, and not otherwise than it was about what is confidential
SELECT throws_ok($$SELECT idem.define_rule('charge', 'the invoice', 'billing', confidential_key => true)$$, '55006', NULL, 'plain keys stay plain');
SELECT idem.define_rule('charge', 'the invoice', 'billing', worker_role => 'regress_idem_workers', on_uncertain => 'repeat') \g /dev/null
SELECT is((SELECT outcome FROM idem.claim_action('lapsed', 'charge', '{"n": 1}')), 'claimed', 'define_rule mends it');
SELECT is(problem() ~ 'no rule', false, 'and the problem is gone');
DELETE FROM idem.idem_actions;
DELETE FROM idem.idem_queue;
SELECT idem.drop_rule('charge') \g /dev/null
SELECT is(problem() ~ 'no rule', false, 'a rule that was dropped is not missing');

-- rows that no rule made
SET idem_action.require_rule = off;
SELECT action_id AS free, claim_id FROM idem.claim_action('1', 'free') \gset
SELECT is((SELECT ruled FROM idem.idem_actions WHERE action_id = :'free'), false, 'a row that no rule made');
SELECT ok((SELECT accepted FROM idem.complete_action(:'free', :'claim_id')), 'goes on by the defaults');
RESET idem_action.require_rule;
SELECT is((SELECT state FROM idem.cancel_action(:'free')), 'completed', 'whatever require_rule says of new ones');
SELECT idem.define_rule('free', 'the key', 'support') \g /dev/null
SELECT ok((SELECT accepted FROM idem.rerun_action(:'free', 'again', 2)), 'under a rule it goes on by that');
SELECT is((SELECT ruled FROM idem.idem_actions WHERE action_id = :'free'), true, 'and remembers it from then on');

SELECT idem.revoke_access('regress_idem_worker', 'worker'), idem.revoke_access('regress_idem_analyst', 'analyst') \g /dev/null
DROP OWNED BY regress_idem_worker, regress_idem_analyst;
DROP ROLE regress_idem_worker, regress_idem_analyst, regress_idem_workers;

SELECT * FROM finish();
