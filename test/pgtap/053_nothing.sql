--
-- Nothing is nothing, and bounds come before everything.
--
-- A reference of blanks counts as not given: two successes with '' were one
-- success, and hid a double effect.  JSON null says as little as SQL NULL: the
-- next call may still bring the real params and draft.  A key, a part of a key,
-- an intent or a scope that shows nothing is refused: two outcomes would share
-- it.  An intent of 70 000 bytes is IA006 in every function that takes one, and
-- no message repeats what is long.  Content that could not go out again does
-- not come in.
--
SELECT plan(109);

CREATE SCHEMA t;
SET search_path = t, public;
SELECT idem.define_rule('step', 'event', 'the team', on_uncertain => 'repeat', max_attempts => 100) <> '' AS defined \g /dev/null
CREATE FUNCTION a(key text, intent text DEFAULT 'step', scope text DEFAULT '') RETURNS idem.idem_actions LANGUAGE sql AS
	'SELECT * FROM idem.idem_actions WHERE action_id = idem.action_id($1, $2, $3)';

--
-- A blank external_ref
--
CREATE FUNCTION blank() RETURNS text[] LANGUAGE sql AS $$SELECT ARRAY['', ' ', E'\t\r\n', U&'\00A0', U&'\3000\2003\200B\FEFF']$$;

-- two attempts of one action, each with a success that nobody can tell apart
CREATE FUNCTION twice(key text, ref text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	first	idem.claim := idem.claim_action(key, 'step');
	second	idem.claim;
BEGIN
	UPDATE idem.idem_actions SET lease_until = clock_timestamp() - interval '1 s' WHERE action_id = first.action_id;
	second := idem.claim_action(key, 'step');
	PERFORM idem.complete_action(second.action_id, second.claim_id, ref);
	PERFORM idem.complete_action(first.action_id, first.claim_id, ref);
	RETURN coalesce((a(key)).reason, 'one success');
END
$$;
SELECT is(twice('twice ' || ref, ref), 'double_result', 'two successes with the reference ' || to_json(ref) || ' are two') FROM unnest(blank()) AS ref;
SELECT is(twice('twice', 'r-1'), 'one success', 'a reference that shows something is one');
SELECT is((SELECT reason FROM idem.attention WHERE key = 'twice '), 'double_result', 'a person sees it');

CREATE FUNCTION kept(key text, call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	c	idem.claim := idem.claim_action(key, 'step', '{"p": 1}');
BEGIN
	EXECUTE replace(replace(call, 'ID', quote_literal(c.action_id)), 'CLAIM', quote_literal(c.claim_id));
	RETURN concat_ws(' ', (a(key)).state, coalesce((a(key)).external_ref, 'no reference'), coalesce((a(key)).result::text, 'no result'));
END
$$;
SELECT is(kept('kept ' || n, call), 'completed no reference no result', call) FROM unnest(ARRAY[
	$$SELECT idem.complete_action(ID, CLAIM, ' ', 'null')$$,
	$$SELECT idem.complete_actions(ARRAY[ID]::uuid[], ARRAY[CLAIM]::uuid[], ARRAY[' '], ARRAY['null']::jsonb[])$$,
	$$SELECT idem.verify_action(ID, CLAIM, true, ' ', 'null')$$,
	$$SELECT idem.resolve_action(ID, 'happened', 'looked', 1, ' ', 'null') FROM (SELECT pg_sleep(0) FROM idem.fail_action(ID, CLAIM, 'x')) AS failed$$])
	WITH ORDINALITY AS c (call, n) WHERE n < 4;
SELECT is((SELECT state FROM idem.fail_action(action_id, claim_id, 'x', 'refused')), 'failed', 'an action that failed') FROM idem.claim_action('resolved', 'step');
SELECT is((SELECT accepted FROM idem.resolve_action((a('resolved')).action_id, 'happened', 'looked', (a('resolved')).revision, U&'\00A0', 'null')), true, 'resolved with a blank reference');
SELECT is(((a('resolved')).external_ref, (a('resolved')).result)::text, '(,)', 'which is none');
SELECT is(idem.import_actions('step', '{old 1,old 2}', ARRAY[' ', 'r']), 2::bigint, 'imported with a blank reference');
SELECT is((SELECT array_agg(external_ref ORDER BY key) FROM idem.actions WHERE key LIKE 'old _'), '{NULL,r}'::text[], 'which is none');

SELECT is((worker, source, event_id)::text, '(,,)', 'nor is a blank label one') FROM idem.claim_action('labels', 'step', worker => ' ', source => '', event_id => U&'\00A0');
SELECT is((SELECT event_id FROM idem.claim_actions('step', '{labels 2}', event_ids => '{" "}')), NULL, 'in a batch');
SELECT throws_ok($$SELECT idem.define_rule('x', repeat('u', 1025), 'r')$$, '22023', NULL, 'a sentence of a rule is bounded');
SELECT throws_ok($$SELECT idem.define_rule('x', 'u', 'r', confidential_fields => array_fill('a'::text, '{101}'))$$, '22023', NULL, 'so are its confidential fields');
SELECT throws_ok($$SELECT idem.define_rule('x', 'u', 'r', confidential_fields => ARRAY[repeat('a.', 1000) || 'b'])$$, '22023', NULL, 'and the length of a path');

--
-- JSON null
--
SELECT is((SELECT outcome FROM idem.enqueue_action('null', 'step', 'null', 'null')), 'pending', 'enqueued with JSON null');
SELECT is((params, draft)::text, '(,)', 'which is nothing') FROM a('null');
SELECT is((outcome, params, draft)::text, '(claimed,"{""a"": 1}","{""b"": 2}")', 'a claim with real ones is answered them') FROM idem.claim_action('null', 'step', '{"a": 1}', '{"b": 2}');
SELECT is((params, draft)::text, '("{""a"": 1}","{""b"": 2}")', 'and they are kept') FROM a('null');
SELECT is((SELECT count(*) FROM idem.enqueue_actions('step', '{null 1,null 2}', ARRAY['null', '1']::jsonb[], ARRAY['1', 'null']::jsonb[])), 2::bigint, 'in a batch');
SELECT is((SELECT string_agg(concat_ws(' ', key, params, draft), ', ' ORDER BY key) FROM idem.idem_actions WHERE key LIKE 'null _'), 'null 1 1, null 2 1', 'each element');
SELECT is((SELECT string_agg(outcome || coalesce(' ' || params::text, ''), ', ' ORDER BY key) FROM idem.claim_actions('step', '{null 3,null 2}', ARRAY['null', 'null']::jsonb[])), 'claimed 1, claimed', 'in a batch of claims, without a mismatch');
SELECT is(idem.once('null once', 'step', 'null'), true, 'once');
SELECT is(idem.once('null once', 'step', '{"a": 1}'), false, 'has nothing to compare with');
SELECT is(idem.begin_effect(action_id, claim_id, 'null') > 0, true, 'begin_effect') FROM idem.claim_action('null begun', 'step', draft => '"kept"');
SELECT is((a('null begun')).draft, '"kept"'::jsonb, 'leaves the draft');
SELECT is((SELECT outcome FROM idem.enqueue_action('null revised', 'step', draft => '"kept"')), 'pending', 'a draft to be revised');
SELECT throws_ok(format('SELECT idem.revise_action(%L, %L)', (a('null revised')).action_id, 'null'), '22023', 'draft must not be null', 'is not revised to nothing');
SELECT is((SELECT accepted FROM idem.rerun_action((a('null once')).action_id, 'again', (a('null once')).revision, 'null')), true, 'rerun');
SELECT is((a('null once')).draft, NULL::jsonb, 'brings no draft by it');

--
-- Blank keys, parts, intents, scopes
--
SELECT throws_ok(format('SELECT * FROM idem.%s', replace(call, 'BLANK', quote_literal(b))), 'IA006', NULL, format('%s with %L', call, b))
FROM unnest(ARRAY['claim_action(BLANK, ''step'', in_transaction => true)', 'claim_actions(''step'', ARRAY[''a'', BLANK], in_transaction => true)', 'enqueue_action(BLANK, ''step'')',
		'import_actions(''step'', ARRAY[BLANK])', 'once(BLANK, ''step'')', 'find_action(BLANK, ''step'')', 'action_id(BLANK, ''step'')',
		'action_id(''k'', BLANK)', 'define_rule(BLANK, ''u'', ''r'')', 'take_actions(ARRAY[BLANK], in_transaction => true)', 'pause_intent(BLANK, ''r'')']) AS call,
	unnest(ARRAY[' ', U&'\00A0\200B']) AS b;
SELECT throws_ok(format('SELECT idem.action_id(''k'', ''step'', %L)', b), 'IA006', 'scope must not be blank', format('scope %L', b)) FROM unnest(ARRAY[E'\t', U&'\2060']) AS b;
SELECT isnt(idem.action_id('k', 'step', ''), NULL, 'no scope is none');
SELECT throws_ok(format('SELECT idem.action_key(''a'', %L)', b), '22023', 'key part 2 must not be blank', format('a part %L', b)) FROM unnest(ARRAY[' ', U&'\00A0']) AS b;
SELECT is(idem.action_key('a', U&'\00A0x'), U&'a/\00A0x', 'what shows something is kept as it is');
SELECT throws_ok(format('SELECT idem.resolve_action(%L, ''happened'', %L, 1)', gen_random_uuid(), U&'\200B'), '22023', NULL, 'a note of blanks says nothing');

--
-- Intents of 70 000 bytes
--
CREATE FUNCTION long(call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	message	text;
	detail	text;
	hint	text;
BEGIN
	EXECUTE format('SELECT FROM idem.%s', replace(call, 'LONG', 'repeat(''intent'', 12000)'));
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RETURN concat_ws(' ', SQLSTATE, CASE WHEN length(message || detail || hint) > 500 THEN 'too long a message' END);
END
$$;
SELECT is(long(call), 'IA006', call) FROM unnest(ARRAY[
	'claim_action(''k'', LONG, in_transaction => true)', 'claim_actions(LONG, ''{k}'', in_transaction => true)', 'once(''k'', LONG)', 'find_action(''k'', LONG)', 'action_id(''k'', LONG)',
	'enqueue_action(''k'', LONG)', 'enqueue_actions(LONG, ''{k}'')', 'take_actions(ARRAY[LONG])', 'take_actions(ARRAY[''step'', LONG])', 'take_to_verify(ARRAY[LONG])',
	'pause_intent(LONG, ''r'')', 'resume_intent(LONG)', 'import_actions(LONG, ''{k}'')', 'define_rule(LONG, ''u'', ''r'')', 'drop_rule(LONG)', 'describe_rule(LONG)',
	'apply_retention(LONG)', 'may_see(LONG)']) AS call;
SELECT is(long(call), '22023', call) FROM unnest(ARRAY['grant_access(current_user::regrole, LONG)', 'revoke_access(current_user::regrole, LONG)',
	'period_key(now(), ''day'', LONG)', 'period_key(now(), LONG, ''UTC'')', 'fail_action(gen_random_uuid(), gen_random_uuid(), ''x'', LONG)',
	'resolve_action(gen_random_uuid(), LONG, ''n'', 1)', 'define_rule(''x'', ''u'', ''r'', on_uncertain => LONG)']) AS call;

--
-- Content that could not go out
--
CREATE FUNCTION numbers() RETURNS jsonb LANGUAGE sql AS $$SELECT jsonb_agg('1e131071'::jsonb) FROM generate_series(1, 8300)$$;
CREATE FUNCTION brackets(n int) RETURNS jsonb LANGUAGE sql AS $$SELECT (repeat('[', n) || repeat(']', n))::jsonb$$;
CREATE FUNCTION refused(call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	n	bigint := (SELECT count(*) FROM idem.idem_actions);
BEGIN
	EXECUTE format('SELECT FROM idem.%s', call);
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE || CASE WHEN n <> (SELECT count(*) FROM idem.idem_actions) THEN ' and stored' ELSE '' END;
END
$$;
SELECT idem.enqueue_action('other', 'step') IS NULL AS no \g /dev/null
SELECT is(refused(call), 'IA010', call) FROM unnest(ARRAY[
	$$enqueue_action('big', 'step', draft => numbers(), priority => 100)$$, $$enqueue_actions('step', '{big}', drafts => ARRAY[numbers()])$$,
	$$claim_action('big', 'step', numbers(), in_transaction => true)$$, $$claim_action('big', 'step', brackets(13000), in_transaction => true)$$, $$once('big', 'step', brackets(501))$$,
	$$revise_action((a('null revised')).action_id, numbers())$$, $$rerun_action((a('resolved')).action_id, 'again', (a('resolved')).revision, draft => numbers())$$,
	$$begin_effect(gen_random_uuid(), gen_random_uuid(), numbers())$$]) AS call
WHERE call NOT LIKE 'begin%';
SELECT is((SELECT string_agg(key, ' ') FROM idem.take_actions('{step}', 100) WHERE key = 'other'), 'other', 'takes go on');
SELECT is((SELECT outcome FROM idem.claim_action('as deep as can be', 'step', jsonb_build_array(1e999, -1e999, 1e-999, 0, brackets(499)))), 'claimed', 'the bounds themselves are allowed');
SELECT is((SELECT count(*) FROM idem.search_actions('nowhere')), 0::bigint, 'a search by value walks through it');
SELECT is((SELECT outcome FROM idem.claim_action('as deep as can be', 'step', jsonb_build_array(1e999, -1e999, 1e-999, 0, brackets(499)))), 'in_progress', 'a repeat too');

-- a result is left out, the success stays, and repeats can be answered
SELECT is((SELECT concat_ws(' ', accepted, state, note) FROM idem.complete_action(action_id, claim_id, 'r', numbers())),
	't completed result held a number that was too long and is not kept', 'a result of such numbers') FROM idem.claim_action('result 1', 'step');
SELECT is((SELECT concat_ws(' ', accepted, state, note) FROM idem.complete_action(action_id, claim_id, 'r', brackets(13000))),
	't completed result was nested too deeply and is not kept', 'a deep one') FROM idem.claim_action('result 2', 'step');
SELECT is((SELECT string_agg(concat_ws(' ', outcome, external_ref, result), ', ') FROM idem.claim_actions('step', '{result 1,result 2}')), 'completed r, completed r', 'repeats are answered');
UPDATE idem.idem_actions SET lease_until = clock_timestamp() - interval '1 s' WHERE action_id = (SELECT action_id FROM idem.claim_action('result 3', 'step'));
CALL idem.run_maintenance();
SELECT is((SELECT concat_ws(' ', accepted, state, note LIKE '%result held a number that was too long%') FROM idem.complete_action((a('result 3')).action_id, (a('result 3')).claim_id, 'r', numbers())),
	't completed t', 'a late success as well');

-- the text is measured as it will be written
SET idem_action.max_content = 1024;
CREATE FUNCTION measured(content jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	detail	text;
BEGIN
	PERFORM idem.claim_action('measured', 'step', content, in_transaction => true);
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
	RETURN substring(detail FROM 'takes (\d+) bytes as text');
END
$$;
SELECT is(measured(c), octet_length(c::text)::text, 'the length of ' || left(c::text, 40)) FROM (SELECT c || jsonb_build_object('filler', repeat('"', 600)) FROM unnest(ARRAY[
	'{}', '{"a": [], "b": {}, "c": [[]], "d": [{}, {}]}', '{"n": -1.50, "m": 1e30, "l": 0.000, "b": true, "f": false, "z": null}',
	'{"é\"\\": "ü\u0001\u001f\b\f\n\r\t/\u007f😀"}']::jsonb[]) AS c) AS v (c);
SELECT is(measured(to_jsonb(repeat('\', 700))), '1402', 'of a string alone');
RESET idem_action.max_content;

SELECT * FROM finish();
