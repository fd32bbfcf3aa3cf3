# Copyright (c) 2026, idem_action contributors

# Forty clients behind PgBouncer in transaction mode, which has three server
# connections for them.
#
# Protects: nothing of a call is left in a server connection that the next
# client gets, whether the client went on, cancelled, or died, and whether the
# server ended the statement.  Nobody waits for ever, each attempt is granted to
# one client, and what a client was told is stored.
#
# Each client goes through its list of calls.  Meanwhile statements are
# cancelled in the server and by the clients, and clients are killed; another
# client then goes on with the list.  Some claims fail while they hold the lock
# of their key: an index of the DBA's does not take their row.  What is left in
# progress lapses in the end, and a last round does what is not done.
#
# Needs Debian's pgbouncer; skipped where it is missing.  $IDEM_POOL_CALLS says
# how many calls (10000).

use strict;
use warnings;

use IdemAction;
use IO::Select;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils qw(append_to_file);
use Test::More;

my ($pgbouncer) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin', '/usr/local/sbin';
plan skip_all => 'no pgbouncer' unless $pgbouncer;

my $calls = $ENV{IDEM_POOL_CALLS} // 10_000;
my $clients = 40;
my $keys = int($calls / 5);
my $seed = srand($ENV{IDEM_POOL_SEED} // time);

note "seed $seed";

my $node = IdemAction->node('main', conf => "max_connections = 100\nlog_statement = none");
my $dir = PostgreSQL::Test::Utils::tempdir_short();
my $log = "$PostgreSQL::Test::Utils::log_path/t_pgbouncer_pool.log";
my $port = PostgreSQL::Test::Cluster::get_free_port();

$node->safe_psql(
	'postgres', q{
	CREATE ROLE pooled LOGIN;
	SELECT idem.grant_access('pooled', 'worker');
	CREATE TABLE effects (key text);
	GRANT INSERT ON effects TO pooled;
	CREATE INDEX ON idem.idem_actions ((1 / strpos(key, 'k')))});
$node->rule('act', lease => '1 hour', on_uncertain => 'repeat', retry_delay => '0', max_attempts => 1_000_000, max_failures => 1_000_000);
$node->rule('once');

#
# The pool
#
append_to_file("$dir/users", qq("pooled" ""\n));
append_to_file("$dir/pgbouncer.ini", <<EOC);
[databases]
postgres = host=${\$node->host} port=${\$node->port} user=pooled
[pgbouncer]
pool_mode = transaction
default_pool_size = 3
max_client_conn = 200
auth_type = trust
auth_file = $dir/users
admin_users = pooled
listen_addr =
listen_port = $port
unix_socket_dir = $dir
logfile = $log
log_connections = 0
log_disconnections = 0
ignore_startup_parameters = extra_float_digits
EOC
my $pool;
my $pools = 0;
my $to_pool = "host=$dir port=$port user=pooled dbname=postgres";
my %client;

# whatever happens, nothing of it stays
END { kill 'KILL', grep { defined } $pool, map { $_->{pid} } values %client }

# Starts a program.  Returns its process and what it says to stderr.
sub run_program
{
	my @command = @_;
	pipe my $said, my $saying or die "pipe: $!";
	my $pid = fork // die "fork: $!";

	return ($pid, $said) if $pid;
	open STDIN, '<', '/dev/null' or POSIX::_exit(1);
	open STDOUT, '>', '/dev/null' or POSIX::_exit(1);
	open STDERR, '>&', $saying or POSIX::_exit(1);
	exec @command or POSIX::_exit(1);
}

# Starts PgBouncer where it does not run; returns when it answers.  Its 1.18 ends
# now and then when a client goes whose cancel request is on its way (its issue
# 801): then all clients are cut, and go on with another pool.
sub start_pool
{
	return if defined $pool && waitpid($pool, POSIX::WNOHANG) == 0;
	die 'the pool does not last' if ++$pools > 20;
	($pool) = run_program($pgbouncer, '-q', "$dir/pgbouncer.ini");
	my $until = time() + $PostgreSQL::Test::Utils::timeout_default;
	while (system("psql -XAtq -d '$to_pool' -c 'SELECT 1' > /dev/null 2>&1") != 0)
	{
		die 'the pool does not answer' if time() > $until;
	}
	return;
}
start_pool();

#
# The clients.  What they say goes to stderr, which psql does not keep back.
#
my @how = (
	(q{SELECT accepted FROM idem.complete_action(:'action_id', :'claim_id', :'ref') \gset}) x 4,
	q{SELECT idem.begin_effect(:'action_id', :'claim_id') > 0 AS accepted \gset
SELECT accepted FROM idem.complete_action(:'action_id', :'claim_id', :'ref') \gset},
	q{SELECT idem.extend_claim(:'action_id', :'claim_id') > 0 AS extended \gset
SELECT accepted FROM idem.complete_action(:'action_id', :'claim_id', :'ref') \gset},
	q{SELECT false AS accepted FROM idem.fail_action(:'action_id', :'claim_id', 'not sent', 'none') \gset},
	q{SELECT false AS accepted FROM idem.fail_action(:'action_id', :'claim_id', 'timeout') \gset},
	q{SELECT false AS accepted FROM idem.release_action(:'action_id', :'claim_id') \gset},
	q{-- forgets it});

sub claim_and
{
	my ($key, $how, $wait) = @_;
	$wait = $wait ? ", wait => '$wait'" : '';
	return <<EOC;
\\set granted f
\\set accepted f
SELECT granted, attempt, action_id, claim_id, 'ref ' || claim_id AS ref
FROM idem.claim_action('$key', 'act', worker => 'w', call_id => gen_random_uuid()$wait) \\gset
\\if :granted
\\warn granted $key :attempt :claim_id
$how
\\if :accepted
\\warn completed $key :ref
\\endif
\\endif
EOC
}

sub once
{
	my ($key) = @_;
	return <<EOC;
\\set first f
BEGIN;
SELECT idem.once('$key', 'once') AS first \\gset
\\if :first
INSERT INTO effects VALUES ('$key');
\\endif
COMMIT;
EOC
}

# What a client does at place $n of its list.
sub call
{
	my ($n) = @_;
	my $key = 'k' . int rand $keys;

	$key = 'bad' if $n % 20 == 1;
	return "\\warn try $n\n"
	  . ($n % 10 == 0 ? once($key) : claim_and($key, $how[ rand @how ], $n % 10 == 2 ? '50 ms' : undef));
}

# Starts a client on the rest of its list.
sub start_client
{
	my ($c) = @_;
	my $script = "$dir/script.$c->{name}";

	unlink $script;
	append_to_file($script, "\\set VERBOSITY sqlstate\n" . join '', @{ $c->{calls} }[ $c->{next} .. $#{ $c->{calls} } ]);
	@$c{qw(pid said)} = run_program('psql', '-XAtq', '-d', $to_pool, '-f', $script);
	$c->{half} = '';
	return;
}

# What clients were told, and the errors they got.
my (%granted, %completed, %error);

sub note_line
{
	my ($line) = @_;

	if ($line =~ /^granted (\S+ \d+) (\S+)$/) { push @{ $granted{$1} }, $2 }
	elsif ($line =~ /^completed (\S+) (ref \S+)$/) { push @{ $completed{$1} }, $2 }
	elsif ($line =~ /(?:ERROR|FATAL|PANIC):\s+(.*)/) { $error{$1}++ }
	return;
}

# Listens to the clients until all lists are done; $meanwhile is called with
# each call that one of them is about to make.
sub run_clients
{
	my ($meanwhile) = @_;
	my $select = IO::Select->new;
	my %of;

	start_client($_) foreach values %client;
	$of{ fileno $_->{said} } = $_ foreach values %client;
	$select->add(map { $_->{said} } values %client);
	while ($select->count)
	{
		my @ready = $select->can_read($PostgreSQL::Test::Utils::timeout_default) or die 'the clients hang';

		foreach my $c (map { $of{ fileno $_ } } @ready)
		{
			if (sysread $c->{said}, $c->{half}, 65536, length $c->{half})
			{
				while ($c->{half} =~ s/^(.*)\n//)
				{
					note_line($1);
					next unless $1 =~ /^try (\d+)$/;
					$c->{next} = $1 + 1;
					$meanwhile->();
				}
				next;
			}
			# it ended; another one goes on with the list
			$select->remove($c->{said});
			delete $of{ fileno $c->{said} };
			waitpid $c->{pid}, 0;
			undef $c->{pid};
			next if $? == 0 || $c->{next} == @{ $c->{calls} };
			start_pool();
			start_client($c);
			$of{ fileno $c->{said} } = $c;
			$select->add($c->{said});
		}
	}
	return;
}

foreach my $name (1 .. $clients)
{
	my $n = 0;
	$client{$name} = { name => $name, calls => [ map { call($n++) } 1 .. $calls / $clients ], next => 0 };
}

my $admin = $node->session;
my %trouble = (
	'client killed' => sub { my ($c) = @_; kill 'KILL', $c->{pid} },
	# psql sends a cancel request and ends
	'cancelled by the client' => sub { my ($c) = @_; kill 'INT', $c->{pid} },
	'cancelled in the server' => sub {
		$admin->query_safe(
			q{SELECT count(*) FILTER (WHERE pg_cancel_backend(pid)) FROM (
				SELECT pid FROM pg_stat_activity WHERE usename = 'pooled' AND state = 'active' ORDER BY random() LIMIT 1) a});
	});
my %done = map { $_ => 0 } keys %trouble;
my $tries = 0;

run_clients(
	sub {
		return if ++$tries % 25;
		my @running = grep { defined $_->{pid} } values %client;
		my $what = (sort keys %trouble)[ rand keys %trouble ];

		$done{$what} += $trouble{$what}->($running[ rand @running ]);
	});
note "$tries calls; pools: $pools; " . join ', ', map { "$_: $done{$_}" } sort keys %done;
cmp_ok($done{$_}, '>', 3, "it happened: $_") foreach sort keys %done;

#
# What is left behind
#
sub nothing_left
{
	my ($when) = @_;

	ok( $node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE usename = 'pooled' AND state <> 'idle'}),
		"$when: no server connection is busy or in a transaction");
	my $backends = $node->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE usename = 'pooled'});
	cmp_ok($backends, '>', 0, "$when: there are connections, each with a past");
	cmp_ok($backends, '<=', 3, "$when: no more than three");
	is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), 0, "$when: no advisory lock is left");
	is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE a.usename = 'pooled'}),
		0, "$when: nor any other");
	return;
}
nothing_left('after cancels and kills');

#
# What is not done yet is done in the end
#
$node->safe_psql('postgres', q{UPDATE idem.idem_actions SET lease_until = clock_timestamp() - interval '1 second' WHERE state = 'in_progress'});
foreach my $name (1 .. $clients)
{
	my @mine = map { 'k' . $_ } grep { $_ % $clients == $name - 1 } 0 .. $keys - 1;

	$client{$name}{next} = 0;
	$client{$name}{calls} = [ map { claim_and($_, $how[0]), once($_) } @mine ];
}
run_clients(sub { });
nothing_left('at the end');

#
# What the clients were told
#
note keys(%granted) . ' grants and ' . keys(%completed) . ' completions told; errors: ' . join ', ', map { "$_: $error{$_}" } sort keys %error;

cmp_ok($error{22012} // 0, '>', $calls / 40, 'claims that the index refuses');
# that; cancelled; in a transaction after that; the pool's own, cancelled while
# it prepared a connection
delete @error{qw(22012 57014 25P02 08P01)};
is(join(', ', map { "$_: $error{$_}" } sort keys %error), '', 'no other error but those of a cancel');
cmp_ok(scalar(keys %granted), '>', $keys, 'there were failures, and attempts after them');
is((grep { @$_ > 1 } values %granted) + 0, 0, 'each attempt was granted to one client');
is((grep { @$_ > 1 } values %completed) + 0, 0, 'no key was completed twice');
my %stored = map { split /\|/ } split /\n/, $node->safe_psql('postgres', q{SELECT key, external_ref FROM idem.idem_actions WHERE intent = 'act' AND state = 'completed'});
is((grep { ($stored{$_} // '') ne $completed{$_}[0] } keys %completed) + 0, 0, 'every completion that was told is stored');

is($node->safe_psql('postgres', q{SELECT intent, state, count(*) FROM idem.idem_actions GROUP BY 1, 2 ORDER BY 1}),
	"act|completed|$keys\nonce|completed|$keys", 'everything is done');
is($node->safe_psql('postgres', q{SELECT count(*), count(DISTINCT key) FROM effects}), "$keys|$keys", 'once() was so once');
is($node->safe_psql('postgres', q{SELECT count(*) FROM idem.idem_actions a WHERE idem.violated_invariant(a) IS NOT NULL}),
	0, 'no invariant is violated');
$admin->quit;
kill 'INT', $pool;
waitpid $pool, 0;
undef $pool;
$node->stop;
done_testing();
