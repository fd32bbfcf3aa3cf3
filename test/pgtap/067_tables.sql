-- What a DBA does to the ledger's tables: what would be bypassed is refused, what
-- is damaged is stepped over.

SELECT plan(13);

SELECT idem.define_rule('act', unique_by => 'the key', resolved_by => 'the test') IS NOT NULL AS defined \gset

-- a constraint put in the place of one of the ledger's
ALTER TABLE idem.idem_actions DROP CONSTRAINT counters_in_range;
SELECT lives_ok($$SELECT idem.claim_action('fewer', 'act', in_transaction => true)$$, 'one constraint fewer: the library checks it all the same');
ALTER TABLE idem.idem_actions ADD CONSTRAINT counters_in_range CHECK (attempt < 1000000);
SELECT throws_like($$SELECT idem.claim_action('swapped', 'act', in_transaction => true)$$,
	'table idem_actions has CHECK constraint "counters_in_range", which is not the ledger''s', 'a swapped constraint is refused by its name');
ALTER TABLE idem.idem_actions RENAME CONSTRAINT counters_in_range TO mine;
SELECT throws_like($$SELECT idem.enqueue_action('swapped', 'act')$$,
	'%CHECK constraint "mine"%', 'also under another name');
ALTER TABLE idem.idem_actions DROP CONSTRAINT mine;
SELECT lives_ok($$SELECT idem.claim_action('again', 'act', in_transaction => true)$$, 'dropped, all is well at once');

-- an access method of its own
SET default_table_access_method = heap;
SELECT is(string_agg(DISTINCT a.amname, ','), 'heap', 'every table is a heap')
FROM pg_class c JOIN pg_am a ON a.oid = c.relam WHERE c.relnamespace = 'idem'::regnamespace AND c.relkind = 'r';
CREATE ACCESS METHOD other TYPE TABLE HANDLER heap_tableam_handler;
UPDATE pg_class SET relam = (SELECT oid FROM pg_am WHERE amname = 'other') WHERE oid = 'idem.idem_events'::regclass;
SELECT throws_ok($$SELECT idem.pause_intent('act', 'a test')$$, '0A000', 'table idem_events is not a heap', 'another access method is refused');
UPDATE pg_class SET relam = (SELECT oid FROM pg_am WHERE amname = 'heap') WHERE oid = 'idem.idem_events'::regclass;
SELECT lives_ok($$SELECT idem.pause_intent('act', 'a test'), idem.resume_intent('act')$$, 'heap again');

-- rows that cannot be judged, among others on the first page
SELECT count(idem.claim_action('lapsed-' || i, 'act', lease => '1 ms', in_transaction => true)) AS claimed FROM generate_series(1, 20) i \gset
UPDATE idem.idem_actions SET revision = -7 WHERE key IN ('lapsed-3', 'lapsed-7', 'lapsed-20');
SELECT count(*) AS left_before FROM idem.idem_actions WHERE state = 'in_progress' AND key LIKE 'lapsed-%' \gset
SELECT is(:left_before, 20, 'twenty leases are over');
SET client_min_messages = error;
SELECT pg_sleep_for('5 ms') \g /dev/null
CALL idem.run_maintenance();
SELECT is(count(*), 3::bigint, 'those that can be judged are') FROM idem.idem_actions WHERE state = 'in_progress' AND key LIKE 'lapsed-%';
SELECT is(count(*), 3::bigint, 'the others are as they were') FROM idem.idem_actions WHERE revision = -7;
UPDATE idem.idem_actions SET revision = 1 WHERE revision = -7;
CALL idem.run_maintenance();
SELECT is(count(*), 0::bigint, 'once they are put right, they are judged') FROM idem.idem_actions WHERE state = 'in_progress' AND key LIKE 'lapsed-%';

-- a publication without what identifies a row is refused as for SQL
ALTER TABLE idem.idem_actions REPLICA IDENTITY NOTHING;
CREATE PUBLICATION everything FOR ALL TABLES;
SELECT throws_ok($$SELECT idem.release_action(action_id, claim_id) FROM idem.idem_actions WHERE key = 'again'$$, '55000',
	'cannot update table "idem_actions" because it does not have a replica identity and publishes updates', 'a table without replica identity');
ALTER TABLE idem.idem_actions REPLICA IDENTITY DEFAULT;
SELECT lives_ok($$SELECT idem.release_action(action_id, claim_id) FROM idem.idem_actions WHERE key = 'again'$$, 'with it, all goes on');
DROP PUBLICATION everything;

SELECT * FROM finish();
