--
-- What becomes of confidential keys and fields in the life of a row: batches,
-- purge, rerun, erase and forgetting, also under an older secret.
--
SELECT plan(45);

CREATE SCHEMA t;
SET search_path = t, public;

COPY (SELECT 'p' || i || ' ' || repeat(i::text, 64) FROM generate_series(1, 3) AS i)
	TO PROGRAM 'umask 077; cat > pgtap_confidential.txt';
ALTER SYSTEM SET idem_action.secret_file = 'pgtap_confidential.txt';
SELECT pg_reload_conf() \g /dev/null
-- ends once the setting has come
SELECT $$DO 'BEGIN IF current_setting(''idem_action.secret_file'') = '''' THEN PERFORM pg_sleep(0.2); END IF; END'$$
FROM generate_series(1, 100) \gexec

SELECT idem.use_secret('p1') \g /dev/null
SELECT idem.define_rule('both', 'event', 'the team', confidential_key => true, confidential_fields => '{to}', on_uncertain => 'repeat', rerun_by => 'worker'),
	idem.define_rule('fields', 'event', 'the team', confidential_fields => '{to}', on_uncertain => 'repeat', rerun_by => 'worker'),
	idem.define_rule('grown', 'event', 'the team', confidential_fields => '{items[].n}'),
	idem.define_rule('plain', 'event', 'the team') \g /dev/null

/* everything that the ledger has about an action */
CREATE FUNCTION kept(wanted uuid) RETURNS text LANGUAGE sql AS $$
	SELECT concat((SELECT string_agg(a::text, '') FROM idem.idem_actions AS a WHERE action_id = wanted),
		(SELECT string_agg(e::text, '') FROM idem.idem_events AS e WHERE action_id = wanted),
		(SELECT string_agg(r::text, '') FROM idem.idem_repeats AS r WHERE action_id = wanted))
$$;
CREATE FUNCTION secret_of(wanted uuid) RETURNS text LANGUAGE sql AS
	'SELECT concat(secret_id, '' '', params -> ''to'' ->> ''secret'') FROM idem.idem_actions WHERE action_id = wanted';

-- a digest is longer than what it stands for: what is stored is bounded
SET idem_action.max_content = 1024;
SELECT throws_ok($$SELECT idem.claim_action('grown', 'grown', (SELECT jsonb_build_object('items', jsonb_agg('{"n": 1}'::jsonb)) FROM generate_series(1, 20)), in_transaction => true)$$,
	'IA010', 'params with concealed fields is too large', 'params that grow by being concealed');
RESET idem_action.max_content;
SELECT is((SELECT count(*) FROM idem.idem_actions WHERE intent = 'grown'), 0::bigint, 'are not stored');

-- single and batch make the same row
SELECT action_id AS one FROM idem.claim_action('one', 'both', '{"to": "+4930V", "n": 1}') \gset
SELECT action_id AS two FROM idem.claim_actions('both', '{two}', ARRAY['{"to": "+4930V", "n": 1}'::jsonb]) \gset
SELECT is((SELECT params FROM idem.idem_actions WHERE action_id = :'one'), (SELECT params FROM idem.idem_actions WHERE action_id = :'two'), 'a batch conceals as the single call does');
SELECT is((SELECT params_digest FROM idem.idem_actions WHERE action_id = :'one'), (SELECT params_digest FROM idem.idem_actions WHERE action_id = :'two'), 'equal params have an equal fingerprint');
SELECT is((SELECT params -> 'to' ->> 'digest' FROM idem.idem_actions WHERE action_id = :'one'), idem.keyed_digest('+4930V'), 'the digest is that of keyed_digest');
SELECT results_eq($$SELECT granted, key, params FROM idem.claim_actions('both', '{one,new,new}', ARRAY['{"to": "+4930V", "n": 1}', '{"to": "+4930W"}', '{"to": "+4930V"}']::jsonb[], in_transaction => true)$$,
	$$VALUES (false, NULL::text, '{"to": "+4930V", "n": 1}'::jsonb), (true, NULL, '{"to": "+4930W"}'), (false, NULL, NULL)$$, 'each gets its own params, none a key, a mismatch nothing');
SELECT is((SELECT count(*) FROM idem.idem_actions WHERE intent = 'both'), 3::bigint, 'twins are one row');
SELECT is(idem.action_id('one', 'both'), :'one', 'action_id() is that of the row');
SELECT isnt(idem.action_id('one', 'both'), idem.action_id('one', 'plain'), 'and not the plain one');
SELECT is((SELECT provider_key FROM idem.find_action('one', 'both')), :'one', 'the provider key comes from it');

-- a life under p1 that goes on under p2
SELECT action_id AS f, claim_id AS claim FROM idem.claim_action('k', 'fields', '{"to": "+4930V"}') \gset
SELECT idem.complete_action(:'f', :'claim') \g /dev/null
SELECT claim_id AS claim FROM idem.idem_actions WHERE action_id = :'one' \gset
SELECT idem.complete_action(:'one', :'claim', 'ref') \g /dev/null
UPDATE idem.idem_actions SET purge_after = '2000-01-01' WHERE action_id IN (:'f', :'one');
SELECT idem.use_secret('p2') \g /dev/null
CALL idem.run_maintenance();
SELECT is((SELECT count(*) FROM idem.idem_actions WHERE action_id IN (:'f', :'one') AND params IS NULL AND params_digest IS NOT NULL), 2::bigint, 'purged, the fingerprints stay');
SELECT is((SELECT outcome FROM idem.claim_action('one', 'both', '{"to": "+4930V", "n": 1}')), 'completed', 'a repeat after the purge');
SELECT throws_ok($$SELECT idem.claim_action('one', 'both', '{"to": "+4930W", "n": 1}', in_transaction => true)$$, 'IA001', NULL, 'a mismatch is still found, with a key');
SELECT is((SELECT outcome FROM idem.claim_action('k', 'fields', '{"to": "+4930V"}')), 'completed', 'and without');
SELECT throws_ok($$SELECT idem.claim_action('k', 'fields', '{"to": "+4930W"}', in_transaction => true)$$, 'IA001', NULL, 'a mismatch too');

-- a rerun stores the params again: concealed, under the secret that the row has
SELECT ok(bool_and((idem.rerun_action(action_id, 'again', revision)).accepted), 'rerun') FROM idem.actions WHERE action_id IN (:'f', :'one');
SELECT ok((SELECT granted FROM idem.claim_action('k', 'fields', '{"to": "+4930V"}')), 'fields: handed out again');
SELECT ok((SELECT granted FROM idem.claim_action('one', 'both', '{"to": "+4930V", "n": 1}')), 'key: handed out again');
SELECT is(secret_of(:'f'), 'p1 p1', 'fields: one secret for the row');
SELECT is(secret_of(:'one'), 'p1 p1', 'key: one secret for the row');
SELECT unalike(kept(:'f') || kept(:'one'), '%4930%', 'nothing in clear');
SELECT is((SELECT count(*) FROM idem.idem_actions WHERE intent = 'both'), 3::bigint, 'no twin under the new secret');

-- params that come later: concealed as well
SELECT action_id AS late FROM idem.claim_action('late', 'fields', lease => '1 microsecond') \gset
SELECT idem.use_secret('p3') \g /dev/null
SELECT ok((SELECT granted FROM idem.claim_action('late', 'fields', '{"to": "+4930V"}')), 'taken over with params');
SELECT is(secret_of(:'late'), 'p2 p2', 'under the secret that the row has');
SELECT unalike(kept(:'late'), '%4930%', 'and not in clear');
SELECT throws_ok($$SELECT idem.claim_action('late', 'fields', '{"to": "+4930W"}', in_transaction => true)$$, 'IA001', NULL, 'other ones are a mismatch');

-- erased
SELECT ok((idem.resolve_action(:'two', 'cancel', 'n', (SELECT revision FROM idem.idem_actions WHERE action_id = :'two'))).accepted, 'a held one is asked to stop');
SELECT claim_id AS claim FROM idem.idem_actions WHERE action_id = :'two' \gset
SELECT idem.release_action(:'two', :'claim') \g /dev/null
SELECT ok((idem.erase_action(:'two', 'asked')).accepted, 'erased');
SELECT unalike(kept(:'two'), '%digest"%', 'erase takes the digests too');
SELECT is((SELECT outcome FROM idem.claim_action('two', 'both')), 'cancelled', 'the key still blocks');

-- forgotten: new, once, under the current secret
UPDATE idem.idem_actions SET purge_after = '2000-01-01', forget_after = '2000-01-01' WHERE action_id = :'two';
SELECT ok((SELECT granted FROM idem.claim_action('two', 'both', '{"to": "+4930V"}')), 'a forgotten key is new');
SELECT is(secret_of(idem.action_id('two', 'both')), 'p3 p3', 'under the current secret');
SELECT is((SELECT count(*) FROM idem.idem_actions WHERE action_id = :'two'), 0::bigint, 'the old row is gone');
SELECT ok(NOT (SELECT granted FROM idem.claim_action('two', 'both', '{"to": "+4930V"}')), 'once');

-- who may only look cannot find out keys by trying
CREATE ROLE regress_idem_looks;
SELECT idem.grant_access('regress_idem_looks', 'analyst') \g /dev/null
GRANT USAGE ON SCHEMA t TO regress_idem_looks;
SET ROLE regress_idem_looks;
SELECT throws_ok($$SELECT idem.action_id('two', 'both')$$, 'IA008', NULL, 'an analyst gets no id of a confidential key');
SELECT lives_ok($$SELECT idem.action_id('two', 'plain')$$, 'of a plain one it does');
RESET ROLE;
SELECT idem.grant_access('regress_idem_looks', 'worker') \g /dev/null
SET ROLE regress_idem_looks;
SELECT lives_ok($$SELECT idem.action_id('two', 'both')$$, 'and so does who may claim');
RESET ROLE;
SELECT idem.revoke_access('regress_idem_looks', 'worker'), idem.revoke_access('regress_idem_looks', 'analyst') \g /dev/null
DROP OWNED BY regress_idem_looks;
DROP ROLE regress_idem_looks;

-- all of it
SELECT results_eq('SELECT id COLLATE "default", current FROM idem.secrets ORDER BY 1', $$VALUES ('p1', false), ('p2', false), ('p3', true)$$, 'the secrets in use');
SELECT is((SELECT string_agg(x, '') FROM (
	SELECT a::text FROM idem.idem_actions AS a UNION ALL SELECT e::text FROM idem.idem_events AS e UNION ALL SELECT r::text FROM idem.idem_repeats AS r
	UNION ALL SELECT s::text FROM idem.idem_state AS s) AS all_rows (x) WHERE x LIKE '%4930%'), NULL, 'no table has a value in clear');

-- a rule that is missing is not stated again otherwise than its rows were made
DELETE FROM idem.idem_rules WHERE intent IN ('both', 'fields');
SET idem_action.require_rule = off;
SELECT throws_ok($$SELECT idem.claim_action('one', 'both', in_transaction => true)$$, 'IA005', NULL, 'a confidential key is not granted again under its plain id');
SELECT throws_ok($$SELECT idem.define_rule('both', 'k', 's')$$, '55006', NULL, 'rows with confidential keys want a rule that says so');
SELECT throws_ok($$SELECT idem.define_rule('both', 'k', 's', confidential_fields => '{to}')$$, '55006', NULL, 'fields alone are not enough');
SELECT throws_ok($$SELECT idem.define_rule('fields', 'k', 's')$$, '55006', NULL, 'nor is a rule without the fields');
SELECT lives_ok($$SELECT idem.define_rule('both', 'k', 's', confidential_key => true, confidential_fields => '{to}')$$, 'the same as before is heard');
RESET idem_action.require_rule;

ALTER SYSTEM RESET idem_action.secret_file;
SELECT pg_reload_conf() \g /dev/null
COPY (SELECT) TO PROGRAM 'cat > pgtap_confidential.txt; rm pgtap_confidential.txt';
SELECT lives_ok('SELECT idem.keyed_digest(NULL)', 'done');
SELECT * FROM finish();
