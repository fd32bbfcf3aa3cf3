--
-- reconcile: what the provider's statement has and the ledger has not, what the
-- ledger completed and the statement has not, and what stands twice: in the
-- statement, at two actions, or as two references of one action.
--
SELECT plan(29);

CREATE ROLE regress_idem_bank;
CREATE ROLE regress_idem_outside;
SELECT idem.grant_access(r::regrole, 'operator') FROM unnest('{regress_idem_bank,regress_idem_outside}'::text[]) r \g /dev/null
SELECT idem.define_rule('charge', 'the invoice', 'billing', resolver_role => 'regress_idem_bank', retry_delay => '0'),
	idem.define_rule('refund', 'the invoice', 'billing') \g /dev/null

CREATE FUNCTION pay(key text, ref text, intent text DEFAULT 'charge') RETURNS uuid LANGUAGE sql AS $$
	SELECT r.action_id FROM idem.claim_action(key, intent, in_transaction => true) c, idem.complete_action(c.action_id, c.claim_id, ref) r
$$;
/* one line for each row of the answer */
CREATE FUNCTION compared(refs text[], since timestamptz DEFAULT '-infinity', intent text DEFAULT 'charge') RETURNS text LANGUAGE sql AS $$
	SELECT coalesce(string_agg(concat_ws(' ', kind, coalesce(external_ref, '-'), key), ', ' ORDER BY kind, external_ref, key), 'nothing')
	FROM idem.reconcile(intent, refs, since)
$$;

SELECT is(compared('{}'), 'nothing', 'nothing there, nothing here');
SELECT pay('1', 'ch_1'), pay('2', 'ch_2'), pay('1', 're_1', 'refund') \g /dev/null
SELECT is(compared('{ch_1,ch_2}'), 'nothing', 'both agree');
SELECT is(compared('{ch_2,ch_3}'), 'absent_here ch_3, unknown_there ch_1 1', 'one is missing on each side');
SELECT is(compared('{re_1,ch_1,ch_2}'), 'absent_here re_1', 'what another intent did is absent');
SELECT is(compared('{re_1}', intent => 'refund'), 'nothing', 'and known there');
SELECT is(compared('{ch_1,ch_2,ch_2,ch_2}'), 'twice ch_2 2', 'a reference that is in the statement more than once');
SELECT is(compared('{ch_1,ch_2,ch_3,ch_3}'), 'absent_here ch_3, twice ch_3', 'one that is not known, too');
SELECT is(compared('{ch_1}', clock_timestamp()), 'nothing', 'what was completed before "since" may be missing there');
SELECT is(compared('{ch_4}', clock_timestamp()), 'absent_here ch_4', 'but not here');

-- two actions with one reference
SELECT pay('3', 'ch_1') \g /dev/null
SELECT is(compared('{ch_1,ch_2}'), 'twice ch_1 1, twice ch_1 3', 'a reference of two actions: a row for each');
SELECT is(compared('{ch_2}'), 'unknown_there ch_1 1, unknown_there ch_1 3', 'that is missing there');

-- without a reference there is nothing to compare
SELECT pay('4', NULL) \g /dev/null
SELECT is(compared('{ch_1,ch_2}', clock_timestamp() - interval '1 hour'), 'twice ch_1 1, twice ch_1 3, unknown_there - 4', 'completed without a reference');

-- what is not completed
SELECT c.action_id FROM idem.claim_action('5', 'charge') c \gset
SELECT is(compared('{re_9}', clock_timestamp()), 'absent_here re_9', 'in progress: the provider cannot know it');
SELECT idem.release_action(:'action_id', (SELECT claim_id FROM idem.idem_actions WHERE key = '5')) \g /dev/null

-- two successes of one action: the history knows the second reference
SELECT claim_id AS first FROM idem.claim_action('5', 'charge', lease => '1 ms', worker => 'w1') \gset
SELECT pg_sleep(0.01) \g /dev/null
CALL idem.run_maintenance();
SELECT state FROM idem.resolve_action(:'action_id', 'not_happened', 'not on the statement yet', (SELECT revision FROM idem.idem_actions WHERE key = '5')) \g /dev/null
SELECT claim_id AS second FROM idem.claim_action('5', 'charge', worker => 'w2') \gset
SELECT state FROM idem.complete_action(:'action_id', :'second', 'ch_5a') \g /dev/null
SELECT is((SELECT concat_ws(' ', accepted, state) FROM idem.complete_action(:'action_id', :'first', 'ch_5b')), 'f completed', 'a second success');
SELECT is((SELECT reason FROM idem.actions WHERE key = '5'), 'double_result', 'is reported');
SELECT is(compared('{ch_5a}', clock_timestamp()), 'nothing', 'the first is there, the second is not: once');
SELECT is(compared('{ch_5b}', clock_timestamp()), 'nothing', 'or the other way round');
SELECT is(compared('{ch_5a,ch_5b}', clock_timestamp()), 'twice ch_5a 5, twice ch_5b 5', 'both are there: twice');
SELECT is(compared('{ch_1,ch_2}') ~ 'unknown_there ch_5a 5', true, 'neither is there');

-- a rerun is a second effect on purpose
SELECT state FROM idem.rerun_action((SELECT action_id FROM idem.actions WHERE key = '2'), 'once more', (SELECT revision FROM idem.actions WHERE key = '2')) \g /dev/null
SELECT is(compared('{ch_2}', clock_timestamp()), 'nothing', 'rerun: the first charge is known still');
SELECT pay('2', 'ch_2b') \g /dev/null
SELECT is(compared('{ch_2,ch_2b}', clock_timestamp()), 'nothing', 'both charges are meant');

-- who may, and what is refused
SET ROLE regress_idem_bank;
SELECT is(count(*), 1::bigint, 'a resolver compares') FROM idem.reconcile('charge', '{ch_77}', now() + interval '1 hour');
SET ROLE regress_idem_outside;
SELECT throws_ok($$SELECT * FROM idem.reconcile('charge', '{ch_77}', now())$$, 'IA008', 'intent "charge" is for the roles of its rule only', 'others do not');
RESET ROLE;
SELECT throws_ok($$SELECT * FROM idem.reconcile('no such', '{ch_77}', now())$$, 'IA005', NULL, 'an intent without a rule');
SELECT throws_ok($$SELECT * FROM idem.reconcile('charge', '{a,NULL}', now())$$, '22023', 'external_refs must not hold nulls or blanks', 'a null reference');
SELECT throws_ok($$SELECT * FROM idem.reconcile('charge', '{a," "}', now())$$, '22023', 'external_refs must not hold nulls or blanks', 'a blank one');
SELECT throws_ok($$SELECT * FROM idem.reconcile('charge', '{a}', NULL)$$, '22023', 'since must not be null', 'no beginning');
SELECT throws_ok($$SELECT * FROM idem.reconcile('charge', array_fill('a'::text, '{100001}'), now())$$, '54000', 'external_refs has too many elements', 'too many');

-- it can be stopped, and does not get quadratic
SET statement_timeout = '20s';
SELECT is((SELECT string_agg(kind, ',' ORDER BY kind) FROM (SELECT DISTINCT kind FROM idem.reconcile('charge',
	ARRAY(SELECT 'x' || i / 2 FROM generate_series(1, 100000) i), now())) s), 'absent_here,twice', 'a long statement');
RESET statement_timeout;

DROP OWNED BY regress_idem_bank, regress_idem_outside;
DROP ROLE regress_idem_bank, regress_idem_outside;

SELECT * FROM finish();
