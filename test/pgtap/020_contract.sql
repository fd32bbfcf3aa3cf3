--
-- The contract: names, arguments, result columns, volatility, privileges.
--
-- What docs/reference.md says is written here once more, in its notation:
-- an argument in [ ] has a default, NULL unless said.  What is listed as to
-- come is compared as soon as it exists.
--
SELECT plan(130);

--
-- Functions
--
CREATE TABLE pg_temp.contract (
	exists		boolean,
	name		text,
	arguments	text,
	result		text
);
INSERT INTO pg_temp.contract VALUES
(true, 'claim_action', 'key text, intent text, [params jsonb], [draft jsonb], [scope text = ''''], [lease interval], [wait interval = ''00:00:00''], [worker text], [source text], [event_id text], [call_id uuid], [in_transaction boolean = false]', 'idem.claim'),
(true, 'claim_actions', 'intent text, keys text[], [params jsonb[]], [drafts jsonb[]], [scope text = ''''], [lease interval], [worker text], [source text], [event_ids text[]], [call_id uuid], [in_transaction boolean = false]', 'SETOF idem.claim'),
(true, 'once', 'key text, intent text, [params jsonb], [scope text = '''']', 'boolean'),
(true, 'begin_effect', 'action_id uuid, claim_id uuid, [draft jsonb], [lease interval]', 'double precision'),
(true, 'extend_claim', 'action_id uuid, claim_id uuid, [lease interval]', 'double precision'),
(true, 'complete_action', 'action_id uuid, claim_id uuid, [external_ref text], [result jsonb]', 'idem.report'),
(true, 'fail_action', 'action_id uuid, claim_id uuid, error text, [effect text = ''unknown''], [retry_after interval]', 'idem.report'),
(true, 'release_action', 'action_id uuid, claim_id uuid, [reason text]', 'idem.report'),
(false, 'verify_action', 'action_id uuid, claim_id uuid, found boolean, [external_ref text], [result jsonb], [note text]', 'idem.claim'),
(true, 'find_action', 'key text, intent text, [scope text = '''']', 'idem.claim'),
(true, 'extend_claims', 'action_ids uuid[], claim_ids uuid[], [lease interval]', 'SETOF (action_id uuid, seconds_left double precision, problem text)'),
(true, 'complete_actions', 'action_ids uuid[], claim_ids uuid[], [external_refs text[]], [results jsonb[]]', 'SETOF idem.report'),
(false, 'enqueue_action', 'key text, intent text, [params jsonb], [draft jsonb], [scope text = ''''], [not_before timestamp with time zone], [priority integer = 0], [source text], [event_id text]', 'idem.claim'),
(false, 'enqueue_actions', 'intent text, keys text[], [params jsonb[]], [drafts jsonb[]], [scope text = ''''], [not_before timestamp with time zone], [priority integer = 0], [source text], [event_ids text[]]', 'SETOF idem.claim'),
(false, 'take_actions', 'intents text[], [max integer = 1], [lease interval], [worker text], [scope text], [wait interval = ''00:00:00''], [call_id uuid], [in_transaction boolean = false]', 'SETOF idem.claim'),
(false, 'take_to_verify', 'intents text[], [max integer = 1], [lease interval], [worker text], [scope text], [wait interval = ''00:00:00''], [call_id uuid], [in_transaction boolean = false]', 'SETOF idem.claim'),
(false, 'resolve_action', 'action_id uuid, decision text, note text, revision bigint, [external_ref text], [result jsonb], [actor text]', 'idem.report'),
(false, 'approve_action', 'action_id uuid, revision bigint, [note text], [actor text]', 'idem.report'),
(false, 'revise_action', 'action_id uuid, draft jsonb, [revision bigint], [actor text]', 'idem.report'),
(false, 'cancel_action', 'action_id uuid, [reason text], [actor text], [revision bigint]', 'idem.report'),
(false, 'rerun_action', 'action_id uuid, reason text, revision bigint, [draft jsonb], [actor text]', 'idem.report'),
(false, 'erase_action', 'action_id uuid, reason text, [actor text]', 'idem.report'),
(false, 'pause_intent', 'intent text, reason text, [actor text]', 'void'),
(false, 'resume_intent', 'intent text, [actor text]', 'void'),
(false, 'show_action', 'action_id uuid', 'idem.claim'),
(false, 'search_actions', 'what text, [since interval = ''30 days'']', 'SETOF idem.actions'),
(false, 'explain_action', 'action_id uuid', 'SETOF text'),
(false, 'import_actions', 'intent text, keys text[], [external_refs text[]], [scope text = '''']', 'bigint'),
(false, 'accept_copy', '[actor text]', 'void'),
(false, 'acknowledge_timeline', '[actor text]', 'void'),
(false, 'confirm_time', '[actor text]', 'timestamp with time zone'),
(true, 'reconcile', 'intent text, external_refs text[], since timestamp with time zone', 'SETOF (kind text, external_ref text, action_id uuid, scope text, key text, state text, finished_at timestamp with time zone)'),
(true, 'history_horizon', '', 'timestamp with time zone'),
(false, 'after_restore', 'since timestamp with time zone, note text', 'bigint'),
(true, 'define_rule', 'intent text, unique_by text, resolved_by text, [new_when text], [on_uncertain text], [provider_window interval], [settle interval], [lease interval], [marks_effect boolean], [max_attempts integer], [max_failures integer], [retry_delay interval], [keep_content interval], [keep_key interval], [requires_approval boolean], [scoped boolean], [rerun_by text], [worker_role regrole], [resolver_role regrole], [confidential_key boolean], [confidential_fields text[]], [four_eyes boolean]', 'text'),
(true, 'drop_rule', 'intent text', 'void'),
(true, 'describe_rule', 'intent text', 'text'),
(false, 'apply_retention', 'intent text', NULL),
(true, 'action_key', 'VARIADIC parts text[]', 'text'),
(true, 'period_key', 'at timestamp with time zone, period text, zone text, [offset integer = 0]', 'text'),
(true, 'action_id', 'key text, intent text, [scope text = '''']', 'uuid'),
(false, 'keyed_digest', 'value text', 'text'),
(false, 'use_secret', 'id text', 'void'),
(true, 'grant_access', 'role regrole, level text', 'void'),
(true, 'revoke_access', 'role regrole, level text', 'void'),
(false, 'run_maintenance', '[batch integer = 1000], [max_batches integer]', NULL);

/* every overload of a name, so that a second one is seen as a difference */
CREATE FUNCTION pg_temp.arguments(name text) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg((
		SELECT coalesce(string_agg(
			CASE WHEN p.proargmodes[n] = 'v' THEN 'VARIADIC ' ELSE '' END ||
			CASE WHEN n <= p.pronargs - p.pronargdefaults
				THEN concat_ws(' ', p.proargnames[n], format_type(t, NULL))
				ELSE '[' || concat_ws(' ', p.proargnames[n], format_type(t, NULL)) ||
					coalesce(' = ' || nullif(regexp_replace(pg_get_function_arg_default(p.oid, n::int), '::[][a-z ]+$', ''), 'NULL'), '') || ']'
			END, ', ' ORDER BY n), '')
		FROM unnest(p.proargtypes) WITH ORDINALITY AS u (t, n)), ' | ')
	FROM pg_proc p
	WHERE p.pronamespace = 'idem'::regnamespace AND p.proname = $1
$$;

CREATE FUNCTION pg_temp.result(name text) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(CASE WHEN p.proretset THEN 'SETOF ' ELSE '' END ||
		coalesce((SELECT '(' || string_agg(p.proargnames[n] || ' ' || format_type(t, NULL), ', ' ORDER BY n) || ')'
			FROM unnest(p.proallargtypes) WITH ORDINALITY AS u (t, n)
			WHERE p.proargmodes[n] = ANY ('{o,t}')), format_type(p.prorettype, NULL)), ' | ')
	FROM pg_proc p
	WHERE p.pronamespace = 'idem'::regnamespace AND p.proname = $1
$$;

SELECT CASE WHEN exists OR pg_temp.arguments(name) IS NOT NULL
	THEN is(pg_temp.arguments(name), arguments, name || ': arguments')
	ELSE skip(name || ' is to come', 1) END
FROM pg_temp.contract;
SELECT CASE WHEN (exists OR pg_temp.arguments(name) IS NOT NULL) AND result IS NOT NULL
	THEN is(pg_temp.result(name), result, name || ': result')
	ELSE skip(name || ' is to come', 1) END
FROM pg_temp.contract
WHERE result IS NOT NULL OR NOT exists;

SELECT is_empty($$
	SELECT DISTINCT object FROM idem.privileges
	WHERE object LIKE 'FUNCTION %' OR object LIKE 'PROCEDURE %'
	EXCEPT SELECT kind || ' idem.' || name FROM pg_temp.contract, unnest('{FUNCTION,PROCEDURE}'::text[]) AS kind
	EXCEPT
	SELECT 'FUNCTION ' || objid::regproc FROM (
		SELECT refobjid AS objid FROM pg_depend
		WHERE classid = 'pg_rewrite'::regclass AND refclassid = 'pg_proc'::regclass) AS called_by_views
	$$, 'no level may call what neither the contract names nor a view calls');

SELECT is_empty($$
	SELECT p.oid::regprocedure FROM pg_proc p
	WHERE pronamespace = 'idem'::regnamespace AND 'int2'::regtype = ANY (proargtypes)
	$$, 'no smallint arguments: a caller would have to cast');

SELECT is_empty($$
	SELECT proname, provolatile FROM pg_proc JOIN pg_temp.contract ON name = proname
	WHERE pronamespace = 'idem'::regnamespace AND provolatile <> CASE
		WHEN proname = ANY ('{action_key,period_key}') THEN 'i'
		WHEN proname = ANY ('{action_id,keyed_digest,describe_rule}') THEN 's'
		ELSE 'v' END
	$$, 'action_key and period_key are immutable, action_id, keyed_digest and describe_rule stable, all others volatile');

SELECT is_empty($$
	SELECT proname FROM pg_proc JOIN pg_temp.contract ON name = proname
	WHERE pronamespace = 'idem'::regnamespace AND provolatile = 'v' AND proparallel <> 'u'
	$$, 'what is volatile is parallel unsafe');
SELECT is_empty($$
	SELECT proname FROM pg_proc
	WHERE pronamespace = 'idem'::regnamespace AND proname = ANY ('{action_key,period_key}') AND proparallel <> 's'
	$$, 'action_key and period_key are parallel safe');

--
-- The two shapes that never change
--
CREATE FUNCTION pg_temp.columns(relation regclass) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' ORDER BY attnum)
	FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped
$$;

SELECT is(pg_temp.columns('idem.claim'), concat_ws(', ',
	'granted boolean, outcome text, action_id uuid, claim_id uuid, attempt integer, generation integer, repeat boolean',
	'state text, reason text, lease_until timestamp with time zone, retry_after double precision, provider_key text',
	'scope text, intent text, key text, params jsonb, draft jsonb, revision bigint, external_ref text, result jsonb',
	'error text, uncertain boolean, source text, event_id text, worker text, claimed_at timestamp with time zone',
	'first_seen timestamp with time zone, finished_at timestamp with time zone'), 'type idem.claim');
SELECT is(pg_temp.columns('idem.report'),
	'action_id uuid, accepted boolean, state text, revision bigint, note text', 'type idem.report');

--
-- Tables and views
--
SELECT is_empty($$
	SELECT unnest('{action_id, scope, intent, key, generation, state, reason, uncertain, begun, verifying, approved,
		cancel_requested, attempt, lost, failures, claim_id, call_id, marked, uncertain_before, doubt_until, worker,
		first_claimed_at, claimed_at, lease_until, due_at, priority, revision, params, params_digest, draft, external_ref,
		result, error, ended_by, source, event_id, created_at, finished_at, purge_after, forget_after, secret_id}'::text[])
	EXCEPT
	SELECT attname FROM pg_attribute WHERE attrelid = 'idem.idem_actions'::regclass AND attnum > 0
	$$, 'idem_actions has at least the columns of the design');

SELECT is_empty($$
	SELECT unnest('{idem_actions, idem_events, idem_rules, idem_repeats, idem_access, idem_state}'::text[])
	EXCEPT SELECT relname FROM pg_class WHERE relnamespace = 'idem'::regnamespace AND relkind = 'r'
	$$, 'the tables of the design');

SELECT is((
	SELECT array_agg(word[1] ORDER BY word[1])
	FROM pg_constraint c, regexp_matches(pg_get_constraintdef(c.oid), '''([a-z_]+)''', 'g') AS word
	WHERE conrelid = 'idem.idem_actions'::regclass AND contype = 'c'
		AND conkey = ARRAY[(SELECT attnum FROM pg_attribute WHERE attrelid = conrelid AND attname = 'state')]),
	'{cancelled,completed,failed,in_progress,needs_attention,pending}',
	'A23: the states are named pending, in_progress, completed, needs_attention, failed, cancelled');

SELECT is_empty($$SELECT conrelid::regclass, conname FROM pg_constraint
	WHERE contype = 'f' AND connamespace = 'idem'::regnamespace$$, 'no foreign keys');
SELECT is((SELECT string_agg(pg_get_indexdef(indexrelid), '; ') FROM pg_index WHERE indrelid = 'idem.idem_actions'::regclass),
	'CREATE UNIQUE INDEX idem_actions_pkey ON idem.idem_actions USING btree (action_id)',
	'no index stands on idem_actions but its primary key, action_id');
SELECT is_empty($$SELECT tgname FROM pg_trigger WHERE tgrelid = 'idem.idem_actions'::regclass$$,
	'no trigger stands on idem_actions');

/* a view's columns in the order in which the design names them */
CREATE FUNCTION pg_temp.named(relation regclass, wanted text) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(attname, ', ' ORDER BY attnum) FROM pg_attribute
	WHERE attrelid = $1 AND attnum > 0 AND attname = ANY (string_to_array($2, ', '))
$$;
SELECT is(pg_temp.named('idem.history', wanted), wanted, 'view history')
FROM (VALUES ('at, action_id, scope, intent, key, generation, attempt, event, role, actor, worker, source, event_id, detail')) AS v (wanted);
SELECT is((SELECT array_agg(attname::text ORDER BY attname)
	FROM pg_attribute WHERE attrelid = 'idem.idem_actions'::regclass AND attnum > 0
		AND attname NOT IN (SELECT attname FROM pg_attribute WHERE attrelid = 'idem.actions'::regclass AND attnum > 0)
		AND attname = ANY ('{action_id,scope,intent,key,generation,state,reason,uncertain,begun,verifying,approved,cancel_requested,
			attempt,lost,failures,worker,first_claimed_at,claimed_at,lease_until,due_at,priority,revision,external_ref,error,
			source,event_id,created_at,finished_at,purge_after,forget_after,provider_key}')),
	NULL, 'view actions has the row');
SELECT has_column('idem', 'actions', 'provider_key', 'view actions has the provider key');
SELECT is_empty($$
	SELECT attrelid::regclass, attname FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
	WHERE relnamespace = 'idem'::regnamespace AND relkind = 'v' AND attnum > 0
		AND attname = ANY ('{params,params_digest,draft,result,content,claim_id,call_id}')
	$$, 'no view shows contents or the token of a claim');
SELECT is_empty($$
	SELECT oid::regclass FROM pg_class
	WHERE relnamespace = 'idem'::regnamespace AND relkind = 'v' AND oid <> 'idem.privileges'::regclass
		AND relname NOT LIKE 'all\_%'
		AND NOT coalesce(reloptions, '{}') && '{security_barrier=true,security_barrier=on,security_barrier=1}'
	$$, 'the views over the tables are security barriers');
SELECT is_empty($$
	SELECT relname FROM pg_class
	WHERE relnamespace = 'idem'::regnamespace AND relkind = 'v' AND relname LIKE 'all\_%'
		AND 'idem.' || relname = ANY (SELECT object FROM idem.privileges)
	$$, 'and no level reads the unfiltered ones below them');

--
-- Settings
--
SELECT is((SELECT concat_ws(' ', boot_val, context) FROM pg_settings WHERE name = guc), wanted, guc)
FROM (VALUES ('idem_action.async_complete', 'off user'), ('idem_action.max_content', '1048576 superuser'),
	('idem_action.require_rule', 'on superuser')) AS v (guc, wanted);

--
-- What the package is made of
--
CREATE VIEW pg_temp.members AS
SELECT classid, objid, i.*
FROM pg_depend d, pg_identify_object(classid, objid, objsubid) i
WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
	AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idem_action');

SELECT cmp_ok(count(*), '>', 30::bigint, 'the members were found') FROM pg_temp.members;
SELECT is_empty($$
	SELECT type, identity FROM pg_temp.members
	WHERE schema IS DISTINCT FROM 'idem' AND (type, identity) <> ('schema', 'idem')
	$$, 'nothing is outside of schema idem');
SELECT is_empty($$
	SELECT pg_describe_object(d.classid, d.objid, 0)
	FROM pg_depend d
	WHERE refclassid = 'pg_namespace'::regclass AND refobjid = 'idem'::regnamespace AND deptype = 'n'
		AND (d.classid, d.objid) NOT IN (SELECT classid, objid FROM pg_temp.members)
	$$, 'everything in schema idem belongs to the extension');
SELECT results_eq($$
	SELECT extnamespace = 'pg_catalog'::regnamespace, extrelocatable FROM pg_extension WHERE extname = 'idem_action'
	$$, $$VALUES (true, false)$$, 'the extension has no schema of somebody else''s and is not relocatable');
SELECT is_empty($$
	SELECT identity FROM pg_temp.members JOIN pg_proc p ON classid = 'pg_proc'::regclass AND p.oid = objid
		JOIN pg_language l ON l.oid = prolang
	WHERE lanname <> ALL ('{c,internal}')
		AND NOT coalesce(proconfig, '{}') && '{"search_path=pg_catalog, pg_temp"}'
	$$, 'every function that is not C pins its search_path');
SELECT is_empty($$
	SELECT identity FROM pg_temp.members JOIN pg_proc p ON classid = 'pg_proc'::regclass AND p.oid = objid
	WHERE prosecdef
	$$, 'no function is SECURITY DEFINER');
SELECT is_empty($$
	SELECT identity FROM pg_temp.members JOIN pg_proc p ON classid = 'pg_proc'::regclass AND p.oid = objid,
		aclexplode(coalesce(proacl, acldefault('f', proowner))) a
	WHERE a.grantee = 0
	$$, 'PUBLIC may execute no function');
SELECT is_empty($$
	SELECT identity, a.privilege_type
	FROM pg_temp.members JOIN pg_class c ON classid = 'pg_class'::regclass AND c.oid = objid,
		aclexplode(coalesce(relacl, acldefault(CASE relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", relowner))) a
	WHERE a.grantee <> relowner
	$$, 'nobody but the owner has a right on a table, view or sequence');
SELECT is_empty($$
	SELECT a.* FROM pg_attribute, aclexplode(attacl) a
	WHERE attrelid IN (SELECT objid FROM pg_temp.members WHERE classid = 'pg_class'::regclass)
	$$, 'nor on a column');
SELECT is_empty($$
	SELECT a.* FROM pg_namespace, aclexplode(coalesce(nspacl, acldefault('n', nspowner))) a
	WHERE nspname = 'idem' AND a.grantee <> nspowner
	$$, 'nor on the schema');
SELECT is_empty($$
	SELECT identity FROM pg_temp.members WHERE type = ANY ('{function,procedure,aggregate}')
		AND coalesce(obj_description(objid, 'pg_proc'), '') = ''
	$$, 'every function has a comment');
SELECT is_empty($$
	SELECT identity FROM pg_temp.members WHERE type = ANY ('{table,view,"composite type"}')
		AND coalesce(obj_description(objid, CASE classid WHEN 'pg_type'::regclass THEN 'pg_type' ELSE 'pg_class' END),
			(SELECT obj_description(reltype, 'pg_type') FROM pg_class WHERE oid = objid), '') = ''
	$$, 'every table, view and type has a comment');
SELECT is_empty($$
	SELECT attrelid::regclass, attname FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
	WHERE relnamespace = 'idem'::regnamespace AND relkind = ANY ('{v,c}') AND attnum > 0
		AND relname NOT LIKE 'all\_%'
		AND coalesce(col_description(attrelid, attnum), '') = ''
	$$, 'every column that users see has a comment');
SELECT is_empty($$
	SELECT oid::regclass FROM pg_class
	WHERE relnamespace = 'idem'::regnamespace AND relkind = ANY ('{r,S,p}')
		AND oid <> ALL ((SELECT extconfig FROM pg_extension WHERE extname = 'idem_action')::oid[])
	$$, 'the rows of every table and the state of every sequence are dumped');
SELECT is((SELECT extcondition FROM pg_extension WHERE extname = 'idem_action'),
	(SELECT array_fill(''::text, ARRAY[cardinality(extconfig)]) FROM pg_extension WHERE extname = 'idem_action'),
	'as a whole');
SELECT is_empty($$
	SELECT type, identity FROM pg_temp.members
	WHERE type = ANY ('{operator,cast,"event trigger","access method","operator class",language,transform,collation,conversion}')
	$$, 'no operators, casts, event triggers or other objects with effects beyond calls');

SELECT * FROM finish();
