# Copyright (c) 2026, idem_action contributors

# Leases: when they begin, when they end, and what a worker that has stalled can
# still do.
#
# Protects: a lease is as long as was asked, counted from the call, and nothing
# that an outrun holder says changes the attempt that came after it.
#
# Time itself is what the first part tests, so it lets some pass; elsewhere a
# lease is ended by moving it into the past.

use strict;
use warnings;

use IdemAction;
use Test::More;
use Time::HiRes qw(time);

my $node = IdemAction->node('main');

$node->rule('act', lease => '5 minutes');
$node->rule('repeat', lease => '5 minutes', on_uncertain => 'repeat');
$node->rule('short', lease => '1.5 s', on_uncertain => 'repeat');

my $left = 'extract(epoch FROM lease_until - clock_timestamp()) AS left, extract(epoch FROM lease_until - claimed_at) AS length';

#
# from the call, not from the transaction's start and not from COMMIT
#
my $session = $node->session;
$session->query_safe('BEGIN');
$session->query_safe('SELECT now()');
$node->pass_time(2.5);
my ($seconds, $length) = split /\|/,
  $session->query_safe("SELECT $left FROM idem.claim_action('old transaction', 'act', lease => '3 s', in_transaction => true)");
is($length, '3.000000', 'a lease of 3 s');
cmp_ok($seconds, '>', 2, "ends 3 s after the call, in an older transaction too ($seconds s left)");
cmp_ok($seconds, '<=', 3, 'and not later');
my $until = $session->query_safe(q{SELECT lease_until FROM idem.find_action('old transaction', 'act')});
$session->query_safe('COMMIT');
is($node->call('find_action', key => 'old transaction', intent => 'act')->{lease_until} =~ s/T/ /r =~ s/:00$//r,
	$until, 'COMMIT does not renew it');

# the end of a lease is seen within a transaction that began before it
$session->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ');
$node->call_in($session, 'claim_action', key => 'seen', intent => 'short', in_transaction => 't');
is($node->call_in($session, 'claim_action', key => 'seen', intent => 'short', in_transaction => 't')->{outcome},
	'in_progress', 'own claim, lease valid');
$node->pass_time(1.6);
is($node->call_in($session, 'claim_action', key => 'seen', intent => 'short', in_transaction => 't')->{attempt},
	2, 'its end is seen inside the same transaction');
$session->query_safe('COMMIT');

# a wait does not eat the lease
my $waiter = $node->session;
$session->query_safe('BEGIN');
$node->call_in($session, 'claim_action', key => 'waited for', intent => 'act', in_transaction => 't');
$node->send($waiter, "SELECT $left FROM idem.claim_action('waited for', 'act', lease => '3 s', wait => '30 s')");
$node->wait_until_blocked($waiter);
$node->pass_time(2);
$session->query_safe('ROLLBACK');
($seconds, $length) = split /\|/, $waiter->query('');
is($length, '3.000000', 'a wait inside the claim does not eat the lease');
cmp_ok($seconds, '>', 2, "all of it is left after the wait ($seconds s)");

#
# Waiting for a holder that has committed
#
my $claim = $node->claim(key => 'held', intent => 'act', worker => 'holder');
my $start = time;
$node->send($waiter, $node->call_sql('claim_action', key => 'held', intent => 'act', wait => '30 s'));
$node->poll_query_until('postgres', "SELECT wait_event = 'Extension' FROM pg_stat_activity WHERE pid = $waiter->{backend}")
  or die 'does not wait';
is( $node->safe_psql('postgres', "SELECT count(*) FROM pg_locks WHERE pid = $waiter->{backend} AND relation IS NOT NULL"),
	0,
	'waiting holds no lock on a table');
$node->call('complete_action', action_id => $claim->{action_id}, claim_id => $claim->{claim_id}, external_ref => 'ref', result => { n => 1 });
my $answer = $node->decode($waiter->query(''));
is_deeply(
	[ @$answer{qw(outcome external_ref worker)}, $answer->{result}{n} ],
	[ 'completed', 'ref', 'holder', 1 ],
	"a waiter gets the winner's result");
cmp_ok(time - $start, '<', 5, "soon after the winner's commit");

# ... and what it left, where it failed cleanly or its lease ran out
$claim = $node->claim(key => 'given back', intent => 'act');
$node->send($waiter, $node->call_sql('claim_action', key => 'given back', intent => 'act', wait => '30 s'));
$node->poll_query_until('postgres', "SELECT wait_event = 'Extension' FROM pg_stat_activity WHERE pid = $waiter->{backend}")
  or die 'does not wait';
$node->call('release_action', action_id => $claim->{action_id}, claim_id => $claim->{claim_id});
is($node->decode($waiter->query(''))->{attempt}, 2, 'a waiter is granted what the holder gives back');

$claim = $node->claim(key => 'lapses', intent => 'short');
$start = time;
$answer = $node->claim(key => 'lapses', intent => 'short', wait => '30 s');
is_deeply([ @$answer{qw(outcome attempt)} ], [ 'claimed', 2 ], 'a waiter takes over at the end of the lease');
cmp_ok(time - $start, '<', 6, 'not at the end of its wait');

$start = time;
is($node->claim(key => 'waited for', intent => 'act', wait => '0.3 s')->{outcome}, 'in_progress', 'a wait that runs out');
cmp_ok(time - $start, '>=', 0.3, 'has lasted');
is($node->sqlstate(q{SELECT idem.claim_action('k', 'act', wait => '31 s')}), '22023', 'a wait of more than 30 s is refused');
is($node->sqlstate(q{SELECT idem.claim_action('k', 'act', wait => '-1 s')}), '22023', 'a negative wait too');
$_->quit foreach $session, $waiter;

#
# no claim without an end
#
is($node->safe_psql('postgres', q{SELECT extract(epoch FROM lease_until - claimed_at) FROM idem.claim_action('default', 'act')}),
	'300.000000', "a NULL lease is the rule's");
foreach my $lease ('0', '-1 s', '-1 month', '1 month -40 days', '1000000 years', '178000000 years')
{
	is($node->sqlstate("SELECT idem.claim_action('bad', 'act', lease => '$lease')"), '22023', "a lease of $lease is refused");
}
like($node->sqlstate(q{SELECT idem.claim_action('bad', 'act', lease => 'infinity'::interval)}),
	qr/^22/, 'an infinite lease is refused');
is($node->call('find_action', key => 'bad', intent => 'act')->{outcome}, 'unknown', 'and nothing is claimed');
$claim = $node->call('find_action', key => 'default', intent => 'act');
foreach my $sql (
	q{UPDATE idem.idem_actions SET lease_until = NULL WHERE state = 'in_progress'},
	q{UPDATE idem.idem_actions SET lease_until = 'infinity' WHERE state = 'in_progress'},
	q{UPDATE idem.idem_actions SET claim_id = NULL WHERE state = 'in_progress'})
{
	is($node->sqlstate($sql), '23514', "the table refuses $sql");
}
my $held = $node->claim(key => 'extended', intent => 'act');
foreach my $lease ('0', '-1 s')
{
	is($node->sqlstate("SELECT idem.extend_claim('$held->{action_id}', '$held->{claim_id}', '$lease')"),
		'22023', "no extension by $lease");
	is($node->sqlstate("SELECT idem.begin_effect('$held->{action_id}', '$held->{claim_id}', lease => '$lease')"),
		'22023', "nor by begin_effect");
}
cmp_ok($node->call('extend_claim', action_id => $held->{action_id}, claim_id => $held->{claim_id}, lease => '1 s'),
	'>', 200, 'an extension never shortens a lease');

#
# a stalled worker comes back after takeover, both have one name
#
sub row
{
	my ($key) = @_;
	return $node->safe_psql('postgres', "SELECT to_jsonb(a) FROM idem.idem_actions a WHERE key = '$key'");
}

sub ids
{
	my ($of) = @_;
	return (action_id => $of->{action_id}, claim_id => $of->{claim_id});
}

my $stalled = $node->claim(key => 'stalled', intent => 'repeat', worker => 'same', call_id => '11111111-1111-4111-8111-111111111111');
$node->lapse('stalled');
my $next = $node->claim(key => 'stalled', intent => 'repeat', worker => 'same');
is_deeply([ @$next{qw(granted attempt)} ], [ 1, 2 ], 'taken over');
isnt($next->{claim_id}, $stalled->{claim_id}, 'by a claim of its own');
my $row = row('stalled');

is($node->sqlstate("SELECT idem.extend_claim('$stalled->{action_id}', '$stalled->{claim_id}')"), 'IA002', 'its heartbeat');
is($node->sqlstate("SELECT idem.begin_effect('$stalled->{action_id}', '$stalled->{claim_id}')"), 'IA002', 'its begin_effect');
like($node->call('extend_claims', action_ids => [ $stalled->{action_id} ], claim_ids => [ $stalled->{claim_id} ])->{problem},
	qr/lost/, 'its heartbeat in a batch');
is($node->claim(key => 'stalled', intent => 'repeat', worker => 'same', call_id => '11111111-1111-4111-8111-111111111111')->{granted},
	0, 'its own call again does not get it the claim');
foreach my $effect (qw(unknown none refused))
{
	is($node->call('fail_action', ids($stalled), error => 'late', effect => $effect)->{accepted}, 0, "its failure ($effect) is kept");
}
is($node->call('release_action', ids($stalled))->{accepted}, 0, 'its release is kept');
is(row('stalled'), $row, 'the new attempt has not changed');
is( $node->safe_psql(
		'postgres', q{
		SELECT count(*) FILTER (WHERE attempt = 1), count(*) FROM idem.history
		WHERE key = 'stalled' AND event IN ('failed', 'released') AND detail->>'accepted' = 'false'}),
	'4|4',
	'the history has all of it as evidence about attempt 1');

# its success is news that must stop the other before it acts
my $report = $node->call('complete_action', ids($stalled), external_ref => 'first');
is_deeply([ @$report{qw(accepted state)} ], [ 0, 'needs_attention' ], 'its success stops the new attempt');
is($node->sqlstate("SELECT idem.begin_effect('$next->{action_id}', '$next->{claim_id}')"), 'IA002', 'which is told before it acts');
is($node->sqlstate("SELECT idem.extend_claim('$next->{action_id}', '$next->{claim_id}')"), 'IA002', 'and at its next heartbeat');
is($node->claim(key => 'stalled', intent => 'repeat')->{outcome}, 'needs_attention', 'nobody is granted any more');
like(row('stalled'), qr/"external_ref": "first"/, 'the reference is kept');

#
# success of the last claim on an action whose lease a sweep has ended
#
sub swept
{
	my ($key) = @_;
	my $of = $node->claim(key => $key, intent => 'repeat');

	$node->lapse($key);
	$node->safe_psql('postgres', 'CALL idem.run_maintenance()');
	is($node->safe_psql('postgres', "SELECT state, uncertain FROM idem.idem_actions WHERE key = '$key'"), 'pending|t', "$key: swept");
	return $of;
}

my $slow = swept('slow');
$report = $node->call('complete_action', ids($slow), external_ref => 'done');
is_deeply([ @$report{qw(accepted state)} ], [ 1, 'completed' ], 'accepted where nobody has judged since');
is($node->claim(key => 'slow', intent => 'repeat')->{external_ref}, 'done', 'the next is a repeat');
is(scalar(my @taken = $node->call('take_actions', intents => ['repeat'], max => 10)), 0, 'and it is not waiting to be taken');

$slow = swept('slow2');
is($node->claim(key => 'slow2', intent => 'repeat')->{granted}, 1, 'handed out again');
$report = $node->call('complete_action', ids($slow), external_ref => 'done');
is_deeply([ @$report{qw(accepted state)} ], [ 0, 'needs_attention' ], 'then the success stops that hand-out');

# a sweep never touches what a person has to decide, nor a valid lease
$node->safe_psql('postgres', 'CALL idem.run_maintenance()');
is($node->claim(key => 'slow2', intent => 'repeat')->{outcome}, 'needs_attention', 'a pass leaves it to the person');
is($node->claim(key => 'default', intent => 'act')->{outcome}, 'in_progress', 'a pass leaves a valid lease');

$slow = swept('slow3');
is($node->call('release_action', ids($slow))->{accepted}, 0, 'it says that it did nothing');
$report = $node->call('complete_action', ids($slow), external_ref => 'done');
is_deeply([ @$report{qw(accepted state)} ], [ 0, 'needs_attention' ], 'then that it did: a person decides');

$node->stop;
done_testing();
