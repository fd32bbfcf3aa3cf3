-- Who has drafted or revised an action does not approve it, where the rule asks
-- for four eyes: by actor where both calls name one, by role otherwise.

SELECT plan(22);

SELECT throws_ok($$SELECT idem.define_rule('bad', 'u', 'r', four_eyes => true)$$, '22023',
	'setting four_eyes must be false where no approval is required', 'it is about approvals');
SELECT matches(idem.define_rule('post', 'u', 'r', requires_approval => true, four_eyes => true, rerun_by => 'resolver'),
	'before a person has approved the draft, who has neither drafted nor revised it', 'the rule says so');
CREATE ROLE regress_idem_writer;
CREATE ROLE regress_idem_reader;
SELECT idem.grant_access(r, 'operator') FROM unnest('{regress_idem_writer,regress_idem_reader}'::regrole[]) r \g /dev/null
GRANT USAGE ON SCHEMA public TO regress_idem_writer, regress_idem_reader;

CREATE FUNCTION approve(wanted text, as_role text, as_actor text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	id uuid;
	rev bigint;
	r idem.report;
BEGIN
	SELECT action_id, revision INTO id, rev FROM idem.idem_actions WHERE key = wanted;
	PERFORM set_config('role', as_role, true);
	r := idem.approve_action(id, rev, actor => as_actor);
	PERFORM set_config('role', 'none', true);
	RETURN concat_ws(': ', r.accepted, r.note);
END
$$;

-- drafted by a service
SET ROLE regress_idem_writer;
SELECT outcome FROM idem.enqueue_action('one', 'post', draft => '{"t": 1}') \gset
RESET ROLE;
SELECT is(:'outcome'::text, 'awaiting_approval', 'a draft waits');
SELECT is(approve('one', 'regress_idem_writer', NULL), 'f: refused: regress_idem_writer has drafted or revised it, and the rule asks for another person', 'its author does not approve it');
SELECT is(approve('one', 'regress_idem_writer', 'Ann'), 'f: refused: regress_idem_writer has drafted or revised it, and the rule asks for another person', 'nor under a name');
SELECT is(count(*), 0::bigint, 'nothing is written') FROM idem.history WHERE key = 'one' AND event = 'approved';
SELECT is(approve('one', 'regress_idem_reader', NULL), 't', 'another role does');
SELECT is(count(*), 1::bigint, 'it is handed out') FROM idem.take_actions('{post}');

-- revised by people
SET ROLE regress_idem_writer;
SELECT action_id FROM idem.enqueue_action('two', 'post', draft => '{"t": 1}') \gset
RESET ROLE;
SET ROLE regress_idem_reader;
SELECT accepted FROM idem.revise_action(:'action_id', '{"t": 2}', actor => 'Ann') \gset
SELECT accepted FROM idem.revise_action(:'action_id', '{"t": 3}', actor => 'Ben') \gset
RESET ROLE;
SELECT is(approve('two', 'regress_idem_reader', 'Ann'), 'f: refused: Ann has drafted or revised it, and the rule asks for another person', 'an earlier reviser does not');
SELECT is(approve('two', 'regress_idem_reader', 'Ben'), 'f: refused: Ben has drafted or revised it, and the rule asks for another person', 'nor the last one');
SELECT is(approve('two', 'regress_idem_reader', NULL), 'f: refused: Ann has drafted or revised it, and the rule asks for another person', 'nor somebody of their role without a name');
SELECT is(approve('two', 'regress_idem_writer', 'Cleo'), 'f: refused: regress_idem_writer has drafted or revised it, and the rule asks for another person', 'nor the role that drafted it');
SELECT is(approve('two', 'regress_idem_reader', 'Cleo'), 't', 'a third person of the revisers'' role does');

-- claimed, in a batch too
SET ROLE regress_idem_writer;
SELECT count(*) AS claimed FROM idem.claim_actions('post', '{three,four}', drafts => ARRAY['{"t": 1}', NULL]::jsonb[], in_transaction => true) \gset
RESET ROLE;
SELECT is(approve('three', 'regress_idem_writer', NULL), 'f: refused: regress_idem_writer has drafted or revised it, and the rule asks for another person', 'a claim drafts as well');
SELECT is(approve('four', 'regress_idem_reader', NULL), 'f: refused: who drafted it is not known, and the rule asks for another person; revise_action makes it known', 'no draft, no approval');

-- a rerun with a new draft has a new author
UPDATE idem.idem_actions SET lease_until = NULL, due_at = NULL, state = 'failed', finished_at = now(), forget_after = now() + '1 day', purge_after = now() + '1 day', ended_by = 'failed_refused'
WHERE key = 'one';
DELETE FROM idem.idem_queue q USING idem.idem_actions a WHERE a.action_id = q.action_id AND key = 'one';
SELECT action_id, revision FROM idem.idem_actions WHERE key = 'one' \gset
SET ROLE regress_idem_reader;
SELECT accepted FROM idem.rerun_action(:'action_id', 'once more', :revision, '{"t": 9}', actor => 'Ann') \gset
RESET ROLE;
SELECT is(:'accepted'::text, 't', 'rerun with a draft');
SELECT is(approve('one', 'regress_idem_reader', 'Ann'), 'f: refused: Ann has drafted or revised it, and the rule asks for another person', 'who gave it does not approve it');
SELECT is(approve('one', 'regress_idem_writer', NULL), 't', 'who wrote the older one may');

-- switched on later
SELECT idem.define_rule('late', 'u', 'r', requires_approval => true) <> '' AS defined \gset
SELECT action_id FROM idem.enqueue_action('five', 'late', draft => '{"t": 1}') \gset
SELECT idem.define_rule('late', 'u', 'r', requires_approval => true, four_eyes => true) <> '' AS defined \gset
SELECT is(approve('five', 'regress_idem_reader', NULL), 'f: refused: who drafted it is not known, and the rule asks for another person; revise_action makes it known', 'an author that is not known is no other person');
SELECT is(accepted, true, 'a revision') FROM idem.revise_action(:'action_id', '{"t": 2}', actor => 'Ann');
SELECT is(approve('five', 'regress_idem_reader', 'Ben'), 't', 'makes it known');
SELECT is(string_agg(event, ',' ORDER BY at, id), 'recorded,drafted', 'the history says who drafted') FROM idem.history WHERE key = 'three';

DROP OWNED BY regress_idem_writer, regress_idem_reader;
DROP FUNCTION approve;
DROP ROLE regress_idem_writer, regress_idem_reader;
SELECT * FROM finish();
