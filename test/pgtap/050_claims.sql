--
-- Claims: what is answered to whom; params and drafts; call_id; batches;
-- once; find_action.
--
SELECT plan(165);

CREATE SCHEMA t;
SET search_path = t, public;
SET timezone = 'Europe/Berlin';

SELECT idem.define_rule('step', 'event', 'the team') <> '' AS defined \g /dev/null
SELECT idem.define_rule('other step', 'event', 'the team') <> '' AS defined \g /dev/null
SELECT idem.define_rule('again', 'event', 'the team', on_uncertain => 'repeat', retry_delay => '0', max_attempts => 100) <> '' AS defined \g /dev/null

/* a row of idem_actions by its key and intent */
CREATE FUNCTION a(key text, intent text, scope text DEFAULT '') RETURNS idem.idem_actions LANGUAGE sql AS
	'SELECT * FROM idem.idem_actions WHERE action_id = idem.action_id($1, $2, $3)';
CREATE FUNCTION lapse(key text, intent text) RETURNS void LANGUAGE sql AS $$
	UPDATE idem.idem_actions SET claimed_at = claimed_at - interval '1 day', lease_until = clock_timestamp() - interval '1 s'
	WHERE action_id = idem.action_id($1, $2) AND state = 'in_progress'
$$;
/* whether a row and its history are as they were */
CREATE FUNCTION version(key text, intent text) RETURNS text LANGUAGE sql AS $$
	SELECT concat_ws(' ', a.ctid, a.xmin, a.xmax, (SELECT max(id) FROM idem.idem_events e WHERE e.action_id = a.action_id))
	FROM idem.idem_actions a WHERE a.action_id = idem.action_id($1, $2)
$$;

--
-- A grant, and a second delivery (A2, A22)
--
SELECT clock_timestamp() AS before \gset
CREATE TABLE c AS
SELECT * FROM idem.claim_action('evt 1', 'step', '{"to": "a@b"}', '"Dear A"', scope => 'acme', worker => 'w1', source => 'queue', event_id => 'e1');
SELECT is((granted, outcome)::text, '(t,claimed)', 'the first is granted') FROM c;
SELECT is(action_id, idem.action_id('evt 1', 'step', 'acme'), 'under the id that anyone can compute beforehand') FROM c;
SELECT matches(claim_id::text, '^[0-9a-f]{8}-[0-9a-f]{4}-4', 'with a random claim_id') FROM c;
SELECT is((attempt, generation, repeat, state, revision, uncertain)::text, '(1,1,f,in_progress,1,f)', 'attempt, generation, repeat, state, revision') FROM c;
SELECT is((reason, retry_after, external_ref, result, error, finished_at)::text, '(,,,,,)', 'nothing more to say') FROM c;
SELECT is(lease_until, claimed_at + interval '5 min', 'the lease is the rule''s') FROM c;
SELECT is(claimed_at BETWEEN :'before' AND clock_timestamp() AND first_seen = claimed_at, true, 'from now on') FROM c;
SELECT is((scope, intent, key, params, draft)::text, '(acme,step,"evt 1","{""to"": ""a@b""}","""Dear A""")', 'what was asked for') FROM c;
SELECT is((source, event_id, worker)::text, '(queue,e1,w1)', 'and by whom') FROM c;
SELECT is(provider_key, action_id::text, 'A29: the provider key of generation 1 is the action_id') FROM c;

CREATE TABLE d AS
SELECT * FROM idem.claim_action('evt 1', 'step', '{"to": "a@b"}', '"Dear A"', scope => 'acme', worker => 'w2', source => 'queue', event_id => 'e2');
SELECT is((granted, outcome, repeat, claim_id, attempt)::text, '(f,in_progress,t,,1)', 'A2: the second is not, and gets no claim_id') FROM d;
SELECT is(retry_after BETWEEN 100 AND 300, true, 'it is told how long the lease still runs') FROM d;
SELECT is((d.worker, d.source, d.event_id, d.claimed_at, d.first_seen)::text, (c.worker, c.source, c.event_id, c.claimed_at, c.first_seen)::text,
	'B1: and when and by whom the first ran') FROM c, d;
SELECT is((d.provider_key, d.draft, d.lease_until)::text, (c.provider_key, c.draft, c.lease_until)::text, 'with the provider key and the draft') FROM c, d;

SELECT is((c.report).accepted, true, 'it is completed') FROM (
	SELECT idem.complete_action(action_id, claim_id, 'msg 17', '{"n": 1, "text": "Grüße \" \\ \n \ud83d\ude00", "big": 123456789012345678901234567890.10, "list": [null, true, {}]}') AS report FROM c) AS c;
CREATE TABLE e AS
SELECT * FROM idem.claim_action('evt 1', 'step', '{"to": "a@b"}', scope => 'acme', worker => 'w3');
SELECT is((granted, outcome, repeat, claim_id, retry_after, state, lease_until)::text, '(f,completed,t,,,completed,)', 'the third hears that it is done: acknowledge') FROM e;
SELECT is(result::text, '{"n": 1, "text": "Grüße \" \\ \n \ud83d\ude00", "big": 123456789012345678901234567890.10, "list": [null, true, {}]}'::jsonb::text, 'A22: the result, byte by byte') FROM e;
SELECT is(external_ref, 'msg 17', 'A31: the external reference') FROM e;
SELECT is(e.worker = 'w1' AND e.finished_at BETWEEN c.claimed_at AND clock_timestamp(), true, 'who and when') FROM c, e;

-- a failed and a doubtful one
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('no', 'step') \gset
SELECT state FROM idem.fail_action(:'id', :'claim', '422 no such customer', 'refused') \g /dev/null
SELECT is((granted, outcome, error, retry_after IS NULL, finished_at IS NOT NULL)::text, '(f,failed,"422 no such customer",t,t)', 'failed: with the error, acknowledge')
FROM idem.claim_action('no', 'step');
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('hm', 'step') \gset
SELECT state FROM idem.fail_action(:'id', :'claim', 'timeout') \g /dev/null
SELECT is((granted, outcome, reason, uncertain, retry_after IS NULL, finished_at IS NULL)::text, '(f,needs_attention,outcome_unknown,t,t,t)', 'A37: needs_attention: a person goes on, acknowledge')
FROM idem.claim_action('hm', 'step');

-- A10: the step is part of the identity, and so is the scope
SELECT is((SELECT array_agg(outcome) FROM (
	SELECT (idem.claim_action('evt 10', 'step')).outcome
	UNION ALL SELECT (idem.claim_action('evt 10', 'other step')).outcome
	UNION ALL SELECT (idem.claim_action('evt 10', 'step', scope => 'acme')).outcome) AS s), '{claimed,claimed,claimed}', 'A10: steps and tenants of one event do not block each other');

--
-- Params: the binding facts (A42)
--
SELECT granted AS ok FROM idem.claim_action('p', 'step', '{"to": "secret-a", "amount": 12, "lines": [1, 2], "same": true}') \g /dev/null
SELECT version('p', 'step') AS version \gset
SELECT throws_ok($$SELECT idem.claim_action('p', 'step', '{"to": "secret-b", "amount": 12.5, "lines": [2, 1], "same": true, "new": 1}', in_transaction => true)$$,
	'IA001', 'the action is known with other params', 'A42: other params under the same key are an error');
CREATE FUNCTION detail_of(command text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	message text; detail text; hint text; context text;
BEGIN
	EXECUTE command;
	RETURN NULL;
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT, context = PG_EXCEPTION_CONTEXT;
	RETURN concat_ws(' ', message, detail, hint, context);
END
$$;
CREATE FUNCTION mismatch() RETURNS text LANGUAGE sql AS $$
	SELECT regexp_replace(detail_of('SELECT idem.claim_action(key => ''p'', intent => ''step'', params => p, in_transaction => true)
		FROM (VALUES (''{"to": "secret-b", "amount": 12.5, "lines": [2, 1], "same": true, "new": 1}''::jsonb)) AS v (p)'), 'SQL statement.*', '')
$$;
SELECT ok(mismatch() ~ '"to"' AND mismatch() ~ '"amount"' AND mismatch() ~ '"lines"' AND mismatch() ~ '"new"', 'it names the fields that differ');
SELECT ok(mismatch() !~ '"same"', 'and only these');
SELECT ok(mismatch() !~ 'secret|12', 'and never a value');
SELECT is(version('p', 'step'), :'version', 'and writes nothing');
SELECT is(granted, false, 'equal params are equal whatever they look like') FROM idem.claim_action('p', 'step', '{"same":true, "lines":[1.0,2e0], "amount": 12.00, "to":"secret-a"}');
SELECT is(outcome, 'in_progress', 'SQL NULL params are never compared') FROM idem.claim_action('p', 'step');
SELECT is((outcome, granted, repeat, claim_id, retry_after, params, draft, result)::text, '(mismatch,f,t,,,,,)', 'in a batch a mismatch is a row: dead letter')
FROM idem.claim_actions('step', '{p}', ARRAY['{"to": "secret-b"}'::jsonb]);
SELECT is(version('p', 'step'), :'version', 'and nothing written') ;
SELECT is((SELECT array_agg(outcome ORDER BY ordinality) FROM idem.claim_actions('step', '{p 1,p,p 2}', ARRAY[NULL, '{"to": "secret-b"}', '{}']::jsonb[]) WITH ORDINALITY AS s),
	'{claimed,mismatch,claimed}', 'which does not stop its neighbours');
-- whatever the state: a mismatch comes before it
SELECT state FROM idem.complete_action((a('p 2', 'step')).action_id, (a('p 2', 'step')).claim_id) \g /dev/null
SELECT throws_ok($$SELECT idem.claim_action('p 2', 'step', '{"a": 1}', in_transaction => true)$$, 'IA001', NULL, 'also where it is completed');
SELECT is((SELECT outcome FROM idem.claim_action('p 2', 'step', 'null')), 'completed', 'the JSON null says as little as SQL NULL: nothing is compared');
-- the granted caller's params are stored where there are none
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('late params', 'step') \gset
SELECT is(outcome, 'in_progress', 'without params nothing is compared') FROM idem.claim_action('late params', 'step', '{"a": 1}');
SELECT is((a('late params', 'step')).params, NULL, 'and who is not granted leaves none');
SELECT state FROM idem.release_action(:'id', :'claim') \g /dev/null
SELECT is((granted, params)::text, '(t,"{""a"": 2}")', 'who is granted brings them') FROM idem.claim_action('late params', 'step', '{"a": 2}');
SELECT throws_ok($$SELECT idem.claim_action('late params', 'step', '{"a": 1}', in_transaction => true)$$, 'IA001', NULL, 'and from then on they bind');

--
-- Drafts: the free content (A15, A16, A35)
--
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('d', 'again', '{"to": "a"}', '"first draft"') \gset
SELECT is((granted, outcome, draft, reason)::text, '(f,in_progress,"""first draft""",other_draft_kept)', 'A35: a second run with another draft is told, and shown the draft that is kept')
FROM idem.claim_action('d', 'again', '{"to": "a"}', '"second draft"');
SELECT is(reason, NULL, 'the same draft is no other draft') FROM idem.claim_action('d', 'again', '{"to": "a"}', '"first draft"');
SELECT is((SELECT count(*) FROM idem.idem_actions WHERE key = 'd'), 1::bigint, 'A15: two drafts, one action');
SELECT state FROM idem.release_action(:'id', :'claim') \g /dev/null
SELECT action_id AS id, claim_id AS claim, (granted, draft, reason)::text AS told FROM idem.claim_action('d', 'again', '{"to": "a"}', '"second draft"') \gset
SELECT is(:'told'::text, '(t,"""first draft""",other_draft_kept)', 'A16: the first draft is kept, also for the next one that is granted');
SELECT is(idem.begin_effect(:'id', :'claim', '"final draft"') > 100, true, 'begin_effect says which draft is used');
SELECT is((a('d', 'again')).draft, '"final draft"', 'and it is stored');
SELECT state FROM idem.complete_action(:'id', :'claim') \g /dev/null
SELECT is((outcome, draft)::text, '(completed,"""final draft""")', 'and shown to repeats') FROM idem.claim_action('d', 'again');
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('d 2', 'again') \gset
SELECT is(draft, NULL, 'who is not granted leaves no draft') FROM idem.claim_action('d 2', 'again', draft => '"x"');
SELECT state FROM idem.release_action(:'id', :'claim') \g /dev/null
SELECT is((granted, draft, reason)::text, '(t,"""y""",)', 'who is granted leaves it') FROM idem.claim_action('d 2', 'again', draft => '"y"');

--
-- A29: the provider key
--
SELECT action_id AS id, claim_id AS claim, provider_key AS pk1 FROM idem.claim_action('pk', 'again') \gset
SELECT state FROM idem.fail_action(:'id', :'claim', 'timeout', retry_after => '0') \g /dev/null
SELECT claim_id AS claim, provider_key AS pk2, attempt FROM idem.claim_action('pk', 'again') \gset
SELECT lapse('pk', 'again') \g /dev/null
SELECT provider_key AS pk3, attempt FROM idem.claim_action('pk', 'again') \gset
SELECT is((:'attempt', :'pk2', :'pk3')::text, ('3', :'pk1', :'pk1')::text, 'A29: the same provider key on every attempt');
SELECT is(provider_key, :'pk1', 'and in the view') FROM idem.actions WHERE action_id = :'id';
SELECT is(:'pk1' ~ '^[ -~]{1,255}$', true, 'of at most 255 ASCII characters');
SELECT is(count(DISTINCT idem.provider_key(idem.action_id(key::text, 'again'), generation)), 4000::bigint, 'no two actions or generations share one')
FROM generate_series(1, 1000) AS key, generate_series(1, 4) AS generation;
SELECT is(bool_and(idem.provider_key(:'id', generation) ~ '^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$'), true, 'each is a UUIDv8')
FROM generate_series(1, 100) AS generation;

--
-- call_id: the reply was lost (B3)
--
SELECT gen_random_uuid() AS call \gset
SELECT row(c.*)::text AS first, claim_id AS claim, action_id AS id FROM idem.claim_action('lost', 'again', '{"a": 1}', worker => 'w', call_id => :'call') AS c \gset
SELECT version('lost', 'again') AS version \gset
SELECT is(row(c.*)::text, :'first', 'B3: the same call again: the same grant') FROM idem.claim_action('lost', 'again', '{"a": 1}', worker => 'w', call_id => :'call') AS c;
SELECT is((granted, claim_id)::text, ROW (true, :'claim')::text, 'the same in a batch') FROM idem.claim_actions('again', '{lost}', worker => 'w', call_id => :'call');
SELECT is(version('lost', 'again'), :'version', 'nothing written');
SELECT is((granted, outcome, claim_id)::text, '(f,in_progress,)', 'not for another worker') FROM idem.claim_action('lost', 'again', worker => 'x', call_id => :'call');
SELECT is((granted, outcome, claim_id)::text, '(f,in_progress,)', 'nor for none') FROM idem.claim_action('lost', 'again', call_id => :'call');
SELECT is((granted, outcome, claim_id)::text, '(f,in_progress,)', 'nor for another call') FROM idem.claim_action('lost', 'again', worker => 'w', call_id => gen_random_uuid());
SELECT is((granted, outcome, claim_id)::text, '(f,in_progress,)', 'nor for no call') FROM idem.claim_action('lost', 'again', worker => 'w');
SELECT throws_ok(format('SELECT idem.claim_action(%L, %L, %L, worker => %L, call_id => %L, in_transaction => true)', 'lost', 'again', '{"a": 2}', 'w', :'call'), 'IA001', NULL, 'with other params it is a mistake like any other');
SELECT idem.begin_effect(:'id', :'claim') AS ok \g /dev/null
SELECT is((granted, claim_id)::text, ROW (true, :'claim')::text, 'while the lease is valid, whatever the holder has said') FROM idem.claim_action('lost', 'again', worker => 'w', call_id => :'call');
SELECT lapse('lost', 'again') \g /dev/null
SELECT claim_id AS claim2, (granted, attempt, claim_id <> :'claim')::text AS told FROM idem.claim_action('lost', 'again', worker => 'w', call_id => :'call') \gset
SELECT is(:'told'::text, '(t,2,t)', 'when it is over, it is a new attempt with a claim_id of its own');
SELECT state FROM idem.release_action(:'id', :'claim2') \g /dev/null
SELECT claim_id AS claim3, (granted, attempt, claim_id <> :'claim2')::text AS told FROM idem.claim_action('lost', 'again', worker => 'w', call_id => :'call') \gset
SELECT is(:'told'::text, '(t,3,t)', 'as is the next one after a release');
SELECT state FROM idem.complete_action(:'id', :'claim3') \g /dev/null
SELECT is((granted, outcome, claim_id)::text, '(f,completed,)', 'and when it is completed, it is completed') FROM idem.claim_action('lost', 'again', worker => 'w', call_id => :'call');
-- no worker is a worker like any other
SELECT claim_id AS claim FROM idem.claim_action('lost 2', 'again', call_id => :'call') \gset
SELECT is(claim_id, :'claim'::uuid, 'no name both times is the same worker') FROM idem.claim_action('lost 2', 'again', call_id => :'call');
-- it must not be what a second delivery has in common with the first
SELECT throws_ok(format('SELECT idem.claim_action(%L, %L, call_id => %L, in_transaction => true)', :'call', 'again', :'call'), 'IA006', 'call_id must not be the key or the event''s id', 'call_id must not be the key');
SELECT throws_ok(format('SELECT idem.claim_action(%L, %L, call_id => %L, in_transaction => true)', upper(:'call'), 'again', :'call'), 'IA006', NULL, 'in no spelling');
SELECT throws_ok(format('SELECT idem.claim_action(%L, %L, event_id => %L, call_id => %L, in_transaction => true)', 'k', 'again', spelling, :'call'), 'IA006', NULL, 'nor as ' || spelling)
FROM (VALUES (replace(:'call', '-', '')), ('{' || :'call' || '}'), (upper(replace(:'call', '-', '')))) v (spelling);
SELECT lives_ok(format('SELECT idem.claim_action(%L, %L, event_id => %L, call_id => %L, in_transaction => true)', 'part', 'again', other, :'call'), 'but as a part of ' || other)
FROM (VALUES (:'call' || '0'), (left(:'call', 35))) v (other);
SELECT throws_ok(format('SELECT idem.claim_action(%L, %L, event_id => %L, call_id => %L, in_transaction => true)', 'k', 'again', :'call', :'call'), 'IA006', NULL, 'nor the event_id');
SELECT throws_ok(format('SELECT * FROM idem.claim_actions(%L, ARRAY[%L, %L], call_id => %L, in_transaction => true)', 'again', 'k', :'call', :'call'), 'IA006', NULL, 'nor any key of a batch');
SELECT throws_ok(format('SELECT * FROM idem.claim_actions(%L, ARRAY[%L, %L], event_ids => ARRAY[%L, %L], call_id => %L, in_transaction => true)', 'again', 'k', 'l', 'e', :'call', :'call'), 'IA006', NULL, 'nor any event_id of one');
SELECT is((SELECT count(*) FROM idem.idem_actions WHERE key = ANY (ARRAY['k', 'l', :'call', upper(:'call')])), 0::bigint, 'and nothing is claimed then');

--
-- Batches
--
SELECT is((SELECT array_agg(key ORDER BY ordinality) FROM idem.claim_actions('step', (SELECT array_agg('b ' || i ORDER BY md5(i::text)) FROM generate_series(1, 300) AS i))
		WITH ORDINALITY AS s),
	(SELECT array_agg('b ' || i ORDER BY md5(i::text)) FROM generate_series(1, 300) AS i), 'a batch is answered in input order');
SELECT is((SELECT count(DISTINCT claim_id) FROM idem.idem_actions WHERE key LIKE 'b %' AND state = 'in_progress'), 300::bigint, 'each with a claim of its own');
CREATE TABLE batch AS
SELECT *, ordinality AS n FROM idem.claim_actions('step', '{x,y,x,z,x}', ARRAY['{"a": 1}', NULL, '{"a": 1}', NULL, '{"a": 2}']::jsonb[], ARRAY['"d1"', NULL, '"d2"', NULL, NULL]::jsonb[],
	scope => 's', lease => '1 min', worker => 'w', source => 'q', event_ids => '{e1,NULL,e3,e4,e5}', call_id => :'call')
	WITH ORDINALITY AS s;
SELECT is((SELECT array_agg(concat_ws(' ', key, outcome, repeat, claim_id IS NOT NULL) ORDER BY n) FROM batch),
	'{"x claimed f t","y claimed f t","x in_progress t f","z claimed f t","x mismatch t f"}', 'of twins the first is granted, the others are repeats, or a mismatch');
SELECT is((params, draft, scope, worker, source, event_id, lease_until - claimed_at)::text, '("{""a"": 1}","""d1""",s,w,q,e1,00:01:00)', 'the arguments of a batch go where they belong') FROM batch WHERE n = 1;
SELECT is((params, draft, event_id)::text, '(,,)', 'each to its own key') FROM batch WHERE n = 2;
SELECT is(event_id, 'e4', 'also after a NULL') FROM batch WHERE n = 4;
SELECT is((draft, reason)::text, '("""d1""",other_draft_kept)', 'a twin is shown the draft that is kept') FROM batch WHERE n = 3;
SELECT is((SELECT array_agg(concat_ws(' ', b.key, s.outcome, s.claim_id = b.claim_id) ORDER BY n) FROM batch b JOIN
		idem.claim_actions('step', '{x,y,z}', scope => 's', worker => 'w', call_id => :'call') AS s USING (action_id) WHERE n <> 3 AND n <> 5),
	'{"x claimed t","y claimed t","z claimed t"}', 'the reply of a batch was lost: its call again gives all its grants');
SELECT is((SELECT array_agg(outcome) FROM idem.claim_actions('step', '{x,x}', scope => 's', worker => 'w', call_id => :'call')), '{claimed,in_progress}', 'and a twin still gets none');
SELECT is((SELECT count(*) FROM idem.claim_actions('step', '{}')), 0::bigint, 'no keys, no rows');

CREATE FUNCTION claims_nothing(arguments text, state text, name text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	n bigint := (SELECT count(*) FROM idem.idem_actions);
BEGIN
	RETURN NEXT throws_ok('SELECT * FROM idem.claim_actions(' || arguments || ', in_transaction => true)', state, NULL, 'a batch is refused as a whole: ' || name);
	RETURN NEXT is((SELECT count(*) FROM idem.idem_actions), n, 'and claims nothing: ' || name);
END
$$;
SELECT claims_nothing($$'step', '{n1,NULL,n2}'$$, 'IA006', 'a NULL key');
SELECT claims_nothing($$'step', ARRAY['n1', '', 'n2']$$, 'IA006', 'an empty key');
SELECT claims_nothing($$'step', ARRAY['n1', repeat('x', 16385)]$$, 'IA006', 'a key that is too long');
SELECT claims_nothing($$'step', '{n1,n2}', params => ARRAY['{}']::jsonb[]$$, '2202E', 'fewer params than keys');
SELECT claims_nothing($$'step', '{n1}', drafts => ARRAY['{}', '{}']::jsonb[]$$, '2202E', 'more drafts than keys');
SELECT claims_nothing($$'step', '{n1}', event_ids => '{}'$$, '2202E', 'no event_ids');
SELECT claims_nothing($$'step', '{{n1},{n2}}'$$, '2202E', 'two dimensions');
SELECT claims_nothing($$'step', NULL$$, '22023', 'no array');
SELECT claims_nothing($$'step', '{n1}', lease => '0'$$, '22023', 'a lease of nothing');
SELECT claims_nothing($$'step', ARRAY['n1'], scope => NULL$$, 'IA006', 'no scope');
SELECT claims_nothing($$'no rule', ARRAY['n1']$$, 'IA005', 'no rule');

-- reports in batches: facts of single rows are rows
SELECT array_agg(action_id ORDER BY n) AS ids, array_agg(claim_id ORDER BY n) AS claims FROM batch WHERE outcome = 'claimed' \gset
SELECT is((SELECT array_agg(concat_ws(' ', ordinality, s.action_id = (:'ids'::uuid[])[ordinality], seconds_left > 100, problem IS NULL) ORDER BY ordinality)
		FROM idem.extend_claims(:'ids', :'claims', '5 min') WITH ORDINALITY AS s), '{"1 t t t","2 t t t","3 t t t"}', 'extend_claims answers in input order');
SELECT throws_ok(format('SELECT * FROM idem.extend_claims(%L, %L)', :'ids', '{}'), '2202E', NULL, 'each action needs its claim');
SELECT throws_ok(format('SELECT * FROM idem.extend_claims(%L, array_append((%L::uuid[])[1:2], NULL))', :'ids', :'claims'), '22023', NULL, 'a NULL claim is refused');
SELECT throws_ok(format('SELECT * FROM idem.complete_actions(%L, %L, %L)', :'ids', :'claims', '{r}'), '2202E', NULL, 'each external_ref its action');
SELECT throws_ok(format('SELECT * FROM idem.complete_actions(array_append((%L::uuid[])[1:2], NULL), %L)', :'ids', :'claims'), '22023', NULL, 'a NULL action is refused');
SELECT is((SELECT count(*) FROM idem.idem_actions WHERE action_id = ANY (:'ids') AND state <> 'in_progress'), 0::bigint, 'and nothing is completed then');
SELECT is((SELECT array_agg(concat_ws(' ', ordinality, s.action_id = id[ordinality], accepted, state, note IS NOT NULL) ORDER BY ordinality)
	FROM (SELECT (:'ids'::uuid[])[1:1] || gen_random_uuid() || (:'ids'::uuid[])[3:3] || (:'ids'::uuid[])[1:1] || (:'ids'::uuid[])[2:2] AS id,
			(:'claims'::uuid[])[1:1] || gen_random_uuid() || (:'claims'::uuid[])[3:3] || (:'claims'::uuid[])[1:1] || gen_random_uuid() AS claim) AS arguments,
		idem.complete_actions(id, claim, '{r1,r2,r3,r1,r5}', ARRAY['1', '2', '3', '1', '5']::jsonb[]) WITH ORDINALITY AS s),
	'{"1 t t completed f","2 t f t","3 t t completed f","4 t t completed f","5 t f needs_attention t"}',
	'complete_actions: an unknown action is a row, a twin a repetition, an outrun claim kept, and the others go on');
SELECT is((SELECT array_agg(concat_ws(' ', external_ref, result) ORDER BY external_ref) FROM idem.idem_actions WHERE action_id = ANY (:'ids')), '{"r1 1","r3 3","r5 5"}', 'each with its own reference and result');

--
-- SELECT (f(k)).* calls the function once a column, a claim in a
-- CTE, a join, a prepared statement, a function that says STABLE
--
CREATE TABLE star AS SELECT (idem.claim_action('star', 'step')).*;
SELECT is((SELECT count(*) FROM star, idem.idem_actions a WHERE a.key = 'star' AND a.attempt <> 1), 0::bigint, 'expanded to columns, there is still one grant');
SELECT is((SELECT claim_id IS NULL OR claim_id = (a('star', 'step')).claim_id FROM star), true, 'and no claim_id of another');
WITH c AS (SELECT * FROM idem.claim_action('cte', 'step')), d AS (SELECT * FROM idem.claim_action('cte', 'step'))
SELECT is(least(c.outcome, d.outcome) || ' ' || greatest(c.outcome, d.outcome), 'claimed in_progress', 'two claims in one statement: one grant, and the other is told') FROM c, d;
SELECT is((SELECT string_agg(c.outcome, ' ') FROM (VALUES ('join 1'), ('join 2'), ('join 1')) AS v (k), LATERAL idem.claim_action(k, 'step') AS c), 'claimed claimed in_progress', 'in a join: a row for each');
PREPARE claim (text) AS SELECT outcome FROM idem.claim_action($1, 'step');
CREATE FUNCTION stable(key text) RETURNS text LANGUAGE sql STABLE AS $$SELECT outcome FROM idem.claim_action(key, 'step')$$;
CREATE FUNCTION stable_plpgsql(key text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
	RETURN (SELECT granted || ' ' || outcome || ' ' || (provider_key IS NOT NULL) FROM idem.claim_action(key, 'step'));
END
$$;
SELECT is(stable('stable'), 'claimed', 'a function that says STABLE claims');
SELECT is(stable('stable'), 'in_progress', 'and hears of the winner');
SELECT is(stable_plpgsql('stable plpgsql'), 'true claimed true', 'in PL/pgSQL too');
SELECT is(stable_plpgsql('stable plpgsql'), 'false in_progress true', 'with all there is to tell');
SELECT is((SELECT string_agg(stable(k), ' ') FROM (VALUES ('stable 2'), ('stable 2')) AS v (k)), 'claimed in_progress', 'twice in one statement, too');
CREATE TEMP TABLE executed AS EXECUTE claim('prepared');
SELECT is((SELECT outcome FROM executed), 'claimed', 'a prepared statement claims');

--
-- once
--
SELECT is(idem.once('o', 'step'), true, 'once: the first time');
SELECT is(idem.once('o', 'step'), false, 'and no more');
SELECT is((state, attempt, lost, failures, revision, uncertain, finished_at IS NOT NULL, forget_after IS NOT NULL)::text, '(completed,1,0,0,1,f,t,t)', 'it is a completed action') FROM a('o', 'step');
SELECT is((outcome, repeat, finished_at IS NOT NULL)::text, '(completed,t,t)', 'to a claim as well') FROM idem.claim_action('o', 'step');
SELECT is((SELECT array_agg(idem.once('o', intent, NULL, scope)) FROM (VALUES ('other step', ''), ('step', 's')) AS v (intent, scope)), '{t,t}', 'another step or scope is another action');
SELECT is((SELECT array_agg(idem.once('o 2', 'step')) FROM generate_series(1, 3)), '{t,f,f}', 'also within one statement');
BEGIN;
SELECT is(idem.once('o 3', 'step'), true, 'in a transaction');
SAVEPOINT s;
SELECT is(idem.once('o 3', 'step'), false, 'it is seen there');
ROLLBACK;
SELECT is(idem.once('o 3', 'step'), true, 'and gone if that rolls back: claim, effect and completion vanish together');
SELECT is(idem.once('o p', 'step', '{"a": 1}'), true, 'params of once');
SELECT throws_ok($$SELECT idem.once('o p', 'step', '{"a": 2}')$$, 'IA001', NULL, 'are compared');
SELECT is(idem.once('o p', 'step'), false, 'NULL is not');
SELECT is(idem.once('evt 1', 'step', NULL, 'acme'), false, 'completed by a claim is done');
SELECT throws_ok(format('SELECT idem.once(%L, %L)', key, intent), 'IA003', NULL, 'IA003 rather than let work be skipped that nobody has done: ' || (a(key, intent)).state)
FROM (VALUES ('star', 'step'), ('no', 'step'), ('hm', 'step')) AS v (key, intent);
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('o pending', 'step') \gset
SELECT state FROM idem.release_action(:'id', :'claim') \g /dev/null
SELECT throws_ok($$SELECT idem.once('o pending', 'step')$$, 'IA003', NULL, 'IA003: pending');
UPDATE idem.idem_actions SET state = 'cancelled', due_at = NULL, finished_at = now(), forget_after = now() + interval '1 day' WHERE action_id = :'id';
DELETE FROM idem.idem_queue WHERE action_id = :'id';
SELECT throws_ok($$SELECT idem.once('o pending', 'step')$$, 'IA003', NULL, 'IA003: cancelled');
UPDATE idem.idem_actions SET forget_after = now() - interval '1 s' WHERE action_id = :'id';
SELECT is(idem.once('o pending', 'step'), true, 'forgotten: as if the row were gone');
UPDATE idem.idem_rules SET requires_approval = true WHERE intent = 'other step';
SELECT throws_ok($$SELECT idem.once('o approval', 'other step')$$, 'IA003', NULL, 'IA003: an absent key whose rule requires approval');
UPDATE idem.idem_rules SET requires_approval = false WHERE intent = 'other step';
SELECT is((outcome, state)::text, '(unknown,)', 'nothing was stored') FROM idem.find_action('o approval', 'other step');

--
-- find_action reads only
--
SELECT is((granted, outcome, action_id, claim_id, state, retry_after, scope, intent, key, provider_key, repeat)::text,
	ROW (false, 'unknown', idem.action_id('never seen', 'step'), NULL, NULL, NULL, '', 'step', 'never seen', NULL, false)::text, 'find: never seen') FROM idem.find_action('never seen', 'step');
SELECT is((SELECT count(*) FROM idem.idem_actions WHERE key = 'never seen'), 0::bigint, 'and not seen by having been looked for');
SELECT is((granted, outcome, claim_id, retry_after IS NOT NULL)::text, '(f,in_progress,,t)', 'find: in progress, without the claim') FROM idem.find_action('star', 'step');
SELECT is((granted, outcome, claim_id, retry_after, external_ref)::text, '(f,completed,,,"msg 17")', 'find: completed, with the reference') FROM idem.find_action('evt 1', 'step', 'acme');
SELECT is(f.result, e.result, 'and the result') FROM e, idem.find_action('evt 1', 'step', 'acme') AS f;
SELECT is((outcome, error)::text, '(failed,"422 no such customer")', 'find: failed, with the error') FROM idem.find_action('no', 'step');
SELECT is((outcome, reason)::text, '(needs_attention,outcome_unknown)', 'find: needs_attention, with the reason') FROM idem.find_action('hm', 'step');
SELECT is((SELECT outcome FROM idem.find_action('d 2', 'again')), 'in_progress', 'a lease that is over is still in progress until somebody judges it') FROM lapse('d 2', 'again');
SELECT is((SELECT outcome FROM idem.find_action('d 2', 'again')), 'in_progress', 'and finding it judges nothing');
BEGIN READ ONLY;
SELECT is(outcome, 'completed', 'A3: find works in a read-only transaction') FROM idem.find_action('evt 1', 'step', 'acme');
SELECT throws_ok($$SELECT idem.claim_action('ro', 'step', in_transaction => true)$$, '25006', NULL, 'claim does not');
SELECT throws_ok($$SELECT idem.claim_action('evt 1', 'step', scope => 'acme', in_transaction => true)$$, '25006', NULL, 'whatever the state');
SELECT throws_ok($$SELECT idem.once('o', 'step')$$, '25006', NULL, 'nor once');
SELECT throws_ok(format('SELECT idem.complete_action(%L, %L)', :'id', :'claim'), '25006', NULL, 'nor complete');
COMMIT;

-- a row that its own transaction has locked, and changed in a savepoint that is gone
SELECT action_id AS saved_id, claim_id AS saved_claim FROM idem.claim_action('saved', 'step') \gset
SET statement_timeout = '20 s';
BEGIN;
SELECT accepted FROM idem.fail_action(:'saved_id', gen_random_uuid(), 'late', 'none') \g /dev/null
SAVEPOINT s;
SELECT accepted FROM idem.complete_action(:'saved_id', :'saved_claim', 'ref-1') \g /dev/null
ROLLBACK TO s;
SELECT is((accepted, state)::text, '(t,completed)', 'completed again after a savepoint') FROM idem.complete_action(:'saved_id', :'saved_claim', 'ref-2');
COMMIT;
RESET statement_timeout;
SELECT is(external_ref, 'ref-2', 'by what was committed') FROM idem.find_action('saved', 'step');

-- what holds is known at once in a session that calls itself a replica, too
SET session_replication_role = replica;
SELECT idem.pause_intent('step', 'wait') \g /dev/null
SELECT is(outcome, 'paused', 'a pause in a session that calls itself a replica') FROM idem.claim_action('replica', 'step');
SELECT idem.resume_intent('step') \g /dev/null
SELECT is(outcome, 'claimed', 'and its end') FROM idem.claim_action('replica', 'step');
RESET session_replication_role;

SELECT * FROM finish();
