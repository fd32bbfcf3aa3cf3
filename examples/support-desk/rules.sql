-- What the support desk decides once, before the first event arrives.
-- Leases are short, so that the demo is; the default is five minutes.

CREATE EXTENSION idem_action;

CREATE ROLE support_worker LOGIN;
SELECT idem.grant_access('support_worker', 'worker');

-- A lost model call costs a little and harms nobody: just call again.
SELECT idem.define_rule(
    intent       => 'draft-reply',
    unique_by    => 'one draft for each request and stage',
    resolved_by  => 'support engineering',
    on_uncertain => 'repeat',
    lease        => '15 seconds');

-- A second ticket wastes a person's time, and the ticket service offers no
-- way to search for the first: where it may exist already, a person looks.
SELECT idem.define_rule(
    intent       => 'create-review-task',
    unique_by    => 'one review task for each request and stage',
    new_when     => 'the request enters its next stage',
    resolved_by  => 'the support lead on duty',
    on_uncertain => 'review',
    lease        => '5 seconds');
