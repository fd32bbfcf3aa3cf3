--
-- Every function that takes an action or an intent, called by every kind of
-- role, under every form of a rule, on an action in every state.  Outside of
-- the rule's roles a call is refused by IA016 or IA008, whatever the action's
-- state: the row, its history and the queue are as before, and the message is
-- the one about an action that does not exist.  A role of level worker outside
-- of worker_role does not cancel, revise or rerun, whether or not the rule has a
-- resolver_role.  Inside, a call is never refused for want of rights.
--
SELECT plan(36);

CREATE SCHEMA t;
SET search_path = t, public;
GRANT USAGE ON SCHEMA t TO PUBLIC;

CREATE ROLE regress_idem_workers;
CREATE ROLE regress_idem_resolvers;
CREATE ROLE regress_idem_gone_workers;
CREATE ROLE regress_idem_gone_resolvers;
CREATE ROLE regress_idem_w_in LOGIN IN ROLE regress_idem_workers;
CREATE ROLE regress_idem_w_out LOGIN;
CREATE ROLE regress_idem_o_in LOGIN IN ROLE regress_idem_resolvers;
CREATE ROLE regress_idem_o_out LOGIN;
CREATE ROLE regress_idem_admin LOGIN;
CREATE ROLE regress_idem_analyst LOGIN;
CREATE ROLE regress_idem_nobody LOGIN;
SELECT idem.grant_access('regress_idem_w_in', 'worker'), idem.grant_access('regress_idem_w_out', 'worker'),
	idem.grant_access('regress_idem_o_in', 'operator'), idem.grant_access('regress_idem_o_out', 'operator'),
	idem.grant_access('regress_idem_admin', 'admin'), idem.grant_access('regress_idem_analyst', 'analyst') \g /dev/null

/* who: in which role of the rules, and whether its level is to decide */
CREATE TABLE roles (name text, works boolean, resolves boolean, decides boolean, owns boolean);
INSERT INTO roles VALUES
	('regress_idem_w_in', true, false, false, false),
	('regress_idem_w_out', false, false, false, false),
	('regress_idem_o_in', false, true, true, false),
	('regress_idem_o_out', false, false, true, false),
	('regress_idem_admin', false, false, true, false),
	('regress_idem_analyst', false, false, false, false),
	('regress_idem_nobody', false, false, false, false),
	(current_user, true, true, true, true);

/*
 * a rule's form: whom it names, whether anyone is in there, and whether calls
 * are made with require_rule on; "missing" and "lax" are deleted below, "none"
 * never was
 */
CREATE TABLE forms (form text, worker_role text, resolver_role text, empty boolean, require_rule boolean);
INSERT INTO forms VALUES
	('none', NULL, NULL, false, false),
	('open', NULL, NULL, false, true),
	('workers', 'regress_idem_workers', NULL, false, true),
	('resolvers', NULL, 'regress_idem_resolvers', false, true),
	('both', 'regress_idem_workers', 'regress_idem_resolvers', false, true),
	('dropped', 'regress_idem_gone_workers', 'regress_idem_gone_resolvers', true, true),
	('missing', 'regress_idem_workers', 'regress_idem_resolvers', true, true),
	('lax', 'regress_idem_workers', 'regress_idem_resolvers', true, false);

/* what a call asks for: to act, to decide, either, or to see */
CREATE TABLE calls (function text, asks text, call text);
INSERT INTO calls VALUES
	('claim_action', 'act', 'idem.claim_action(%5$L, %3$L, in_transaction => true)'),
	('claim_actions', 'act', 'idem.claim_actions(%3$L, ARRAY[%5$L], in_transaction => true)'),
	('once', 'act', 'idem.once(%5$L, %3$L)'),
	('enqueue_action', 'act', 'idem.enqueue_action(%5$L, %3$L)'),
	('enqueue_actions', 'act', 'idem.enqueue_actions(%3$L, ARRAY[%5$L])'),
	('take_actions', 'act', 'idem.take_actions(ARRAY[%3$L], in_transaction => true)'),
	('take_to_verify', 'act', 'idem.take_to_verify(ARRAY[%3$L], in_transaction => true)'),
	('extend_claim', 'act', 'idem.extend_claim(%1$L, %2$L)'),
	('extend_claims', 'act', 'idem.extend_claims(ARRAY[%1$L]::uuid[], ARRAY[%2$L]::uuid[])'),
	('complete_action', 'act', 'idem.complete_action(%1$L, %2$L, ''ref'')'),
	('complete_actions', 'act', 'idem.complete_actions(ARRAY[%1$L]::uuid[], ARRAY[%2$L]::uuid[])'),
	('fail_action', 'act', 'idem.fail_action(%1$L, %2$L, ''timeout'')'),
	('release_action', 'act', 'idem.release_action(%1$L, %2$L)'),
	('verify_action', 'act', 'idem.verify_action(%1$L, %2$L, false)'),
	('revise_action', 'either', 'idem.revise_action(%1$L, ''{"d": 2}'')'),
	('cancel_action', 'either', 'idem.cancel_action(%1$L)'),
	('rerun_action', 'either', 'idem.rerun_action(%1$L, ''again'', %4$s)'),
	('rerun_action', 'either', 'idem.rerun_action(%1$L, ''again'', 99)'),
	('resolve_action', 'decide', 'idem.resolve_action(%1$L, ''happened'', ''seen'', %4$s)'),
	('resolve_action', 'decide', 'idem.resolve_action(%1$L, ''happened'', ''seen'', 99)'),
	('approve_action', 'decide', 'idem.approve_action(%1$L, %4$s)'),
	('erase_action', 'decide', 'idem.erase_action(%1$L, ''asked to'')'),
	('show_action', 'decide', 'idem.show_action(%1$L)'),
	('import_actions', 'decide', 'idem.import_actions(%3$L, ARRAY[%5$L])'),
	('pause_intent', 'decide', 'idem.pause_intent(%3$L, ''wait'')'),
	('resume_intent', 'decide', 'idem.resume_intent(%3$L)'),
	('explain_action', 'see', 'idem.explain_action(%1$L)'),
	('describe_rule', 'see', 'idem.describe_rule(%3$L)'),
	('find_action', 'see', 'idem.find_action(%5$L, %3$L)'),
	('reconcile', 'see', 'idem.reconcile(%3$L, ''{ref}'', ''-infinity'')'),
	('search_actions', 'see', 'idem.search_actions(%1$L)');

CREATE TABLE made (form text, state text, action_id uuid, claim_id uuid, revision bigint);

/* one action of the form in each state, its key named after the state */
CREATE FUNCTION make(form text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
	f forms;
	c idem.claim;
	state text;
BEGIN
	SELECT * INTO f FROM forms WHERE forms.form = make.form;
	PERFORM set_config('idem_action.require_rule', f.require_rule::text, true);
	PERFORM idem.define_rule(form, 'the key', 'support', rerun_by => 'worker', worker_role => f.worker_role::regrole, resolver_role => f.resolver_role::regrole) WHERE form <> 'none';
	FOREACH state IN ARRAY '{pending,held,lapsed,completed,failed,needs_attention,cancelled}'::text[] LOOP
		IF state = ANY ('{pending,cancelled}') THEN
			c := idem.enqueue_action('at ' || state, form, '{"p": 1}', '{"d": 1}');
		ELSE
			c := idem.claim_action('at ' || state, form, '{"p": 1}', '{"d": 1}', in_transaction => true);
		END IF;
		IF state = 'lapsed' THEN
			UPDATE idem.idem_actions SET lease_until = lease_until - interval '1 day' WHERE action_id = c.action_id;
		ELSIF state = 'completed' THEN
			PERFORM idem.complete_action(c.action_id, c.claim_id, 'ref');
		ELSIF state = 'failed' THEN
			PERFORM idem.fail_action(c.action_id, c.claim_id, 'no', 'refused');
		ELSIF state = 'needs_attention' THEN
			PERFORM idem.fail_action(c.action_id, c.claim_id, 'timeout');
		ELSIF state = 'cancelled' THEN
			PERFORM idem.cancel_action(c.action_id);
		END IF;
		INSERT INTO made SELECT form, state, c.action_id, coalesce(c.claim_id, '6f1c2b1e-0000-4000-8000-000000000009'), a.revision
			FROM idem.idem_actions a WHERE a.action_id = c.action_id;
	END LOOP;
END
$$;
SELECT make(form) FROM forms \g /dev/null
DROP ROLE regress_idem_gone_workers, regress_idem_gone_resolvers;
DELETE FROM idem.idem_rules WHERE intent = ANY ('{missing,lax}');

/* everything that a call could change */
CREATE FUNCTION stored() RETURNS text LANGUAGE sql AS $$
	SELECT md5(concat((SELECT string_agg(a::text, ',' ORDER BY action_id) FROM idem.idem_actions a),
		(SELECT string_agg(e::text, ',' ORDER BY id) FROM idem.idem_events e),
		(SELECT string_agg(q::text, ',' ORDER BY action_id) FROM idem.idem_queue q),
		(SELECT string_agg(s::text, ',' ORDER BY kind, name) FROM idem.idem_state s),
		(SELECT string_agg(r::text, ',' ORDER BY intent) FROM idem.idem_rules r)))
$$;

CREATE TABLE answered (form text, state text, role text, function text, call text, allowed boolean, code text, answer text, changed boolean);

/* calls and takes everything back; what the call answered, its code 00000 or an error's */
CREATE FUNCTION try(sql text, as_role text, before text, OUT a answered) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM set_config('role', as_role, true);
	EXECUTE 'SELECT string_agg(x::text, chr(10)) FROM ' || sql || ' x' INTO a.answer;
	PERFORM set_config('role', 'none', true);
	a.changed := stored() <> before;
	a.code := '00000';
	RAISE 'take it back' USING ERRCODE = 'TTTTT';
EXCEPTION WHEN OTHERS THEN
	IF SQLSTATE <> 'TTTTT' THEN
		a.code := SQLSTATE;
		a.answer := SQLERRM;
		a.changed := false;
	END IF;
END
$$;

/* whether the rule gives the right, to a role that may execute the function */
CREATE FUNCTION gives(f forms, r roles, asks text) RETURNS boolean LANGUAGE sql AS $$
	SELECT CASE asks
		WHEN 'act' THEN NOT f.empty AND (f.worker_role IS NULL OR r.works)
		WHEN 'decide' THEN NOT f.empty AND r.decides AND (f.resolver_role IS NULL OR r.resolves)
		WHEN 'either' THEN gives(f, r, 'act') OR gives(f, r, 'decide')
		WHEN 'see' THEN r.owns OR NOT f.empty AND f.worker_role IS NULL AND f.resolver_role IS NULL
			OR NOT f.empty AND (f.worker_role IS NOT NULL AND r.works OR f.resolver_role IS NOT NULL AND r.resolves OR f.resolver_role IS NULL AND r.decides)
	END
$$;

CREATE FUNCTION try_all(form text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	f forms;
	r roles;
	c calls;
	m made;
	a answered;
	before text := stored();
BEGIN
	SELECT * INTO f FROM forms WHERE forms.form = try_all.form;
	PERFORM set_config('idem_action.require_rule', f.require_rule::text, true);
	FOR r IN SELECT * FROM roles LOOP
		FOR c IN SELECT * FROM calls LOOP
			FOR m IN SELECT * FROM made WHERE made.form = f.form UNION ALL SELECT f.form, 'unknown', '6f1c2b1e-0000-8000-8000-000000000008', '6f1c2b1e-0000-4000-8000-000000000009', 1 LOOP
				a := try(format(c.call, m.action_id, m.claim_id, f.form, m.revision, 'at ' || m.state), r.name, before);
				a.form := f.form;
				a.state := m.state;
				a.role := r.name;
				a.function := c.function;
				a.call := c.call;
				a.allowed := gives(f, r, c.asks) AND has_function_privilege(r.name, ('idem.' || c.function)::regproc, 'EXECUTE');
				a.answer := replace(regexp_replace(a.answer, '[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', 'ID'), 'at ' || m.state, 'KEY');
				INSERT INTO answered SELECT a.*;
			END LOOP;
		END LOOP;
	END LOOP;
END
$$;
SELECT try_all(form) FROM forms \g /dev/null

/* the calls that answer in rows, or by an outcome, and how they refuse */
CREATE VIEW refused AS
SELECT *, code = ANY ('{IA016,IA008,42501}') OR code = 'IA005' AND form = ANY ('{missing,lax}')
	OR function = ANY ('{complete_actions,extend_claims}') AND answer ~ 'there is no such action, or it is not yours to see'
	OR function = 'find_action' AND answer ~ '^\(f,unknown,'
	OR function = 'search_actions' AND answer IS NULL AS is_refused
FROM answered;

SELECT is_empty(format('SELECT role, function, state, code, answer FROM refused WHERE form = %L AND state <> ''unknown'' AND NOT allowed AND NOT is_refused', form),
	form || ': outside of the roles each call is refused') FROM forms;
SELECT is_empty(format('SELECT role, function, state, answer FROM refused WHERE form = %L AND NOT allowed AND changed', form),
	form || ': and changes nothing') FROM forms;
SELECT is_empty(format('SELECT role, function, array_agg(DISTINCT answer) FROM refused WHERE form = %L AND NOT allowed GROUP BY role, function, call HAVING count(DISTINCT coalesce(answer, '''')) > 1', form),
	form || ': and answers the same whatever the state, and where there is no action') FROM forms;
SELECT is_empty(format('SELECT role, function, state, code, answer FROM refused WHERE form = %L AND state <> ''unknown'' AND allowed AND is_refused
	AND NOT (function = ''rerun_action'' AND code = ''IA008'' AND (state = ''needs_attention'' OR form = ''none''))
	AND NOT (function = ANY (''{describe_rule,find_action,reconcile}'') AND code = ''IA005'')', form),
	form || ': inside each call is heard; only a rerun may be a resolver''s, and only what needs the rule ask for it') FROM forms;

-- the table is not empty: what is refused somewhere is heard elsewhere
SELECT is_empty($$SELECT function FROM refused WHERE state <> 'unknown' GROUP BY function HAVING NOT bool_or(allowed) OR NOT bool_or(NOT allowed AND code <> '42501')$$,
	'each function is heard from some and refused to others that may execute it');
SELECT is(count(*), count(*) FILTER (WHERE code = 'IA016'), 'a worker outside of worker_role neither cancels nor revises nor reruns')
FROM answered WHERE form = 'workers' AND role = 'regress_idem_w_out' AND function = ANY ('{cancel_action,revise_action,rerun_action}');
SELECT is_empty($$
	SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'idem'::regnamespace
		AND p.proargnames && '{action_id,action_ids,claim_id,intent,intents}'
		AND p.proname NOT IN (SELECT function FROM calls)
		AND p.proname <> ALL ('{action_id,provider_key,may_see,begin_effect,define_rule,drop_rule,apply_retention}')$$,
	'every function that takes an action or an intent is in the table, or is for admins, or tells nothing');

-- begin_effect is refused in an open transaction, before anything else
CREATE EXTENSION dblink;
CREATE FUNCTION begin_effect(as_role text, m made) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM * FROM dblink(format('host=%s port=%s dbname=%s user=%s', current_setting('unix_socket_directories'), current_setting('port'), current_database(), as_role),
		format('SELECT idem.begin_effect(%L, %L)::text', m.action_id, m.claim_id)) AS d (answer text);
	RETURN '00000';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END
$$;
SELECT is_empty($$
	SELECT f.form, r.name, m.state, b FROM t.forms f, t.roles r, t.made m, t.begin_effect(r.name, m) b
	WHERE f.form <> 'open' AND m.form = f.form AND m.state = ANY ('{pending,held,completed}') AND NOT t.gives(f, r, 'act')
		AND b <> CASE WHEN has_function_privilege(r.name, 'idem.begin_effect'::regproc, 'EXECUTE') THEN 'IA016' ELSE '42501' END$$,
	'begin_effect is refused outside of worker_role');

SELECT idem.revoke_access(name::regrole, level) FROM roles, unnest('{worker,operator,admin,analyst}'::text[]) level WHERE name <> current_user \g /dev/null
SELECT format('DROP OWNED BY %I', name) FROM roles WHERE name <> current_user \gexec
SELECT format('DROP ROLE %I', name) FROM roles WHERE name <> current_user \gexec
DROP ROLE regress_idem_workers, regress_idem_resolvers;

SELECT * FROM finish();
