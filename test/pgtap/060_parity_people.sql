--
-- The table of docs/states.md for what people decide, what a search reports
-- and what enqueue and takers are answered: one test a cell.  A cell says what
-- was answered (yes and no for accepted, otherwise the outcome; - for nothing),
-- the state afterwards with its reason, and by how much the revision grew.
--
CREATE SCHEMA t;
SET search_path = t, public;

SELECT idem.define_rule('any', 'the key', 'support', on_uncertain => 'verify', settle => '0', max_attempts => 9),
	idem.define_rule('approved', 'the key', 'support', requires_approval => true) \g /dev/null

CREATE TABLE made (n int GENERATED ALWAYS AS IDENTITY, action_id uuid, claim_id uuid);

CREATE FUNCTION lapse(id uuid) RETURNS void LANGUAGE sql AS $$
	UPDATE idem.idem_queue SET due_at = due_at - interval '1 day' WHERE action_id = id;
	UPDATE idem.idem_actions SET claimed_at = claimed_at - interval '1 day', first_claimed_at = first_claimed_at - interval '1 day',
		lease_until = lease_until - interval '1 day', due_at = due_at - interval '1 day' WHERE action_id = id
$$;

/* an action of its own, in a scope of its own, in the situation */
CREATE FUNCTION make(situation text) RETURNS made LANGUAGE plpgsql AS $$
DECLARE
	m made;
	c idem.claim;
	i text := CASE situation WHEN 'unapproved' THEN 'approved' ELSE 'any' END;
	never constant uuid := '6f1c2b1e-0000-4000-8000-000000000009';
BEGIN
	INSERT INTO made DEFAULT VALUES RETURNING * INTO m;
	IF situation = ANY ('{pending,later,unapproved,cancelled}') THEN
		c := idem.enqueue_action('k', i, '{"p": 1}', '{"d": 1}', scope => m.n::text,
			not_before => CASE situation WHEN 'later' THEN clock_timestamp() + interval '1 day' END);
	ELSE
		c := idem.claim_action('k', i, '{"p": 1}', '{"d": 1}', scope => m.n::text, in_transaction => true);
	END IF;
	m.action_id := c.action_id;
	m.claim_id := c.claim_id;
	IF situation = 'cancelled' THEN
		PERFORM idem.cancel_action(m.action_id);
	ELSIF situation = 'lapsed' THEN
		PERFORM lapse(m.action_id);
	ELSIF situation = ANY ('{completed,doubled}') THEN
		PERFORM idem.complete_action(m.action_id, m.claim_id, 'r');
	ELSIF situation = 'failed' THEN
		PERFORM idem.fail_action(m.action_id, m.claim_id, 'no', 'refused');
	ELSIF situation = ANY ('{doubtful,searching,attention}') THEN
		PERFORM idem.fail_action(m.action_id, m.claim_id, 'timeout', retry_after => '0');
	END IF;
	IF situation = 'doubled' THEN
		PERFORM idem.complete_action(m.action_id, never, 'other');
	END IF;
	IF situation = ANY ('{searching,attention}') THEN
		c := idem.claim_action('k', i, scope => m.n::text, in_transaction => true);
		m.claim_id := c.claim_id;
	END IF;
	IF situation = 'attention' THEN
		PERFORM idem.verify_action(m.action_id, m.claim_id, NULL);
	END IF;
	RETURN m;
END
$$;

CREATE FUNCTION yes(report idem.report) RETURNS text LANGUAGE sql AS $$ SELECT CASE WHEN report.accepted THEN 'yes' ELSE 'no' END $$;

/* makes the call, tells the cell */
CREATE FUNCTION cell(situation text, call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	m made := make(situation);
	i text := CASE situation WHEN 'unapproved' THEN 'approved' ELSE 'any' END;
	before bigint;
	answer text;
BEGIN
	SELECT revision INTO before FROM idem.idem_actions WHERE action_id = m.action_id;
	answer := CASE call
		WHEN 'revise' THEN yes(idem.revise_action(m.action_id, '{"d": 2}'))
		WHEN 'approve' THEN yes(idem.approve_action(m.action_id, before))
		WHEN 'cancel' THEN yes(idem.cancel_action(m.action_id))
		WHEN 'happened' THEN yes(idem.resolve_action(m.action_id, 'happened', 'seen', before))
		WHEN 'not_happened' THEN yes(idem.resolve_action(m.action_id, 'not_happened', 'seen', before))
		WHEN 'resolve cancel' THEN yes(idem.resolve_action(m.action_id, 'cancel', 'seen', before))
		WHEN 'rerun' THEN yes(idem.rerun_action(m.action_id, 'again', before))
		WHEN 'erase' THEN yes(idem.erase_action(m.action_id, 'asked to'))
		WHEN 'enqueue' THEN (idem.enqueue_action('k', i, scope => m.n::text)).outcome
		WHEN 'enqueue batch' THEN (SELECT string_agg(outcome, '') FROM idem.enqueue_actions(i, '{k}', scope => m.n::text))
		WHEN 'take' THEN (SELECT string_agg(outcome, '') FROM idem.take_actions(ARRAY[i], 9, scope => m.n::text, in_transaction => true))
		WHEN 'take to verify' THEN (SELECT string_agg(outcome, '') FROM idem.take_to_verify(ARRAY[i], 9, scope => m.n::text, in_transaction => true))
		WHEN 'found' THEN (idem.verify_action(m.action_id, m.claim_id, true, 'r')).outcome
		WHEN 'not found' THEN (idem.verify_action(m.action_id, m.claim_id, false)).outcome
		WHEN 'cannot tell' THEN (idem.verify_action(m.action_id, m.claim_id, NULL)).outcome
	END;
	RETURN (SELECT format('%s / %s%s / +%s', coalesce(answer, '-'), state, '(' || reason || ')', revision - before)
		FROM idem.idem_actions WHERE action_id = m.action_id);
END
$$;

CREATE TABLE expected (call text, situations text, cell text);
COPY expected FROM stdin (DELIMITER '|');
revise|pending later unapproved doubtful|yes / pending / +1
revise|held searching lapsed|no / in_progress / +0
revise|completed|no / completed / +0
revise|doubled|no / completed(double_result) / +0
revise|failed|no / failed / +0
revise|attention|no / needs_attention(verify_inconclusive) / +0
revise|cancelled|no / cancelled / +0
approve|pending later unapproved doubtful|yes / pending / +1
approve|held searching lapsed|no / in_progress / +0
approve|completed|no / completed / +0
approve|doubled|no / completed(double_result) / +0
approve|failed|no / failed / +0
approve|attention|no / needs_attention(verify_inconclusive) / +0
approve|cancelled|no / cancelled / +0
cancel|pending later unapproved failed|yes / cancelled / +1
cancel|attention|no / needs_attention(verify_inconclusive) / +0
cancel|doubtful|yes / needs_attention(outcome_unknown) / +1
cancel|held searching lapsed|yes / in_progress / +1
cancel|completed|no / completed / +0
cancel|doubled|no / completed(double_result) / +0
cancel|cancelled|yes / cancelled / +0
happened|pending later unapproved doubtful held searching lapsed doubled failed attention cancelled|yes / completed / +1
happened|completed|yes / completed / +0
not_happened|pending later unapproved doubtful lapsed failed attention cancelled|yes / pending / +1
not_happened|held searching|no / in_progress / +0
not_happened|completed|no / completed / +0
not_happened|doubled|no / completed(double_result) / +0
resolve cancel|pending later unapproved doubtful held searching lapsed failed attention|yes / cancelled / +1
resolve cancel|completed|no / completed / +0
resolve cancel|doubled|no / completed(double_result) / +0
resolve cancel|cancelled|yes / cancelled / +0
rerun|pending later unapproved doubtful|no / pending / +0
rerun|held searching lapsed|no / in_progress / +0
rerun|completed doubled failed attention cancelled|yes / pending / +1
erase|pending later unapproved doubtful|no / pending / +0
erase|held searching lapsed|no / in_progress / +0
erase|completed|yes / completed / +1
erase|doubled|yes / completed(double_result) / +1
erase|failed|yes / failed / +1
erase|attention|yes / needs_attention(verify_inconclusive) / +1
erase|cancelled|yes / cancelled / +1
enqueue|pending later doubtful|pending / pending / +0
enqueue|unapproved|awaiting_approval / pending / +0
enqueue|held searching lapsed|in_progress / in_progress / +0
enqueue|completed|completed / completed / +0
enqueue|doubled|completed / completed(double_result) / +0
enqueue|failed|failed / failed / +0
enqueue|attention|needs_attention / needs_attention(verify_inconclusive) / +0
enqueue|cancelled|cancelled / cancelled / +0
take|pending|claimed / in_progress / +1
take|later unapproved doubtful|- / pending / +0
take|held searching lapsed|- / in_progress / +0
take|completed|- / completed / +0
take|doubled|- / completed(double_result) / +0
take|failed|- / failed / +0
take|attention|- / needs_attention(verify_inconclusive) / +0
take|cancelled|- / cancelled / +0
take to verify|pending later unapproved|- / pending / +0
take to verify|doubtful|verify / in_progress / +1
take to verify|held searching lapsed|- / in_progress / +0
take to verify|completed|- / completed / +0
take to verify|doubled|- / completed(double_result) / +0
take to verify|failed|- / failed / +0
take to verify|attention|- / needs_attention(verify_inconclusive) / +0
take to verify|cancelled|- / cancelled / +0
found|doubtful failed|needs_attention / needs_attention(late_result) / +1
found|held searching lapsed attention|completed / completed / +1
found|completed|completed / completed / +0
found|doubled|completed / completed(double_result) / +0
not found|doubtful|pending / pending / +0
not found|held lapsed|in_progress / in_progress / +0
not found|searching|claimed / in_progress / +1
not found|completed|completed / completed / +0
not found|doubled|completed / completed(double_result) / +0
not found|failed|failed / failed / +0
not found|attention|needs_attention / needs_attention(verify_inconclusive) / +0
cannot tell|doubtful|pending / pending / +0
cannot tell|held lapsed|in_progress / in_progress / +0
cannot tell|searching|needs_attention / needs_attention(verify_inconclusive) / +1
cannot tell|completed|completed / completed / +0
cannot tell|doubled|completed / completed(double_result) / +0
cannot tell|failed|failed / failed / +0
cannot tell|attention|needs_attention / needs_attention(verify_inconclusive) / +0
\.
-- the batch answers as the single call does
INSERT INTO expected SELECT 'enqueue batch', situations, cell FROM expected WHERE call = 'enqueue';

SELECT plan(count(*)::int + 3) FROM expected, string_to_table(situations, ' ');
SELECT is(cell(situation, call), cell, situation || ': ' || call) FROM expected, string_to_table(situations, ' ') AS situation;

-- a revised draft
SELECT action_id AS id, action_id::text AS provider_key FROM make('pending') \gset
SELECT FROM idem.revise_action(:'id', '{"d": 2}') \g /dev/null
SELECT is((SELECT provider_key FROM idem.actions WHERE action_id = :'id'), :'provider_key', 'a revised draft: the same action, the same provider key');
SELECT is((SELECT draft FROM idem.show_action(:'id')), '{"d": 2}', 'the new draft is the one to act on');
SELECT matches((idem.revise_action((make('completed')).action_id, '{"d": 2}')).note, 'cancel_action.*rerun_action.*key', 'a refused one is told what to do instead');
SELECT * FROM finish();
