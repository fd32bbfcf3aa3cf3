--
-- What a teammate sees of the articles' four drills:
-- the same event twice, two at once, a retry after a timeout, a restart right
-- after the tool succeeded.  Times are replaced by their order of magnitude.
-- And that no story tells what nobody knows.
--
SELECT plan(27);

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
Next: the support lead searches outside for ID, then calls resolve_action(''ID'', ''happened'' or ''not_happened'' or ''cancel'', note, 3).
Before "not_happened": stop the worker of attempt 1 (worker worker-1); it may still act.', 'a restart right after the tool succeeded');

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

--
-- Nothing is told that nobody knows
--
SELECT idem.define_rule('search', 'the key', 'support', on_uncertain => 'verify', settle => '0', rerun_by => 'worker') \g /dev/null
CREATE FUNCTION pg_temp.tells(key text, what text) RETURNS bigint LANGUAGE sql AS $$
	SELECT count(*) FROM idem.explain_action(idem.action_id(key, 'search')) AS line WHERE line ~ what
$$;
/* an action whose first attempt is in doubt, and its second one a search */
CREATE FUNCTION pg_temp.searching(key text) RETURNS idem.claim LANGUAGE plpgsql AS $$
DECLARE
	c idem.claim := idem.claim_action(key, 'search', in_transaction => true);
BEGIN
	PERFORM idem.fail_action(c.action_id, c.claim_id, 'timeout', retry_after => '0');
	RETURN idem.claim_action(key, 'search', in_transaction => true);
END
$$;

-- a claim that may search stays one in the story and in the history, whatever it ends with
CREATE TABLE searches AS SELECT c.* FROM unnest('{held,found,absent,inconclusive,failed,released,completed}'::text[]) AS k, LATERAL pg_temp.searching(k) AS c;
SELECT is(count(*), 7::bigint, 'seven searches') FROM searches WHERE outcome = 'verify';
SELECT (idem.verify_action(action_id, claim_id, true, 'ref')).outcome FROM searches WHERE key = 'found' \g /dev/null
SELECT (idem.verify_action(action_id, claim_id, false)).outcome FROM searches WHERE key = 'absent' \g /dev/null
SELECT (idem.verify_action(action_id, claim_id, NULL)).outcome FROM searches WHERE key = 'inconclusive' \g /dev/null
SELECT (idem.fail_action(action_id, claim_id, 'the search is down')).state FROM searches WHERE key = 'failed' \g /dev/null
SELECT (idem.release_action(action_id, claim_id)).state FROM searches WHERE key = 'released' \g /dev/null
SELECT (idem.verify_action(action_id, claim_id, false)).outcome FROM searches WHERE key = 'completed' \g /dev/null
SELECT (idem.complete_action(action_id, claim_id, 'ref')).state FROM searches WHERE key = 'completed' \g /dev/null
SELECT is((SELECT array_agg(event ORDER BY attempt) FROM idem.history h WHERE h.action_id = s.action_id AND event ~ 'claimed|handed'),
	'{claimed,handed_out_to_verify}', 'a search: ' || key)
FROM searches s WHERE key <> 'held';
SELECT is(pg_temp.tells(key, 'attempt 2 was handed out, to search first'), 1::bigint, 'in the story: ' || key)
FROM searches s WHERE key <> 'held';

-- but not one that was handed out to act, and says that it found the effect there
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('granted', 'search') \gset
SELECT (idem.verify_action(:'id', :'claim', true, 'ref')).outcome \g /dev/null
SELECT is((SELECT array_agg(event) FROM idem.history WHERE action_id = :'id' AND event ~ 'claimed|handed'), '{claimed}', 'no search');

-- what became of the doubt
SELECT (idem.rerun_action(s.action_id, 'again', a.revision)).state FROM searches s JOIN idem.actions a USING (action_id) WHERE s. key = 'inconclusive' \g /dev/null
SELECT is(pg_temp.tells('inconclusive', 'Known: generation 2 has not taken effect'), 1::bigint, 'a rerun says nothing of the attempts before it');
SELECT is((SELECT count(*) FROM idem.cancel_action(idem.action_id('failed', 'search'))), 1::bigint, 'cancelled in doubt');
SELECT (idem.resolve_action(action_id, 'cancel', 'nobody wants it', revision)).state FROM idem.actions WHERE intent = 'search' AND key = 'failed' \g /dev/null
SELECT is(pg_temp.tells('failed', 'cancelled; what its attempts did is told above'), 1::bigint, 'nor that it was cancelled in time');

-- a claim that the ledger never handed out, what was done before, what is paused
SELECT (idem.fail_action(action_id, gen_random_uuid(), 'x')).note FROM searches WHERE key = 'held' \g /dev/null
SELECT is(pg_temp.tells('held', 'a claim that the ledger never issued failed, effect unknown: x; it is kept as evidence'), 1::bigint, 'an unknown claim is no attempt');
SELECT idem.import_actions('search', '{imported}') \g /dev/null
SELECT is(pg_temp.tells('imported', 'Known: the action was done before: import_actions entered it on'), 1::bigint, 'when an imported action was done is not known');
SELECT (idem.enqueue_action('paused', 'search')).outcome \g /dev/null
SELECT idem.pause_intent('search', 'a test') \g /dev/null
SELECT is(pg_temp.tells('paused', 'Next: nothing is handed out while the intent is paused'), 1::bigint, 'paused');
SELECT idem.resume_intent('search') \g /dev/null

SELECT * FROM finish();
