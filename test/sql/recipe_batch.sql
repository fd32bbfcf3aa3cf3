--
-- docs/recipes.md, "Batch with a restart midway": its SQL as the page shows it (test/readme/run),
-- then what must be so afterwards.
--
\set page `"$PG_ABS_SRCDIR/readme/run" docs/recipes.md 'Batch with a restart midway'`
\echo :page
\set tests :DBNAME
\c idem_example

-- nobody forgotten, nobody twice, each mail with its own reference
SELECT state, count(*) FROM idem.actions GROUP BY state;
SELECT count(DISTINCT reference) AS references FROM "the mail server";
SELECT count(*) FROM "the mail server" m FULL JOIN idem.actions a ON a.key = m.recipient
WHERE a.key IS NULL OR m.recipient IS NULL OR a.provider_key <> m.reference;

-- who was handed out a second time had not been begun
SELECT attempt, count(*) FROM idem.actions GROUP BY attempt ORDER BY attempt;
SELECT detail->>'begun' AS begun, count(*) FROM idem.history WHERE event = 'expired' GROUP BY 1 ORDER BY 1;

-- nothing is left to take
SELECT count(*) FROM idem.take_actions('{send-newsletter}', max => 500);

\c :tests
DROP DATABASE idem_example;
