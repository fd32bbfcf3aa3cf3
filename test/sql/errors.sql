--
-- Errors as callers see them, word by word, each with its SQLSTATE.
--
SET client_min_messages = warning;
SELECT idem.define_rule('errors', 'event', 'the team') <> '' AS defined;
SELECT idem.define_rule('errors of tenants', 'event', 'the team', scoped => true) <> '' AS defined;

--
-- IA001: other params; the names of fields, never their values
--
SELECT outcome FROM idem.claim_action('order 17', 'errors', '{"to": "a@example.org", "amount": 12, "same": 1}');
SELECT outcome FROM idem.claim_action('order 17', 'errors', '{"to": "b@example.org", "amount": 13, "same": 1}');
\echo :SQLSTATE
SELECT outcome FROM idem.claim_action('order 17', 'errors', '{"same": 1}');
\echo :SQLSTATE
SELECT outcome FROM idem.claim_action('order 17', 'errors', '{"to": "a@example.org", "amount": 12, "same": 1, "new field \" of \n a kind": 1}');
\echo :SQLSTATE
SELECT outcome FROM idem.claim_action('order 17', 'errors', '["a@example.org"]');
\echo :SQLSTATE
SELECT outcome FROM idem.claim_action('order 17', 'errors', '{}' || (SELECT jsonb_object_agg(repeat('name', 30) || i, i) FROM generate_series(10, 35) AS i));
\echo :SQLSTATE
SELECT idem.once('order 17', 'errors', '{"to": "b@example.org"}');
\echo :SQLSTATE

--
-- IA002: the claim is lost
--
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('lost', 'errors') \gset
SELECT accepted, state FROM idem.release_action(:'id', :'claim');
SELECT idem.extend_claim(:'id', :'claim');
\echo :SQLSTATE
SELECT idem.begin_effect(:'id', :'claim');
\echo :SQLSTATE
SELECT seconds_left, problem FROM idem.extend_claims(ARRAY[:'id'::uuid], ARRAY[:'claim'::uuid]);
SELECT outcome FROM idem.claim_action('lost', 'errors');
SELECT idem.extend_claim(:'id', :'claim');
\echo :SQLSTATE
UPDATE idem.idem_actions SET lease_until = '2026-01-01' WHERE action_id = :'id';
SELECT claim_id AS claim FROM idem.idem_actions WHERE action_id = :'id' \gset
SELECT idem.begin_effect(:'id', :'claim');
\echo :SQLSTATE

--
-- IA003: once, not done
--
SELECT idem.once('lost', 'errors');
\echo :SQLSTATE
SELECT state FROM idem.fail_action(:'id', :'claim', 'timeout');
SELECT idem.once('lost', 'errors');
\echo :SQLSTATE
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('refused', 'errors') \gset
SELECT state FROM idem.fail_action(:'id', :'claim', 'no', 'refused');
SELECT idem.once('refused', 'errors');
\echo :SQLSTATE

--
-- IA004: a cancel was requested
--
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('cancelled', 'errors') \gset
UPDATE idem.idem_actions SET cancel_requested = true WHERE action_id = :'id';
SELECT idem.extend_claim(:'id', :'claim');
\echo :SQLSTATE
SELECT idem.begin_effect(:'id', :'claim');
\echo :SQLSTATE
SELECT seconds_left, problem FROM idem.extend_claims(ARRAY[:'id'::uuid], ARRAY[:'claim'::uuid]);

--
-- IA005: no rule
--
SELECT outcome FROM idem.claim_action('k', 'send-reply');
\echo :SQLSTATE
SELECT outcome FROM idem.claim_actions('send-reply', '{k}');
\echo :SQLSTATE
SELECT idem.once('k', 'send-reply');
\echo :SQLSTATE
SELECT outcome FROM idem.find_action('k', 'send-reply');
\echo :SQLSTATE
SELECT idem.describe_rule('send-reply');
\echo :SQLSTATE
SELECT idem.drop_rule('send-reply');
\echo :SQLSTATE

--
-- IA006: key, intent, scope, call_id; never the key itself
--
SELECT outcome FROM idem.claim_action(NULL, 'errors');
\echo :SQLSTATE
SELECT outcome FROM idem.claim_action('', 'errors');
\echo :SQLSTATE
SELECT outcome FROM idem.claim_action(repeat('secret', 3000), 'errors');
\echo :SQLSTATE
SELECT outcome FROM idem.claim_action('k', NULL);
\echo :SQLSTATE
SELECT outcome FROM idem.claim_action('k', '');
\echo :SQLSTATE
SELECT outcome FROM idem.claim_action('k', repeat('x', 257));
\echo :SQLSTATE
SELECT outcome FROM idem.claim_action('k', 'errors', scope => NULL);
\echo :SQLSTATE
SELECT outcome FROM idem.claim_action('k', 'errors', scope => repeat('x', 257));
\echo :SQLSTATE
SELECT outcome FROM idem.claim_action('k', 'errors of tenants');
\echo :SQLSTATE
SELECT outcome FROM idem.claim_action('0f8fad5b-d9cb-469f-a165-70867728950e', 'errors', call_id => '0f8fad5b-d9cb-469f-a165-70867728950e');
\echo :SQLSTATE
SELECT outcome FROM idem.claim_action('k', 'errors', event_id => '0F8FAD5B-D9CB-469F-A165-70867728950E', call_id => '0f8fad5b-d9cb-469f-a165-70867728950e');
\echo :SQLSTATE
SELECT outcome FROM idem.claim_actions('errors', '{a,NULL,c}');
\echo :SQLSTATE
SELECT outcome FROM idem.claim_actions('errors', '{a,""}');
\echo :SQLSTATE
SELECT outcome FROM idem.claim_action(' ', 'errors');
\echo :SQLSTATE
SELECT outcome FROM idem.claim_action('k', E'\t');
\echo :SQLSTATE
SELECT outcome FROM idem.claim_action('k', 'errors', scope => U&'\00A0');
\echo :SQLSTATE

--
-- IA010: contents too large
--
SET idem_action.max_content = 1024;
SELECT outcome FROM idem.claim_action('k', 'errors', to_jsonb(repeat('x', 2000)));
\echo :SQLSTATE
SELECT outcome FROM idem.claim_action('k', 'errors', draft => to_jsonb(repeat('x', 2000)));
\echo :SQLSTATE
SELECT outcome FROM idem.claim_actions('errors', '{a,b}', params => ARRAY['1', to_jsonb(repeat('x', 2000))]);
\echo :SQLSTATE
SELECT outcome FROM idem.claim_actions('errors', '{a,b}', drafts => ARRAY['1', to_jsonb(repeat('x', 2000))]);
\echo :SQLSTATE
SELECT idem.once('k', 'errors', to_jsonb(repeat('x', 2000)));
\echo :SQLSTATE
SELECT outcome FROM idem.claim_action('k', 'errors', to_jsonb(repeat(E'\x01', 300)));
\echo :SQLSTATE
SELECT outcome FROM idem.claim_action('k', 'errors', '[1e131071]');
\echo :SQLSTATE
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('draft', 'errors', draft => '"x"') \gset
SELECT idem.begin_effect(:'id', :'claim', to_jsonb(repeat('x', 2000)));
\echo :SQLSTATE
SELECT draft, begun FROM idem.idem_actions WHERE action_id = :'id';
-- of a success, what is too large is left out, and a note says so
SELECT accepted, state, note FROM idem.complete_action(:'id', :'claim', repeat('x', 2049), to_jsonb(repeat('x', 2000)));
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('draft 2', 'errors') \gset
SELECT accepted, state, note FROM idem.complete_action(:'id', :'claim', repeat('x', 2049));
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('draft 3', 'errors') \gset
SELECT accepted, state, note FROM idem.complete_action(:'id', :'claim', 'x', to_jsonb(repeat('x', 2000)));
RESET idem_action.max_content;
SELECT outcome FROM idem.claim_action('k', 'errors', draft => (repeat('[', 501) || repeat(']', 501))::jsonb);
\echo :SQLSTATE

--
-- IA016: no such action
--
SELECT idem.complete_action('0f8fad5b-d9cb-469f-a165-70867728950e', '0f8fad5b-d9cb-469f-a165-70867728950e');
\echo :SQLSTATE
SELECT idem.fail_action('0f8fad5b-d9cb-469f-a165-70867728950e', '0f8fad5b-d9cb-469f-a165-70867728950e', 'x');
\echo :SQLSTATE
SELECT idem.release_action('0f8fad5b-d9cb-469f-a165-70867728950e', '0f8fad5b-d9cb-469f-a165-70867728950e');
\echo :SQLSTATE
SELECT idem.begin_effect('0f8fad5b-d9cb-469f-a165-70867728950e', '0f8fad5b-d9cb-469f-a165-70867728950e');
\echo :SQLSTATE
SELECT idem.extend_claim('0f8fad5b-d9cb-469f-a165-70867728950e', '0f8fad5b-d9cb-469f-a165-70867728950e');
\echo :SQLSTATE
-- in a batch it is a row
SELECT * FROM idem.complete_actions('{0f8fad5b-d9cb-469f-a165-70867728950e}', '{0f8fad5b-d9cb-469f-a165-70867728950e}');
SELECT * FROM idem.extend_claims('{0f8fad5b-d9cb-469f-a165-70867728950e}', '{0f8fad5b-d9cb-469f-a165-70867728950e}');

--
-- 22023, 2202E: wrong arguments
--
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('arguments', 'errors') \gset
SELECT outcome FROM idem.claim_action('k', 'errors', lease => '0');
\echo :SQLSTATE
SELECT outcome FROM idem.claim_action('k', 'errors', lease => '1000 years');
\echo :SQLSTATE
SELECT outcome FROM idem.claim_action('k', 'errors', wait => '-1 s');
\echo :SQLSTATE
SELECT outcome FROM idem.claim_action('k', 'errors', wait => '31 s');
\echo :SQLSTATE
SELECT idem.extend_claim(:'id', :'claim', '-1 s');
\echo :SQLSTATE
SELECT idem.begin_effect(:'id', :'claim', lease => '0');
\echo :SQLSTATE
SELECT idem.fail_action(:'id', :'claim', 'x', 'perhaps');
\echo :SQLSTATE
SELECT idem.fail_action(:'id', :'claim', 'x', retry_after => '-1 s');
\echo :SQLSTATE
SELECT idem.fail_action(:'id', :'claim', 'x', retry_after => '1000 years');
\echo :SQLSTATE
SELECT idem.complete_action(NULL, :'claim');
\echo :SQLSTATE
SELECT idem.complete_action(:'id', NULL);
\echo :SQLSTATE
SELECT idem.release_action(:'id', NULL);
\echo :SQLSTATE
SELECT idem.begin_effect(:'id', NULL);
\echo :SQLSTATE
SELECT outcome FROM idem.claim_actions('errors', NULL);
\echo :SQLSTATE
SELECT outcome FROM idem.claim_actions('errors', '{{a},{b}}');
\echo :SQLSTATE
SELECT outcome FROM idem.claim_actions('errors', '{a,b}', params => '{}');
\echo :SQLSTATE
SELECT outcome FROM idem.claim_actions('errors', '{a,b}', drafts => ARRAY['1', '2', '3']::jsonb[]);
\echo :SQLSTATE
SELECT outcome FROM idem.claim_actions('errors', '{a,b}', event_ids => '{a}');
\echo :SQLSTATE
SELECT * FROM idem.complete_actions(NULL, '{}');
\echo :SQLSTATE
SELECT * FROM idem.complete_actions('{}', NULL);
\echo :SQLSTATE
SELECT * FROM idem.complete_actions(ARRAY[:'id', NULL]::uuid[], ARRAY[:'claim', :'claim']::uuid[]);
\echo :SQLSTATE
SELECT * FROM idem.complete_actions(ARRAY[:'id']::uuid[], '{}');
\echo :SQLSTATE
SELECT * FROM idem.complete_actions(ARRAY[:'id']::uuid[], ARRAY[:'claim']::uuid[], '{a,b}');
\echo :SQLSTATE
SELECT * FROM idem.complete_actions(ARRAY[:'id']::uuid[], ARRAY[:'claim']::uuid[], results => '{}');
\echo :SQLSTATE
SELECT * FROM idem.extend_claims(ARRAY[:'id']::uuid[], ARRAY[NULL]::uuid[]);
\echo :SQLSTATE
SELECT state, revision FROM idem.idem_actions WHERE action_id = :'id';

--
-- 25001, 25006: the transaction
--
BEGIN;
SELECT outcome FROM idem.claim_action('k', 'errors');
\echo :SQLSTATE
ROLLBACK;
BEGIN;
SELECT outcome FROM idem.claim_actions('errors', '{k}');
\echo :SQLSTATE
ROLLBACK;
BEGIN;
SELECT idem.begin_effect(:'id', :'claim');
\echo :SQLSTATE
ROLLBACK;
BEGIN READ ONLY;
SELECT outcome FROM idem.claim_action('k', 'errors', in_transaction => true);
\echo :SQLSTATE
ROLLBACK;
BEGIN READ ONLY;
SELECT idem.complete_action(:'id', :'claim');
\echo :SQLSTATE
ROLLBACK;
SELECT outcome FROM idem.find_action('k', 'errors');

--
-- 0A000: a trigger on the table would not fire
--
CREATE FUNCTION pg_temp.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER my_audit AFTER INSERT ON idem.idem_actions EXECUTE FUNCTION pg_temp.nothing();
SELECT outcome FROM idem.claim_action('k', 'errors');
\echo :SQLSTATE
DROP TRIGGER my_audit ON idem.idem_actions;

--
-- IA002: a claim that was handed out to search
--
SELECT idem.define_rule('errors with a search', 'event', 'the team', on_uncertain => 'verify', settle => '0') <> '' AS defined;
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('k', 'errors with a search') \gset
SELECT state FROM idem.fail_action(:'id', :'claim', 'timeout', retry_after => '0');
SELECT outcome, claim_id AS claim FROM idem.claim_action('k', 'errors with a search') \gset
SELECT idem.begin_effect(:'id', :'claim');
\echo :SQLSTATE

--
-- 22023: a person says nothing, or what cannot be
--
SELECT state FROM idem.resolve_action(:'id', 'happened', ' ', 1);
SELECT state FROM idem.rerun_action(:'id', '', 1);
SELECT state FROM idem.rerun_action(:'id', 'asked for', NULL);
SELECT state FROM idem.cancel_action(:'id', 'not wanted', revision => 0);
SELECT state FROM idem.erase_action(:'id', E'\t');
SELECT idem.pause_intent('errors', '');
SELECT idem.after_restore('2026-01-01', NULL);
SELECT idem.after_restore('infinity', 'the disk');
\echo :SQLSTATE

--
-- Notes: what a report is told where it is not simply accepted
--
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('notes', 'errors') \gset
SELECT accepted, state, note FROM idem.fail_action(:'id', '0f8fad5b-d9cb-469f-a165-70867728950e', 'x');
SELECT accepted, state, note FROM idem.complete_action(:'id', '0f8fad5b-d9cb-469f-a165-70867728950e', 'r1');
SELECT accepted, state, note FROM idem.complete_action(:'id', :'claim', 'r2');
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('notes 2', 'errors') \gset
UPDATE idem.idem_actions SET lease_until = '2026-01-01', claimed_at = '2026-01-01' WHERE action_id = :'id';
SELECT accepted, state, note FROM idem.complete_action(:'id', :'claim');
SELECT accepted, state, note FROM idem.complete_action(:'id', :'claim', 'r1');
SELECT accepted, state, note FROM idem.complete_action(:'id', :'claim', 'r2');
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('notes 3', 'errors') \gset
UPDATE idem.idem_actions SET cancel_requested = true WHERE action_id = :'id';
SELECT accepted, state, note FROM idem.complete_action(:'id', :'claim', 'r1');
SELECT idem.define_rule('errors with marks', 'event', 'the team', marks_effect => true) <> '' AS defined;
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('notes 4', 'errors with marks') \gset
SELECT idem.begin_effect(:'id', :'claim') > 0 AS begun;
SELECT accepted, state, note FROM idem.release_action(:'id', :'claim');

-- nothing of all this has left a key or a value in the history
SELECT count(*) FROM idem.history WHERE detail::text ~ 'example.org|secret|order 17';

--
-- Bounds of arrays, and names too long to be repeated
--
SELECT outcome FROM idem.take_actions(array_fill('errors'::text, '{1001}'));
\echo :SQLSTATE
SELECT outcome FROM idem.claim_actions('errors', array_fill('k'::text, '{100001}'));
\echo :SQLSTATE
SELECT outcome FROM idem.claim_action('k', repeat('i', 256));
\echo :SQLSTATE
SELECT idem.grant_access(current_user::regrole, repeat('level', 60000));
\echo :SQLSTATE
