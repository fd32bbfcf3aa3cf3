--
-- Who may do what: nobody, worker, operator, analyst, admin, superuser.
--
SET client_min_messages = warning;
CREATE ROLE regress_idem_nobody LOGIN;
CREATE ROLE regress_idem_worker LOGIN;
CREATE ROLE regress_idem_operator LOGIN;
CREATE ROLE regress_idem_analyst LOGIN;
CREATE ROLE regress_idem_admin LOGIN;
CREATE ROLE regress_idem_service LOGIN IN ROLE regress_idem_worker;
SELECT idem.grant_access('regress_idem_worker', 'worker');
SELECT idem.grant_access('regress_idem_operator', 'operator');
SELECT idem.grant_access('regress_idem_analyst', 'analyst');
SELECT idem.grant_access('regress_idem_admin', 'admin');

SELECT idem.define_rule('privileges', 'event', 'the team') <> '' AS defined;
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('1', 'privileges', '{"card": "4111 1111"}', '"Dear customer"', worker => 'w', source => 'q', event_id => 'e') \gset
SELECT state FROM idem.complete_action(:'id', :'claim', 'ref', '{"text": "sent"}');

--
-- By the catalog
--
SELECT p.proname AS function,
	has_function_privilege('regress_idem_nobody', p.oid, 'EXECUTE') AS nobody,
	has_function_privilege('regress_idem_worker', p.oid, 'EXECUTE') AS worker,
	has_function_privilege('regress_idem_operator', p.oid, 'EXECUTE') AS operator,
	has_function_privilege('regress_idem_analyst', p.oid, 'EXECUTE') AS analyst,
	has_function_privilege('regress_idem_admin', p.oid, 'EXECUTE') AS admin
FROM pg_proc p
WHERE pronamespace = 'idem'::regnamespace
	AND proname = ANY ('{action_id,action_key,period_key,describe_rule,
		claim_action,claim_actions,once,find_action,begin_effect,extend_claim,extend_claims,complete_action,complete_actions,
		fail_action,release_action,define_rule,drop_rule,grant_access,revoke_access,violated_invariant}')
ORDER BY p.proname::text COLLATE "C";

SELECT c.relname AS view,
	has_table_privilege('regress_idem_nobody', c.oid, 'SELECT') AS nobody,
	has_table_privilege('regress_idem_worker', c.oid, 'SELECT') AS worker,
	has_table_privilege('regress_idem_operator', c.oid, 'SELECT') AS operator,
	has_table_privilege('regress_idem_analyst', c.oid, 'SELECT') AS analyst,
	has_table_privilege('regress_idem_admin', c.oid, 'SELECT') AS admin
FROM pg_class c
WHERE relnamespace = 'idem'::regnamespace AND relname = ANY ('{actions,history,rules,access,privileges}')
ORDER BY c.relname::text COLLATE "C";

-- nobody but the owner has any right on a table or sequence, or more than SELECT on a view
SELECT c.relname, r.rolname, privilege
FROM pg_class c, pg_roles r, unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}'::text[]) AS privilege
WHERE relnamespace = 'idem'::regnamespace AND relkind = ANY ('{r,v}') AND rolname LIKE 'regress_idem_%'
	AND has_table_privilege(r.oid, c.oid, privilege) AND (relkind = 'r' OR privilege <> 'SELECT');
SELECT c.relname, r.rolname
FROM pg_class c, pg_roles r
WHERE relnamespace = 'idem'::regnamespace AND relkind = 'S' AND rolname LIKE 'regress_idem_%'
	AND has_sequence_privilege(r.oid, c.oid, 'USAGE,SELECT,UPDATE');
-- nor may anybody create something in the schema
SELECT rolname FROM pg_roles WHERE rolname LIKE 'regress_idem_%' AND has_schema_privilege(oid, 'idem', 'CREATE');

--
-- A nobody: not even that there is anything
--
SET SESSION AUTHORIZATION regress_idem_nobody;
SELECT outcome FROM idem.claim_action('2', 'privileges');
\echo :SQLSTATE
SELECT idem.action_id('1', 'privileges');
SELECT count(*) FROM idem.actions;
SELECT count(*) FROM idem.idem_actions;
SELECT idem.grant_access('regress_idem_nobody', 'admin');
RESET SESSION AUTHORIZATION;
-- the schema alone opens nothing
GRANT USAGE ON SCHEMA idem TO regress_idem_nobody;
SET SESSION AUTHORIZATION regress_idem_nobody;
SELECT outcome FROM idem.claim_action('2', 'privileges');
SELECT idem.action_id('1', 'privileges');
SELECT idem.once('2', 'privileges');
SELECT outcome FROM idem.find_action('1', 'privileges');
SELECT idem.complete_action(:'id', :'claim');
SELECT idem.define_rule('privileges', 'u', 'r');
SELECT count(*) FROM idem.actions;
SELECT count(*) FROM idem.idem_actions;
RESET SESSION AUTHORIZATION;
REVOKE USAGE ON SCHEMA idem FROM regress_idem_nobody;

--
-- A worker: the whole life of an action, no table, no view, no rule
--
SET SESSION AUTHORIZATION regress_idem_worker;
SELECT action_id AS id2, claim_id AS claim2, outcome FROM idem.claim_action('2', 'privileges') \gset
SELECT idem.begin_effect(:'id2', :'claim2') > 0 AS begun;
SELECT idem.extend_claim(:'id2', :'claim2') > 0 AS extended;
SELECT problem FROM idem.extend_claims(ARRAY[:'id2']::uuid[], ARRAY[:'claim2']::uuid[]);
SELECT state FROM idem.complete_action(:'id2', :'claim2');
SELECT action_id AS id3, claim_id AS claim3 FROM idem.claim_actions('privileges', '{3}') \gset
SELECT state FROM idem.release_action(:'id3', :'claim3');
SELECT action_id AS id3, claim_id AS claim3 FROM idem.claim_actions('privileges', '{3}') \gset
SELECT state FROM idem.complete_actions(ARRAY[:'id3']::uuid[], ARRAY[:'claim3']::uuid[]);
SELECT action_id AS id4, claim_id AS claim4 FROM idem.claim_action('4', 'privileges') \gset
SELECT state FROM idem.fail_action(:'id4', :'claim4', 'no', 'refused');
SELECT idem.once('5', 'privileges');
SELECT outcome, external_ref, result FROM idem.find_action('1', 'privileges');
SELECT idem.action_id('1', 'privileges') = :'id' AS same, idem.action_key('a', 'b'), idem.period_key('2026-11-29 12:00+00', 'day', 'UTC');
SELECT split_part(idem.describe_rule('privileges'), E'\n', 1) AS described;
-- and nothing else
SELECT count(*) FROM idem.actions;
SELECT count(*) FROM idem.history;
SELECT count(*) FROM idem.rules;
SELECT count(*) FROM idem.idem_actions;
UPDATE idem.idem_actions SET uncertain = false;
INSERT INTO idem.idem_events (at, event, role) VALUES (now(), 'x', 'y');
DELETE FROM idem.idem_rules;
SELECT nextval('idem.idem_events_id_seq');
CREATE FUNCTION idem.claim_action(text, text) RETURNS text LANGUAGE sql AS 'SELECT 1';
ALTER FUNCTION idem.find_action(text, text, text) SECURITY DEFINER;
SELECT idem.define_rule('privileges', 'u', 'r');
SELECT idem.drop_rule('privileges');
SELECT idem.grant_access('regress_idem_worker', 'admin');
SELECT idem.revoke_access('regress_idem_admin', 'admin');
SET idem_action.require_rule = off;
SET idem_action.max_content = '10MB';
SET idem_action.async_complete = on;
RESET idem_action.async_complete;
RESET SESSION AUTHORIZATION;
-- its name is in the history
SELECT DISTINCT role, event FROM idem.history WHERE intent = 'privileges' AND role IS NOT NULL AND event NOT LIKE 'rule%' ORDER BY 1, 2;

-- a member of the role may do the same
SET SESSION AUTHORIZATION regress_idem_service;
SELECT outcome FROM idem.claim_action('6', 'privileges');
SELECT count(*) FROM idem.actions;
RESET SESSION AUTHORIZATION;

--
-- An analyst: what was done, without contents; nothing that changes anything
--
SET SESSION AUTHORIZATION regress_idem_analyst;
SELECT key, state, external_ref, error, source, event_id, provider_key = :'id' AS provider_key_is_id FROM idem.actions WHERE intent = 'privileges' AND key IN ('1', '4') ORDER BY key;
SELECT event, attempt, role, detail FROM idem.history WHERE action_id = :'id4' AND event = 'failed' AND detail ? 'effect';
SELECT intent, unique_by FROM idem.rules WHERE intent = 'privileges';
SELECT role, level FROM idem.access WHERE role LIKE 'regress_idem_%' ORDER BY role;
SELECT count(*) > 0 AS privileges FROM idem.privileges;
SELECT split_part(idem.describe_rule('privileges'), E'\n', 1) AS described;
SELECT outcome FROM idem.claim_action('7', 'privileges');
SELECT idem.once('7', 'privileges');
SELECT outcome, result FROM idem.find_action('1', 'privileges');
SELECT idem.complete_action(:'id', :'claim');
SELECT idem.define_rule('privileges', 'u', 'r');
SELECT idem.grant_access('regress_idem_analyst', 'worker');
SELECT params, draft, result FROM idem.idem_actions;
SELECT content FROM idem.idem_events;
UPDATE idem.actions SET uncertain = false;
DELETE FROM idem.rules;
RESET SESSION AUTHORIZATION;
-- no view shows what is in params, draft or result
SELECT count(*) AS leaks FROM (
	SELECT a::text AS line FROM idem.actions a UNION ALL SELECT h::text FROM idem.history h) AS s
WHERE line ~ '4111 1111|Dear customer|"sent"';

--
-- An admin: rules and access as well
--
SET SESSION AUTHORIZATION regress_idem_admin;
SELECT idem.define_rule('privileges of admins', 'u', 'r') <> '' AS defined;
SELECT idem.drop_rule('privileges of admins');
SELECT outcome FROM idem.claim_action('8', 'privileges');
SELECT count(*) > 0 AS actions FROM idem.actions;
SELECT idem.grant_access('regress_idem_nobody', 'analyst');
SELECT level, granted_by, granted_at BETWEEN now() - interval '1 min' AND clock_timestamp() AS just_now FROM idem.access WHERE role = 'regress_idem_nobody';
SELECT idem.revoke_access('regress_idem_nobody', 'analyst');
SELECT count(*) FROM idem.idem_actions;
UPDATE idem.idem_rules SET max_attempts = 1000;
SET idem_action.require_rule = off;
RESET SESSION AUTHORIZATION;
SELECT event, role, detail FROM idem.history WHERE event LIKE 'access_%' AND detail->>'role' = 'regress_idem_nobody' ORDER BY at, id;
SELECT event, role, intent FROM idem.history WHERE intent = 'privileges of admins' ORDER BY at, id;

--
-- grant_access and revoke_access: what overlaps stays
--
CREATE FUNCTION pg_temp.may(role text) RETURNS text LANGUAGE sql AS $$
	SELECT concat_ws(' ',
		CASE WHEN has_schema_privilege(role, 'idem', 'USAGE') THEN 'schema' END,
		CASE WHEN has_function_privilege(role, 'idem.action_id(text, text, text)', 'EXECUTE') THEN 'action_id' END,
		CASE WHEN has_function_privilege(role, 'idem.find_action(text, text, text)', 'EXECUTE') THEN 'find_action' END,
		CASE WHEN has_function_privilege(role, 'idem.drop_rule(text)', 'EXECUTE') THEN 'drop_rule' END,
		CASE WHEN has_table_privilege(role, 'idem.actions', 'SELECT') THEN 'actions' END)
$$;
SELECT pg_temp.may('regress_idem_nobody');
SELECT idem.grant_access('regress_idem_nobody', 'worker');
SELECT pg_temp.may('regress_idem_nobody');
SELECT idem.grant_access('regress_idem_nobody', 'analyst');
SELECT pg_temp.may('regress_idem_nobody');
SELECT idem.grant_access('regress_idem_nobody', 'admin');
SELECT pg_temp.may('regress_idem_nobody');
SELECT level FROM idem.access WHERE role = 'regress_idem_nobody' ORDER BY level;
SELECT idem.revoke_access('regress_idem_nobody', 'admin');
SELECT pg_temp.may('regress_idem_nobody');
SELECT idem.revoke_access('regress_idem_nobody', 'worker');
SELECT pg_temp.may('regress_idem_nobody');
-- twice is once
SELECT idem.grant_access('regress_idem_nobody', 'analyst');
SELECT level FROM idem.access WHERE role = 'regress_idem_nobody';
SELECT idem.revoke_access('regress_idem_nobody', 'worker');
SELECT pg_temp.may('regress_idem_nobody');
SELECT idem.revoke_access('regress_idem_nobody', 'analyst');
SELECT pg_temp.may('regress_idem_nobody');
SELECT level FROM idem.access WHERE role = 'regress_idem_nobody';
-- rolled back, it has not been granted
BEGIN;
SELECT idem.grant_access('regress_idem_nobody', 'worker');
ROLLBACK;
SELECT pg_temp.may('regress_idem_nobody');
-- a name that has to be quoted
CREATE ROLE "regress_idem Name ""of"" a kind";
SELECT idem.grant_access('"regress_idem Name ""of"" a kind"', 'worker');
SELECT pg_temp.may('regress_idem Name "of" a kind');
SELECT idem.revoke_access('"regress_idem Name ""of"" a kind"', 'worker');
SELECT pg_temp.may('regress_idem Name "of" a kind');
DROP ROLE "regress_idem Name ""of"" a kind";
-- mistakes
SELECT idem.grant_access('regress_idem_nobody', 'boss');
\echo :SQLSTATE
SELECT idem.grant_access('regress_idem_nobody', NULL);
\echo :SQLSTATE
SELECT idem.grant_access(NULL, 'worker');
\echo :SQLSTATE
SELECT idem.grant_access('regress_idem_unknown', 'worker');
\echo :SQLSTATE
SELECT idem.grant_access('-', 'worker');
\echo :SQLSTATE
SELECT idem.revoke_access('regress_idem_nobody', 'boss');
\echo :SQLSTATE

--
-- Names that an attacker plants are not looked up
--
SET SESSION AUTHORIZATION regress_idem_admin;
CREATE TEMP TABLE idem_actions (x int);
CREATE TEMP TABLE privileges (level text, privilege text, object text);
INSERT INTO privileges VALUES ('worker', 'EXECUTE', 'FUNCTION idem.drop_rule');
CREATE FUNCTION pg_temp.format(text, VARIADIC text[]) RETURNS text LANGUAGE sql AS $$SELECT 'GRANT ALL ON SCHEMA idem TO PUBLIC'$$;
CREATE FUNCTION pg_temp.texteq(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE OPERATOR pg_temp.= (FUNCTION = pg_temp.texteq, LEFTARG = text, RIGHTARG = text);
SET search_path = pg_temp, pg_catalog;
SELECT idem.grant_access('regress_idem_nobody', 'worker');
SELECT outcome FROM idem.claim_action('9', 'privileges');
SELECT idem.define_rule('privileges planted', 'u', 'r') <> '' AS defined;
SELECT idem.drop_rule('privileges planted');
RESET search_path;
RESET SESSION AUTHORIZATION;
SELECT pg_temp.may('regress_idem_nobody'), has_schema_privilege('regress_idem_nobody', 'idem', 'CREATE') AS may_create,
	(SELECT count(*) FROM idem.rules WHERE intent = 'privileges') AS rule_still_there;

--
-- Cleaning up
--
SELECT count(idem.revoke_access(role_id, level)) FROM idem.access WHERE role LIKE 'regress_idem_%';
DROP OWNED BY regress_idem_admin;	-- what it has planted
DROP ROLE regress_idem_service, regress_idem_nobody, regress_idem_worker, regress_idem_operator, regress_idem_analyst, regress_idem_admin;
SELECT count(*) FROM idem.access;
