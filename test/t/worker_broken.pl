# Copyright (c) 2026, idem_action contributors

# A database in which maintenance cannot work never starves the others, and its
# trouble is said once, not once a pass.

use strict;
use warnings;

use IdemAction;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = IdemAction->node(
	'main', conf => q{
	idem_action.worker = on
	idem_action.naptime = 1
	idem_action.require_rule = off
	fsync = off
});
my $n_served = 0;
my %tried;

# Judged within naptime and a session for each of the others; not 10 naptimes
sub others_are_served
{
	my ($name) = @_;
	my $key = 'served-' . ++$n_served;
	my $start = time;
	my $judged = 0;

	$node->safe_psql('postgres', "SELECT idem.claim_action('$key', 'probe', lease => '1 ms')");
	until ($judged || time - $start > 5)
	{
		$judged = $node->safe_psql('postgres',
			"SELECT state = 'needs_attention' FROM idem.actions WHERE key = '$key'") eq 't';
	}
	ok($judged, "$name: the others are served");
	return;
}

sub lines_since
{
	my ($offset, $pattern) = @_;
	return grep { /$pattern/ } split /\n/, substr(slurp_file($node->logfile), $offset);
}

sub database
{
	my ($name) = @_;
	$node->safe_psql('postgres', "CREATE DATABASE $name TEMPLATE usual STRATEGY file_copy");
	$node->safe_psql($name, "SELECT idem.claim_action('lapsed', 'probe', lease => '1 ms')");
	return;
}

$node->safe_psql('postgres', 'CREATE DATABASE usual IS_TEMPLATE true');
$node->safe_psql('usual', 'CREATE EXTENSION idem_action');

# --- damaged, old, or without its owner -------------------------------------

# members of an extension cannot be dropped one by one: first set them free
my $free = q{
	SET allow_system_table_mods = on;
	DELETE FROM pg_depend WHERE refclassid = 'pg_extension'::regclass
		AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idem_action');
};
my %damage = (
	no_schema => 'DROP SCHEMA idem CASCADE',
	no_table => 'DROP TABLE idem.idem_actions CASCADE',
	no_history => 'DROP TABLE idem.idem_events CASCADE',
	no_rules => 'DROP TABLE idem.idem_rules CASCADE',
	no_index => 'ALTER TABLE idem.idem_actions DROP CONSTRAINT idem_actions_pkey',
	old_table => 'CREATE TABLE idem.older AS SELECT action_id, created_at, state, lease_until FROM idem.idem_actions;
		DROP TABLE idem.idem_actions CASCADE; ALTER TABLE idem.older RENAME TO idem_actions',
	new_table => 'ALTER TABLE idem.idem_actions ADD COLUMN unheard_of text',
	new_history => 'ALTER TABLE idem.idem_events ADD COLUMN unheard_of text',
	less_rules => 'ALTER TABLE idem.idem_rules DROP COLUMN new_when CASCADE');
my %expected = (
	no_table => qr/idem_actions/,
	no_history => qr/idem_events/,
	no_rules => qr/idem_rules/,
	no_index => qr/idem_actions has lost its primary key/,
	old_table => qr/idem_actions does not fit/,
	new_table => qr/idem_actions does not fit/,
	new_history => qr/idem_events does not fit/,
	less_rules => qr/idem_rules does not fit/);
my $start = -s $node->logfile;

$node->append_conf('postgresql.conf', 'idem_action.worker = off');
$node->reload;
foreach my $name (sort keys %damage)
{
	database($name);
	my (undef, undef, $stderr) = $node->psql($name,
		"SET client_min_messages = error; $free; SET session_replication_role = replica; " .
		$damage{$name});
	is($stderr, '', "$name: damaged");
	$tried{$name} = $node->safe_psql('postgres', "SELECT xact_rollback FROM pg_stat_database WHERE datname = '$name'");
}
$node->append_conf('postgresql.conf', 'idem_action.worker = on');
$node->restart;
others_are_served('damaged');


# what the view shows can outlive the views
sub problem_of
{
	my ($name) = @_;
	my (undef, $problem) = $node->psql($name, 'SELECT problem FROM idem.worker_state()');
	return $problem // '';
}
sub until_problem
{
	my ($name) = @_;
	my $start = time;
	my $problem = '';
	$problem = problem_of($name) until $problem ne '' || time - $start > 10;
	return $problem;
}
foreach my $name (grep { $_ ne 'no_schema' } sort keys %damage)
{
	like(until_problem($name), $expected{$name}, "$name: the problem is shown");
}
# one row of many that cannot be judged: what it lies beside, and no more
$node->safe_psql('postgres', 'CREATE DATABASE bad_row TEMPLATE usual STRATEGY file_copy');
$node->safe_psql('bad_row', q{
	ALTER TABLE idem.idem_actions DROP CONSTRAINT counters_in_range;
	SELECT count(idem.claim_action('k' || i, 'probe', jsonb_build_object('n', repeat(md5(i::text), 30)), lease => '2 s', in_transaction => true))
	FROM generate_series(1, 3000) i;
	UPDATE idem.idem_actions SET priority = 0, revision = -7 WHERE key IN ('k1000', 'k2000')});
ok($node->poll_query_until('bad_row', q{SELECT count(*) < 100 FROM idem.idem_actions WHERE state = 'in_progress'}),
	'two rows that cannot be judged: the others are');
cmp_ok($node->safe_psql('bad_row', q{SELECT count(*) FROM idem.idem_actions WHERE state = 'in_progress' AND revision < 0}),
	'==', 2, 'they are as they were');
isnt(problem_of('bad_row'), '', 'they are shown');
$node->safe_psql('bad_row', q{UPDATE idem.idem_actions SET revision = 1 WHERE revision < 0});
ok($node->poll_query_until('bad_row', q{SELECT count(*) = 0 FROM idem.idem_actions WHERE state = 'in_progress'}),
	'and once they are put right, they are judged');
ok($node->poll_query_until('bad_row', q{SELECT problem IS NULL FROM idem.worker_state()}), 'and nothing is shown any more');
others_are_served('a row that cannot be judged');

# the other tables are not for the worker
foreach my $case (
	[ 'idem_queue', q{SELECT idem.enqueue_action('k', 'act')}, q{SELECT * FROM idem.take_actions('{act}')} ],
	[ 'idem_state', q{SELECT idem.claim_action('k', 'act')} ])
{
	my ($table, @calls) = @$case;
	foreach my $change ('ADD COLUMN unheard_of text', 'DROP COLUMN ' . ($table eq 'idem_queue' ? 'call_id' : 'actor'))
	{
		$node->safe_psql('postgres', 'DROP DATABASE IF EXISTS changed WITH (FORCE)');
		$node->safe_psql('postgres', 'CREATE DATABASE changed TEMPLATE usual STRATEGY file_copy');
		$node->safe_psql('changed', 'SELECT idem.accept_copy()');
		$node->safe_psql('changed', "ALTER TABLE idem.$table $change");
		foreach my $call (@calls)
		{
			my (undef, undef, $stderr) = $node->psql('changed', $call);
			like($stderr, qr/ERROR:  table $table does not fit the loaded library/, "$table, $change: $call");
		}
	}
}

# an owner that is no more: served, or said like the others
database('no_role');
$node->safe_psql('no_role', q{UPDATE pg_namespace SET nspowner = 4294900000 WHERE nspname = 'idem'});
others_are_served('an owner that is no more');
ok($node->poll_query_until('no_role', q{SELECT (SELECT state FROM idem.idem_actions) <> 'in_progress'
		OR (SELECT problem FROM idem.worker_state()) IS NOT NULL}), 'no_role: it is served, or the problem is shown');
$node->safe_psql('no_role', 'UPDATE pg_namespace SET nspowner = 10 WHERE nspname = $$idem$$');

# --- not to be connected to -------------------------------------------------

# somebody renames it, and does not come to an end
database('held');
my $session = $node->session;
$session->query_safe('BEGIN; ALTER DATABASE held RENAME TO kept');
# a connection would wait for its lock: the launcher passes it over
others_are_served('a rename that is open') foreach 1 .. 2;
$session->query_safe('ROLLBACK');
$session->quit;

# its files are gone; a drop of it was broken off
foreach my $case ([ 'no_files', 'files are gone' ], [ 'broken_off', 'DROP DATABASE was broken off' ])
{
	my ($name, $what) = @$case;
	database($name);
	my $oid = $node->safe_psql('postgres', "SELECT oid FROM pg_database WHERE datname = '$name'");
	$node->safe_psql('postgres', 'CHECKPOINT');
	my $offset = -s $node->logfile;
	if ($name eq 'no_files')
	{
		rename $node->data_dir . "/base/$oid", $node->data_dir . "/base/$oid.away" or die;
	}
	else
	{
		$node->safe_psql('postgres', "UPDATE pg_database SET datconnlimit = -2 WHERE datname = '$name'");
	}
	others_are_served($what) foreach 1 .. 2;
	my @fatal = lines_since($offset, 'FATAL');
	# the launcher expects nothing of a worker before it starts one
	cmp_ok(scalar(@fatal), '<=', 1, "$what: no FATAL again and again") or diag($fatal[0], ' ... ', scalar(@fatal), ' times');
	if ($name eq 'no_files')
	{
		rename $node->data_dir . "/base/$oid.away", $node->data_dir . "/base/$oid" or die;
	}
	$node->safe_psql('postgres', "UPDATE pg_database SET datconnlimit = 0, datallowconn = false WHERE datname = '$name'");
}

# settings of the database or of its owner are nobody's trouble
database('odd');
$node->safe_psql('postgres', "ALTER DATABASE odd SET $_") foreach
	'default_transaction_read_only = on', "default_transaction_isolation = 'serializable'",
	"search_path = 'nowhere'", 'statement_timeout = 1', 'lock_timeout = 1', "session_preload_libraries = 'missing'",
	"DateStyle = 'SQL, DMY'", "TimeZone = 'Asia/Kathmandu'", 'work_mem = 64';
$node->safe_psql('postgres', 'ALTER DATABASE odd CONNECTION LIMIT 0');
others_are_served('odd settings');
$node->safe_psql('postgres', 'ALTER DATABASE odd RESET ALL');
ok($node->poll_query_until('odd', q{SELECT state = 'needs_attention' FROM idem.actions WHERE key = 'lapsed'}),
	'odd settings: it is served too');

# what everyone who connects is told, the worker does not tell the log
$node->safe_psql('postgres', "UPDATE pg_database SET datcollversion = 'another' WHERE datname = 'odd'");
my $offset = -s $node->logfile;
others_are_served('another collation version') foreach 1 .. 3;
my (undef, undef, $told) = $node->psql('odd', 'SELECT 1');
like($told, qr/WARNING: .*collation version/, 'another collation version: a user is told');
is(scalar(lines_since($offset, 'WARNING: .*collation version')), 1, 'another collation version: nobody but the user');

# --- dropped with its counters ------------------------------------------------

# counted and not written when the database went: the room is for others
$node->append_conf('postgresql.conf', 'idem_action.worker = off');
$node->reload;
database('counted');
is($node->safe_psql('counted', q{SELECT count(*) FROM generate_series(1, 9000) i,
		LATERAL idem.claim_action('lapsed', 'probe', source => 'flood', event_id => i::text)}), 9000, 'many repeats');
$node->safe_psql('postgres', 'DROP DATABASE counted');
$node->append_conf('postgresql.conf', 'idem_action.worker = on');
$node->reload;
others_are_served('many repeats');	# a round of the launcher
others_are_served('many repeats');
$node->safe_psql('postgres', q{SELECT idem.claim_action('served-1', 'probe', source => 'later')});
$node->safe_psql('postgres', 'CALL idem.run_maintenance()');
is($node->safe_psql('postgres', q{SELECT sum(n) FROM idem.repeats WHERE source = 'later'}), 1, 'a dropped database leaves its room to others');

# --- said once --------------------------------------------------------------

# each was tried again meanwhile: what failed was rolled back
foreach my $name (sort keys %damage)
{
	ok($node->poll_query_until('postgres',
			"SELECT xact_rollback >= $tried{$name} + 2 FROM pg_stat_database WHERE datname = '$name'"),
		"$name: tried more than once");
}
# (the one without an owner may have been met before it was given back, the
# changed ones before they were dropped, the bad rows were put right)
my @said = grep { !/"no_role"|"changed"|"bad_row"/ } lines_since($start, 'idem_action maintenance failed');
is(scalar(@said), scalar(keys %damage), 'one warning for each that is damaged, not one for each pass') or diag(join "\n", @said);

is(scalar(grep { /"bad_row"/ } lines_since($start, 'idem_action maintenance failed')), 1, 'and one for the rows');
is(scalar(grep { my $name = $_; grep { /"$name"/ } @said } keys %damage), scalar(keys %damage), 'each names its database');

$node->stop('immediate');
done_testing();
