--
-- docs/recipes.md, "Queue consumer": its SQL as the page shows it (test/readme/run),
-- then what must be so afterwards.
--
\set page `"$PG_ABS_SRCDIR/readme/run" docs/recipes.md 'Queue consumer'`
\echo :page
\set tests :DBNAME
\c idem_example

-- three deliveries, one action; the next step is there once
SELECT intent, state, count(*) FROM idem.actions GROUP BY intent, state ORDER BY intent;

-- a decision of a transaction that fails was never made
BEGIN;
SELECT outcome FROM idem.enqueue_action('request-18/stage-1', 'create-review-task');
ROLLBACK;
SELECT outcome FROM idem.find_action('request-18/stage-1', 'create-review-task');

-- nothing is handed out twice, neither what is done nor what is held
SELECT count(*) FROM idem.take_actions('{create-review-task}', max => 10);
SELECT key, granted FROM idem.take_actions('{create-review-task, notify-reviewer}', max => 10, worker => 'taker-2');
SELECT count(*) FROM idem.take_actions('{create-review-task, notify-reviewer}', max => 10, worker => 'taker-3');

-- a replay of the first step while the second is under way
SELECT outcome, attempt FROM idem.enqueue_action('request-17/stage-2', 'create-review-task');

\c :tests
DROP DATABASE idem_example;
