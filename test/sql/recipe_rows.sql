--
-- docs/recipes.md, "Rows in the same database": its SQL as the page shows it (test/readme/run),
-- then what must be so afterwards.
--
\set page `"$PG_ABS_SRCDIR/readme/run" docs/recipes.md 'Rows in the same database'`
\echo :page
\set tests :DBNAME
\c idem_example

SELECT * FROM contact ORDER BY id;
SELECT count(*) FROM credit;

-- once is no way around an action that others act on
SELECT outcome FROM idem.claim_action('complaint-7', 'add-credit');
SELECT idem.once('complaint-7', 'add-credit');

-- other facts under the same key are a mistake, not a repeat
SELECT add_credit('complaint-5', 31, 200.00);

-- in a transaction that rolls back, claim, row and completion vanish together
BEGIN;
SELECT * FROM idem.claim_action('lead-9', 'create-contact', in_transaction => true) \gset
INSERT INTO contact (action_id, name) VALUES (:'action_id', 'Nobody');
SELECT accepted FROM idem.complete_action(:'action_id', :'claim_id');
ROLLBACK;
SELECT outcome FROM idem.find_action('lead-9', 'create-contact');
SELECT count(*) FROM contact WHERE name = 'Nobody';

-- without in_transaction it is an error, and nothing is claimed
BEGIN;
SELECT idem.claim_action('lead-9', 'create-contact');
ROLLBACK;
SELECT outcome FROM idem.find_action('lead-9', 'create-contact');

\c :tests
DROP DATABASE idem_example;
