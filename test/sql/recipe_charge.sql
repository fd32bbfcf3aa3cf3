--
-- docs/recipes.md, "Charge": its SQL as the page shows it (test/readme/run),
-- then what must be so afterwards.
--
\set page `"$PG_ABS_SRCDIR/readme/run" docs/recipes.md 'Charge'`
\echo :page
\set tests :DBNAME
\c idem_example

SELECT key, state, attempt, lost, external_ref, error FROM idem.actions ORDER BY key;

-- no attempt of a charge ever had another key than the first
SELECT DISTINCT provider_key = action_id::text AS same_key FROM idem.actions;

-- after the window nobody gets it, neither by a claim nor by a take
SELECT granted, outcome FROM idem.claim_action('order-993/payment-1', 'charge-late');
SELECT count(*) FROM idem.take_actions('{charge-late}');

-- the rule says that nobody reruns
SELECT idem.rerun_action(idem.action_id('order-991/payment-1', 'charge-order'), 'again', 4);

-- the window is not started again by each attempt
SELECT idem.define_rule('charge-order', 'x', 'x', on_uncertain => 'retry', provider_window => '2 seconds',
    lease => '1 second', retry_delay => '0') IS NOT NULL AS defined;
SELECT * FROM idem.claim_action('order-994/payment-1', 'charge-order') \gset
SELECT granted, outcome, reason FROM idem.claim_action('order-994/payment-1', 'charge-order', wait => '10 s');

-- retry without a window is refused: it would be a blind one
SELECT idem.define_rule('charge-order', 'x', 'x', on_uncertain => 'retry');


\c :tests
DROP DATABASE idem_example;
