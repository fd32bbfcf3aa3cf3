-- What the support desk decides once, before the first event arrives.
-- Leases and delays are short, so that the demo is; by default a lease takes
-- five minutes.

CREATE EXTENSION idem_action;

CREATE ROLE support_worker LOGIN;
SELECT idem.grant_access('support_worker', 'worker');

CREATE ROLE support_lead LOGIN;
SELECT idem.grant_access('support_lead', 'operator');

-- A lost model call costs a little and harms nobody: just call again.
SELECT idem.define_rule(
    intent       => 'draft-reply',
    unique_by    => 'one draft for each request and stage',
    resolved_by  => 'support engineering',
    on_uncertain => 'repeat',
    lease        => '15 seconds');

-- A second ticket wastes a person's time.  The ticket service can be searched
-- for our key, so whoever comes next looks before acting.
SELECT idem.define_rule(
    intent       => 'create-review-task',
    unique_by    => 'one review task for each request and stage',
    new_when     => 'the request enters its next stage',
    resolved_by  => 'support engineering',
    on_uncertain => 'verify',
    settle       => '1 second',
    retry_delay  => '1 second',
    lease        => '8 seconds');

-- A mail can't be called back, and a worker can't look into a mailbox: where
-- one may have gone out, a person decides.  The sender says when it begins, so
-- that there is no doubt about an attempt which never came so far.
SELECT idem.define_rule(
    intent        => 'send-reply',
    unique_by     => 'one reply for each request and stage',
    new_when      => 'the support lead sends it again on purpose',
    resolved_by   => 'the support lead on duty',
    on_uncertain  => 'review',
    marks_effect  => true,
    lease         => '10 seconds');
