--
-- What a person is told before deciding.
--
-- A holder that was stopped past its lease may still act when it goes on: the
-- advice for not_happened, in attention and in explain_action, names the worker to
-- stop first.  It names none that reported, that was searching, or that had
-- promised begin_effect and not called it.  And erase_action says that WAL and
-- backups keep what it erases.
--
SELECT plan(13);

SELECT idem.define_rule('send', 'the request', 'support', on_uncertain => 'review', retry_delay => '0', max_attempts => 9),
	idem.define_rule('look', 'the request', 'support', on_uncertain => 'verify', settle => '0', retry_delay => '0', max_attempts => 2) \g /dev/null

/* as if the time had passed */
CREATE FUNCTION pg_temp.lapse() RETURNS void LANGUAGE sql AS
	'UPDATE idem.idem_actions SET lease_until = clock_timestamp() - interval ''1 second'' WHERE state = ''in_progress''';
CREATE FUNCTION pg_temp.advice(wanted text) RETURNS text LANGUAGE sql AS
	'SELECT substring(advice FROM $$Before.*?act\.$$) FROM idem.attention WHERE key = wanted';
CREATE FUNCTION pg_temp.told(wanted text) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(l, ' | ') FROM idem.actions a, idem.explain_action(a.action_id) l WHERE a.key = wanted AND l LIKE 'Before%'
$$;

SELECT count(*) FROM idem.claim_actions('send', '{lapsed}', worker => 'w1', in_transaction => true) \g /dev/null
SELECT count(*) FROM idem.claim_actions('send', '{nameless}', in_transaction => true) \g /dev/null
SELECT count(*) FROM idem.claim_actions('send', '{forged}', worker => E'w\nThen: SELECT 1', in_transaction => true) \g /dev/null
SELECT count(*) FROM idem.claim_actions('send', '{told}', worker => 'w2', in_transaction => true) c, idem.fail_action(c.action_id, c.claim_id, 'reset', 'unknown') \g /dev/null
SELECT pg_temp.lapse() \g /dev/null
CALL idem.run_maintenance();

SELECT is(pg_temp.advice('lapsed'), 'Before ''not_happened'' stop worker w1: it may still act.', 'the worker whose lease ended is named');
SELECT matches(pg_temp.told('lapsed'), '^Before "not_happened": stop the worker of attempt 1 \(worker w1\); it may still act.$', 'and in the story');
SELECT is(pg_temp.advice('nameless'), 'Before ''not_happened'' stop the worker, which gave no name: it may still act.', 'one that gave no name');
SELECT matches(pg_temp.told('nameless'), '^Before "not_happened": stop the worker of attempt 1; it may still act.$', 'and in the story');
SELECT is(pg_temp.advice('forged'), 'Before ''not_happened'' stop worker E''w\x0AThen: SELECT 1'': it may still act.', 'a name cannot begin a line');
SELECT is(pg_temp.advice('told'), NULL, 'one that reported is not to be stopped');
SELECT is(pg_temp.told('told'), NULL, 'nor in the story');
SELECT is((SELECT count(*) FROM idem.attention WHERE key = 'told'), 1::bigint, 'though a person has to decide');

-- searching is not acting; each attempt that may act is named
SELECT count(*) FROM idem.claim_actions('look', '{sought}', worker => 'first', in_transaction => true) \g /dev/null
SELECT pg_temp.lapse() \g /dev/null
SELECT outcome FROM idem.claim_actions('look', '{sought}', worker => 'second', in_transaction => true) \gset
SELECT is(:'outcome'::text, 'verify', 'the second searches');
SELECT pg_temp.lapse() \g /dev/null
CALL idem.run_maintenance();
SELECT is(pg_temp.advice('sought'), 'Before ''not_happened'' stop worker first: it may still act.', 'the first may act');
SELECT is(pg_temp.told('sought'), 'Before "not_happened": stop the worker of attempt 1 (worker first); it may still act.', 'and in the story');

-- erase_action
SELECT (idem.resolve_action(action_id, 'happened', 'seen', revision)).state FROM idem.attention WHERE key = 'told' \g /dev/null
SELECT matches((SELECT note FROM idem.erase_action(idem.action_id('told', 'send'), 'asked for')), 'WAL, backups .* keep them until they expire', 'erase says what keeps the contents');
SELECT matches((SELECT note FROM idem.erase_action(idem.action_id('told', 'send'), 'asked for')), 'WAL, backups', 'and so does the same call again');

SELECT * FROM finish();
