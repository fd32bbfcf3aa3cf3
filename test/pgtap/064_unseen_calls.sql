--
-- What may not be seen is not told by a call either.
--
-- find_action outside of a rule's roles answers unknown, and on an intent with
-- confidential keys without the action_id, which is a keyed digest of the key.
-- take_actions with the call_id of somebody else's take answers nothing of what
-- that take holds, unless it asks for the same intents and scope as the same
-- worker, in the rule's worker_role.  Pausing and resuming all intents takes the
-- right over each of them.
--
SELECT plan(37);

CREATE ROLE regress_idem_team;
CREATE ROLE regress_idem_member IN ROLE regress_idem_team;
CREATE ROLE regress_idem_outside;
SELECT idem.grant_access(r::regrole, 'operator') FROM unnest('{regress_idem_member,regress_idem_outside}'::text[]) r \g /dev/null

--
-- find_action
--
COPY (SELECT 'u1 ' || repeat('5', 64)) TO PROGRAM 'umask 077; cat > pgtap_unseen.txt';
ALTER SYSTEM SET idem_action.secret_file = 'pgtap_unseen.txt';
SELECT pg_reload_conf() \g /dev/null
-- ends once the setting has come
SELECT $$DO 'BEGIN IF current_setting(''idem_action.secret_file'') = '''' THEN PERFORM pg_sleep(0.2); END IF; END'$$
FROM generate_series(1, 100) \gexec
SELECT idem.use_secret('u1') \g /dev/null
SELECT idem.define_rule('call', 'the number', 'the team', confidential_key => true, worker_role => 'regress_idem_team', resolver_role => 'regress_idem_team'),
	idem.define_rule('mail', 'the address', 'the team', worker_role => 'regress_idem_team', resolver_role => 'regress_idem_team'),
	idem.define_rule('post', 'the letter', 'anybody') \g /dev/null

SET ROLE regress_idem_member;
SELECT action_id AS called FROM idem.claim_action('+4930V', 'call') \gset
SELECT action_id AS mailed FROM idem.claim_action('jane', 'mail') \gset
SELECT is((SELECT concat_ws(' ', outcome, action_id) FROM idem.find_action('+4930V', 'call')), 'in_progress ' || :'called', 'a member finds the action and its keyed id');
SELECT isnt((SELECT action_id FROM idem.find_action('+4930W', 'call')), NULL, 'and the id of a key that is not known');

SET ROLE regress_idem_outside;
SELECT is((SELECT f FROM idem.find_action('+4930V', 'call') f)::text, (SELECT f FROM idem.find_action('+4930W', 'call') f)::text,
	'others hear the same of a known confidential key as of an unknown one');
SELECT is((SELECT concat_ws(' ', outcome, action_id, provider_key, key) FROM idem.find_action('+4930V', 'call')), 'unknown', 'and neither an id nor the key');
SELECT is((SELECT concat_ws(' ', outcome, action_id) FROM idem.find_action('jane', 'mail')), 'unknown ' || :'mailed', 'of a plain key they hear the id, which everybody can compute');
RESET ROLE;

--
-- A take's replay
--
SELECT count(*) FROM idem.enqueue_actions('mail', '{1,2}', scope => 'blue') \g /dev/null
SELECT count(*) FROM idem.enqueue_actions('mail', '{3}', scope => 'red') \g /dev/null
SELECT gen_random_uuid() AS call \gset
CREATE FUNCTION taken(intents text[], call uuid, worker text DEFAULT 'w1', scope text DEFAULT NULL) RETURNS text LANGUAGE sql AS $$
	SELECT coalesce(string_agg(t.key, ',' ORDER BY t.key), 'nothing')
	FROM idem.take_actions(intents, max => 10, worker => worker, scope => scope, call_id => call, in_transaction => true) t
$$;
SET ROLE regress_idem_member;
SELECT is(taken('{mail}', :'call'), '1,2,3', 'a take');
SELECT is(taken('{mail}', :'call'), '1,2,3', 'the same call again');
SELECT is(taken('{post,mail}', :'call'), '1,2,3', 'one that asks for more intents');
SELECT is(taken('{mail}', :'call', scope => 'blue'), '1,2', 'one that asks for a scope');
SELECT is(taken('{mail}', :'call', scope => 'green'), 'nothing', 'or for another');
SELECT is(taken('{post}', :'call'), 'nothing', 'one that asks for another intent');
SELECT is(taken('{mail}', :'call', worker => 'w2'), 'nothing', 'another worker''s');
SELECT is(taken('{mail}', :'call', worker => NULL), 'nothing', 'or one of no name');
SET ROLE regress_idem_outside;
SELECT is(taken('{post}', :'call'), 'nothing', 'outside of worker_role: another intent');
SELECT throws_ok(format('SELECT taken(''{mail}'', %L)', :'call'), 'IA008', NULL, 'the intent itself');
SELECT is(taken('{post,mail}', :'call'), 'nothing', 'both');
RESET ROLE;
SELECT is((SELECT count(*) FROM idem.idem_actions WHERE intent = 'mail' AND state = 'in_progress' AND worker = 'w1' AND attempt = 1), 3::bigint, 'and nothing changed by it');

-- likewise for searches
SELECT idem.define_rule('search', 'the letter', 'the team', worker_role => 'regress_idem_team', on_uncertain => 'verify', settle => '0', retry_delay => '0') \g /dev/null
SELECT gen_random_uuid() AS call \gset
SET ROLE regress_idem_member;
SELECT count(*) FROM idem.enqueue_actions('search', '{1}') \g /dev/null
SELECT count(*) FROM idem.take_actions('{search}', in_transaction => true) t, idem.fail_action(t.action_id, t.claim_id, 'reset', 'unknown') \g /dev/null
SELECT is((SELECT count(*) FROM idem.take_to_verify('{search}', call_id => :'call', in_transaction => true)), 1::bigint, 'a take to verify');
SELECT is((SELECT count(*) FROM idem.take_to_verify('{search}', call_id => :'call', in_transaction => true)), 1::bigint, 'again');
SET ROLE regress_idem_outside;
SELECT is((SELECT count(*) FROM idem.take_to_verify('{post}', call_id => :'call', in_transaction => true)), 0::bigint, 'by others');
RESET ROLE;

--
-- All intents at once
--
SELECT idem.define_rule('search', 'the letter', 'anybody'), idem.define_rule('call', 'the number', 'the team', confidential_key => true) \g /dev/null
SELECT is((SELECT string_agg(intent, ',') FROM idem.idem_rules WHERE resolver_role IS NOT NULL), 'mail', 'one rule has a resolver_role');
CREATE FUNCTION paused() RETURNS boolean LANGUAGE sql AS $$SELECT EXISTS (SELECT FROM idem.idem_state WHERE kind = 'pause' AND name = '')$$;
SET ROLE regress_idem_outside;
SELECT lives_ok($$SELECT idem.pause_intent('post', 'a moment')$$, 'an operator outside of it pauses another intent');
SELECT lives_ok($$SELECT idem.resume_intent('post')$$, 'and resumes it');
SELECT throws_ok($$SELECT idem.pause_intent('mail', 'a moment')$$, 'IA008', NULL, 'but not the one');
SELECT throws_ok($$SELECT idem.pause_intent(NULL, 'a moment')$$, 'IA008', 'permission denied to pause or resume all intents', 'and so not all');
RESET ROLE;
SELECT ok(NOT paused(), 'nothing is paused');
SET ROLE regress_idem_member;
SELECT lives_ok($$SELECT idem.pause_intent(NULL, 'a moment')$$, 'who is in every resolver_role pauses all');
RESET ROLE;
SELECT ok(paused(), 'all is paused');
SET ROLE regress_idem_outside;
SELECT throws_ok('SELECT idem.resume_intent(NULL)', 'IA008', NULL, 'others do not resume all');
RESET ROLE;
SELECT ok(paused(), 'all is paused still');
SET ROLE regress_idem_member;
SELECT lives_ok('SELECT idem.resume_intent(NULL)', 'who is in every resolver_role resumes all');
RESET ROLE;
SELECT ok(NOT paused(), 'nothing is paused any more');
SELECT idem.grant_access('regress_idem_outside', 'admin') \g /dev/null
SET ROLE regress_idem_outside;
SELECT lives_ok($$SELECT idem.pause_intent(NULL, 'a moment')$$, 'an administrator pauses all');
SELECT lives_ok('SELECT idem.resume_intent(NULL)', 'and resumes all');
SELECT throws_ok($$SELECT idem.pause_intent('mail', 'a moment')$$, 'IA008', NULL, 'though by its name the intent is for its resolvers');
RESET ROLE;
REVOKE regress_idem_team FROM regress_idem_member;
DROP ROLE regress_idem_team;
SET ROLE regress_idem_member;
SELECT throws_ok($$SELECT idem.pause_intent(NULL, 'a moment')$$, 'IA008', NULL, 'a dropped resolver_role is nobody''s');
RESET ROLE;
SELECT ok(NOT paused(), 'nothing is paused at the end');

DROP OWNED BY regress_idem_member, regress_idem_outside;
DROP ROLE regress_idem_member, regress_idem_outside;
ALTER SYSTEM RESET idem_action.secret_file;
SELECT pg_reload_conf() \g /dev/null
COPY (SELECT) TO PROGRAM 'cat > pgtap_unseen.txt; rm pgtap_unseen.txt';

SELECT * FROM finish();
