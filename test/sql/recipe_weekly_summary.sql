--
-- docs/recipes.md, "Weekly summary": its SQL as the page shows it (test/readme/run),
-- then what must be so afterwards.
--
\set page `"$PG_ABS_SRCDIR/readme/run" docs/recipes.md 'Weekly summary'`
\echo :page
\set tests :DBNAME
\c idem_example

-- nine runs, four summaries
SELECT count(*) FROM idem.actions;
SELECT key FROM idem.actions ORDER BY key;

-- where the year of the week is not that of the day, and in the weeks when clocks change, each day has one week
SELECT at, idem.period_key(at, 'week', 'Europe/Berlin', -1) AS before, idem.period_key(at, 'week', 'Europe/Berlin') AS week
FROM unnest('{2026-12-31 22:59:59+00, 2026-12-31 23:00:00+00, 2027-01-03 22:59:59+00, 2027-01-03 23:00:00+00,
    2026-03-29 00:59:59+00, 2026-03-29 21:59:59+00, 2026-03-29 22:00:00+00,
    2026-10-25 22:59:59+00, 2026-10-25 23:00:00+00}'::timestamptz[]) AS at;

-- the session's own zone has no say
SET TimeZone = 'Pacific/Kiritimati';
SELECT idem.period_key('2026-11-29 23:30+00', 'week', 'Europe/Berlin', -1);

\c :tests
DROP DATABASE idem_example;
