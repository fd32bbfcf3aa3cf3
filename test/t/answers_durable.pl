# Copyright (c) 2026, idem_action contributors

# An answer is as durable as what it tells, whatever synchronous_commit says.
#
# Protects: an answer that writes nothing, but lets its caller act or
# acknowledge a message, flushes the version that it relies on; a once that says
# false does not speak of a commit that a crash then takes back; what is
# enqueued, imported or done once in the caller's transaction survives a crash
# after its commit, and so do rules, rights, secrets and pauses: a rule that
# requires an approval still does afterwards.
#
# The WAL writer is stopped, so that nothing is flushed but by the calls.

use strict;
use warnings;

use IdemAction;
use PostgreSQL::Test::Utils qw(append_to_file);
use Test::More;

my $secrets = PostgreSQL::Test::Utils::tempdir() . '/secrets';
append_to_file($secrets, 'first ' . '0123456789abcdef' x 4 . "\n");
chmod 0600, $secrets or die;

my $node = IdemAction->node(
	'main', conf => qq{
	idem_action.secret_file = '$secrets'
	checkpoint_timeout = 1h
	autovacuum = off
});

$node->rule('act', on_uncertain => 'repeat', lease => '1 hour');
$node->rule('search', on_uncertain => 'verify', lease => '1 hour', settle => '0');
$node->rule('reviewed', requires_approval => 't');
$node->rule('dropped');
$node->rule('paused');
$node->safe_psql('postgres', 'CREATE TABLE control (n int); CREATE ROLE someone; CREATE ROLE other');
$node->call('grant_access', role => 'other', level => 'worker');

my $session = $node->session;
my $rival = $node->session;
$_->query_safe('SET synchronous_commit = off') foreach $session, $rival;

sub wal_writer
{
	return $node->safe_psql('postgres', q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'});
}

sub stop_wal_writer
{
	kill 'STOP', wal_writer() or die 'no WAL writer';
	return;
}

# Up to the position, or to what is written by now: other processes write too.  At
# the start of a page the position is behind the page's header of 24 bytes.
sub is_flushed
{
	my ($position) = @_;
	$position = defined $position ? "'$position'" : 'pg_current_wal_insert_lsn()';
	return $session->query_safe("SELECT pg_wal_lsn_diff($position, pg_current_wal_flush_lsn()) <= 24") eq 't';
}

sub position
{
	return $session->query_safe('SELECT pg_current_wal_insert_lsn()');
}

# what the row says becomes a version that is committed and not flushed
sub leave_unflushed
{
	my ($key) = @_;
	$rival->query_safe("UPDATE idem.idem_actions SET priority = priority WHERE key = '$key'");
	return !is_flushed();
}

stop_wal_writer();
$rival->query_safe('INSERT INTO control VALUES (0)');
ok(!is_flushed(), 'a commit with synchronous_commit = off is not flushed');

#
# Calls that write
#
foreach my $write (
	[ enqueue_action => { key => 'e1', intent => 'act' } ],
	[ enqueue_actions => { keys => [qw(e2 e3)], intent => 'act' } ],
	[ import_actions => { keys => [qw(i1 i2)], intent => 'act' } ],
	[ once => { key => 'o1', intent => 'act' } ],
	[ define_rule => { intent => 'act', unique_by => 'another sentence', resolved_by => 'the test', on_uncertain => 'repeat', lease => '1 hour' } ],
	[ drop_rule => { intent => 'dropped' } ],
	[ grant_access => { role => 'someone', level => 'worker' } ],
	[ revoke_access => { role => 'other', level => 'worker' } ],
	[ use_secret => { id => 'first' } ],
	[ pause_intent => { intent => 'paused', reason => 'the test' } ],
	[ resume_intent => { intent => 'paused' } ])
{
	my ($function, $arg) = @$write;
	$session->query_safe('INSERT INTO control VALUES (1)');
	my $position = position();
	$session->query_safe($node->call_sql($function, %$arg));
	ok(is_flushed($position), "$function flushes its commit");
}

foreach my $write (
	[ enqueue_action => { key => 'e4', intent => 'act' } ],
	[ import_actions => { keys => ['i3'], intent => 'act' } ],
	[ once => { key => 'o2', intent => 'act' } ])
{
	my ($function, $arg) = @$write;
	$session->query_safe('BEGIN; INSERT INTO control VALUES (2)');
	$session->query_safe($node->call_sql($function, %$arg));
	$session->query_safe('COMMIT');
	ok(is_flushed(), "$function flushes the commit of its caller's transaction");
}

#
# Calls that write nothing
#
my $call_id = '00000000-0000-4000-8000-0000000000';
my %claim = map { $_ => $node->claim(key => $_, intent => 'act') } qw(done failed released begun);
sub of
{
	my ($key) = @_;
	return (action_id => $claim{$key}{action_id}, claim_id => $claim{$key}{claim_id});
}

my @done = (complete_action => { of('done'), external_ref => 'r' });
my @failed = (fail_action => { of('failed'), error => 'no', effect => 'refused' });
my @released = (release_action => { of('released') });
my @begun = (begin_effect => { of('begun') });
my @one = (claim_action => { key => 'one', intent => 'act', call_id => "${call_id}01" });
my @many = (claim_actions => { keys => [qw(many)], intent => 'act', call_id => "${call_id}02" });
my @take = (take_actions => { intents => ['act'], call_id => "${call_id}03" });
$session->query_safe($node->call_sql($_->[0], %{ $_->[1] })) foreach \@done, \@failed, \@released, \@begun, \@one, \@many;

$node->call('enqueue_action', key => 'pending', intent => 'paused');
$node->call('enqueue_action', key => 'taken', intent => 'act', priority => 100);
$session->query_safe($node->call_sql($take[0], %{ $take[1] }));
$node->call('enqueue_action', key => 'approval', intent => 'reviewed', draft => { n => 1 });

my $searched = $node->claim(key => 'searched', intent => 'search');
$node->lapse('searched');
$searched = $node->claim(key => 'searched', intent => 'search');
is($searched->{outcome}, 'verify', 'a search is handed out');
my @searched = (verify_action => { action_id => $searched->{action_id}, claim_id => $searched->{claim_id}, found => 'f' });
$session->query_safe($node->call_sql($searched[0], %{ $searched[1] }));

my $cancelled = $node->call('enqueue_action', key => 'cancelled', intent => 'act');
$node->call('cancel_action', action_id => $cancelled->{action_id});
my $doubtful = $node->claim(key => 'doubtful', intent => 'paused');
$node->call('fail_action', action_id => $doubtful->{action_id}, claim_id => $doubtful->{claim_id}, error => 'timeout');
my $resolved = $node->claim(key => 'resolved', intent => 'paused');
$node->call('fail_action', action_id => $resolved->{action_id}, claim_id => $resolved->{claim_id}, error => 'timeout');
my @resolve = (
	resolve_action => {
		action_id => $resolved->{action_id},
		decision => 'happened',
		note => 'it is there',
		revision => $node->call('show_action', action_id => $resolved->{action_id})->{revision}
	});
$session->query_safe($node->call_sql($resolve[0], %{ $resolve[1] }));
$node->safe_psql('postgres', q{SELECT idem.once('once', 'act')});
$node->claim(key => 'held', intent => 'act');

foreach my $answer (
	[ 'done', qr/"completed"/, claim_action => { key => 'done', intent => 'act' } ],
	[ 'done', qr/"completed"/, claim_actions => { keys => [qw(done)], intent => 'act' } ],
	[ 'done', qr/"completed"/, enqueue_action => { key => 'done', intent => 'act' } ],
	[ 'done', qr/"completed"/, find_action => { key => 'done', intent => 'act' } ],
	[ 'done', qr/^false$/, once => { key => 'done', intent => 'act' } ],
	[ 'once', qr/^false$/, once => { key => 'once', intent => 'act' } ],
	[ 'done', qr/^0$/, import_actions => { keys => [qw(done)], intent => 'act' } ],
	[ 'done', qr/"accepted":true/, @done ],
	[ 'done', qr/"accepted":true/, complete_actions => { action_ids => [ $claim{done}{action_id} ], claim_ids => [ $claim{done}{claim_id} ], external_refs => ['r'] } ],
	[ 'failed', qr/"accepted":true/, @failed ],
	[ 'failed', qr/"failed"/, claim_action => { key => 'failed', intent => 'act' } ],
	[ 'released', qr/"accepted":true/, @released ],
	[ 'begun', qr/^\d+/, @begun ],
	[ 'one', qr/"granted":true/, @one ],
	[ 'many', qr/"granted":true/, @many ],
	[ 'taken', qr/"granted":true/, @take ],
	[ 'searched', qr/"granted":true/, @searched ],
	[ 'pending', qr/"pending"/, enqueue_action => { key => 'pending', intent => 'paused' } ],
	[ 'pending', qr/"pending"/, enqueue_actions => { keys => ['pending'], intent => 'paused' } ],
	[ 'approval', qr/"awaiting_approval"/, claim_action => { key => 'approval', intent => 'reviewed' } ],
	[ 'doubtful', qr/"needs_attention"/, claim_action => { key => 'doubtful', intent => 'paused' } ],
	[ 'cancelled', qr/"cancelled"/, claim_action => { key => 'cancelled', intent => 'act' } ],
	[ 'resolved', qr/"accepted":true/, @resolve ])
{
	my ($key, $expected, $function, $arg) = @$answer;
	my $unflushed = leave_unflushed($key);
	my $position = position();
	my $told = $session->query_safe($node->call_sql($function, %$arg));

	like($told, $expected, "$function, repeated for the action $key");
	ok($unflushed && is_flushed($position), '... flushes what it tells');
}

# who is to ask again has nothing to rely on
leave_unflushed('held');
like($session->query_safe($node->call_sql('claim_action', key => 'held', intent => 'act')), qr/"in_progress"/, 'in progress');
ok(!is_flushed(), '... is answered without a flush');

# rows of the own transaction wait for its commit, not before
$session->query_safe('BEGIN');
$session->query_safe($node->call_sql('enqueue_action', key => 'own', intent => 'act'));
$session->query_safe($node->call_sql('enqueue_action', key => 'own', intent => 'act'));
ok(!is_flushed(), 'what the own transaction has written is not flushed by a repeat there');
$session->query_safe('COMMIT');
ok(is_flushed(), '... but by its commit');

#
# A crash
#
$rival->query_safe('INSERT INTO control VALUES (3)');
$session->query_safe($node->call_sql('define_rule', intent => 'paused', unique_by => 'u', resolved_by => 'r', requires_approval => 't'));
$node->safe_psql('postgres', 'SET synchronous_commit = off;' . $node->call_sql('enqueue_action', key => 'e5', intent => 'act'));
my $late = $node->claim(key => 'late', intent => 'act');
$rival->query_safe('SET idem_action.async_complete = on');
$node->call_in($rival, 'complete_action', action_id => $late->{action_id}, claim_id => $late->{claim_id});
is($session->query_safe($node->call_sql('once', key => 'late', intent => 'act')), 'false', 'done by a commit that was not flushed');
my $lost = $node->claim(key => 'lost', intent => 'act');
$node->call_in($rival, 'complete_action', action_id => $lost->{action_id}, claim_id => $lost->{claim_id});
$node->kill_process(wal_writer());

my $found = sub { return $node->call('find_action', intent => 'act', key => $_[0])->{outcome} };
is($found->('lost'), 'in_progress', 'the crash takes back what was not flushed and nobody was told');
is($found->('late'), 'completed', 'but not what once = false was told because of');
is($found->('e5'), 'pending', 'nor what was enqueued and then acknowledged');
is($node->safe_psql('postgres', q{SELECT requires_approval FROM idem.rules WHERE intent = 'paused'}),
	't', 'nor that a rule requires an approval');

$_->{run}->kill_kill foreach $session, $rival;
$node->stop;
done_testing();
