--
-- docs/recipes.md, "Webhook and double click": its SQL as the page shows it (test/readme/run),
-- then what must be so afterwards.
--
\set page `"$PG_ABS_SRCDIR/readme/run" docs/recipes.md 'Webhook and double click'`
\echo :page
\set tests :DBNAME
\c idem_example

-- one order
SELECT key, state, attempt, external_ref FROM idem.actions;

-- each outcome has the status of the README
SELECT outcome, http_status(row(outcome = 'claimed', outcome, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    CASE WHEN keep THEN 1 END, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL)::idem.claim)
FROM (VALUES ('claimed', false), ('completed', false), ('in_progress', true), ('contended', true), ('not_due', true),
    ('paused', true), ('verify', true), ('pending', false), ('awaiting_approval', false), ('needs_attention', false),
    ('failed', false), ('cancelled', false), ('mismatch', false), ('unknown', false)) AS o (outcome, keep);

-- a click that waits gets the answer of the first one, done meanwhile
SELECT outcome, result FROM idem.claim_action('checkout-5f3a', 'create-order', wait => '5 seconds');

\c :tests
DROP DATABASE idem_example;
