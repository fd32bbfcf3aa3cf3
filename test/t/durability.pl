# Copyright (c) 2026, idem_action contributors

# What was acknowledged survives a crash of the server whatever
# synchronous_commit says; what was rolled back, by whatever way a transaction
# can end, has never been.
#
# Protects: the forced commit of every answer that a caller acts on, and that a
# claim is the row of its transaction and nothing else.

use strict;
use warnings;

use IdemAction;
use List::Util qw(min);
use Test::More;

# The WAL writer would bring an asynchronous commit to disk before the crash
# does its work.
my $node = IdemAction->node(
	'main', conf => q{
	wal_writer_delay = 10s
	checkpoint_timeout = 1h
	autovacuum = off
});

$node->rule('act', on_uncertain => 'repeat', lease => '1 hour');
$node->rule('other', lease => '1 hour');
$node->safe_psql(
	'postgres', q{
	CREATE TABLE control (n int);
	CREATE FUNCTION timed_claim(key text, intent text, OUT outcome text, OUT ms float8)
	LANGUAGE plpgsql AS $$
	DECLARE
		start timestamptz := clock_timestamp();
	BEGIN
		outcome := (idem.claim_action(key, intent)).outcome;
		ms := 1000 * extract(epoch FROM clock_timestamp() - start);
	END$$;
});

#
# A21: a crash right after the answer
#
my $lost_controls = 0;
my $crashes = 0;

sub row
{
	my ($key) = @_;
	return $node->safe_psql('postgres',
		"SELECT to_jsonb(a) FROM idem.idem_actions a WHERE key = '$key'");
}

# Runs the call and crashes the server.  What an ordinary asynchronous commit
# does meanwhile tells whether the crash came soon enough to prove anything.
sub answered_and_crashed
{
	my ($sql) = @_;
	my $answer = $node->safe_psql(
		'postgres', qq{
		SET synchronous_commit = off;
		SELECT to_json(r) FROM $sql r;
		INSERT INTO control VALUES ($crashes);
	});

	$node->crash;
	$lost_controls++
	  if $node->safe_psql('postgres', "SELECT count(*) FROM control WHERE n = $crashes") eq '0';
	$crashes++;
	return $node->decode($answer);
}

sub ids
{
	my ($claim) = @_;
	return "action_id => '$claim->{action_id}', claim_id => '$claim->{claim_id}'";
}

my $claim = answered_and_crashed("idem.claim_action('single', 'act', worker => 'w')");
my $found = $node->call('find_action', key => 'single', intent => 'act');
is($claim->{granted}, 1, 'a claim');
is_deeply(
	[ @$found{qw(outcome worker attempt action_id)} ],
	[ 'in_progress', 'w', 1, $claim->{action_id} ],
	'claim_action survives the crash');
like(row('single'), qr/"claim_id": "$claim->{claim_id}"/, 'with its claim_id');

my @claims = answered_and_crashed("idem.claim_actions('act', ARRAY['b1', 'b2', 'b3'])");
is(scalar(grep { row($_->{key}) =~ /"claim_id": "$_->{claim_id}"/ } @claims),
	3, 'claim_actions survives the crash');

my $marked = $node->claim(key => 'begun', intent => 'act');
answered_and_crashed('idem.begin_effect(' . ids($marked) . q{, draft => '{"d": 1}')});
like(row('begun'), qr/"begun": true.*"draft": \{"d": 1\}/, 'begin_effect survives the crash');

my $until = $node->safe_psql('postgres', q{SELECT max(lease_until) FROM idem.idem_actions WHERE key = 'b1'});
answered_and_crashed('idem.extend_claim(' . ids($claims[0]) . ", lease => '1 day')");
is($node->safe_psql('postgres', "SELECT lease_until > '$until' FROM idem.idem_actions WHERE key = 'b1'"),
	't', 'extend_claim survives the crash');

answered_and_crashed("idem.extend_claims(ARRAY['$claims[1]{action_id}'::uuid], ARRAY['$claims[1]{claim_id}'::uuid], '1 day')");
is($node->safe_psql('postgres', "SELECT lease_until > '$until' FROM idem.idem_actions WHERE key = 'b2'"),
	't', 'extend_claims survives the crash');

answered_and_crashed('idem.complete_action(' . ids($claim) . ", external_ref => 'ref-1')");
$found = $node->claim(key => 'single', intent => 'act');
is_deeply([ @$found{qw(outcome external_ref)} ],
	[ 'completed', 'ref-1' ], 'complete_action survives the crash');

answered_and_crashed("idem.complete_actions(ARRAY['$claims[0]{action_id}'::uuid], ARRAY['$claims[0]{claim_id}'::uuid])");
is($node->claim(key => 'b1', intent => 'act')->{outcome},
	'completed', 'complete_actions survives the crash');

answered_and_crashed('idem.fail_action(' . ids($claims[1]) . ", error => 'no', effect => 'refused')");
is($node->claim(key => 'b2', intent => 'act')->{outcome},
	'failed', 'fail_action survives the crash');

answered_and_crashed('idem.release_action(' . ids($claims[2]) . ')');
is($node->claim(key => 'b3', intent => 'act')->{attempt}, 2, 'release_action survives the crash');

# where a lost completion is allowed, it leaves doubt and never a second effect
$claim = $node->claim(key => 'async', intent => 'other');
$node->safe_psql('postgres', q{ALTER SYSTEM SET idem_action.async_complete = on});
$node->reload;
answered_and_crashed('idem.complete_action(' . ids($claim) . ')');
like($node->claim(key => 'async', intent => 'other')->{outcome},
	qr/^(completed|in_progress)$/, 'async_complete: completed, or still in progress');
$node->lapse('async');
like($node->claim(key => 'async', intent => 'other')->{outcome},
	qr/^(completed|needs_attention)$/, 'async_complete: never claimed again');
$node->safe_psql('postgres', q{ALTER SYSTEM RESET idem_action.async_complete});
$node->reload;

cmp_ok($lost_controls, '>=', 3, "the crashes did lose asynchronous commits ($lost_controls of $crashes)");

#
# A claim whose transaction ends, in every way that there is
#
sub best_of
{
	my ($key, $intent) = @_;
	my (@ms, $outcome);

	foreach (1 .. 8)
	{
		my ($as, $ms) = split /\|/, $node->safe_psql('postgres', "SELECT * FROM timed_claim('$key', '$intent')");
		$outcome //= $as;
		push @ms, $ms;
	}
	return ($outcome, min @ms);
}

# Each: how the transaction ends, and what comes of it for the others
my %end = (
	rollback => [ sub { $_[0]->query_safe('ROLLBACK') }, 'claimed' ],
	savepoint => [ sub { $_[0]->query_safe('ROLLBACK TO SAVEPOINT s') }, 'claimed' ],
	error => [ sub { $_[0]->query('SELECT 1 / 0') }, 'claimed' ],
	client_killed => [ sub { $node->kill_client($_[0]) }, 'claimed' ],
	terminated => [
		sub { $node->safe_psql('postgres', "SELECT pg_terminate_backend($_[0]{backend})"); $node->wait_until_gone($_[0]) },
		'claimed'
	],
	rollback_prepared => [
		sub { $_[0]->query_safe(q{PREPARE TRANSACTION 'p'}); $node->safe_psql('postgres', q{ROLLBACK PREPARED 'p'}) },
		'claimed'
	],
	commit => [ sub { $_[0]->query_safe('COMMIT') }, 'completed' ],
	commit_prepared => [
		sub { $_[0]->query_safe(q{PREPARE TRANSACTION 'p'}); $node->safe_psql('postgres', q{COMMIT PREPARED 'p'}) },
		'completed'
	]);

foreach my $end (sort keys %end)
{
	my ($how, $then) = @{ $end{$end} };
	my $holder = $node->session;
	my $waiter = $node->session;

	$holder->query_safe('BEGIN');
	$holder->query_safe('SAVEPOINT s');
	my $open = $node->call_in($holder, 'claim_action', key => $end, intent => 'act', in_transaction => 't');
	$node->call_in($holder, 'complete_action', action_id => $open->{action_id}, claim_id => $open->{claim_id}, external_ref => 'mine')
	  if $then eq 'completed';

	my ($outcome, $ms) = best_of($end, 'act');
	is($outcome, 'contended', "$end: the rival is told contended while it is open");
	cmp_ok($ms, '<', 50, "$end: in less than 50 ms ($ms ms)");
	($outcome, $ms) = best_of($end, 'other');
	cmp_ok($ms, '<', 50, "$end: another step of the same key in less than 50 ms ($ms ms)");

	$node->send($waiter, $node->call_sql('claim_action', key => $end, intent => 'act', wait => '30 s', worker => 'waiter'));
	$node->wait_until_blocked($waiter);
	$how->($holder);
	my $answer = $node->decode($waiter->query(''));
	is($answer->{outcome}, $then, "$end: a rival that waited is answered $then");
	is_deeply(
		[ @$answer{qw(attempt worker external_ref)} ],
		$then eq 'claimed' ? [ 1, 'waiter', undef ] : [ 1, undef, 'mine' ],
		"$end: with the facts that hold now");
	is($node->claim(key => $end, intent => 'act')->{granted}, 0, "$end: nobody else is granted");
	$waiter->quit;
	$holder->query('ROLLBACK') if $end eq 'savepoint' || $end eq 'error';
	$holder->quit unless $end eq 'client_killed' || $end eq 'terminated';
}

# several waiters, one winner
my $holder = $node->session;
my @waiters = map { $node->session } 1 .. 4;
$holder->query_safe('BEGIN');
$node->call_in($holder, 'claim_action', key => 'many', intent => 'act', in_transaction => 't');
foreach my $waiter (@waiters)
{
	$node->send($waiter, $node->call_sql('claim_action', key => 'many', intent => 'act', wait => '2 s'));
	$node->wait_until_blocked($waiter);
}
$holder->query_safe('ROLLBACK');
my @answers = map { $node->decode($_->query(''))->{outcome} } @waiters;
is_deeply([ sort @answers ], [ 'claimed', ('in_progress') x 3 ], 'of four that waited one is granted');
$_->quit foreach @waiters;

# the server crashes under an open claim, and under a prepared one
$holder->query_safe('BEGIN');
$node->call_in($holder, 'claim_action', key => 'crash', intent => 'act', in_transaction => 't');
my $other = $node->session;
$other->query_safe('BEGIN');
my $prepared = $node->call_in($other, 'claim_action', key => 'prepared', intent => 'act', in_transaction => 't');
$other->query_safe(q{PREPARE TRANSACTION 'p'});
$node->kill_process($holder->{backend});
is($node->claim(key => 'crash', intent => 'act')->{granted}, 1, 'an open claim does not outlive the server');
is($node->claim(key => 'prepared', intent => 'act')->{outcome}, 'contended', 'a prepared one does');
$node->crash;
is($node->claim(key => 'prepared', intent => 'act')->{outcome}, 'contended', 'and a second crash');
is($node->call('find_action', key => 'prepared', intent => 'act')->{outcome}, 'contended', 'find_action says so too');
$node->safe_psql('postgres', q{COMMIT PREPARED 'p'});
is($node->claim(key => 'prepared', intent => 'act')->{outcome}, 'in_progress', 'once committed, it is in progress');
is( $node->call(
		'complete_action',
		action_id => $prepared->{action_id},
		claim_id => $prepared->{claim_id})->{accepted},
	1,
	'and its holder completes it');

$node->stop;
done_testing();
