--
-- What a decision is about: the revision that the person saw.
--
-- An action in doubt is not cancelled by anybody: cancel_action says that a
-- person decides, and names resolve_action; its revision, where one is given, is
-- that of what the person saw.  A rerun names its revision, so that the same call
-- after a lost reply is the same rerun and not one more.
--
-- The same call again is answered as before while the decision stands.  Once
-- another one followed on it (approve, somebody revises, the same click again) it
-- does not count any more, and the note says who did what.
--
-- What was approved is what goes out: an action whose params come with a claim
-- after its approval (enqueued with a draft only, approved, claimed with params)
-- waits for an approval again, with the params there to be seen.
--
SELECT plan(62);

SELECT idem.define_rule('send', 'the key', 'support'),
	idem.define_rule('search', 'the key', 'support', on_uncertain => 'verify', settle => '1 hour') \g /dev/null

CREATE FUNCTION revision_of(id uuid) RETURNS bigint LANGUAGE sql AS $$ SELECT revision FROM idem.actions WHERE action_id = id $$;

-- begun, failed with an unknown effect, cancelled by an operator: still a person's to decide
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('doubt', 'send') \gset
SELECT idem.begin_effect(:'id', :'claim') > 0 AS begun, (idem.fail_action(:'id', :'claim', 'timeout', 'unknown')).state \g /dev/null
SELECT revision_of(:'id') AS before \gset
SELECT r.accepted AS accepted, r.state AS state, r.revision AS revision, r.note AS note FROM idem.cancel_action(:'id', 'not wanted') r \gset
SELECT ok(NOT :'accepted', 'in doubt: a cancel is refused'), is(:'state'::text, 'needs_attention', 'in doubt: a person still has to decide'),
	is(:revision, :before, 'in doubt: nothing is written'), matches(:'note'::text, 'resolve_action', 'in doubt: the note names the call that decides');
SELECT ok(NOT accepted, 'in doubt: nor with the revision that was seen') FROM idem.cancel_action(:'id', 'not wanted', revision => :before);
SELECT is(uncertain, true, 'in doubt: nothing says that it did not happen') FROM idem.actions WHERE action_id = :'id';
SELECT is(state, 'cancelled', 'in doubt: resolve_action decides') FROM idem.resolve_action(:'id', 'cancel', 'nobody wants it', :before);

-- a doubt that waits for a search: the wish is kept, the doubt too
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('doubt', 'search') \gset
SELECT (idem.fail_action(:'id', :'claim', 'timeout', 'unknown')).state \g /dev/null
SELECT is(format('%s, %s', r.accepted, r.state), 't, needs_attention', 'waiting for a search: a person decides now'),
	matches(note, 'resolve_action', 'waiting for a search: the note names the call that decides')
FROM idem.cancel_action(:'id', 'not wanted') r;
SELECT ok(uncertain AND cancel_requested, 'waiting for a search: the doubt stands') FROM idem.actions WHERE action_id = :'id';
SELECT is(state, 'cancelled', 'waiting for a search: it did not happen, and is not wanted')
FROM idem.resolve_action(:'id', 'not_happened', 'looked', revision_of(:'id'));

-- a cancel of what was seen, and of whatever is there
SELECT action_id AS id FROM idem.enqueue_action('stale', 'send', draft => '1') \gset
SELECT (idem.revise_action(:'id', '2', 1, actor => 'Ben')).accepted \g /dev/null
SELECT ok(NOT accepted, 'cancel: another revision was seen'), matches(note, 'you saw revision 1, it is at 2 now; Ben revised it', 'cancel: the note says what happened since'),
	is(state, 'pending', 'cancel: nothing changed')
FROM idem.cancel_action(:'id', 'not wanted', 'Ann', 1);
SELECT is(state, 'cancelled', 'cancel: of what was seen') FROM idem.cancel_action(:'id', 'not wanted', 'Ann', 2);
SELECT ok(accepted, 'cancel: the same call again') FROM idem.cancel_action(:'id', 'not wanted', 'Ann', 2);
SELECT action_id AS id FROM idem.enqueue_action('as it is', 'send') \gset
SELECT is(state, 'cancelled', 'cancel: without a revision, of whatever is there') FROM idem.cancel_action(:'id');

-- run again, done, and the same call once more: its reply had been lost
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('again', 'send') \gset
SELECT (idem.complete_action(:'id', :'claim', 'ref-1')).revision AS seen \gset
SELECT is(state, 'pending', 'rerun: a new generation') FROM idem.rerun_action(:'id', 'asked for', :seen, actor => 'Ann');
SELECT claim_id AS claim FROM idem.claim_action('again', 'send') \gset
SELECT (idem.complete_action(:'id', :'claim', 'ref-2')).state \g /dev/null
SELECT is(format('%s, %s', r.accepted, r.state), 't, completed', 'rerun: the same call again is answered as before')
FROM idem.rerun_action(:'id', 'asked for', :seen, actor => 'Ann') r;
SELECT is(generation, 2, 'rerun: it was run again once'), is(state, 'completed', 'rerun: and is not handed out again') FROM idem.actions WHERE action_id = :'id';
SELECT throws_ok(format('SELECT idem.rerun_action(%L, %L, NULL)', :'id', 'asked for'), '22023', NULL, 'rerun: without a revision');

--
-- A decision that does not stand any more
--

-- approved, revised by somebody else, and the same click once more
SELECT idem.define_rule('reviewed', 'the key', 'support', requires_approval => true) \g /dev/null
SELECT action_id AS id FROM idem.enqueue_action('stale click', 'reviewed', '{"to": "a"}', '1') \gset
SELECT is(revision, 2::bigint, 'approved') FROM idem.approve_action(:'id', 1, actor => 'Ann');
SELECT ok(accepted, 'approved: the same click again') FROM idem.approve_action(:'id', 1, actor => 'Ann');
SELECT ok(accepted, 'revised by somebody else') FROM idem.revise_action(:'id', '2', 2, actor => 'Ben');
SELECT ok(NOT accepted, 'a stale click is not accepted'), matches(note, 'does not stand any more: Ben revised it at .*revision 3 now', 'a stale click is told what happened since'),
	is(revision, 3::bigint, 'a stale click writes nothing')
FROM idem.approve_action(:'id', 1, actor => 'Ann');
SELECT is(outcome, 'awaiting_approval', 'and approves nothing') FROM idem.claim_action('stale click', 'reviewed', '{"to": "a"}');
SELECT ok(accepted, 'revised by a third one') FROM idem.revise_action(:'id', '3', 3, actor => 'Cid');
SELECT ok(NOT accepted, 'a stale revision: not accepted'), matches(note, 'does not stand any more: Cid revised it', 'a stale revision: the note')
FROM idem.revise_action(:'id', '2', 2, actor => 'Ben');

-- resolved, run again by somebody else, and the same decision once more
SELECT action_id AS id, claim_id AS claim FROM idem.claim_action('resolved', 'send') \gset
SELECT (idem.fail_action(:'id', :'claim', 'timeout')).revision AS seen \gset
SELECT (idem.resolve_action(:'id', 'happened', 'saw it', :seen, actor => 'Ann')).revision AS resolved \gset
SELECT (idem.rerun_action(:'id', 'lost again', :resolved, actor => 'Ben')).revision AS rerun \gset
SELECT ok(NOT accepted, 'resolved: it was run again since'), matches(note, 'does not stand any more: Ben rerun it', 'resolved: the note')
FROM idem.resolve_action(:'id', 'happened', 'saw it', :seen, actor => 'Ann');
-- cancelled, reopened by somebody else
SELECT (idem.cancel_action(:'id', 'enough', 'Ann', :rerun)).revision AS cancelled \gset
SELECT ok(NOT accepted, 'run again: it was cancelled since'), matches(note, 'does not stand any more: Ann cancelled it', 'run again: the note')
FROM idem.rerun_action(:'id', 'lost again', :resolved, actor => 'Ben');
SELECT (idem.resolve_action(:'id', 'not_happened', 'wanted after all', :cancelled, actor => 'Ben')).state \g /dev/null
SELECT ok(NOT accepted, 'cancelled: it was reopened since'), matches(note, 'does not stand any more: Ben resolved it as not_happened', 'cancelled: the note'),
	is(state, 'pending', 'cancelled: it is as the other one left it')
FROM idem.cancel_action(:'id', 'enough', 'Ann', :rerun);
-- what a holder did since is no decision of another one
SELECT action_id AS id FROM idem.enqueue_action('carried out', 'reviewed', draft => '1') \gset
SELECT (idem.approve_action(:'id', 1, actor => 'Ann')).accepted \g /dev/null
SELECT claim_id AS claim FROM idem.take_actions('{reviewed}') \gset
SELECT (idem.complete_action(:'id', :'claim', 'ref')).state \g /dev/null
SELECT is(format('%s, %s', r.accepted, r.state), 't, completed', 'approved and carried out: the same click again') FROM idem.approve_action(:'id', 1, actor => 'Ann') r;
-- a note names what came after what was seen, not what was there already
SELECT matches(note, 'you saw revision 2, it is at 4 now and completed', 'outdated, and nobody decided since') FROM idem.resolve_action(:'id', 'cancel', 'no', 2);

--
-- What was approved is what goes out
--

SELECT action_id AS id FROM idem.enqueue_action('late params', 'reviewed', draft => '"pay"') \gset
SELECT (idem.approve_action(:'id', 1, actor => 'Ann')).accepted \g /dev/null
SELECT is(outcome, 'awaiting_approval', 'params after the approval: not granted'), ok(NOT granted, 'params after the approval: nor so'),
	is(params, '{"amount": 9000}'::jsonb, 'params after the approval: there to be seen'), is(revision, 3::bigint, 'params after the approval: another revision')
FROM idem.claim_action('late params', 'reviewed', '{"amount": 9000}', worker => 'w1', source => 's', event_id => 'evt-1');
SELECT is(params, '{"amount": 9000}'::jsonb, 'a person sees them') FROM idem.show_action(:'id');
SELECT ok(NOT approved, 'the approval is void') FROM idem.actions WHERE action_id = :'id';
SELECT is(count(*), 0::bigint, 'no taker gets it') FROM idem.take_actions('{reviewed}', 10);
SELECT ok(NOT accepted, 'the same click again approves nothing'), matches(note, 'a claim brought its params', 'and is told why') FROM idem.approve_action(:'id', 1, actor => 'Ann');
SELECT ok(NOT accepted, 'nor does one that saw the draft alone'), matches(note, 'you saw revision 2, it is at 3 now; a claim brought its params', 'which is told, too')
FROM idem.approve_action(:'id', 2, actor => 'Ben');
SELECT is((SELECT string_agg(event, ' ' ORDER BY at, id) FROM idem.history WHERE action_id = :'id'), 'recorded approved params_added', 'it is in the history');
SELECT is(count(*), 1::bigint, 'and in the story') FROM idem.explain_action(:'id') line
WHERE line ~ 'a claim \(worker w1\), event evt-1 from s brought its params, which the approval did not cover';
SELECT ok(accepted, 'approved as it is now') FROM idem.approve_action(:'id', 3, actor => 'Ann');
SELECT is(format('%s %s', granted, params), 't {"amount": 9000}', 'and handed out') FROM idem.claim_action('late params', 'reviewed', '{"amount": 9000}');

-- the same before the approval: it has to be one of the params
SELECT action_id AS id FROM idem.enqueue_action('early params', 'reviewed', draft => '"pay"') \gset
SELECT is(format('%s %s %s', outcome, revision, params), 'awaiting_approval 2 {"amount": 1}', 'params before the approval: kept, and another revision')
FROM idem.claim_action('early params', 'reviewed', '{"amount": 1}');
SELECT is(revision, 2::bigint, 'the same again changes nothing') FROM idem.claim_action('early params', 'reviewed', '{"amount": 1}');
SELECT ok(NOT accepted, 'who saw none cannot approve') FROM idem.approve_action(:'id', 1);
-- erased, run again and approved without contents: they come with the claim
SELECT (idem.cancel_action(:'id')).state, (idem.erase_action(:'id', 'asked for')).accepted \g /dev/null
SELECT (idem.rerun_action(:'id', 'again', revision_of(:'id'))).revision AS seen \gset
SELECT (idem.approve_action(:'id', :seen)).accepted \g /dev/null
SELECT is(format('%s %s', outcome, params), 'awaiting_approval {"amount": 2}', 'erased, run again and approved: what a claim brings has to be approved')
FROM idem.claim_action('early params', 'reviewed', '{"amount": 2}');
-- a lost attempt that went out without params, and one that brings some
SELECT action_id AS id FROM idem.enqueue_action('lost', 'reviewed', draft => '"pay"') \gset
SELECT idem.define_rule('reviewed', 'the key', 'support', requires_approval => true, on_uncertain => 'repeat') \g /dev/null
SELECT (idem.approve_action(:'id', 1)).accepted \g /dev/null
SELECT action_id, lease_until FROM idem.take_actions('{reviewed}', lease => '1 ms') \g /dev/null
SELECT claim_id AS claim FROM idem.idem_actions WHERE action_id = :'id' AND pg_sleep(0.01) IS NOT NULL \gset
SELECT is(format('%s %s', outcome, state), 'awaiting_approval pending', 'lost: the next attempt is not what was approved')
FROM idem.claim_action('lost', 'reviewed', '{"amount": 3}');
SELECT is(format('%s %s', r.accepted, r.state), 't completed', 'lost: its success still counts') FROM idem.complete_action(:'id', :'claim', 'ref') r;

SELECT * FROM finish();
