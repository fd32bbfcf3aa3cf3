# Copyright (c) 2026, idem_action contributors

# Two sessions work on the same 200 keys in opposite order, 500 rounds.
#
# Protects: batches go in one order, whatever the order of their input, so they
# never deadlock; single claims in open transactions that wait for each other
# are at worst one deadlock, which PostgreSQL ends, and both keys stay
# consistent.

use strict;
use warnings;

use IdemAction;
use PostgreSQL::Test::Utils qw(slurp_file);
use Test::More;

my $node = IdemAction->node('main', conf => "log_statement = none\ndeadlock_timeout = 100ms\nmax_wal_size = 4GB");

$node->rule('act', lease => '1 hour');
$node->rule('again', on_uncertain => 'repeat', max_attempts => 2_000_000_000);
$node->safe_psql(
	'postgres', q{
	CREATE UNLOGGED TABLE grants (round int, client int, n bigint);
	CREATE TABLE held AS SELECT key, action_id, claim_id FROM
		idem.claim_actions('act', ARRAY(SELECT 'held-' || g FROM generate_series(1, 200) g));
});
my $log = -s $node->logfile;

# Client 0 counts up, client 1 down
my $order = 'ORDER BY g * (1 - 2 * (:client_id % 2))';

sub rounds
{
	my ($name, $clients, $rounds, $script) = @_;

	$node->pgbench(
		"--no-vacuum --client=$clients --jobs=1 --transactions=$rounds -D i=0",
		0,
		[ qr{processed: ${\($clients * $rounds)}/}, qr/number of failed transactions: 0 / ],
		[qr/^(?!.*ERROR)/s],
		"$name: no session fails",
		{ "deadlock_$name" => $script });
	unlike(slurp_file($node->logfile, $log), qr/ ERROR: /, "$name: no deadlock");
	$log = -s $node->logfile;
	return;
}

# New keys every round: each is granted to one of the two
rounds(
	'new', 2, 500, qq{
	\\set i :i + 1
	INSERT INTO grants
	SELECT :i, :client_id, count(*) FROM
		idem.claim_actions('act', ARRAY(SELECT 'k' || :i || '-' || g FROM generate_series(1, 200) g $order)) WHERE granted;
});
is( $node->safe_psql('postgres', 'SELECT count(*), min(n), max(n) FROM (SELECT sum(n) AS n FROM grants GROUP BY round) r'),
	'500|200|200',
	'every key of every round is granted once');

# The same, kept open for a moment
rounds(
	'open', 2, 100, qq{
	\\set i :i + 1
	BEGIN;
	SELECT count(*) FROM
		idem.claim_actions('act', ARRAY(SELECT 'o' || :i || '-' || g FROM generate_series(1, 200) g $order), in_transaction => true);
	SELECT count(*) FROM
		idem.claim_actions('act', ARRAY(SELECT 'o' || :i || '-' || g FROM generate_series(1, 200) g $order), in_transaction => true);
	COMMIT;
});

# The same keys every round, their lease over at once: every call writes rows
# that the other is writing
rounds(
	'again', 2, 500, qq{
	SELECT count(*) FROM
		idem.claim_actions('again', ARRAY(SELECT 'a-' || g FROM generate_series(1, 200) g $order), lease => '1 microsecond');
});
is( $node->safe_psql('postgres', q{SELECT count(*), count(*) FILTER (WHERE lost <> attempt - 1) FROM idem.idem_actions WHERE intent = 'again'}),
	'200|0',
	'every attempt but the last is counted as lost');
is( $node->safe_psql(
		'postgres', q{
		SELECT count(*) FROM idem.idem_actions a WHERE intent = 'again' AND
			attempt <> 1 + (SELECT count(DISTINCT attempt) FROM idem.idem_events e WHERE e.action_id = a.action_id AND event = 'expired')
				+ (SELECT coalesce(sum((detail ->> 'expired')::int), 0) FROM idem.idem_events e WHERE e.action_id = a.action_id AND event = 'thinned')}),
	0,
	'and stands in the history once');

# Batches that wait: heartbeats and completions of the same claims
my $ids = "(SELECT array_agg(action_id $order) AS ids, array_agg(claim_id $order) AS cl FROM (SELECT *, row_number() OVER (ORDER BY key) AS g FROM held) h) h";
rounds('extends', 2, 150, qq{
	SELECT count(seconds_left) FROM $ids, idem.extend_claims(ids, cl, '1 hour');
});
rounds('mixed', 3, 100, qq{
	\\set which (:client_id + :i) % 3
	\\set i :i + 1
	\\if :which = 0
	SELECT count(seconds_left) FROM $ids, idem.extend_claims(ids, cl, '1 hour');
	\\elif :which = 1
	SELECT count(*) FROM $ids, idem.complete_actions(ids, cl);
	\\else
	SELECT count(*) FROM idem.claim_actions('act', ARRAY(SELECT key FROM held));
	\\endif
});
is($node->safe_psql('postgres', q{SELECT state, count(*) FROM held JOIN idem.idem_actions USING (action_id) GROUP BY state}),
	'completed|200', 'all were completed');

#
# Single claims in opposite order, in open transactions that wait
#
my ($one, $two) = ($node->session, $node->session);

$one->query_safe('BEGIN');
$two->query_safe('BEGIN');
$node->call_in($one, 'claim_action', key => 'A', intent => 'act', worker => 'one', in_transaction => 't');
$node->call_in($two, 'claim_action', key => 'B', intent => 'act', worker => 'two', in_transaction => 't');
$node->send($one, $node->call_sql('claim_action', key => 'B', intent => 'act', worker => 'one', wait => '30 s', in_transaction => 't') . ';COMMIT');
$node->wait_until_blocked($one);
$two->query($node->call_sql('claim_action', key => 'A', intent => 'act', worker => 'two', wait => '30 s', in_transaction => 't') . ';COMMIT');
$one->query('');

$log = slurp_file($node->logfile, $log);
is(scalar(() = $log =~ /ERROR:  deadlock detected/g), 1, 'single claims in opposite order: one deadlock');
is(scalar(() = $log =~ /ERROR:/g), 1, 'and no other error');
$_->{stderr} = '' foreach $one, $two;
is($one->query_safe('SELECT 1'), 1, 'both sessions go on');
is($two->query_safe('SELECT 1'), 1, 'both sessions go on');
is( $node->safe_psql('postgres', q{SELECT count(*), count(DISTINCT worker) FROM idem.idem_actions WHERE intent = 'act' AND key IN ('A', 'B')}),
	'2|1',
	'the other session holds both keys');
is($node->call('find_action', key => 'A', intent => 'act')->{state}, 'in_progress', 'key A is consistent');
is($node->call('find_action', key => 'B', intent => 'act')->{state}, 'in_progress', 'key B is consistent');
$_->quit foreach $one, $two;

#
# One bad row among a hundred
#
$node->claim(key => 'odd', intent => 'act', params => { amount => 1 });
my @row = $node->call(
	'claim_actions',
	intent => 'act',
	keys => [ map { $_ == 50 ? 'odd' : "even-$_" } 1 .. 100 ],
	params => [ ({ amount => 2 }) x 100 ]);
is(scalar(grep { $_->{granted} } @row), 99, 'one of a hundred has other params: 99 go on');
is($row[49]{outcome}, 'mismatch', 'the one is told');

# what is wrong with an argument is wrong for the whole call
is($node->sqlstate(q{SELECT idem.claim_actions('act', ARRAY['fine', NULL])}), 'IA006', 'a null key is an error');
is($node->sqlstate(q{SELECT idem.claim_actions('act', ARRAY['fine', ''])}), 'IA006', 'so is an empty one');
is($node->call('find_action', key => 'fine', intent => 'act')->{outcome}, 'unknown', 'and nothing was claimed');

# twins: the first may be granted, in input order
@row = $node->call('claim_actions', intent => 'act', keys => [qw(K1 K2 K1)], worker => 'w');
is_deeply(
	[ map { [ @$_{qw(key granted outcome repeat)} ] } @row ],
	[ [ 'K1', 1, 'claimed', 0 ], [ 'K2', 1, 'claimed', 0 ], [ 'K1', 0, 'in_progress', 1 ] ],
	'[K1,K2,K1]: K1 granted once, its twin is a repeat, in input order');
is($row[2]{claim_id}, undef, 'the twin does not get the claim');
@row = $node->call('claim_actions', intent => 'act', keys => [qw(K3 K3)], params => [ { a => 1 }, { a => 2 } ]);
is_deeply([ map { $_->{outcome} } @row ], [qw(claimed mismatch)], 'twins that differ in params');
@row = $node->call('claim_actions', intent => 'act', keys => []);
is(scalar(@row), 0, 'an empty batch');

$node->stop;
done_testing();
