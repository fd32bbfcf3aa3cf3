--
-- docs/recipes.md, "Long model call": its SQL as the page shows it (test/readme/run),
-- then what must be so afterwards.
--
\set page `"$PG_ABS_SRCDIR/readme/run" docs/recipes.md 'Long model call'`
\echo :page
\set tests :DBNAME
\c idem_example

SELECT key, state, attempt, lost FROM idem.actions;

-- one at a time: while one writer has it, another one waits
SELECT * FROM idem.claim_action('request-18/stage-1', 'draft-reply', worker => 'writer-1') \gset
SELECT granted, outcome FROM idem.claim_action('request-18/stage-1', 'draft-reply', worker => 'writer-2');

-- a lost call is made again, but not for ever (whoever waits gets it when the lease ends)
SELECT * FROM idem.claim_action('request-19/stage-1', 'draft-reply', lease => '1 millisecond') \gset
SELECT attempt FROM idem.claim_action('request-19/stage-1', 'draft-reply', lease => '1 millisecond', wait => '10 s');
SELECT attempt FROM idem.claim_action('request-19/stage-1', 'draft-reply', lease => '1 millisecond', wait => '10 s');
SELECT granted, outcome, reason FROM idem.claim_action('request-19/stage-1', 'draft-reply', lease => '1 millisecond', wait => '10 s');

\c :tests
DROP DATABASE idem_example;
