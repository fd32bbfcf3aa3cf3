--
-- The SQL of README.md and docs/, read from the pages and run as they show it.
-- A line "the page shows another result" means that page and server disagree:
-- correct the page.  Recipes have tests of their own, recipe_*.
--
\set page `"$PG_ABS_SRCDIR/readme/run" README.md`
\echo :page
\set page `"$PG_ABS_SRCDIR/readme/run" docs/guarantees.md`
\echo :page
\set page `"$PG_ABS_SRCDIR/readme/run" docs/rules.md`
\echo :page
\set page `"$PG_ABS_SRCDIR/readme/run" docs/operations.md`
\echo :page
\set page `"$PG_ABS_SRCDIR/readme/run" docs/maintenance.md`
\echo :page
\set page `"$PG_ABS_SRCDIR/readme/run" docs/analysis.md`
\echo :page
\set page `"$PG_ABS_SRCDIR/readme/run" docs/reference.md`
\echo :page

-- no page and no recipe without a test
\set untested `"$PG_ABS_SRCDIR/readme/run" --untested`
\echo :untested
DROP DATABASE idem_example;
