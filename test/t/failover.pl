# Copyright (c) 2026, idem_action contributors

# A synchronous standby stalls, calls that wait for it end in every way that
# there is, they are repeated, and the standby is promoted without what it never
# got.
#
# Protects: while the standby lacks a commit, no call is granted, told seconds
# left, "pending", "completed", once = false or an accepted report because of it,
# whether the first call's wait was cancelled, its backend was terminated, the
# server crashed under it, its session asked for less, or it was prepared; after
# the promotion another worker is granted the key, so it has one holder; and
# nothing is lost of what was acknowledged.  The repeat waits, or ends by its
# timeout; once the standby has caught up, it is answered as the first call would
# have been.
#
# Size: IDEM_PROMOTIONS, of which each takes its turn of cancelled, terminated
# and crashed.

use strict;
use warnings;

use IdemAction;
use IPC::Run;
use Test::More;

my $promotions = $ENV{IDEM_PROMOTIONS} // 3;

my $primary = IdemAction->node(
	'n0',
	init => [ allows_streaming => 1 ],
	conf => q{
	wal_sender_timeout = 0
	wal_receiver_timeout = 0
	wal_receiver_status_interval = 1s
	max_connections = 60
	autovacuum = off
});

$primary->rule('act', on_uncertain => 'review', lease => '1 hour');
$primary->rule($_, on_uncertain => 'review', lease => '1 hour') foreach qw(take paused);

# A synchronous standby of the primary, made from a new backup.
sub standby_of
{
	my ($node, $name, $conf) = @_;
	my $standby = IdemAction->new($name);

	$node->backup($name);
	$standby->init_from_backup($node, $name, has_streaming => 1);
	$standby->append_conf('postgresql.conf', "synchronous_standby_names = ''\n" . ($conf // ''));
	$standby->start;
	$node->append_conf('postgresql.conf', "synchronous_standby_names = '$name'");
	$node->reload;
	$node->poll_query_until('postgres', q{SELECT sync_state = 'sync' FROM pg_stat_replication}) or die;
	return $standby;
}

# Nothing arrives at the standby any more.
sub stall
{
	my ($standby) = @_;
	my $pid = $standby->safe_psql('postgres', 'SELECT pid FROM pg_stat_wal_receiver');

	kill 'STOP', $pid or die 'no WAL receiver';
	return $pid;
}

sub wait_for_standby_waits
{
	my ($n) = @_;
	$primary->poll_query_until('postgres', "SELECT count(*) = $n FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
	  or die 'no wait for the standby';
	return;
}

# One after the other, by a session that does not wait long.
sub told
{
	my ($sql, $set) = @_;
	my ($status, $stdout, $stderr) = $primary->psql('postgres',
		($set // '') . "SET statement_timeout = '200 ms';\n\\set VERBOSITY sqlstate\n$sql");

	return $stderr =~ /ERROR:\s+(\w{5})/ ? $1 : $stdout;
}

my %holders;		# grants of an action that were told without a warning
my @acknowledged;	# [ key, intent, outcome ]

sub note_grants
{
	$holders{"$_->{intent}/$_->{key}"}++ foreach grep { $_->{granted} } @_;
	return;
}

#
# What a round does: calls that wait, and what they need
#
sub calls
{
	my ($prefix) = @_;
	my $call_id = sub { sprintf '%08x-0000-4000-8000-%012d', unpack('%32C*', $prefix), $_[0] };
	my %claim = map { $_ => $primary->claim(key => "$prefix-$_", intent => 'act') } qw(begin complete fail doubt);
	my %of = map { $_ => { action_id => $claim{$_}{action_id}, claim_id => $claim{$_}{claim_id} } } keys %claim;

	note_grants(values %claim);
	push @acknowledged, map { [ "$prefix-$_", 'act', 'in_progress' ] } qw(begin complete fail);
	$primary->call('fail_action', %{ $of{doubt} }, error => 'timeout');
	$primary->call('enqueue_action', key => "$prefix-taken", intent => 'take');
	push @acknowledged, [ "$prefix-doubt", 'act', 'needs_attention' ];
	my $revision = $primary->call('show_action', action_id => $claim{doubt}{action_id})->{revision};

	return (
		claim_action => { key => "$prefix-claim", intent => 'act', call_id => $call_id->(1) },
		claim_actions => { keys => [ map { "$prefix-batch-$_" } 1 .. 3 ], intent => 'act', call_id => $call_id->(2) },
		take_actions => { intents => ['take'], call_id => $call_id->(3) },
		begin_effect => $of{begin},
		enqueue_action => { key => "$prefix-enqueue", intent => 'act' },
		complete_action => { %{ $of{complete} }, external_ref => 'r' },
		fail_action => { %{ $of{fail} }, error => 'no', effect => 'refused' },
		resolve_action => { action_id => $claim{doubt}{action_id}, decision => 'happened', note => 'it is there', revision => $revision },
		import_actions => { keys => ["$prefix-import"], intent => 'act' },
		once => { key => "$prefix-once", intent => 'act' },
		pause_intent => { intent => 'paused', reason => 'the test' });
}

# The same again, and what else would tell of them.
sub repeats
{
	my ($prefix, %calls) = @_;
	my %repeats = map { $_ => $primary->call_sql($_, %{ $calls{$_} }) } keys %calls;

	$repeats{'claim of what is completed'} = $primary->call_sql('claim_action', key => "$prefix-complete", intent => 'act');
	$repeats{'claim of what is refused'} = $primary->call_sql('claim_action', key => "$prefix-fail", intent => 'act');
	$repeats{'find_action'} = $primary->call_sql('find_action', key => "$prefix-complete", intent => 'act');
	$repeats{'find_action of what is resolved'} = $primary->call_sql('find_action', key => "$prefix-doubt", intent => 'act');
	$repeats{'once of what is completed'} = $primary->call_sql('once', key => "$prefix-complete", intent => 'act');
	return %repeats;
}

sub start_all
{
	my (%calls) = @_;
	my %session = map { $_ => $primary->session } keys %calls;

	$primary->send($session{$_}, $primary->call_sql($_, %{ $calls{$_} })) foreach sort keys %calls;
	wait_for_standby_waits(scalar keys %calls);
	return %session;
}

# A worker acts, and is told so by a standby that has it.
sub acknowledge_some
{
	my ($prefix) = @_;

	foreach my $n (1 .. 5)
	{
		my $claim = $primary->claim(key => "$prefix-done-$n", intent => 'act');
		note_grants($claim);
		$primary->call('complete_action', action_id => $claim->{action_id}, claim_id => $claim->{claim_id});
		push @acknowledged, [ "$prefix-done-$n", 'act', 'completed' ];
	}
	return;
}

#
# The link comes back
#
my $standby = standby_of($primary, 'n1');
acknowledge_some('back');
my $open = $primary->claim(key => 'open', intent => 'act');
my $preparer = $primary->session;
$preparer->query_safe('BEGIN');
$primary->call_in($preparer, 'claim_action', key => 'prepared', intent => 'act', in_transaction => 't', call_id => '00000000-0000-4000-8000-00000000000a');
$preparer->query_safe(q{SAVEPOINT s});
$primary->call_in($preparer, 'claim_action', key => 'nested', intent => 'act', in_transaction => 't', call_id => '00000000-0000-4000-8000-00000000000b');
$preparer->query_safe(q{PREPARE TRANSACTION 'p'});

my $receiver = stall($standby);
my %calls = (
	claim_action => { key => 'back', intent => 'act', call_id => '00000000-0000-4000-8000-00000000000c' },
	complete_action => { action_id => $open->{action_id}, claim_id => $open->{claim_id} });
my %session = start_all(%calls);

like(told($primary->call_sql('claim_action', key => 'back-done-1', intent => 'act')),
	qr/"completed"/, 'while a claim waits for the standby, what was confirmed is told at once');
like(told($primary->call_sql('claim_action', key => 'back', intent => 'act')), qr/"contended"/, 'a rival is told that the key is held');

$primary->safe_psql('postgres', "SELECT pg_terminate_backend($_->{backend})") foreach values %session;
$primary->wait_until_gone($_) foreach values %session;
$_->{run}->finish foreach values %session;
like(told($primary->call_sql('claim_action', key => 'back', intent => 'act')), qr/"in_progress"/, 'who is to ask again does not wait');
is(told($primary->call_sql($_, %{ $calls{$_} })), '57014', "$_, terminated and repeated, waits") foreach sort keys %calls;
like(told($primary->call_sql('claim_action', %{ $calls{claim_action} }), 'SET synchronous_commit = local;'),
	qr/"granted":true/, 'a session that does not ask for the standby does not wait');

my $waiter = $primary->session;
$primary->send($waiter, $primary->call_sql('claim_action', %{ $calls{claim_action} }));
wait_for_standby_waits(1);
is($primary->safe_psql('postgres', "SELECT count(*) FROM pg_locks WHERE pid = $waiter->{backend} AND relation = 'idem.idem_actions'::regclass"),
	0, 'the wait holds no lock on the ledger');
kill 'CONT', $receiver;
my $answer = $primary->decode($waiter->query(''));
is_deeply([ @$answer{qw(granted attempt)} ], [ 1, 1 ], 'and is answered once the standby has caught up');
like(told($primary->call_sql('claim_action', key => 'open', intent => 'act')), qr/"completed"/, 'so are others');

# a session that asks for less, and a prepared transaction
$receiver = stall($standby);
my $lower = $primary->session;
$lower->query_safe('SET synchronous_commit = local');
$answer = $primary->call_in($lower, 'claim_action', key => 'lower', intent => 'act', call_id => '00000000-0000-4000-8000-00000000000d');
is($answer->{granted}, 1, 'a session with synchronous_commit = local is granted at once');
is(told($primary->call_sql('claim_action', key => 'lower', intent => 'act', call_id => '00000000-0000-4000-8000-00000000000d')),
	'57014', 'a repeat that asks for the standby waits');
kill 'CONT', $receiver;
like(told("SET statement_timeout = 0; " . $primary->call_sql('claim_action', key => 'lower', intent => 'act', call_id => '00000000-0000-4000-8000-00000000000d')),
	qr/"granted":true/, '... until the standby has it');

$receiver = stall($standby);
$preparer->query_safe('SET synchronous_commit = local');
$preparer->query_safe(q{COMMIT PREPARED 'p'});
is(told($primary->call_sql('claim_action', key => 'prepared', intent => 'act', call_id => '00000000-0000-4000-8000-00000000000a')),
	'57014', 'a repeat of what was prepared waits, too');
is(told($primary->call_sql('claim_action', key => 'nested', intent => 'act', call_id => '00000000-0000-4000-8000-00000000000b')),
	'57014', '... also of what was prepared in a savepoint');

# A commit is visible a moment before the backend can say that it is not
# confirmed: stop one in between.
SKIP:
{
	my $call = $primary->call_sql('claim_action', key => 'between', intent => 'act', call_id => '00000000-0000-4000-8000-00000000000e');
	my $printed = '';
	my $gdb = eval {
		IPC::Run::start(
			[
				'gdb', '-nx', '-batch', '-p', $lower->{backend},
				map { ('-ex', $_) } 'handle SIGUSR1 nostop noprint pass', 'break *follow_commit', 'shell echo attached',
				'continue', 'continue', "shell kill -STOP $lower->{backend} && echo stopped", 'detach'
			],
			'<', \undef, '>&', \$printed, IPC::Run::timeout(60));
	} or skip 'no gdb', 3;

	$gdb->pump until $printed =~ /attached|ptrace|not permitted/ || !$gdb->pumpable;
	if ($printed !~ /attached/ || $printed =~ /ptrace|not permitted/)
	{
		$gdb->kill_kill;
		skip 'gdb may not stop a backend', 3;
	}
	$primary->send($lower, $call);
	$gdb->finish;
	like($printed, qr/stopped/, 'a backend is stopped after its commit is visible');
	is(told($call), '57014', 'a repeat waits for what the backend has not recorded');
	kill 'CONT', $lower->{backend};
	like($lower->query(''), qr/"granted":true/, 'which goes on afterwards');
}
kill 'CONT', $receiver;
$_->quit foreach $waiter, $lower, $preparer;

#
# Promotions
#
foreach my $round (1 .. $promotions)
{
	my $how = (qw(cancelled terminated crashed))[ $round % 3 ];
	my $preloaded = $round % 3 != 0;
	my $prefix = "r$round";

	acknowledge_some($prefix);
	%calls = calls($prefix);
	$receiver = stall($standby);
	%session = start_all(%calls);

	# no answer has left the server; now the waits end
	if ($how eq 'crashed')
	{
		$primary->kill_process($session{claim_action}{backend});
	}
	elsif ($how eq 'terminated')
	{
		$primary->safe_psql('postgres', "SELECT pg_terminate_backend($_->{backend})") foreach values %session;
		$primary->wait_until_gone($_) foreach values %session;
	}
	else
	{
		$primary->safe_psql('postgres', "SELECT pg_cancel_backend($_->{backend})") foreach values %session;
		my $claim = $primary->decode($session{claim_action}->query(''));
		is($claim->{granted}, 1, "$prefix: a claim whose wait was cancelled is granted");
		like($session{claim_action}{stderr}, qr/WARNING:  canceling wait for synchronous replication/, '... with a warning');
	}

	my %repeats = repeats($prefix, %calls);
	foreach my $name (sort keys %repeats)
	{
		is(told($repeats{$name}), '57014', "$prefix, $how: $name, repeated, is not answered");
	}

	# the primary is lost, and what the standby never got
	$primary->stop('immediate');
	$_->{run}->kill_kill foreach values %session;
	$standby->kill_process($receiver);
	$standby->promote;
	$primary = $standby;

	is($primary->safe_psql('postgres', "SELECT count(*) FROM idem.idem_state WHERE kind = 'pause'"), 0, "$prefix: promoted: not paused");
	my @again = (
		$primary->claim(key => "$prefix-claim", intent => 'act', worker => 'another'),
		$primary->call('claim_actions', keys => [ map { "$prefix-batch-$_" } 1 .. 3 ], intent => 'act', worker => 'another'));
	is(scalar(grep { $_->{granted} && $_->{attempt} == 1 } @again), 4, "$prefix: promoted: another worker is granted the keys");
	note_grants(@again);
	$primary->call('acknowledge_timeline') if $primary->safe_psql('postgres', q{SELECT count(*) FROM pg_proc WHERE proname = 'acknowledge_timeline'});
	my $taken = $primary->call('take_actions', intents => ['take'], worker => 'another');
	note_grants($taken);
	is($taken->{key}, "$prefix-taken", "$prefix: promoted: and takes what was enqueued");
	is($primary->call('find_action', key => "$prefix-$_", intent => 'act')->{outcome},
		'unknown', "$prefix: promoted: lost, and no caller was told of it: $_") foreach qw(enqueue import once);

	my @lost = grep { $primary->call('find_action', key => $_->[0], intent => $_->[1])->{outcome} ne $_->[2] } @acknowledged;
	is_deeply(\@lost, [], "$prefix: nothing acknowledged is lost");
	last if $round == $promotions;
	$standby = standby_of($primary, 'n' . ($round + 1), $round % 2 ? "shared_preload_libraries = ''" : "shared_preload_libraries = 'idem_action'");
}

my @twice = grep { $holders{$_} > 1 } sort keys %holders;
is_deeply(\@twice, [], 'no action was granted twice');

$primary->stop('immediate');
done_testing();
