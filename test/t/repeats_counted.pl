# Copyright (c) 2026, idem_action contributors

# Counted repeats are exact, whoever counts and whoever writes them down at the
# same time: sessions that repeat, several maintenance runs and the worker, some
# of them cancelled or terminated in the middle, while keys are forgotten.
#
# Protects: each delivery is counted once and written once; nothing is left of an
# action that was forgotten meanwhile.

use strict;
use warnings;

use IdemAction;
use PostgreSQL::Test::Utils;
use Test::More;

use constant { CLIENTS => 8, CALLS => 2_000, DELIVERIES => 40 };

my $node = IdemAction->node(
	'main', conf => q{
	idem_action.worker = on
	idem_action.naptime = 1
	fsync = off
	log_statement = none
	max_connections = 50
});
$node->rule('act');
$node->rule('short', keep_content => '0', keep_key => '20 ms');
foreach my $key (1 .. 5)
{
	my $claim = $node->claim(key => "done-$key", intent => 'act');
	$node->call('complete_action', action_id => $claim->{action_id}, claim_id => $claim->{claim_id});
}

sub script
{
	my ($name, $text) = @_;
	my $file = $node->basedir . "/$name.sql";
	append_to_file($file, $text);
	return $file;
}

my $repeat = script('repeat', q{
\set key random(1, 5)
\set delivery random(1, } . DELIVERIES . q{)
SELECT granted FROM idem.claim_action('done-' || :key, 'act', source => 'bus', event_id => 'evt-' || :delivery);
});
my $forget = script('forget', q{
\set key random(1, 20)
SELECT granted, action_id, claim_id FROM idem.claim_action('short-' || :key, 'short', source => 'bus', event_id => 'e') \gset
\if :granted
SELECT accepted FROM idem.complete_action(:action_id, :claim_id);
\endif
});
my $write = script('write', q{
CALL idem.run_maintenance();
});
my $broken_off = script('broken_off', q{
\set ms random(1, 8)
SET statement_timeout = :ms;
CALL idem.run_maintenance();
});

sub start
{
	my ($file, @options) = @_;
	my ($out, $err) = ('', '');
	my $run = IPC::Run::start([ 'pgbench', '-n', @options, '-f', $file, $node->connstr('postgres') ],
		'<', \undef, '>', \$out, '2>', \$err);
	return { run => $run, out => \$out, err => \$err };
}

# these go on until they are stopped
my $forgetter = start($forget, '-M', 'prepared', '-c', 2, '-T', 600);
my @writers = start($write, '-c', 2, '-T', 600);
my @callers = map { start($repeat, '-M', 'prepared', '-c', CLIENTS / 2, '-t', CALLS) } 1 .. 2;

# each breaks off at an error, somewhere; one session in between is terminated
my ($rounds, $cancelled, $terminated) = (0, 0, 0);
while (grep({ $_->{run}->pumpable } @callers) || !$cancelled || !$terminated)
{
	my $cut = start($broken_off, '-c', 1, '-t', 20);
	$cut->{run}->finish;
	$cancelled++ if ${ $cut->{err} } =~ /statement timeout/;
	if (++$rounds % 5 == 0)
	{
		my (undef, $ended) = $node->psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE query LIKE 'CALL idem.run_maintenance%' AND state = 'active' ORDER BY random() LIMIT 1});
		if ($ended eq 't')
		{
			$terminated++;
			push @writers, start($write, '-c', 1, '-T', 600);
		}
	}
	eval { $_->{run}->pump_nb } foreach @callers;	# or it has just ended
	last if $rounds == 1000;
}
foreach my $caller (@callers)
{
	ok($caller->{run}->finish, 'all calls were answered') or diag(${ $caller->{err} });
}
ok($forgetter->{run}->pumpable, 'keys were forgotten all the while') or diag(${ $forgetter->{err} });
$_->{run}->kill_kill foreach $forgetter, @writers;
cmp_ok($cancelled, '>', 0, "maintenance was cancelled in $cancelled of $rounds rounds");
cmp_ok($terminated, '>', 0, "and terminated in $terminated");
$node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend'}) or die 'a session goes on';

# one key at least comes again before a pass has forgotten it
$node->append_conf('postgresql.conf', 'idem_action.worker = off');
$node->reload;
$node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'idem_action worker'}) or die 'a worker goes on';
my $short = $node->claim(key => 'short-last', intent => 'short');
$node->call('complete_action', action_id => $short->{action_id}, claim_id => $short->{claim_id});
$node->poll_query_until('postgres', q{SELECT forget_after < clock_timestamp() FROM idem.idem_actions WHERE key = 'short-last'}) or die 'not over';
ok($node->claim(key => 'short-last', intent => 'short')->{granted}, 'a key that is to be forgotten is granted again');
$node->safe_psql('postgres', 'CALL idem.run_maintenance()');

is($node->safe_psql('postgres', q{SELECT sum(n) FROM idem.repeats WHERE intent = 'act'}),
	CLIENTS * CALLS, 'each repeat is counted once');
is($node->safe_psql('postgres', q{SELECT sum(completed) FROM idem.stat_intents WHERE intent = 'act'}),
	CLIENTS * CALLS, 'in stat_intents too');
is($node->safe_psql('postgres', q{
	SELECT count(*) FROM (SELECT FROM idem.idem_repeats WHERE intent = 'act' GROUP BY day, outcome, action_id, source, event_id HAVING count(*) > 1) s}),
	0, 'one row for each');
is($node->safe_psql('postgres', 'SELECT problem FROM idem.worker_state()'), '', 'and none is left out');

# what was forgotten takes its counts along
cmp_ok($node->safe_psql('postgres', q{SELECT sum(claimed_after_forgetting) FROM idem.stat_intents WHERE intent = 'short'}), '>', 0, 'keys came again after they were to be forgotten');
is($node->safe_psql('postgres', q{
	SELECT count(*) FROM idem.idem_repeats r WHERE action_id <> '00000000-0000-0000-0000-000000000000'
		AND NOT EXISTS (SELECT FROM idem.idem_actions a WHERE a.action_id = r.action_id)}),
	0, 'no counts without their action');

$node->stop;
done_testing();
