--
-- What may not be seen stays unseen.
--
-- An analyst outside of a rule asks EXPLAIN (ANALYZE) again and again whether a
-- condition met a row, and narrows down hidden ids, keys and references by it:
-- with each view of rows the plans, their row counts, buffers and estimates have
-- to be the same for a hidden value as for one that nobody has.  What is left of
-- an intent whose restricted rule was dropped stays restricted.  The digest of a
-- draft, which is guessed in a moment, is shown by no view and goes with the contents.
--
SELECT plan(53);

CREATE ROLE regress_idem_team;
CREATE ROLE regress_idem_analyst;
SELECT idem.grant_access('regress_idem_analyst', 'analyst') \g /dev/null
SELECT idem.define_rule('charge', 'the invoice', 'billing', worker_role => 'regress_idem_team', retry_delay => '0') \g /dev/null
SELECT idem.define_rule('reply', 'the request', 'support') \g /dev/null

-- of each intent many actions, so that statistics would be worth looking at;
-- the last ones wait for a person, have a history and were repeated
SELECT count(*) FROM idem.claim_actions('charge', ARRAY(SELECT 'invoice ' || i FROM generate_series(1, 500) i),
	source => 'hidden', in_transaction => true) c, idem.complete_action(c.action_id, c.claim_id, 'ref ' || c.key) \g /dev/null
SELECT count(*) FROM idem.claim_actions('reply', ARRAY(SELECT 'request ' || i FROM generate_series(1, 20) i), in_transaction => true) \g /dev/null
SELECT count(*) FROM idem.claim_actions('charge', '{lost,open,due}', source => 'hidden', in_transaction => true) c,
	idem.fail_action(c.action_id, c.claim_id, 'hidden', CASE c.key WHEN 'lost' THEN 'unknown' ELSE 'none' END) f \g /dev/null
SELECT idem.claim_action('invoice 7', 'charge', source => 'hidden', event_id => 'hidden', in_transaction => true) \g /dev/null
CALL idem.run_maintenance();
ANALYZE idem.idem_actions, idem.idem_events, idem.idem_repeats, idem.idem_rules, idem.idem_queue;

-- the plan of a query as run by the analyst, without the value that it asks for
CREATE FUNCTION pg_temp.plan_of(query text, value text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	line	text;
	lines	text := '';
BEGIN
	FOR line IN EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, VERBOSE, TIMING OFF, SUMMARY OFF) ' || format(query, value)
	LOOP
		-- those of planning depend on what the catalog caches hold
		EXIT WHEN line LIKE 'Planning:%';
		lines := lines || replace(line, quote_literal(value), '?') || E'\n';
	END LOOP;
	RETURN lines;
END
$$;

-- the same plans for a hidden value as for an unknown one of the same length
CREATE FUNCTION pg_temp.tells_nothing(query text, hidden text, unknown text) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format(query, hidden);
	PERFORM pg_temp.plan_of(query, hidden), pg_temp.plan_of(query, unknown);
	RETURN NEXT is(pg_temp.plan_of(query, hidden), pg_temp.plan_of(query, unknown), replace(query, '%L', '?'));
	RETURN NEXT ok(pg_temp.plan_of(query, hidden) LIKE '%never executed%', 'and the branch for those who see all does not run');
END
$$;

SELECT idem.action_id('invoice 7', 'charge') AS hidden, idem.action_id('invoice 0', 'charge') AS unknown,
	idem.action_id('lost', 'charge') AS lost, idem.action_id('open', 'charge') AS open \gset

SET ROLE regress_idem_analyst;
SELECT ok(NOT idem.sees_all(), 'the analyst does not see all');
SELECT is((SELECT count(*) FROM idem.actions), 20::bigint, 'but all that the rules allow');
SELECT is((SELECT count(*) FROM idem.actions WHERE intent = 'charge') + (SELECT count(*) FROM idem.history WHERE intent = 'charge')
	+ (SELECT count(*) FROM idem.rules WHERE intent = 'charge') + (SELECT count(*) FROM idem.attention) + (SELECT count(*) FROM idem.stuck)
	+ (SELECT count(*) FROM idem.backlog WHERE intent = 'charge') + (SELECT count(*) FROM idem.repeats)
	+ (SELECT count(*) FROM idem.stat_intents WHERE intent = 'charge'), 0::bigint, 'nothing else, in no view');

SELECT * FROM pg_temp.tells_nothing('SELECT * FROM idem.actions WHERE action_id = %L', :'hidden', :'unknown');
SELECT * FROM pg_temp.tells_nothing('SELECT * FROM idem.actions WHERE action_id <= %L AND intent = ''charge''', :'hidden', '00000000-0000-8000-8000-000000000000');
SELECT * FROM pg_temp.tells_nothing('SELECT * FROM idem.actions WHERE key = %L', 'invoice 7', 'invoice 0');
SELECT * FROM pg_temp.tells_nothing('SELECT * FROM idem.actions WHERE key < %L', 'invoice 4', 'aaaaaaa 0');
SELECT * FROM pg_temp.tells_nothing('SELECT * FROM idem.actions WHERE external_ref = %L', 'ref invoice 7', 'ref invoice 0');
SELECT * FROM pg_temp.tells_nothing('SELECT * FROM idem.actions WHERE intent = %L', 'charge', 'chorge');
SELECT * FROM pg_temp.tells_nothing('SELECT * FROM idem.history WHERE action_id = %L', :'lost', :'unknown');
SELECT * FROM pg_temp.tells_nothing('SELECT * FROM idem.history WHERE key = %L', 'lost', 'last');
SELECT * FROM pg_temp.tells_nothing('SELECT * FROM idem.attention WHERE action_id = %L', :'lost', :'unknown');
SELECT * FROM pg_temp.tells_nothing('SELECT * FROM idem.stuck WHERE action_id = %L', :'open', :'unknown');
SELECT * FROM pg_temp.tells_nothing('SELECT * FROM idem.backlog WHERE intent = %L', 'charge', 'chorge');
SELECT * FROM pg_temp.tells_nothing('SELECT * FROM idem.repeats WHERE action_id = %L', :'hidden', :'unknown');
SELECT * FROM pg_temp.tells_nothing('SELECT * FROM idem.repeats WHERE event_id = %L', 'hidden', 'nobody');
SELECT * FROM pg_temp.tells_nothing('SELECT * FROM idem.stat_intents WHERE source = %L', 'hidden', 'nobody');
SELECT * FROM pg_temp.tells_nothing('SELECT * FROM idem.rules WHERE intent = %L', 'charge', 'chorge');

-- the planner's statistics: no caller may read them, and none are kept
SELECT is((SELECT count(*) FROM pg_stats WHERE schemaname = 'idem'), 0::bigint, 'the analyst reads no statistics');
SELECT throws_ok('SELECT * FROM idem.all_actions', '42501', NULL, 'nor the unfiltered views');
RESET ROLE;
SELECT is((SELECT count(*) FROM pg_stats WHERE schemaname = 'idem' AND tablename = ANY ('{idem_actions,idem_events,idem_repeats,idem_rules,idem_queue}')),
	0::bigint, 'and there are none');

-- who sees all has the plans as before: an id is looked up by the index
SELECT ok(idem.sees_all(), 'a superuser sees all');
SELECT matches(pg_temp.plan_of('SELECT * FROM idem.actions WHERE action_id = %L', :'hidden'),
	'Index Scan using idem_actions_pkey[^\n]*actual rows=1.*visible_actions[^\n]*never executed', 'by the index, and the other branch does not run');
GRANT regress_idem_team TO regress_idem_analyst;
SET ROLE regress_idem_analyst;
SELECT ok(idem.sees_all(), 'who is in every rule''s roles does, too');
SELECT is((SELECT count(*) FROM idem.actions), 523::bigint, 'and all of it');
RESET ROLE;

-- a dropped rule: its lines of history and its counts are left
DELETE FROM idem.idem_actions WHERE intent = 'charge';
DELETE FROM idem.idem_actions WHERE intent = 'reply';
SELECT idem.drop_rule('charge'), idem.drop_rule('reply') \g /dev/null
SELECT ok(count(*) > 1, 'there is something left') FROM idem.history WHERE intent = 'charge';
SET ROLE regress_idem_analyst;
SELECT ok(NOT idem.sees_all(), 'after a restricted rule is dropped, analysts do not see all');
SELECT is((SELECT count(*) FROM idem.history WHERE intent = 'charge') + (SELECT count(*) FROM idem.repeats WHERE intent = 'charge')
	+ (SELECT count(*) FROM idem.stat_intents WHERE intent = 'charge'), 0::bigint, 'nothing of its intent');
SELECT ok(count(*) > 1, 'but of one whose rule named no roles') FROM idem.history WHERE intent = 'reply';
RESET ROLE;
SELECT idem.grant_access('regress_idem_analyst', 'admin') \g /dev/null
SET ROLE regress_idem_analyst;
SELECT ok(idem.sees_all() AND count(*) > 1, 'administrators see what is left') FROM idem.history WHERE intent = 'charge';
RESET ROLE;

--
-- Digests of drafts: what knows a decision again when its reply was lost
--
SELECT idem.define_rule('draft', 'the letter', 'anybody', keep_content => '0', retry_delay => '0') \g /dev/null
SELECT action_id FROM idem.enqueue_action('1', 'draft', draft => '{"pin": 1234}') \gset
CREATE FUNCTION pg_temp.digests(relation regclass) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	n	bigint;
BEGIN
	EXECUTE format('SELECT count(*) FROM %s r WHERE r::text ~ $re$[0-9a-f]{64}$re$', relation) INTO n;
	RETURN n;
END
$$;
SELECT results_eq(format('SELECT accepted, revision FROM idem.revise_action(%L, ''{"pin": 1235}'', 1, ''jane'')', :'action_id'), 'VALUES (true, 2::bigint)', 'a draft is revised');
SELECT results_eq(format('SELECT accepted, revision FROM idem.revise_action(%L, ''{"pin": 1236}'', 2, ''jane'')', :'action_id'), 'VALUES (true, 3::bigint)', 'and once more');
SELECT is((SELECT concat_ws(' ', accepted, revision, note) FROM idem.revise_action(:'action_id', '{"pin": 1236}', 2, 'jane')), 't 3', 'the same call again is answered as before');
SELECT ok(NOT accepted, 'with another draft it is not') FROM idem.revise_action(:'action_id', '{"pin": 1237}', 2, 'jane');
SELECT is(pg_temp.digests('idem.idem_events'), 2::bigint, 'the ledger tells the drafts apart by a digest');
SELECT is(pg_temp.digests('idem.history'), 0::bigint, 'history does not show it');
SELECT count(*) FROM idem.take_actions('{draft}', in_transaction => true) t, idem.complete_action(t.action_id, t.claim_id, 'sent') \g /dev/null
CALL idem.run_maintenance();
SELECT is(pg_temp.digests('idem.idem_events') + pg_temp.digests('idem.idem_actions'), 0::bigint, 'and with the contents it is gone');
SELECT is((SELECT count(*) FROM idem.history WHERE event = 'revised'), 2::bigint, 'though not that the draft was revised');

SELECT idem.revoke_access('regress_idem_analyst', 'analyst'), idem.revoke_access('regress_idem_analyst', 'admin') \g /dev/null
DROP OWNED BY regress_idem_analyst, regress_idem_team;
DROP ROLE regress_idem_analyst, regress_idem_team;

SELECT * FROM finish();
