# Copyright (c) 2026, idem_action contributors

# What a DBA does to a database while the worker is in the middle of a pass over
# it: nothing waits for the worker, no error comes back again and again, and
# afterwards everything is served as before.  BOUND is for each statement.
#
#	IDEM_WORKER_ROWS	of the pass in which the server is stopped (1 million for
#						a release)
#	IDEM_IDLE_NAPS		how many rests the idle server is watched (6 for a release)

use strict;
use warnings;

use IdemAction;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use constant BOUND => 3;
use constant ROWS => $ENV{IDEM_WORKER_ROWS} // 60_000;
use constant NAPTIME => 10;	# of the idle server: the default, in seconds

my $node = IdemAction->node(
	'main',
	init => [ allows_streaming => 1 ],	# or commits wait for no standby
	conf => q{
	idem_action.worker = on
	idem_action.naptime = 1
	idem_action.require_rule = off
	autovacuum = off
	fsync = off
	max_wal_size = 4GB
});

my $worker = "backend_type = 'idem_action worker'";
my $n_served = 0;

sub wait_for_worker
{
	my ($database, $condition) = @_;
	$condition //= 'true';
	$node->poll_query_until('postgres',
		"SELECT count(*) > 0 FROM pg_stat_activity WHERE $worker AND datname = '$database' AND $condition")
	  or die "no worker in $database";
	return;
}

sub pid_of
{
	my ($type) = @_;
	my $pid = '';
	for (1 .. 200)
	{
		$pid = $node->safe_psql('postgres',
			"SELECT pid FROM pg_stat_activity WHERE backend_type = 'idem_action $type' LIMIT 1");
		return $pid if $pid ne '';
	}
	die "no $type";
}

# A lease that ends at once is judged, by the worker and nobody else
sub are_served
{
	my ($name, @databases) = @_;
	my $key = 'served-' . ++$n_served;

	$node->safe_psql($_, "SELECT granted FROM idem.claim_action('$key', 'probe', lease => '1 ms')") foreach @databases;
	ok( $node->poll_query_until($_, "SELECT state = 'needs_attention' FROM idem.actions WHERE key = '$key'"),
		"$name: $_ is served") foreach @databases;
	return;
}

sub is_served
{
	my ($database, $name) = @_;
	return are_served($name, $database);
}

sub takes_at_most
{
	my ($bound, $name, $code) = @_;
	my $start = time;
	my $ok = eval { $code->(); 1 };
	my $error = $@;
	my $took = time - $start;

	ok($ok, "$name: done") or diag($error);
	cmp_ok($took, '<', $bound, sprintf('%s: %.2f s', $name, $took));
	return;
}

# While the worker works in the database
sub during_a_pass
{
	my ($database, $name, $sql, $where) = @_;
	wait_for_worker($database);
	takes_at_most(BOUND, $name, sub { $node->safe_psql($where // 'postgres', $sql) });
	return;
}

# what every case starts with: a database in which a pass has plenty to do
foreach my $template ([ 'filled', 60_000 ], [ 'large', ROWS ])
{
	my ($database, $rows) = @$template;
	$node->safe_psql('postgres', "CREATE DATABASE $database IS_TEMPLATE true");
	$node->safe_psql($database, 'CREATE EXTENSION idem_action');
	$node->safe_psql($database, 'SET synchronous_commit = off;' . IdemAction::aged($rows, 'old'));
	$node->safe_psql($database, 'VACUUM (FREEZE) idem.idem_actions');
}

sub busy
{
	my ($database, $template) = @_;
	$template //= 'filled';
	$node->safe_psql('postgres', "CREATE DATABASE $database TEMPLATE $template STRATEGY file_copy");
	$node->safe_psql($database, q{SELECT idem.claim_action('used', 'probe', lease => '1 h')});
	return;
}

# --- the database -----------------------------------------------------------

busy('a');
during_a_pass('a', 'ALTER DATABASE RENAME', 'ALTER DATABASE a RENAME TO renamed');
busy('copied');
during_a_pass('copied', 'CREATE DATABASE TEMPLATE', 'CREATE DATABASE copy TEMPLATE copied');
busy('gone');
during_a_pass('gone', 'DROP DATABASE', 'DROP DATABASE gone');
busy('shut');
during_a_pass('shut', 'ALLOW_CONNECTIONS false', 'ALTER DATABASE shut ALLOW_CONNECTIONS false');
is_served('postgres', 'ALLOW_CONNECTIONS false elsewhere');
$node->safe_psql('postgres', 'ALTER DATABASE shut ALLOW_CONNECTIONS true');

# --- the extension ----------------------------------------------------------

busy('dropped');
during_a_pass('dropped', 'DROP EXTENSION', 'DROP EXTENSION idem_action', 'dropped');
$node->safe_psql('dropped', 'CREATE EXTENSION idem_action');
busy('replaced');
during_a_pass('replaced', 'DROP and CREATE EXTENSION in one transaction',
	'BEGIN; DROP EXTENSION idem_action; CREATE EXTENSION idem_action; COMMIT', 'replaced');

# an update of our own, in a copy of the script folder
busy('updated');
SKIP:
{
	skip 'scripts of a test need extension_destdir, of Debian up to 17', 2
	  if $node->safe_psql('postgres', "SELECT count(*) FROM pg_settings WHERE name = 'extension_destdir'") eq '0';
	my $dest = $node->safe_psql('postgres', 'SHOW extension_destdir');
	my $share = $node->config_data('--sharedir');
	my $copy = $node->basedir . '/scripts';
	system_or_bail('mkdir', '-p', "$copy$share");
	system_or_bail('cp', '-r', "$dest$share/extension", "$copy$share/extension");
	my $version = $node->safe_psql('updated', "SELECT extversion FROM pg_extension WHERE extname = 'idem_action'");
	append_to_file("$copy$share/extension/idem_action--$version--next.sql",
		"ALTER TABLE idem.idem_actions SET (fillfactor = 91);\n");
	during_a_pass('updated', 'ALTER EXTENSION UPDATE',
		"SET extension_destdir = '$copy'; ALTER EXTENSION idem_action UPDATE TO 'next'", 'updated');
}

# --- the tables -------------------------------------------------------------

busy('vacuumed');
during_a_pass('vacuumed', 'VACUUM FULL', 'VACUUM FULL idem.idem_actions', 'vacuumed');
busy('truncated');
during_a_pass('truncated', 'TRUNCATE by the owner', 'TRUNCATE idem.idem_actions, idem.idem_events', 'truncated');

busy('locked');
my $offset = -s $node->logfile;
my $locker = $node->session(dbname => 'locked');
wait_for_worker('locked');
takes_at_most(BOUND, 'LOCK TABLE', sub { $locker->query_safe('BEGIN; LOCK TABLE idem.idem_actions') });
$node->wait_for_log(qr/idem_action maintenance failed in "locked": canceling statement due to lock timeout/, $offset);
is_served('postgres', 'LOCK TABLE elsewhere');
$locker->query_safe('COMMIT');
$locker->quit;

are_served('afterwards', qw(renamed copied copy shut dropped replaced updated vacuumed truncated locked));

# --- the processes ----------------------------------------------------------

busy('b');
wait_for_worker('b');
takes_at_most(BOUND, 'pg_terminate_backend of the worker', sub { $node->safe_psql('postgres',
	"SELECT pg_terminate_backend(pid, 3000) FROM pg_stat_activity WHERE $worker") });
is_served('b', 'worker terminated');
takes_at_most(BOUND, 'pg_terminate_backend of the launcher', sub { $node->safe_psql('postgres',
	"SELECT pg_terminate_backend(pid, 3000) FROM pg_stat_activity WHERE backend_type = 'idem_action launcher'") });
like($node->safe_psql('b', 'SELECT problem FROM idem.worker_status'), qr/the launcher is not running/, 'worker_status says so');
is_served('b', 'launcher terminated');

busy('c');
wait_for_worker('c');
$node->kill_process(pid_of('worker'));
is_served('c', 'worker killed');
$node->kill_process(pid_of('launcher'));
is_served('c', 'launcher killed');

sub postmaster
{
	return (split /\n/, slurp_file($node->data_dir . '/postmaster.pid'))[0];
}

# not one that has ended and that init has not collected yet
sub runs
{
	my ($pid) = @_;
	return 0 unless kill 0, $pid;
	open my $stat, '<', "/proc/$pid/stat" or return !-e '/proc/self';
	return <$stat> !~ /\) Z /;
}

busy('d');
wait_for_worker('d');
my @orphans = (pid_of('launcher'), $node->safe_psql('postgres', "SELECT pid FROM pg_stat_activity WHERE $worker"));
my $postmaster = postmaster();
takes_at_most(BOUND, 'kill -9 of the postmaster: the worker ends', sub {
	$node->kill9;
	select undef, undef, undef, 0.05 while grep { $_ && runs($_) } @orphans;
});
# the next one would take it for running until init has collected it
select undef, undef, undef, 0.05 while kill 0, $postmaster;
$node->start;
is_served('d', 'postmaster killed');

# --- shutdown ---------------------------------------------------------------

foreach my $mode (qw(fast smart))
{
	busy($mode, 'large');
	wait_for_worker($mode);
	takes_at_most(BOUND, "stop -m $mode in the middle of a pass", sub { $node->stop($mode) });
	$node->start;
	is_served($mode, "stop -m $mode");
}

# a standby that never answers: what the worker does is done again where it is
# lost, so it waits for none; nor does a shutdown
busy('busy', 'large');
$node->append_conf('postgresql.conf', "synchronous_standby_names = 'missing'");
$node->reload;
{
	local $ENV{PGOPTIONS} = '-c synchronous_commit=local';	# of the test's own sessions
	is_served('busy', 'an unreachable synchronous standby');
	busy('unheard', 'large');
	wait_for_worker('unheard');
}
takes_at_most(5, 'stop -m fast with an unreachable synchronous standby', sub { $node->stop('fast') });
$node->append_conf('postgresql.conf', "synchronous_standby_names = ''");

# --- no slot is free --------------------------------------------------------

$node->append_conf('postgresql.conf', "max_worker_processes = 2\n");	# logical replication has one
$offset = -s $node->logfile;
$node->start;
$node->wait_for_log(qr/idem_action found no free background worker slot/, $offset);
$node->pass_time(3);
my $said = () = substr(slurp_file($node->logfile), $offset) =~ /found no free background worker slot/g;
is($said, 1, 'no free slot: said once in several rounds');
like($node->safe_psql('postgres', 'SELECT problem FROM idem.worker_status'), qr/^no background worker slot is free: raise max_worker_processes/,
	'no free slot: worker_status says so');

# nor one for the launcher: PostgreSQL says that in the log, once
$node->append_conf('postgresql.conf', "max_worker_processes = 1\n");
$offset = -s $node->logfile;
$node->restart;
$node->wait_for_log(qr/too many background workers/, $offset);
like($node->safe_psql('postgres', 'SELECT problem FROM idem.worker_status'), qr/the launcher is not running: .*max_worker_processes/,
	'no slot for the launcher: worker_status says so from the start');

# --- which databases, and whether at all ------------------------------------

$node->append_conf('postgresql.conf', "max_worker_processes = 8\nidem_action.databases = 'busy, gone'\n");
$node->restart;
is_served('busy', 'idem_action.databases');
$node->safe_psql('postgres', "SELECT idem.claim_action('unlisted', 'probe', lease => '1 ms')");
is_served('busy', 'idem_action.databases, once more');
is($node->safe_psql('postgres', "SELECT state FROM idem.actions WHERE key = 'unlisted'"),
	'in_progress', 'a database that is not listed is left alone');
is($node->safe_psql('postgres', 'SELECT last_pass IS NULL FROM idem.worker_status'), 't', 'no pass there since the start');
like($node->safe_psql('postgres', 'SELECT problem FROM idem.worker_status'), qr/idem_action.databases does not name this database/, 'and worker_status says so');
is($node->sqlstate(q{ALTER SYSTEM SET idem_action.databases = '"busy",,gone'}), '22023', 'what is no list is refused');
$node->safe_psql('postgres', 'CREATE DATABASE "Busy" TEMPLATE busy');
$node->append_conf('postgresql.conf', "idem_action.databases = 'Busy, busy'\n");
$node->reload;
is_served('Busy', 'names are taken as they are');

$node->append_conf('postgresql.conf', "idem_action.databases = ''\nidem_action.worker = off\n");
$node->reload;
$node->safe_psql('busy', "SELECT idem.claim_action('off', 'probe', lease => '1 ms')");
$node->pass_time(2.5);
is($node->safe_psql('busy', "SELECT state FROM idem.actions WHERE key = 'off'"), 'in_progress', 'worker = off: nothing happens');
$node->safe_psql('busy', 'CALL idem.run_maintenance()');
is($node->safe_psql('busy', "SELECT state FROM idem.actions WHERE key = 'off'"), 'needs_attention', 'by hand it does');
$node->append_conf('postgresql.conf', "idem_action.worker = on\n");
$node->reload;
is_served('postgres', 'worker = on again');

# --- its pace ---------------------------------------------------------------

# no slower than this: 100 ms after each change
busy('paced');
$node->append_conf('postgresql.conf', "autovacuum_vacuum_cost_delay = '100ms'\nautovacuum_vacuum_cost_limit = 1");
$node->reload;
ok( $node->poll_query_until('postgres',
		"SELECT count(*) > 0 FROM pg_stat_activity WHERE $worker AND datname = 'paced' AND wait_event = 'VacuumDelay'"),
	'the worker rests as autovacuum is told to');
during_a_pass('paced', 'DROP DATABASE while the worker rests', 'DROP DATABASE paced');
busy('paced');
wait_for_worker('paced');
$node->append_conf('postgresql.conf', "autovacuum_vacuum_cost_delay = 0");
$node->reload;
is_served('paced', 'and goes on');

# --- an idle server ---------------------------------------------------------

# of the launcher, and of the children that the postmaster has seen end: workers
sub cpu
{
	my ($launcher) = @_;
	my @own = split / /, slurp_file("/proc/$launcher/stat") =~ s/^.*\) //sr;
	my @children = split / /, slurp_file('/proc/' . postmaster() . '/stat') =~ s/^.*\) //sr;
	return ($own[11] + $own[12] + $children[13] + $children[14]) / 100;
}

SKIP:
{
	skip 'no /proc', 4 unless -e '/proc/self/stat';
	my @other = split /\n/, $node->safe_psql('postgres',
		"SELECT quote_ident(datname) FROM pg_database WHERE NOT datistemplate AND datname <> 'postgres'");
	$node->safe_psql('postgres', "DROP DATABASE $_ WITH (FORCE)") foreach @other;
	$node->append_conf('postgresql.conf', 'idem_action.naptime = ' . NAPTIME);
	$node->restart;
	$node->poll_query_until('postgres', 'SELECT last_pass IS NOT NULL FROM idem.worker_status');

	# no session of ours ends, and so counts, between the two readings
	my $watch = $node->session;
	my $launcher = $watch->query_safe("SELECT pid FROM pg_stat_activity WHERE backend_type = 'idem_action launcher'");
	my $others;
	for (1 .. 1000)
	{
		$others = $watch->query_safe("SELECT count(*) FROM pg_stat_activity
			WHERE backend_type IN ('client backend', 'idem_action worker') AND pid <> pg_backend_pid()");
		last if $others == 0;
	}
	is($others, 0, 'idle: nobody else is there');
	$watch->query_safe('CHECKPOINT');
	$offset = -s $node->logfile;

	# whole rests, so that no pass is counted without its rest
	my $seconds = NAPTIME * ($ENV{IDEM_IDLE_NAPS} // 2);
	my $before = cpu($launcher);
	select undef, undef, undef, $seconds;	# a measurement, not a wait
	my $minute = (cpu($launcher) - $before) * 60 / $seconds;
	cmp_ok($minute, '<', 0.2 * ($ENV{IDEM_SLOW} // 1), sprintf('idle: %.2f s CPU a minute', $minute));
	is(-s $node->logfile, $offset, 'idle: no line in the log');
	is($watch->query_safe("SELECT last_pass > now() - interval '1.5 s' * " . NAPTIME . ' FROM idem.worker_status'),
		't', 'idle: the worker has looked');
	$watch->quit;
}

# --- what was said on the way ------------------------------------------------

my %said;
foreach my $line (slurp_file($node->logfile) =~ /(?:ERROR|FATAL|PANIC|WARNING):  (.*)/g)
{
	$said{$line}++
	  unless $line =~ /^the database system is|^invalid value for parameter "idem_action|^terminating|base\/\d+/;
}
# a worker on its way into a database that is dropped: once, not again
delete @said{ grep { /^database \d+ does not exist/ && $said{$_} == 1 } keys %said };
is_deeply(\%said, { 'idem_action maintenance failed in "locked": canceling statement due to lock timeout' => 1 },
	'one warning, about the table that was locked');

$node->stop;
done_testing();
