--
-- The history is whole: each hand-out stands there once, with who was handed it,
-- for what, by which delivery, and how it ended; so does it in the story.
--
-- Each case is a way in which one used to vanish or to stand twice: an attempt
-- that a search found done and that is run again; one whose holder was overtaken
-- by the success of an earlier one; one that a person, or after_restore, decided
-- about while it was held; one whose lease lapsed, whose failure came after that,
-- and which was handed out again; a search that became a grant and was lost then.
--
-- What history, story and notes say is so: of a claim never issued that it was
-- never issued, of a lease only where one ended.  And a line break in a name from
-- outside, an event_id for one, makes no second line or call.
--
SELECT plan(44);

CREATE FUNCTION pg_temp.lapse(key text) RETURNS void LANGUAGE sql AS $$
	UPDATE idem.idem_queue SET due_at = due_at - interval '1 day' WHERE action_id = (SELECT a.action_id FROM idem.idem_actions a WHERE a.key = $1);
	UPDATE idem.idem_actions a SET created_at = created_at - interval '1 day', claimed_at = claimed_at - interval '1 day', first_claimed_at = first_claimed_at - interval '1 day',
		lease_until = lease_until - interval '1 day', due_at = due_at - interval '1 day', doubt_until = doubt_until - interval '1 day' WHERE a.key = $1;
	UPDATE idem.idem_events SET at = at - interval '1 day', claimed_at = claimed_at - interval '1 day' WHERE action_id = (SELECT a.action_id FROM idem.idem_actions a WHERE a.key = $1);
$$;
-- the lines of attempts, in order; of what follows only the kind
CREATE FUNCTION pg_temp.history(key text) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(CASE WHEN event ~ '^(claimed|handed)' THEN format('%s.%s %s %s%s', generation, attempt, event, worker, ' by ' || event_id)
		ELSE format('%s.%s %s', generation, attempt, event) END, ', ' ORDER BY at, id)
	FROM idem.history WHERE history.key = $1 AND event <> 'recorded'
$$;
-- hand-outs as explain_action tells them
CREATE FUNCTION pg_temp.told(key text) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(substring(line FROM 'attempt \d+(?: of generation \d+)? was handed out[^.;]*'), ', ' ORDER BY n)
	FROM idem.explain_action((SELECT action_id FROM idem.idem_actions a WHERE a.key = $1)) WITH ORDINALITY AS e (line, n)
	WHERE line LIKE '%was handed out%'
$$;
CREATE FUNCTION pg_temp.of(key text, OUT id uuid, OUT claim uuid, OUT revision bigint) LANGUAGE sql AS $$
	SELECT action_id, claim_id, a.revision FROM idem.idem_actions a WHERE a.key = $1
$$;

SELECT idem.define_rule('review', 'the key', 'support'),
	idem.define_rule('search', 'the key', 'support', on_uncertain => 'verify', settle => '0', max_attempts => 9),
	idem.define_rule('retry', 'the key', 'support', on_uncertain => 'retry', provider_window => '2 days', max_attempts => 9),
	idem.define_rule('repeat', 'the key', 'support', on_uncertain => 'repeat', max_attempts => 9) \g /dev/null

-- lapsed, swept, failed by the same claim, not happened, handed out again
SELECT outcome FROM idem.claim_action('twice', 'review', worker => 'w1') \g /dev/null
SELECT pg_temp.lapse('twice') \g /dev/null
CALL idem.run_maintenance();
SELECT (idem.fail_action(id, claim, 'timeout', 'unknown')).state FROM pg_temp.of('twice') \g /dev/null
SELECT (idem.resolve_action(id, 'not_happened', 'looked', revision)).state FROM pg_temp.of('twice') \g /dev/null
SELECT outcome FROM idem.claim_action('twice', 'review', worker => 'w2', event_id => 'evt-2') \g /dev/null
SELECT is(pg_temp.history('twice'), '1.1 claimed w1, 1.1 expired, 1.1 failed, 1.1 resolved, 1.2 claimed w2 by evt-2',
	'lapsed and failed: one line for the attempt, and one for the next, with its delivery');
SELECT is(pg_temp.told('twice'), 'attempt 1 was handed out (worker w1), attempt 2 was handed out (worker w2), event evt-2', 'lapsed and failed: in the story too');

-- the second attempt is a search that finds it; then the action is run again
SELECT outcome FROM idem.claim_action('found', 'search', worker => 'w1') \g /dev/null
SELECT pg_temp.lapse('found') \g /dev/null
SELECT outcome FROM idem.claim_action('found', 'search', worker => 'w2') \g /dev/null
SELECT (idem.verify_action(id, claim, true, 'ref')).outcome FROM pg_temp.of('found') \g /dev/null
SELECT (idem.rerun_action(id, 'again', revision)).state FROM pg_temp.of('found') \g /dev/null
SELECT is(pg_temp.history('found'), '1.1 claimed w1, 1.1 expired, 1.2 handed_out_to_verify w2, 1.2 succeeded, 1.2 rerun', 'found and run again: both hand-outs are there');
SELECT is(pg_temp.told('found'), 'attempt 1 of generation 1 was handed out (worker w1), attempt 2 of generation 1 was handed out (worker w2), to search first',
	'found and run again: in the story too');

-- a success after the lease, and one in time whose reference came later
SELECT outcome FROM idem.claim_action('late', 'review', worker => 'w1') \g /dev/null
SELECT pg_temp.lapse('late') \g /dev/null
SELECT (idem.complete_action(id, claim, 'ref')).state FROM pg_temp.of('late') \g /dev/null
SELECT (idem.rerun_action(id, 'again', revision)).state FROM pg_temp.of('late') \g /dev/null
SELECT is(pg_temp.history('late'), '1.1 claimed w1, 1.1 succeeded, 1.1 rerun', 'done after the lease, and run again');
SELECT outcome FROM idem.claim_action('joined', 'review', worker => 'w1') \g /dev/null
SELECT (idem.complete_action(id, claim)).state FROM pg_temp.of('joined') \g /dev/null
SELECT (idem.complete_action(id, claim, 'ref')).state FROM pg_temp.of('joined') \g /dev/null
SELECT (idem.rerun_action(id, 'again', revision)).state FROM pg_temp.of('joined') \g /dev/null
SELECT is(pg_temp.history('joined'), '1.1 claimed w1, 1.1 succeeded, 1.1 rerun', 'done, its reference known later, and run again');

-- an earlier holder succeeds while the next one holds; then a third
SELECT claim_id AS first FROM idem.claim_action('overtaken', 'repeat', worker => 'w1') \gset
SELECT pg_temp.lapse('overtaken') \g /dev/null
SELECT claim_id AS second FROM idem.claim_action('overtaken', 'repeat', worker => 'w2') \gset
SELECT (idem.complete_action(id, :'first', 'ref')).state FROM pg_temp.of('overtaken') \g /dev/null
SELECT is(ended_by, 'interrupted', 'overtaken: the claim that held has ended') FROM idem.actions WHERE key = 'overtaken';
SELECT matches(advice, 'Before ''not_happened'' stop worker w1 and worker w2: ', 'overtaken: its holder has to be stopped too') FROM idem.attention WHERE key = 'overtaken';
SELECT is(count(*), 2::bigint, 'overtaken: both in the story') FROM pg_temp.of('overtaken'), idem.explain_action(id) line WHERE line ~ '^Before "not_happened": stop the worker of attempt . \(worker w.\)';
SELECT (idem.resolve_action(id, 'not_happened', 'looked', revision)).state FROM pg_temp.of('overtaken') \g /dev/null
SELECT outcome FROM idem.claim_action('overtaken', 'repeat', worker => 'w3') \g /dev/null
SELECT is(pg_temp.history('overtaken'),
	'1.1 claimed w1, 1.1 expired, 1.2 claimed w2, 1.1 succeeded, 1.2 interrupted, 1.2 resolved, 1.3 claimed w3', 'overtaken: who held meanwhile is there');
SELECT is(pg_temp.told('overtaken'), 'attempt 1 was handed out (worker w1), attempt 2 was handed out (worker w2), attempt 3 was handed out (worker w3)', 'overtaken: in the story too');
SELECT doesnt_match((idem.complete_action(id, :'second', 'other')).note, 'never issued', 'overtaken: and the ledger knows its claim') FROM pg_temp.of('overtaken');

-- decided while it was held
SELECT outcome FROM idem.claim_action('decided', 'repeat', worker => 'w1') \g /dev/null
SELECT (idem.resolve_action(id, 'cancel', 'not wanted', revision)).state FROM pg_temp.of('decided') \g /dev/null
SELECT (idem.rerun_action(id, 'again', revision)).state FROM pg_temp.of('decided') \g /dev/null
SELECT is(pg_temp.history('decided'), '1.1 claimed w1, 1.1 interrupted, 1.1 resolved, 1.1 rerun', 'decided while it was held, and run again');

-- a search becomes a grant, is lost, and the next one searches again
SELECT outcome FROM idem.claim_action('searched', 'search', worker => 'w1') \g /dev/null
SELECT pg_temp.lapse('searched') \g /dev/null
SELECT outcome FROM idem.claim_action('searched', 'search', worker => 'w2') \g /dev/null
SELECT (idem.verify_action(id, claim, false)).outcome FROM pg_temp.of('searched') \g /dev/null
SELECT pg_temp.lapse('searched') \g /dev/null
SELECT outcome FROM idem.claim_action('searched', 'search', worker => 'w3') \g /dev/null
SELECT is(pg_temp.history('searched'),
	'1.1 claimed w1, 1.1 expired, 1.2 handed_out_to_verify w2, 1.2 searched, 1.2 expired, 1.3 handed_out_to_verify w3', 'a search that became a grant was a search');
SELECT is(pg_temp.told('searched'),
	'attempt 1 was handed out (worker w1), attempt 2 was handed out (worker w2), to search first, attempt 3 was handed out (worker w3), to search first', 'in the story too');

-- a search whose holder reports the success by complete_action
SELECT outcome FROM idem.claim_action('completed', 'search', worker => 'w1') \g /dev/null
SELECT pg_temp.lapse('completed') \g /dev/null
SELECT outcome FROM idem.claim_action('completed', 'search', worker => 'w2') \g /dev/null
SELECT (idem.complete_action(id, claim, 'ref')).state FROM pg_temp.of('completed') \g /dev/null
SELECT is(pg_temp.history('completed'), '1.1 claimed w1, 1.1 expired, 1.2 handed_out_to_verify w2, 1.2 succeeded', 'a search that was completed was a search');

-- pending, until the provider's window is over
SELECT outcome FROM idem.claim_action('window', 'retry', worker => 'w1') \g /dev/null
SELECT (idem.fail_action(id, claim, 'timeout', retry_after => '0')).state FROM pg_temp.of('window') \g /dev/null
SELECT pg_temp.lapse('window') FROM generate_series(1, 3) \g /dev/null
SELECT is(reason, 'provider_window_over', 'the window is over') FROM idem.claim_action('window', 'retry', worker => 'w2');
SELECT is(pg_temp.history('window'), '1.1 claimed w1, 1.1 failed, 1.1 needs_attention', 'and a line says so');
SELECT is(detail ->> 'reason', 'provider_window_over', 'with the reason') FROM idem.history WHERE key = 'window' AND event = 'needs_attention';
SELECT is(count(*), 1::bigint, 'in the story too') FROM pg_temp.of('window'), idem.explain_action(id) line WHERE line ~ 'so a person decides; reason provider_window_over';

-- put back to an older moment
SELECT outcome FROM idem.claim_action('restored', 'review', worker => 'w1') \g /dev/null
SELECT idem.after_restore(clock_timestamp(), 'the disk') \g /dev/null
SELECT (idem.resolve_action(id, 'not_happened', 'looked', revision)).state FROM pg_temp.of('restored') \g /dev/null
SELECT outcome FROM idem.claim_action('restored', 'review', worker => 'w2') \g /dev/null
SELECT is(pg_temp.history('restored'), '1.1 claimed w1, 1.1 restored, 1.1 resolved, 1.2 claimed w2', 'held while the ledger was put back');

--
-- What is said is so
--

-- a success after the attempt's own report: no lease had ended
SELECT outcome FROM idem.claim_action('after all', 'review') \g /dev/null
SELECT (idem.fail_action(id, claim, 'timeout')).state FROM pg_temp.of('after all') \g /dev/null
SELECT doesnt_match((idem.complete_action(id, claim, 'ref')).note, 'lease', 'a success after a failure: nothing is said of a lease') FROM pg_temp.of('after all');

-- a claim that the ledger never issued: in the note, in the history and in the story
CREATE FUNCTION pg_temp.stranger(key text, ref text) RETURNS text LANGUAGE sql AS $$
	SELECT (idem.complete_action(id, '6f1c2b1e-0000-4000-8000-000000000009', ref)).note FROM pg_temp.of($1)
$$;
SELECT count(*) FROM idem.claim_actions('review', '{"stranger, held","stranger, done"}') \g /dev/null
SELECT (idem.complete_action(id, claim, 'ref')).state FROM pg_temp.of('stranger, done') \g /dev/null
SELECT matches(pg_temp.stranger('stranger, done', 'ref'), 'never issued this claim', 'a success by a claim never issued, known: the note');
SELECT matches(pg_temp.stranger('stranger, done', 'other'), 'another success.*never issued this claim', 'another success: the note');
SELECT matches(pg_temp.stranger('stranger, held', 'ref'), 'never issued this claim', 'a first success: the note');
SELECT is(count(*), n, 'the history: ' || k) FROM (VALUES ('stranger, done', 2::bigint), ('stranger, held', 1)) AS v (k, n)
JOIN idem.history h ON h.key = k AND h.event = 'succeeded' AND h.attempt = 0 GROUP BY k, n;
SELECT is(count(*), 2::bigint, 'a first success: the story')
FROM pg_temp.of('stranger, held'), idem.explain_action(id) line WHERE line ~ 'a claim that the ledger never issued reported success|Known: a success was reported \(reference ref\) by a claim that the ledger never issued';
SELECT is(count(*), 0::bigint, 'and not by a claim that held it once') FROM pg_temp.of('stranger, held'), idem.explain_action(id) line WHERE line ~ 'did not hold the action any more';

--
-- Names from outside forge nothing: a line break in an event's id, a source, a
-- worker, a key or a person's name makes no second call to follow, in the advice
-- of view attention, in the story and in notes
--
SELECT E'evt-1.\nSELECT idem.resolve_action(\'x\', \'happened\', \'ok\', 9);' AS evil \gset
SELECT outcome FROM idem.claim_action(:'evil', 'review', worker => :'evil', source => :'evil', event_id => :'evil') \g /dev/null
SELECT (idem.fail_action(id, claim, :'evil')).state FROM pg_temp.of(:'evil') \g /dev/null
SELECT is(array_length(string_to_array(advice, E'\n'), 1), 1, 'advice: one line'),
	matches(advice, $$replay event E'evt-1\.\\x0ASELECT idem\.resolve_action\(''x'', ''happened'', ''ok'', 9\);' of E'evt-1$$, 'advice: the name is a literal')
FROM idem.attention WHERE key = :'evil';
SELECT is(count(*) FILTER (WHERE line ~ '[[:cntrl:]]'), 0::bigint, 'story: no line is broken'),
	is(count(*) FILTER (WHERE line ~ '^[^'']*SELECT idem.resolve_action'), 0::bigint, 'story: outside of a literal there is no such call')
FROM pg_temp.of(:'evil'), idem.explain_action(id) line WHERE line !~ 'failed, effect unknown';
SELECT action_id AS id FROM idem.enqueue_action('note', 'review', draft => '1') \gset
SELECT (idem.revise_action(:'id', '2', 1, actor => :'evil')).accepted \g /dev/null
SELECT doesnt_match((idem.cancel_action(:'id', revision => 1)).note, E'\n', 'note: one line');

SELECT is(idem.quote_label(name), quoted, name) FROM (VALUES
	('evt_1', 'evt_1'),
	('https://example.com/a-b.c@d+e#f=~', 'https://example.com/a-b.c@d+e#f=~'),
	('Zoë', 'Zoë'),
	('Ann Smith', '''Ann Smith'''),
	('O''Hara', '''O''''Hara'''),
	('', ''''''),
	('a;b', '''a;b'''),
	('a\b', 'E''a\\b'''),
	(E'a\tb', 'E''a\x09b'''),
	(E'a\u0085b\u2028c\u202Ed', 'E''a\u0085b\u2028c\u202Ed''')) AS v (name, quoted);

SELECT * FROM finish();
