--
-- The doubt list, the fail rules and the counters: what becomes of an attempt
-- whose outcome nobody knows.
--
-- Every combination of what the list looks at is built and judged.  The
-- expectation is doubt.wanted(), which is the doubt list of docs/states.md in SQL.
--
CREATE SCHEMA doubt;
SET search_path = doubt, public;

SELECT idem.define_rule(intent => concat(on_uncertain, ' marks'), unique_by => 'event', resolved_by => 'the team',
	on_uncertain => on_uncertain, marks_effect => true, provider_window => '1 day') <> '' AND
	idem.define_rule(intent => on_uncertain, unique_by => 'event', resolved_by => 'the team',
	on_uncertain => on_uncertain, marks_effect => false, provider_window => '1 day') <> '' AS defined
FROM unnest('{review,retry,repeat}'::text[]) AS on_uncertain \g /dev/null

--
-- The combinations
--
CREATE TABLE attempt AS
SELECT row_number() OVER ()::int AS n, *
FROM unnest('{review,retry,repeat}'::text[]) AS on_uncertain,
	unnest('{unmarked,"not begun",begun}'::text[]) AS effect,
	unnest('{f,t}'::boolean[]) AS uncertain_before,
	unnest('{f,t}'::boolean[]) AS cancel_requested,
	unnest('{0,2}'::int[]) AS lost,				-- of max_attempts 3
	unnest('{f,t}'::boolean[]) AS window_over,
	unnest('{claim,claims,unknown,none,refused,release}'::text[]) AS what,
	unnest('{held,lapsed,judged}'::text[]) AS lease
WHERE (on_uncertain = 'retry' OR NOT window_over)
	AND (what NOT LIKE 'claim%' OR lease = 'lapsed')
	-- a person has to look: the only way in which judging is not a hand-out
	AND (lease <> 'judged' OR (cancel_requested OR on_uncertain = 'review')
		AND (effect <> 'not begun' OR uncertain_before));

/* the doubt list and the fail rules; the counters are what is added */
CREATE FUNCTION wanted(a attempt) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	claim		boolean := a.what LIKE 'claim%';
	ended		boolean := claim OR a.what = 'unknown';
	lost		int := a.lost + ended::int;
	counts		text := concat_ws(', ',
		/* "once": a lease that has been judged is not lost again */
		CASE WHEN ended AND a.lease <> 'judged' THEN 'lost +1' END,
		CASE WHEN a.what = 'none' THEN 'failures +1' END);
	goes_on		text := CASE WHEN claim THEN 'claimed' ELSE 'pending later' END;
	doubt		text := 'uncertain';
	becomes		text;
BEGIN
	IF a.what = 'release' AND a.effect = 'begun' THEN
		RETURN 'refused';
	END IF;

	IF a.what = 'refused' THEN
		becomes := CASE WHEN a.uncertain_before THEN 'needs_attention(outcome_unknown)' ELSE 'failed' END;
		doubt := CASE WHEN a.uncertain_before THEN 'uncertain' ELSE 'certain' END;
	ELSIF a.what = 'release' THEN
		doubt := CASE WHEN a.uncertain_before THEN 'uncertain' ELSE 'certain' END;
		becomes := CASE WHEN NOT a.cancel_requested THEN 'pending now'
			WHEN a.uncertain_before THEN 'needs_attention(outcome_unknown)' ELSE 'cancelled' END;
	ELSIF a.what = 'none' AND NOT a.uncertain_before THEN
		doubt := 'certain';
		becomes := CASE WHEN a.cancel_requested THEN 'cancelled' ELSE 'pending later' END;

	/* 1. this attempt did nothing */
	ELSIF ended AND a.effect = 'not begun' AND NOT a.uncertain_before THEN
		doubt := 'certain';
		becomes := CASE WHEN a.cancel_requested THEN 'cancelled'
			WHEN lost >= 3 THEN 'needs_attention(attempts_exhausted)'
			WHEN claim THEN 'claimed' ELSE 'pending now' END;
	/* 2. */
	ELSIF a.cancel_requested OR a.on_uncertain = 'review' THEN
		becomes := CASE WHEN claim THEN 'needs_attention(lease_expired)' ELSE 'needs_attention(outcome_unknown)' END;
	/* 3. */
	ELSIF lost >= 3 THEN
		becomes := 'needs_attention(attempts_exhausted)';
	/* 4. */
	ELSIF a.on_uncertain = 'repeat' THEN
		becomes := goes_on;
	/* 5. */
	ELSIF a.on_uncertain = 'retry' THEN
		becomes := CASE WHEN a.window_over THEN 'needs_attention(provider_window_over)' ELSE goes_on END;
	END IF;
	RETURN concat_ws(', ', becomes, doubt, nullif(counts, ''));
END
$$;

CREATE FUNCTION row_of(id uuid) RETURNS idem.idem_actions LANGUAGE sql AS
	'SELECT * FROM idem.idem_actions WHERE action_id = id';

CREATE FUNCTION seen(a attempt) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	intent	text := a.on_uncertain || CASE WHEN a.effect = 'unmarked' THEN '' ELSE ' marks' END;
	id		uuid := idem.action_id(a.n::text, intent);
	edge	timestamptz := clock_timestamp() + interval '5 min' - interval '1 day';
	c		idem.claim := idem.claim_action(a.n::text, intent);
	other	idem.claim;
	r		idem.report;
	was		idem.idem_actions;
	now		idem.idem_actions;
BEGIN
	UPDATE idem.idem_actions SET
		uncertain = a.uncertain_before,
		uncertain_before = a.uncertain_before,
		begun = (a.effect = 'begun'),
		cancel_requested = a.cancel_requested,
		lost = a.lost,
		/* the window ends with the lease of a hand-out: a second more, a minute less */
		first_claimed_at = CASE WHEN a.window_over THEN edge - interval '1 s' ELSE edge + interval '1 min' END,
		claimed_at = CASE WHEN a.lease = 'held' THEN claimed_at ELSE claimed_at - interval '10 min' END,
		lease_until = CASE WHEN a.lease = 'held' THEN lease_until ELSE clock_timestamp() - interval '1 s' END
	WHERE action_id = id;
	IF a.lease = 'judged' THEN
		other := idem.claim_action(a.n::text, intent);
		IF other.outcome <> 'needs_attention' OR other.reason <> 'lease_expired' THEN
			RETURN 'could not be built: ' || other;
		END IF;
	END IF;
	was := row_of(id);

	CASE a.what
		WHEN 'claim' THEN
			other := idem.claim_action(a.n::text, intent, worker => 'other');
		WHEN 'claims' THEN
			SELECT * INTO STRICT other FROM idem.claim_actions(intent, ARRAY[a.n::text], worker => 'other');
		WHEN 'release' THEN
			r := idem.release_action(id, c.claim_id);
		ELSE
			r := idem.fail_action(id, c.claim_id, 'error', a.what);
	END CASE;
	now := row_of(id);

	IF a.what LIKE 'claim%' AND other.granted <> (other.outcome = 'claimed') OR other.granted AND now.claim_id = c.claim_id THEN
		RETURN 'granted by mistake: ' || other;
	ELSIF a.what LIKE 'claim%' AND (SELECT count(*) FROM idem.idem_events e WHERE e.action_id = c.action_id AND e.claim_id = c.claim_id) <> 1 THEN
		RETURN 'the history does not tell that the claim was lost';
	ELSIF now.revision = was.revision AND NOT r.accepted THEN
		RETURN 'refused';
	END IF;
	RETURN concat_ws(', ',
		CASE WHEN other.granted THEN 'claimed' ELSE now.state || coalesce('(' || now.reason || ')',
			CASE WHEN now.due_at <= clock_timestamp() THEN ' now' WHEN now.due_at > clock_timestamp() THEN ' later' END, '') END,
		CASE WHEN now.uncertain OR now.state = 'failed' AND a.uncertain_before THEN 'uncertain' ELSE 'certain' END,
		'lost +' || nullif(now.lost - was.lost, 0), 'failures +' || nullif(now.failures - was.failures, 0));
END
$$;

SELECT plan((SELECT count(*) FROM attempt)::int + 63);

SELECT is(seen(a), wanted(a), concat_ws(', ', on_uncertain, effect, CASE WHEN uncertain_before THEN 'uncertain before' END,
	CASE WHEN cancel_requested THEN 'cancel requested' END, 'lost ' || lost, CASE WHEN window_over THEN 'window over' END, lease) || ': ' || what)
FROM attempt a ORDER BY n;

--
-- Cut out of that: words used below
--
CREATE FUNCTION lapse(key text, intent text) RETURNS void LANGUAGE sql AS $$
	UPDATE idem.idem_actions SET claimed_at = claimed_at - interval '10 min', lease_until = clock_timestamp() - interval '1 s'
	WHERE action_id = idem.action_id($1, $2) AND state = 'in_progress'
$$;
CREATE FUNCTION due(key text, intent text) RETURNS void LANGUAGE sql AS $$
	UPDATE idem.idem_queue SET due_at = clock_timestamp() - interval '1 s' WHERE action_id = idem.action_id($1, $2);
	UPDATE idem.idem_actions a SET due_at = q.due_at FROM idem.idem_queue q
	WHERE a.action_id = idem.action_id($1, $2) AND q.action_id = a.action_id
$$;
CREATE FUNCTION action(key text, intent text) RETURNS text LANGUAGE sql AS $$
	SELECT concat_ws(', ', state || coalesce('(' || reason || ')', ''), 'attempt ' || attempt, 'lost ' || lost, 'failures ' || failures,
		CASE WHEN uncertain THEN 'uncertain' END)
	FROM idem.idem_actions WHERE action_id = idem.action_id($1, $2)
$$;

--
-- A pending row in doubt is judged again when it is handed out
--
SELECT idem.define_rule(i, 'event', 'the team', on_uncertain => u, provider_window => '1 day', max_attempts => 2) <> '' AS defined
FROM (VALUES ('again repeat', 'repeat'), ('again retry', 'retry')) AS v (i, u) \g /dev/null
CREATE FUNCTION again(key text, intent text, change text DEFAULT 'lost = lost') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	c	idem.claim := idem.claim_action(key, intent);
BEGIN
	PERFORM idem.fail_action(c.action_id, c.claim_id, 'timeout');
	PERFORM due(key, intent);
	EXECUTE 'UPDATE idem.idem_actions SET ' || change || format(' WHERE action_id = %L', c.action_id);
	c := idem.claim_action(key, intent);
	RETURN c.outcome || ': ' || action(key, intent);
END
$$;
SELECT is(again('1', 'again repeat'), 'claimed: in_progress, attempt 2, lost 1, failures 0, uncertain', 'pending in doubt, repeat: handed out again, nothing lost');
SELECT is(again('1', 'again retry'), 'claimed: in_progress, attempt 2, lost 1, failures 0, uncertain', 'the same of retry');
SELECT is(again('2', 'again retry', 'first_claimed_at = first_claimed_at - interval ''23 hours 56 min'''),
	'needs_attention: needs_attention(provider_window_over), attempt 1, lost 1, failures 0, uncertain', 'while it would end within the window');
SELECT is(again('2', 'again repeat', 'lost = 2'),
	'needs_attention: needs_attention(attempts_exhausted), attempt 1, lost 2, failures 0, uncertain', 'and is not lost too often');

-- the lease that is asked for is the one that has to end within the window
SELECT idem.define_rule('asked', 'event', 'the team', on_uncertain => 'retry', provider_window => '1 hour') <> '' AS defined \g /dev/null
CREATE FUNCTION asked(key text, lease interval) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	c	idem.claim := idem.claim_action(key, 'asked');
BEGIN
	UPDATE idem.idem_actions SET first_claimed_at = clock_timestamp() - interval '30 min', claimed_at = clock_timestamp() - interval '30 min',
		lease_until = clock_timestamp() - interval '1 s' WHERE action_id = c.action_id;
	c := idem.claim_action(key, 'asked', lease => lease);
	RETURN concat_ws(' ', c.outcome, c.reason);
END
$$;
SELECT is(asked('1', NULL), 'claimed', 'A30: the lease of the rule ends within the window: handed out');
SELECT is(asked('2', '29 min 50 s'), 'claimed', 'a lease that ends just within it: handed out');
SELECT is(asked('3', '30 min 10 s'), 'needs_attention provider_window_over', 'a lease that ends after it: a person decides');
SELECT is((SELECT outcome || ' ' || reason FROM idem.claim_actions('asked', '{3}')), 'needs_attention provider_window_over', 'and goes on deciding');

-- the window counts from the first claim of the generation, not from a later one
SELECT is((SELECT first_claimed_at < claimed_at - interval '29 min' FROM idem.idem_actions WHERE intent = 'asked' AND key = '1'), true,
	'A38: the window counts from the first claim');

--
-- The window bounds every call that renews a lease, not the hand-out only
--
SELECT idem.define_rule('bounded', 'event', 'the team', on_uncertain => 'retry', provider_window => '3 s', lease => '1 s', retry_delay => '0') <> '' AS defined \g /dev/null
CREATE FUNCTION second_attempt(key text) RETURNS TABLE (id uuid, claim uuid) LANGUAGE plpgsql AS $$
DECLARE
	c	idem.claim := idem.claim_action(key, 'bounded');
BEGIN
	PERFORM idem.fail_action(c.action_id, c.claim_id, 'timeout', retry_after => '0');
	c := idem.claim_action(key, 'bounded');
	ASSERT c.granted AND c.attempt = 2;
	RETURN QUERY SELECT c.action_id, c.claim_id;
END
$$;
CREATE FUNCTION ends_with_window(id uuid) RETURNS boolean LANGUAGE sql AS $$
	SELECT lease_until = first_claimed_at + interval '3 s' FROM idem.idem_actions WHERE action_id = $1
$$;
SELECT * FROM second_attempt('begin') \gset
SELECT is(idem.begin_effect(:'id', :'claim', lease => '1 h') BETWEEN 0 AND 3, true, 'begin_effect(lease) answers the seconds that are left of the window');
SELECT is(ends_with_window(:'id'), true, 'and the lease ends with it');
SELECT * FROM second_attempt('extend') \gset
SELECT is(idem.extend_claim(:'id', :'claim', '1 h') BETWEEN 0 AND 3, true, 'so does extend_claim');
SELECT is(ends_with_window(:'id'), true, 'and the lease ends with the window');
SELECT * FROM second_attempt('extends') \gset
SELECT is((SELECT seconds_left BETWEEN 0 AND 3 FROM idem.extend_claims(ARRAY[:'id'::uuid], ARRAY[:'claim'::uuid], '1 h')), true, 'so does extend_claims');
UPDATE idem.idem_actions SET first_claimed_at = first_claimed_at - interval '3 s', claimed_at = claimed_at - interval '3 s' WHERE intent = 'bounded';
SELECT throws_ok(format('SELECT idem.extend_claim(%L, %L)', :'id', :'claim'), 'IA002', 'the provider window is over', 'after it extend_claim raises');
SELECT is((SELECT problem FROM idem.extend_claims(ARRAY[:'id'::uuid], ARRAY[:'claim'::uuid], '1 h')), 'the provider window is over', 'extend_claims says it');
\set ON_ERROR_STOP off
SELECT idem.begin_effect(:'id', :'claim', lease => '1 h') \g /dev/null
\set ON_ERROR_STOP on
SELECT is(:'SQLSTATE'::text, 'IA002', 'begin_effect(lease) raises');
SELECT is((SELECT accepted FROM idem.complete_action(:'id', :'claim', 'ref')), true, 'a late success is accepted');

--
-- Marks are those of the hand-out
--
SELECT idem.define_rule('marks change', 'event', 'the team', marks_effect => true) <> '' AS defined \g /dev/null
SELECT granted AS ok FROM idem.claim_action('1', 'marks change') \g /dev/null
SELECT idem.define_rule('marks change', 'event', 'the team', marks_effect => false) <> '' AS defined \g /dev/null
SELECT granted AS ok FROM idem.claim_action('2', 'marks change') \g /dev/null
SELECT lapse('1', 'marks change') \g /dev/null
SELECT is((SELECT outcome FROM idem.claim_action('1', 'marks change')), 'claimed', 'handed out under marks, not begun: did nothing, although the rule has changed');
SELECT idem.define_rule('marks change', 'event', 'the team', marks_effect => true) <> '' AS defined \g /dev/null
SELECT lapse('2', 'marks change') \g /dev/null
SELECT is((SELECT outcome FROM idem.claim_action('2', 'marks change')), 'needs_attention', 'handed out without marks: doubt, although the rule has changed');

--
-- an action that kills its worker is not handed out for ever
--
SELECT idem.define_rule('killer', 'event', 'the team', on_uncertain => 'repeat', max_attempts => 3) <> '' AS defined \g /dev/null
SELECT is((SELECT outcome || ' ' || attempt FROM idem.claim_action('1', 'killer')), 'claimed 1', 'attempt 1');
SELECT lapse('1', 'killer') \g /dev/null
SELECT is((SELECT outcome || ' ' || attempt FROM idem.claim_action('1', 'killer')), 'claimed 2', 'attempt 2');
SELECT lapse('1', 'killer') \g /dev/null
SELECT is((SELECT outcome || ' ' || attempt FROM idem.claim_action('1', 'killer')), 'claimed 3', 'attempt 3');
SELECT lapse('1', 'killer') \g /dev/null
SELECT is((SELECT outcome || ' ' || reason FROM idem.claim_action('1', 'killer')), 'needs_attention attempts_exhausted', 'no fourth');
SELECT is((SELECT outcome || ' ' || reason FROM idem.claim_action('1', 'killer')), 'needs_attention attempts_exhausted', 'and none later');
SELECT is(action('1', 'killer'), 'needs_attention(attempts_exhausted), attempt 3, lost 3, failures 0, uncertain', 'each was counted once');
SELECT is((SELECT array_agg(attempt ORDER BY id) FROM idem.idem_events WHERE intent = 'killer' AND action_id IS NOT NULL), '{1,2,3}', 'and each is in the history');
-- the same where the attempts had not begun
SELECT idem.define_rule('harmless killer', 'event', 'the team', marks_effect => true, max_attempts => 2) <> '' AS defined \g /dev/null
SELECT granted AS ok FROM idem.claim_action('1', 'harmless killer') \g /dev/null
SELECT lapse('1', 'harmless killer') \g /dev/null
SELECT is((SELECT outcome FROM idem.claim_action('1', 'harmless killer')), 'claimed', 'did nothing: handed out again');
SELECT lapse('1', 'harmless killer') \g /dev/null
SELECT is((SELECT outcome || ' ' || reason FROM idem.claim_action('1', 'harmless killer')), 'needs_attention attempts_exhausted', 'but not for ever');
SELECT is(action('1', 'harmless killer'), 'needs_attention(attempts_exhausted), attempt 2, lost 2, failures 0', 'and without doubt');

--
-- Doubt is sticky: a later clean failure does not clear it, a success does
--
SELECT idem.define_rule('sticky', 'event', 'the team', on_uncertain => 'repeat', retry_delay => '0', max_attempts => 100) <> '' AS defined \g /dev/null
CREATE FUNCTION attempt_sticky(effect text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	c	idem.claim := idem.claim_action('1', 'sticky');
BEGIN
	IF effect = 'release' THEN
		PERFORM idem.release_action(c.action_id, c.claim_id);
	ELSIF effect = 'success' THEN
		PERFORM idem.complete_action(c.action_id, c.claim_id);
	ELSE
		PERFORM idem.fail_action(c.action_id, c.claim_id, 'error', effect);
	END IF;
	RETURN action('1', 'sticky');
END
$$;
SELECT is(attempt_sticky('none'), 'pending, attempt 1, lost 0, failures 1', 'a clean failure leaves no doubt');
SELECT is(attempt_sticky('unknown'), 'pending, attempt 2, lost 1, failures 1, uncertain', 'an unknown one does');
SELECT is(attempt_sticky('none'), 'pending, attempt 3, lost 1, failures 2, uncertain', 'which a clean failure does not clear');
SELECT is(attempt_sticky('release'), 'pending, attempt 4, lost 1, failures 2, uncertain', 'nor a release');
SELECT is(attempt_sticky('success'), 'completed, attempt 5, lost 1, failures 2', 'a success does');

--
-- "As if valid": a lapse is taken back, and lost is counted once
--
SELECT idem.define_rule('taken back', 'event', 'the team') <> '' AS defined \g /dev/null
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('1', 'taken back') \gset
SELECT lapse('1', 'taken back') \g /dev/null
SELECT outcome FROM idem.claim_action('1', 'taken back') \g /dev/null
SELECT is(action('1', 'taken back'), 'needs_attention(lease_expired), attempt 1, lost 1, failures 0, uncertain', 'a lapse is judged');
SELECT is((SELECT accepted FROM idem.fail_action(:'id', :'claim', 'timeout')), true, 'then the holder says that it does not know either');
SELECT is(action('1', 'taken back'), 'needs_attention(outcome_unknown), attempt 1, lost 1, failures 0, uncertain', 'which is no second loss');
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('2', 'taken back') \gset
SELECT lapse('2', 'taken back') \g /dev/null
SELECT outcome FROM idem.claim_action('2', 'taken back') \g /dev/null
SELECT is((SELECT accepted FROM idem.release_action(:'id', :'claim')), true, 'or that it did nothing');
SELECT is(action('2', 'taken back'), 'pending, attempt 1, lost 1, failures 0', 'and it is free again, without doubt');
SELECT is((SELECT outcome FROM idem.claim_action('2', 'taken back')), 'claimed', 'for the next one');

--
-- The delay after a failure: doubling, jittered, at most an hour
--
SELECT idem.define_rule('slow', 'event', 'the team', retry_delay => '64 s', max_failures => 100, lease => '1 day') <> '' AS defined \g /dev/null
CREATE FUNCTION delay(key text, intent text, effect text DEFAULT 'none', retry_after interval DEFAULT NULL, error text DEFAULT 'error')
RETURNS double precision LANGUAGE plpgsql AS $$
DECLARE
	c		idem.claim;
	since	timestamptz;
	seconds	double precision;
BEGIN
	PERFORM due(key, intent);
	c := idem.claim_action(key, intent);
	since := clock_timestamp();
	PERFORM idem.fail_action(c.action_id, c.claim_id, error, effect, retry_after);
	SELECT extract(epoch FROM due_at - since) INTO seconds FROM idem.idem_actions WHERE action_id = c.action_id;
	RETURN seconds;
END
$$;
CREATE TABLE delays AS
SELECT key, nth, delay(key::text, 'slow') AS seconds FROM generate_series(1, 12) AS nth, generate_series(1, 40) AS key;
SELECT is((SELECT array_agg(nth) FROM (SELECT nth FROM delays GROUP BY nth
		HAVING max(seconds) > least(64 * 2 ^ (nth - 1), 3600) + 1 OR min(seconds) < least(64 * 2 ^ (nth - 1), 3600) / 2) AS s), NULL,
	'the nth delay is the first one doubled n - 1 times, at most an hour, and half of it is jitter');
SELECT cmp_ok((SELECT min(n) FROM (SELECT count(DISTINCT round(seconds::numeric, 3)) AS n FROM delays GROUP BY nth) AS s), '>', 30::bigint,
	'no two of 40 actions that failed together come back together');
SELECT cmp_ok((SELECT max(seconds) - min(seconds) FROM delays WHERE nth = 12), '>', 600::double precision, 'jitter also where it is an hour');
SELECT cmp_ok(delay('after', 'slow', 'none', '10 min'), '>', 500.0::double precision, 'retry_after goes before the growing delay');
SELECT cmp_ok((SELECT (idem.claim_action('after', 'slow')).retry_after), '>', 500.0::double precision, 'and is what not_due tells');
SELECT cmp_ok(delay('at once', 'slow', 'none', '0'), '<', 60.0::double precision, 'retry_after 0 is at once');
SELECT is((SELECT outcome FROM idem.claim_action('at once', 'slow')), 'claimed', 'indeed');
SELECT idem.define_rule('slow doubt', 'event', 'the team', on_uncertain => 'repeat', retry_delay => '64 s') <> '' AS defined \g /dev/null
SELECT cmp_ok(delay('1', 'slow doubt', 'unknown'), '>', 31.0::double precision, 'an unknown outcome that may be repeated waits as well');
SELECT cmp_ok(delay('2', 'slow doubt', 'unknown', '10 min'), '>', 500.0::double precision, 'or as long as it is told');
SELECT idem.define_rule('no delay', 'event', 'the team', retry_delay => '0') <> '' AS defined \g /dev/null
SELECT cmp_ok(delay('1', 'no delay'), '<', 60.0::double precision, 'retry_delay 0 is at once');
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('2', 'no delay') \gset
SELECT throws_ok(format('SELECT idem.fail_action(%L, %L, %L, %L, %L)', :'id', :'claim', 'error', 'none', '-1 s'), '22023', NULL, 'a negative retry_after is refused');
SELECT is((SELECT count(*) FROM idem.idem_actions WHERE due_at > '20000-01-01' OR due_at < '2000-01-01'), 0::bigint, 'none of them is out of this world');
SELECT throws_ok(format('SELECT idem.fail_action(%L, %L, %L, %L, %L)', :'id', :'claim', 'error', 'none', '296525 years'), '22023', NULL, 'a retry_after that no calendar has is refused');
SELECT is((SELECT count(*) FROM idem.idem_actions WHERE due_at > '20000-01-01' OR due_at < '2000-01-01'), 0::bigint, 'and not stored: the row could not be read again');

--
-- max_failures
--
SELECT idem.define_rule('twice', 'event', 'the team', retry_delay => '0', max_failures => 2) <> '' AS defined \g /dev/null
SELECT delay('1', 'twice') \g /dev/null
SELECT is(action('1', 'twice'), 'pending, attempt 1, lost 0, failures 1', 'one clean failure of two');
SELECT delay('1', 'twice') \g /dev/null
SELECT is(action('1', 'twice'), 'needs_attention(failures_exhausted), attempt 2, lost 0, failures 2', 'the second is the last');
-- "none" while uncertain is counted like any other
SELECT idem.define_rule('twice doubt', 'event', 'the team', on_uncertain => 'repeat', retry_delay => '0', max_failures => 2) <> '' AS defined \g /dev/null
SELECT delay('1', 'twice doubt', 'unknown') \g /dev/null
SELECT delay('1', 'twice doubt') \g /dev/null
SELECT is(action('1', 'twice doubt'), 'pending, attempt 2, lost 1, failures 1, uncertain', 'in doubt, one clean failure of two');
SELECT delay('1', 'twice doubt') \g /dev/null
SELECT is(action('1', 'twice doubt'), 'needs_attention(failures_exhausted), attempt 3, lost 1, failures 2, uncertain', 'the second is the last there too');
-- an unknown outcome is no clean failure
SELECT idem.define_rule('thrice', 'event', 'the team', on_uncertain => 'repeat', retry_delay => '0', max_failures => 1, max_attempts => 3) <> '' AS defined \g /dev/null
SELECT delay('1', 'thrice', 'unknown'), delay('1', 'thrice', 'unknown') \g /dev/null
SELECT is(action('1', 'thrice'), 'pending, attempt 2, lost 2, failures 0, uncertain', 'unknown outcomes are lost, not failed');
SELECT delay('1', 'thrice', 'unknown') \g /dev/null
SELECT is(action('1', 'thrice'), 'needs_attention(attempts_exhausted), attempt 3, lost 3, failures 0, uncertain', 'up to max_attempts');

--
-- A33: a failure is unknown unless told otherwise
--
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('default', 'taken back') \gset
SELECT is((SELECT state FROM idem.fail_action(:'id', :'claim', 'timeout')), 'needs_attention', 'A33: the default effect is unknown');
SELECT is(action('default', 'taken back'), 'needs_attention(outcome_unknown), attempt 1, lost 1, failures 0, uncertain', 'A33: so a person has to look');

SELECT * FROM finish();
