--
-- What a teammate sees of the articles' four drills (REQUIREMENTS A43, A44):
-- the same event twice, two at once, a retry after a timeout, a restart right
-- after the tool succeeded.  Times are replaced by their order of magnitude.
--
SELECT plan(7);

SELECT idem.define_rule('send-reply', 'one reply for each request', 'the support lead', marks_effect => true) \g /dev/null

-- a story with its times and ids replaced
CREATE FUNCTION pg_temp.story(key text) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(replace(regexp_replace(line, '\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?[-+]\d\d', 'TIME', 'g'),
		idem.action_id(key, 'send-reply')::text, 'ID'), E'\n')
	FROM idem.explain_action(idem.action_id(key, 'send-reply')) AS line
$$;
CREATE FUNCTION pg_temp.lapse(key text) RETURNS void LANGUAGE sql AS $$
	UPDATE idem.idem_actions a SET claimed_at = claimed_at - interval '1 hour', first_claimed_at = first_claimed_at - interval '1 hour',
		lease_until = lease_until - interval '1 hour' WHERE a.key = $1
$$;

-- the same event twice
SELECT action_id, claim_id FROM idem.claim_action('twice', 'send-reply', worker => 'worker-1', source => 'queue', event_id => 'evt-1') \gset
SELECT idem.begin_effect(:'action_id', :'claim_id') \g /dev/null
SELECT idem.complete_action(:'action_id', :'claim_id', 'msg-1') \g /dev/null
SELECT outcome FROM idem.claim_action('twice', 'send-reply', worker => 'worker-2', source => 'queue', event_id => 'evt-1') \g /dev/null
SELECT is(pg_temp.story('twice'),
'Action "send-reply" for key "twice".
TIME: first seen, event evt-1 from queue.
TIME: attempt 1 was handed out (worker worker-1); it said that it acts.
Known: the action took effect (reference msg-1) on TIME.
Next: nothing. A repeat gets this result; rerun_action does it once more on purpose.', 'the same event twice');

-- two at once
SELECT outcome FROM idem.claim_action('at-once', 'send-reply', worker => 'worker-1') \g /dev/null
SELECT outcome FROM idem.claim_action('at-once', 'send-reply', worker => 'worker-2') \g /dev/null
SELECT is(pg_temp.story('at-once'),
'Action "send-reply" for key "at-once".
TIME: first seen.
TIME: attempt 1 was handed out (worker worker-1).
TIME: its lease ends.
Known: worker-1 holds it.
Not known: whether it has taken effect yet.
Next: wait for its report or the end of its lease.', 'two at once');

-- a retry after a timeout
SELECT action_id, claim_id FROM idem.claim_action('timeout', 'send-reply', worker => 'worker-1') \gset
SELECT idem.begin_effect(:'action_id', :'claim_id') \g /dev/null
SELECT idem.fail_action(:'action_id', :'claim_id', 'timed out after 30 s') \g /dev/null
SELECT outcome FROM idem.claim_action('timeout', 'send-reply', worker => 'worker-2') \g /dev/null
SELECT is(pg_temp.story('timeout'),
'Action "send-reply" for key "timeout".
TIME: first seen.
TIME: attempt 1 was handed out (worker worker-1); it said that it acts.
TIME: attempt 1 failed, effect unknown: timed out after 30 s.
Known: nobody acts on it now; reason outcome_unknown.
Not known: whether its attempt took effect.
Next: the support lead searches outside for ID, then calls resolve_action(''ID'', ''happened'' or ''not_happened'' or ''cancel'', note, 3).', 'a retry after a timeout');

-- a restart right after the tool succeeded
SELECT action_id, claim_id FROM idem.claim_action('restart', 'send-reply', worker => 'worker-1') \gset
SELECT idem.begin_effect(:'action_id', :'claim_id') \g /dev/null
SELECT pg_temp.lapse('restart') \g /dev/null
SELECT outcome FROM idem.claim_action('restart', 'send-reply', worker => 'worker-2') \g /dev/null
SELECT is(pg_temp.story('restart'),
'Action "send-reply" for key "restart".
TIME: first seen.
TIME: attempt 1 was handed out (worker worker-1); it said that it acts.
TIME: the lease of attempt 1 (worker worker-1) ended without a report; it had said that it acts.
Known: nobody acts on it now; reason lease_expired.
Not known: whether its attempt took effect.
Next: the support lead searches outside for ID, then calls resolve_action(''ID'', ''happened'' or ''not_happened'' or ''cancel'', note, 3).', 'a restart right after the tool succeeded');

-- whoever reads it has a time zone of their own, all times are in it
SET TimeZone = 'Asia/Kathmandu';
SELECT is(count(*) FILTER (WHERE line ~ '^....-..-.. ..:..:..(\.\d+)?\+05:45: '), 3::bigint, 'times of the reader')
FROM idem.explain_action(idem.action_id('restart', 'send-reply')) AS line;
SELECT is((detail ->> 'lease_until')::timestamptz < now(), true, 'the history has them too')
FROM idem.history WHERE event = 'expired' AND key = 'restart';

-- nor does a change of a rule depend on how its session prints intervals
SET IntervalStyle = 'iso_8601';
SELECT idem.define_rule('send-reply', 'one reply for each request', 'the support lead', lease => '10 minutes') \g /dev/null
SELECT is(detail ->> 'lease', '00:10:00', 'an interval in the history') FROM idem.history WHERE event = 'rule_defined' AND intent = 'send-reply' ORDER BY at DESC, id DESC LIMIT 1;

SELECT * FROM finish();
