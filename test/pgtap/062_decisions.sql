--
-- What a decision is about: the revision that the person saw.
--
-- An action in doubt is not cancelled by anybody: cancel_action says that a
-- person decides, and names resolve_action; its revision, where one is given, is
-- that of what the person saw.  A rerun names its revision, so that the same call
-- after a lost reply is the same rerun and not one more.
--
SELECT plan(22);

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

SELECT * FROM finish();
