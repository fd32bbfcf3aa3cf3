# Copyright (c) 2026, idem_action contributors

# With wal_level = minimal a table that was made or emptied by the transaction
# that writes to it is not logged but written out at its commit.  What was
# granted there survives a crash like everything else, also for callers who ask
# for no flush, and it is found by the index afterwards.

use strict;
use warnings;

use IdemAction;
use Test::More;

# nothing is small enough to be logged all the same
my $node = IdemAction->node('main', extension => 0, conf => q{
	wal_level = minimal
	max_wal_senders = 0
	wal_skip_threshold = 0
	synchronous_commit = off
	fsync = off
});

sub outcomes
{
	return $node->safe_psql('postgres', qq{
		SET enable_seqscan = off;
		SELECT string_agg(f.outcome, ' ' ORDER BY n) FROM unnest('{@{[ join ',', @_ ]}}'::text[]) WITH ORDINALITY k (key, n), idem.find_action(key, 'act') f});
}

$node->safe_psql('postgres', q{
	BEGIN;
	CREATE EXTENSION idem_action;
	SELECT idem.define_rule('act', 'the key', 'the test');
	SELECT outcome FROM idem.claim_action('made', 'act', in_transaction => true);
	SELECT r.state FROM idem.claim_action('done', 'act', in_transaction => true) c, idem.complete_action(c.action_id, c.claim_id, 'r') r;
	SELECT outcome FROM idem.enqueue_action('queued', 'act');
	COMMIT;
});
$node->crash;
is(outcomes(qw(made done queued)), 'in_progress completed pending', 'made in the same transaction: known after a crash');
is($node->safe_psql('postgres', q{SELECT granted, outcome FROM idem.claim_action('made', 'act')}), 'f|in_progress', 'and not granted again');

$node->safe_psql('postgres', q{SELECT idem.claim_action('plain', 'act')});
$node->crash;
is(outcomes('plain'), 'in_progress', 'a claim as usual: known after a crash');

$node->safe_psql('postgres', q{
	BEGIN;
	TRUNCATE idem.idem_actions, idem.idem_events, idem.idem_queue, idem.idem_repeats;
	SELECT outcome FROM idem.claim_action('emptied', 'act', in_transaction => true);
	SELECT r.state FROM idem.claim_action('failed', 'act', in_transaction => true) c, idem.fail_action(c.action_id, c.claim_id, 'timeout') r;
	SELECT outcome FROM idem.enqueue_action('queued', 'act');
	COMMIT;
});
$node->crash;
is(outcomes(qw(emptied failed queued made)), 'in_progress needs_attention pending unknown', 'emptied in the same transaction: known after a crash');
is($node->safe_psql('postgres', q{SELECT count(*) FROM idem.history WHERE key = 'failed' AND event = 'failed'}), 1, 'with its history');
is($node->safe_psql('postgres', q{SELECT key FROM idem.take_actions('{act}')}), 'queued', 'and its queue');
is($node->safe_psql('postgres', q{SELECT count(*) FROM idem.idem_actions a WHERE idem.violated_invariant(a) IS NOT NULL}), 0, 'no invariant is violated');

$node->stop;
done_testing();
