--
-- What is remembered: retention and forgetting, the history, and what becomes
-- of reports that nobody expected any more.
--
SELECT plan(70);

CREATE SCHEMA t;
SET search_path = t, public;
SET timezone = 'America/New_York';

CREATE FUNCTION a(key text, intent text) RETURNS idem.idem_actions LANGUAGE sql AS
	'SELECT * FROM idem.idem_actions WHERE action_id = idem.action_id($1, $2)';
CREATE FUNCTION lapse(key text, intent text) RETURNS void LANGUAGE sql AS $$
	UPDATE idem.idem_actions SET lease_until = clock_timestamp() - interval '1 microsecond'
	WHERE action_id = idem.action_id($1, $2) AND state = 'in_progress'
$$;
/* the timeline of an action, as an analyst reads it */
CREATE FUNCTION timeline(key text, intent text) RETURNS text[] LANGUAGE sql AS $$
	SELECT array_agg(concat_ws(' ', event, attempt, worker, detail->>'effect', detail->>'external_ref', detail->>'error') ORDER BY at, id)
	FROM idem.history WHERE action_id = idem.action_id($1, $2)
$$;

--
-- A25: retention counts from the end of the action, by the rule of that moment
--
SELECT idem.define_rule('kept', 'event', 'the team', keep_content => '1 month', keep_key => '1 year 1 day') <> '' AS defined \g /dev/null
SELECT idem.define_rule('kept short', 'event', 'the team', keep_content => '0', keep_key => '1 hour', retry_delay => '0') <> '' AS defined \g /dev/null
SELECT idem.define_rule('kept by default', 'event', 'the team') <> '' AS defined \g /dev/null
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('1', 'kept') \gset
SELECT is((purge_after, forget_after)::text, '(,)', 'in progress: no end in sight') FROM a('1', 'kept');
SELECT state FROM idem.complete_action(:'id', :'claim') \g /dev/null
SELECT is((purge_after AT TIME ZONE 'UTC', forget_after AT TIME ZONE 'UTC')::text,
	(finished_at AT TIME ZONE 'UTC' + interval '1 month', finished_at AT TIME ZONE 'UTC' + interval '1 year 1 day')::text,
	'A25: completed: counted from the end, on the calendar of UTC') FROM a('1', 'kept');
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('2', 'kept') \gset
SELECT state FROM idem.fail_action(:'id', :'claim', 'no', 'refused') \g /dev/null
SELECT is(forget_after AT TIME ZONE 'UTC', finished_at AT TIME ZONE 'UTC' + interval '1 year 1 day', 'failed likewise') FROM a('2', 'kept');
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('3', 'kept') \gset
UPDATE idem.idem_actions SET cancel_requested = true WHERE action_id = :'id';
SELECT state FROM idem.release_action(:'id', :'claim') \g /dev/null
SELECT is((state, forget_after AT TIME ZONE 'UTC')::text, ('cancelled', finished_at AT TIME ZONE 'UTC' + interval '1 year 1 day')::text, 'cancelled likewise') FROM a('3', 'kept');
SELECT is(idem.once('4', 'kept'), true, 'once');
SELECT is(forget_after AT TIME ZONE 'UTC', finished_at AT TIME ZONE 'UTC' + interval '1 year 1 day', 'done once likewise') FROM a('4', 'kept');
SELECT is((forget_after - finished_at, purge_after - finished_at)::text, '(01:00:00,00:00:00)', 'contents may go at once, the key outlives them') FROM (
	SELECT (a('1', 'kept short')).* FROM idem.once('1', 'kept short')) AS s;
SELECT is(((forget_after AT TIME ZONE 'UTC') - (finished_at AT TIME ZONE 'UTC'), (purge_after AT TIME ZONE 'UTC') - (finished_at AT TIME ZONE 'UTC'))::text, '("400 days","90 days")', 'the defaults') FROM (
	SELECT (a('1', 'kept by default')).* FROM idem.once('1', 'kept by default')) AS s;
SELECT forget_after AS before FROM a('1', 'kept') \gset
SELECT idem.define_rule('kept', 'event', 'the team', keep_content => '1 day', keep_key => '2 days') <> '' AS defined \g /dev/null
SELECT is((a('1', 'kept')).forget_after, :'before'::timestamptz, 'a change of the rule touches nothing that has ended');
SELECT is(((forget_after AT TIME ZONE 'UTC') - (finished_at AT TIME ZONE 'UTC'))::text, '2 days', 'and holds for what ends from now on') FROM (
	SELECT (a('5', 'kept')).* FROM idem.once('5', 'kept')) AS s;

-- a second success takes the end back: what a person has to look at never expires
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('6', 'kept') \gset
SELECT state FROM idem.fail_action(:'id', :'claim', 'no', 'refused') \g /dev/null
SELECT state FROM idem.complete_action(:'id', :'claim', 'late') \g /dev/null
SELECT is((state, finished_at, purge_after, forget_after)::text, '(needs_attention,,,)', 'failed, then a success: no end any more') FROM a('6', 'kept');

--
-- Forgetting
--
UPDATE idem.idem_actions SET forget_after = clock_timestamp() - interval '1 s' WHERE intent = 'kept' AND forget_after IS NOT NULL;
SELECT is((SELECT array_agg(DISTINCT outcome) FROM unnest('{1,2,3,4,5}'::text[]) AS k, LATERAL idem.find_action(k, 'kept')), '{unknown}', 'past forget_after: never seen');
SELECT is((granted, outcome, repeat, attempt, generation, revision, external_ref, error, result, params)::text, '(t,claimed,f,1,1,1,,,,"{""a"": 2}")', 'a claim: as if the row were gone')
FROM idem.claim_action('1', 'kept', '{"a": 2}');
SELECT is((lost, failures, uncertain, cancel_requested, finished_at, forget_after, created_at > clock_timestamp() - interval '1 min')::text, '(0,0,f,f,,,t)', 'nothing is left of it') FROM a('1', 'kept');
SELECT is((SELECT outcome FROM idem.claim_actions('kept', '{2}')), 'claimed', 'a batch likewise');
SELECT is(timeline('2', 'kept'), '{"recorded 0","claimed 1"}', 'its history is gone');
SELECT is((cancel_requested, approved, begun)::text, '(f,f,f)', 'and its flags') FROM (SELECT (a('3', 'kept')).* FROM idem.claim_action('3', 'kept')) AS s;
SELECT is(idem.once('4', 'kept'), true, 'once likewise');
SELECT is(idem.once('4', 'kept'), false, 'once');
-- an old params does not bind, a remembered one does
SELECT granted AS ok FROM idem.claim_action('p', 'kept', '{"a": 1}') \g /dev/null
SELECT state FROM a('p', 'kept') AS a, LATERAL (SELECT (idem.complete_action(a.action_id, a.claim_id)).accepted) AS r \g /dev/null
UPDATE idem.idem_actions SET purge_after = clock_timestamp() - interval '1 s' WHERE key = 'p';
SELECT throws_ok($$SELECT idem.claim_action('p', 'kept', '{"a": 2}', in_transaction => true)$$, 'IA001', NULL, 'A25: the key outlives its contents');
UPDATE idem.idem_actions SET forget_after = clock_timestamp() - interval '1 s' WHERE key = 'p';
SELECT is((SELECT granted FROM idem.claim_action('p', 'kept', '{"a": 2}')), true, 'and when it is forgotten, its params are');

-- A25: unresolved never expires
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('hm', 'kept short') \gset
SELECT state FROM idem.fail_action(:'id', :'claim', 'timeout') \g /dev/null
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('waits', 'kept short') \gset
SELECT state FROM idem.release_action(:'id', :'claim') \g /dev/null
UPDATE idem.idem_actions SET created_at = created_at - interval '10 years', claimed_at = claimed_at - interval '10 years', first_claimed_at = first_claimed_at - interval '10 years'
WHERE key = ANY ('{hm,waits}');
SELECT is((outcome, repeat)::text, '(needs_attention,t)', 'A25: unresolved never expires') FROM idem.claim_action('hm', 'kept short');
SELECT is((outcome, repeat, attempt)::text, '(claimed,t,2)', 'nor does what waits') FROM idem.claim_action('waits', 'kept short');

-- two successes: not forgotten before somebody has looked
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('double', 'kept short') \gset
SELECT state FROM idem.complete_action(:'id', :'claim', 'r1', '"first"') \g /dev/null
SELECT state FROM idem.complete_action(:'id', :'claim', 'r2', '"second"') \g /dev/null
UPDATE idem.idem_actions SET forget_after = clock_timestamp() - interval '1 s', purge_after = clock_timestamp() - interval '1 s' WHERE key = 'double';
SELECT is((outcome, reason, external_ref, result)::text, '(completed,double_result,r1,"""first""")', 'an open double_result is not forgotten, and the first result stays') FROM idem.claim_action('double', 'kept short');
SELECT is((SELECT outcome FROM idem.find_action('double', 'kept short')), 'completed', 'nor to find');
SELECT is((e.detail->>'external_ref', e.detail::text ~ '"r1"', e.content->'result')::text, '(r2,t,"""second""")', 'an event holds both')
FROM idem.idem_events e WHERE action_id = :'id';
SELECT is((SELECT count(*) FROM idem.history WHERE detail::text ~ 'second'), 0::bigint, 'but no view shows a result');

--
-- What was done before there was a ledger
--
SELECT is(idem.import_actions('kept short', '{before 1,before 2}', '{ref 1,ref 2}'), 2::bigint, 'imported');
SELECT is((granted, outcome, external_ref)::text, '(f,completed,"ref 2")', 'an imported key is a repeat') FROM idem.claim_action('before 2', 'kept short');
SELECT is(idem.import_actions('kept short', '{before 2,before 3}'), 1::bigint, 'imported again: only what is new');
SELECT is(external_ref, 'ref 2', 'and what was known is untouched') FROM idem.claim_action('before 2', 'kept short');

--
-- The history
--
-- a straight life is told by its row and writes no event
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('straight', 'kept short', worker => 'w1', source => 'queue', event_id => 'e 1') \gset
SELECT idem.begin_effect(:'id', :'claim') AS ok \g /dev/null
SELECT state FROM idem.complete_action(:'id', :'claim', 'ref') \g /dev/null
SELECT is((SELECT count(*) FROM idem.idem_events WHERE action_id = :'id'), 0::bigint, 'a straight life writes no event');
SELECT is(timeline('straight', 'kept short'), '{"recorded 0","claimed 1 w1","completed 1 w1 ref"}', 'and is told all the same');
SELECT is((source, event_id)::text, '(queue,"e 1")', 'A9: with the event that brought it') FROM idem.history WHERE action_id = :'id' AND event = 'recorded';

-- what ended otherwise is told once as well
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('ended', 'kept short', worker => 'w1') \gset
SELECT state FROM idem.fail_action(:'id', :'claim', 'no such customer', 'refused') \g /dev/null
SELECT is(timeline('ended', 'kept short'), '{"recorded 0","claimed 1 w1","failed 1 w1 refused no such customer"}', 'a failure is told once');

-- every attempt of a crooked one
SELECT idem.define_rule('crooked', 'event', 'the team', on_uncertain => 'repeat', retry_delay => '0') <> '' AS defined \g /dev/null
SELECT action_id AS id, claim_id AS claim1 FROM idem.claim_action('1', 'crooked', worker => 'w1') \gset
SELECT state FROM idem.fail_action(:'id', :'claim1', 'connection refused', 'none') \g /dev/null
SELECT claim_id AS claim2 FROM idem.claim_action('1', 'crooked', worker => 'w2') \gset
SELECT state FROM idem.fail_action(:'id', :'claim2', 'timeout after 30 s') \g /dev/null
SELECT claim_id AS claim3 FROM idem.claim_action('1', 'crooked', worker => 'w3') \gset
SELECT lapse('1', 'crooked') \g /dev/null
SELECT claim_id AS claim4 FROM idem.claim_action('1', 'crooked', worker => 'w4') \gset
SELECT state FROM idem.release_action(:'id', :'claim4', 'shutting down') \g /dev/null
SELECT claim_id AS claim5 FROM idem.claim_action('1', 'crooked', worker => 'w5') \gset
SELECT is((SELECT error FROM idem.find_action('1', 'crooked')), 'timeout after 30 s', 'the row holds the last error');
SELECT state FROM idem.complete_action(:'id', :'claim5', 'ref') \g /dev/null
SELECT is(timeline('1', 'crooked'), ARRAY['recorded 0', 'claimed 1 w1', 'failed 1 w1 none connection refused', 'claimed 2 w2', 'failed 2 w2 unknown timeout after 30 s',
		'claimed 3 w3', 'expired 3 w3', 'claimed 4 w4', 'released 4 w4', 'claimed 5 w5', 'completed 5 w5 ref'],
	'A24: the errors of earlier attempts are kept, and whose they were');
SELECT is((SELECT detail->>'reason' FROM idem.history WHERE action_id = :'id' AND event = 'released'), 'shutting down', 'and why one was released');
SELECT is((error, external_ref)::text, '(,ref)', 'a success clears the error of the row') FROM a('1', 'crooked');
SELECT is((SELECT array_agg(DISTINCT role) FROM idem.history WHERE action_id = :'id'), ARRAY[current_user::text, NULL], 'each line says which role it was, or is the row''s own');
SELECT is((SELECT bool_and(at BETWEEN clock_timestamp() - interval '1 hour' AND clock_timestamp()) FROM idem.history WHERE action_id = :'id'), true, 'and when');

-- evidence: who, when, what; nothing else changes
SELECT to_jsonb(a) AS before FROM a('1', 'crooked') AS a \gset
SELECT is((accepted, state, revision = (:'before'::jsonb->>'revision')::bigint, note ~ 'evidence')::text, '(f,completed,t,t)', 'a report that comes too late is kept as evidence, and the note says so')
FROM idem.fail_action(:'id', :'claim3', 'I was slow', 'none');
SELECT is(to_jsonb(a), :'before'::jsonb, 'the row is as it was') FROM a('1', 'crooked') AS a;
SELECT is((event, attempt, role, detail->>'effect', detail->>'error', detail->>'accepted')::text, ROW ('failed', 3, current_user, 'none', 'I was slow', 'false')::text, 'the line says what it was, and of which attempt')
FROM idem.history WHERE action_id = :'id' AND detail->>'error' = 'I was slow';
SELECT is((SELECT worker FROM idem.history WHERE action_id = :'id' AND detail->>'error' = 'I was slow'), 'w3', 'and whose attempt it was');
SELECT is((accepted, note IS NOT NULL)::text, '(f,t)', 'of a claim that the ledger never issued, too') FROM idem.fail_action(:'id', gen_random_uuid(), 'never issued', 'none');
SELECT is((attempt, worker)::text, '(0,)', 'which is nobody''s') FROM idem.history WHERE action_id = :'id' AND detail->>'error' = 'never issued';

-- a stalled worker comes back, under the same name
SELECT action_id AS id, claim_id AS claim1 FROM idem.claim_action('stalled', 'crooked', worker => 'same') \gset
SELECT lapse('stalled', 'crooked') \g /dev/null
SELECT claim_id AS claim2 FROM idem.claim_action('stalled', 'crooked', worker => 'same') \gset
SELECT to_jsonb(a) AS before FROM a('stalled', 'crooked') AS a \gset
SELECT throws_ok(format('SELECT idem.extend_claim(%L, %L)', :'id', :'claim1'), 'IA002', NULL, 'its heartbeat is refused');
SELECT is(problem ~ 'lost' AND seconds_left IS NULL, true, 'in a batch likewise') FROM idem.extend_claims(ARRAY[:'id'::uuid], ARRAY[:'claim1'::uuid]);
SELECT is((SELECT accepted FROM idem.fail_action(:'id', :'claim1', 'x')), false, 'its failure is kept as evidence');
SELECT is((SELECT accepted FROM idem.release_action(:'id', :'claim1')), false, 'its release too');
SELECT is(to_jsonb(a), :'before'::jsonb, 'the new attempt is as it was') FROM a('stalled', 'crooked') AS a;
SELECT is((accepted, state)::text, '(f,needs_attention)', 'its success stops the next hand-out: a person decides') FROM idem.complete_action(:'id', :'claim1', 'r1', '{"late": true}');
SELECT is((reason, external_ref, result)::text, '(late_result,r1,"{""late"": true}")', 'reference and result of a late success are kept in the row') FROM a('stalled', 'crooked');
SELECT throws_ok(format('SELECT idem.extend_claim(%L, %L)', :'id', :'claim2'), 'IA002', NULL, 'the holder is told at its next extend');
SELECT is((granted, outcome, reason)::text, '(f,needs_attention,late_result)', 'nobody gets it') FROM idem.claim_action('stalled', 'crooked');
SELECT is((accepted, state)::text, '(f,needs_attention)', 'a second, different success') FROM idem.complete_action(:'id', :'claim2', 'r2', '{"late": false}');
SELECT is((reason, external_ref, result)::text, '(double_result,r1,"{""late"": true}")', 'is a double_result, and the first result stays') FROM a('stalled', 'crooked');
SELECT is((accepted, state)::text, '(f,needs_attention)', 'a third') FROM idem.complete_action(:'id', gen_random_uuid(), 'r3');
SELECT is((reason, external_ref)::text, '(double_result,r1)', 'late_result never overwrites double_result') FROM a('stalled', 'crooked');

-- the success of the last claim, after its lease was judged
SELECT idem.define_rule('swept', 'event', 'the team') <> '' AS defined \g /dev/null
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('1', 'swept') \gset
SELECT lapse('1', 'swept') \g /dev/null
SELECT is((SELECT outcome || ' ' || reason FROM idem.claim_action('1', 'swept')), 'needs_attention lease_expired', 'a slow holder''s lease is judged');
SELECT is((accepted, state, note IS NOT NULL)::text, '(t,completed,t)', 'its success still counts, as nobody has acted since') FROM idem.complete_action(:'id', :'claim', 'r1');
SELECT is((SELECT outcome || ' ' || external_ref FROM idem.claim_action('1', 'swept')), 'completed r1', 'so the action is done');

-- an earlier generation is told as what it was
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('generations', 'crooked', worker => 'w1') \gset
SELECT state FROM idem.release_action(:'id', :'claim') \g /dev/null
UPDATE idem.idem_actions SET generation = 2, attempt = 0, claim_id = NULL, claimed_at = NULL, first_claimed_at = NULL, ended_by = NULL, worker = NULL WHERE action_id = :'id';
SELECT granted AS ok FROM idem.claim_action('generations', 'crooked', worker => 'w2') \g /dev/null
SELECT is((accepted, state, note IS NOT NULL)::text, '(f,in_progress,t)', 'a success of an earlier generation changes nothing') FROM idem.complete_action(:'id', :'claim', 'old');
SELECT is((generation, attempt, worker)::text, '(1,1,w1)', 'and the history tells it as that generation''s') FROM idem.history WHERE action_id = :'id' AND event = 'succeeded';
SELECT isnt(idem.provider_key(:'id', 2), idem.provider_key(:'id', 1), 'each generation has a provider key of its own');
SELECT is((SELECT provider_key FROM idem.find_action('generations', 'crooked')), idem.provider_key(:'id', 2), 'which callers are told');

-- a key outlives its contents, by the calendar too
SELECT throws_ok($$SELECT idem.define_rule('longer', 'event', 'the team', keep_content => '1 year', keep_key => '362 days')$$, '22023', NULL, 'keep_key is never shorter than keep_content: a year has 365 days');

-- starting over repeats nothing that has succeeded
SELECT idem.define_rule('tool', 'event', 'the team', on_uncertain => 'repeat', retry_delay => '0') <> '' AS defined \g /dev/null
SELECT count(*) FROM generate_series(1, 2) AS i, LATERAL idem.claim_action('run 1/' || i, 'tool') AS c, LATERAL idem.complete_action(c.action_id, c.claim_id, 'ref ' || i, to_jsonb(i)) \g /dev/null
SELECT count(*) FROM idem.claim_action('run 1/3', 'tool') AS c, LATERAL idem.fail_action(c.action_id, c.claim_id, 'timeout') \g /dev/null
SELECT is((SELECT array_agg(concat_ws(' ', outcome, external_ref, result)) FROM idem.claim_actions('tool', '{run 1/1,run 1/2,run 1/3}')), '{"completed ref 1 1","completed ref 2 2",claimed}', 'the first two answer with what they had, only the third is granted');

SELECT is_empty('SELECT a.* FROM idem.idem_actions a WHERE idem.violated_invariant(a) IS NOT NULL', 'no row breaks an invariant');

SELECT * FROM finish();
