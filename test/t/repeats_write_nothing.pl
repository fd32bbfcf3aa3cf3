# Copyright (c) 2026, idem_action contributors

# 100 000 repeats of a completed action, and some of an action in every other
# state at rest, leave no trace in the database.
#
# Protects: a repeat is a normal answer.  No row version, no lock, no transaction
# id, no WAL, no line in the server log: a replay of all old events is cheap and
# silent.

use strict;
use warnings;

use IdemAction;
use PostgreSQL::Test::Utils qw(slurp_file);
use Test::More;

my $node = IdemAction->node(
	'main', conf => q{
	autovacuum = off
	checkpoint_timeout = 1h
	log_checkpoints = off
	log_statement = none
	log_min_messages = notice
});

$node->rule('act', lease => '1 hour', retry_delay => '1 hour');

# one action of each state at rest
my %claim =
  map { $_ => $node->claim(key => $_, intent => 'act', params => { n => 1 }, draft => { d => 1 }, source => 's', event_id => 'e') }
  qw(completed in_progress failed not_due needs_attention);

sub holder
{
	my ($key) = @_;
	return (action_id => $claim{$key}{action_id}, claim_id => $claim{$key}{claim_id});
}

$node->call('complete_action', holder('completed'), external_ref => 'ref-1', result => { ok => 1 });
$node->call('fail_action', holder('failed'), error => 'no', effect => 'refused');
$node->call('fail_action', holder('not_due'), error => 'not sent', effect => 'none');
$node->call('fail_action', holder('needs_attention'), error => 'timeout');
is($node->call('once', key => 'once', intent => 'act'), 1, 'once the first time');
$node->safe_psql('postgres', 'VACUUM FREEZE idem.idem_actions; VACUUM FREEZE idem.idem_events; CHECKPOINT');

# Everything that a write would change
sub traces
{
	return $node->safe_psql(
		'postgres', q{
		SELECT pg_stat_force_next_flush() \g /dev/null
		SELECT relname, n_tup_ins, n_tup_upd, n_tup_hot_upd, n_tup_del FROM pg_stat_all_tables
		WHERE schemaname = 'idem' ORDER BY relname;
		SELECT key, ctid, xmin, xmax, md5(a::text) FROM idem.idem_actions a ORDER BY key;
		SELECT count(*), max(id) FROM idem.idem_events;
		SELECT pg_snapshot_xmax(pg_current_snapshot());
	});
}

my $log;

# Runs the statements in one session, and looks for what they have left
sub silent
{
	my ($name, @sql) = @_;
	my $before = traces();
	my $lsn = $node->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
	my ($code, $out, $err);

	$log = -s $node->logfile;
	($code, $out, $err) = $node->psql('postgres', join ";\n", @sql, 'SELECT pg_stat_force_next_flush() \g /dev/null');
	my $bytes = $node->safe_psql('postgres', "SELECT pg_current_wal_insert_lsn() - '$lsn'::pg_lsn");

	is($code, 0, "$name: no error");
	is($err, '', "$name: no notice, no warning");
	is(slurp_file($node->logfile, $log), '', "$name: nothing in the server log");
	is(traces(), $before, "$name: no row version, no event, no transaction id");
	cmp_ok($bytes, '<', 10_000, "$name: no WAL ($bytes bytes beside)");
	return $out;
}

# as many calls in one statement
sub repeats
{
	my ($n, $key, %arg) = @_;
	my $args = IdemAction::arguments(intent => 'act', %arg);

	return qq{
		SELECT count(*), count(*) FILTER (WHERE c.granted), min(c.outcome), max(c.outcome), min(c.external_ref), bool_and(c.repeat)
		FROM generate_series(1, $n) g,
			idem.claim_action(key => CASE WHEN g > 0 THEN '$key' END, $args) c
	};
}

is( silent(
		'completed',
		repeats(100_000, 'completed', params => { n => 1 }, draft => { other => 2 }, worker => 'again', event_id => 'e2')),
	'100000|0|completed|completed|ref-1|t',
	'100 000 repeats of a completed action');

# the same call by call, each its own transaction, as services make it
is( silent('apart', map { repeats(1, 'completed') } 1 .. 500),
	join("\n", ('1|0|completed|completed|ref-1|t') x 500),
	'repeats in transactions of their own');

foreach my $state (qw(in_progress failed not_due needs_attention))
{
	is(silent($state, repeats(5_000, $state)), "5000|0|$state|$state||t", "repeats while $state");
}

is( silent(
		'batch',
		q{SELECT outcome, count(*) FROM generate_series(1, 1000) g,
		idem.claim_actions('act', ARRAY(SELECT key FROM idem.idem_actions WHERE key <> 'once' AND g > 0)) GROUP BY outcome ORDER BY outcome}),
	join("\n", map { "$_|1000" } qw(completed failed in_progress needs_attention not_due)),
	'repeats in batches');

is( silent(
		'find',
		q{SELECT outcome, count(*) FROM generate_series(1, 1000) g, unnest(ARRAY['completed', 'in_progress', 'never']) k,
		idem.find_action(CASE WHEN g > 0 THEN k END, 'act') GROUP BY outcome ORDER BY outcome}),
	"completed|1000\nin_progress|1000\nunknown|1000",
	'find_action');

is( silent('once', q{SELECT bool_or(idem.once(CASE WHEN g > 0 THEN 'once' END, 'act')) FROM generate_series(1, 1000) g}),
	'f', 'once, done before');

is( silent(
		'complete',
		qq{SELECT count(*), bool_and(r.accepted), min(r.state), max(r.revision) FROM generate_series(1, 1000) g,
		idem.complete_action('$claim{completed}{action_id}', CASE WHEN g > 0 THEN '$claim{completed}{claim_id}'::uuid END, 'ref-1') r}),
	'1000|t|completed|2',
	'the same completion again');

is( silent(
		'fails',
		qq{SELECT count(*), bool_and(r.accepted), min(r.state), max(r.revision) FROM generate_series(1, 1000) g,
		idem.fail_action('$claim{failed}{action_id}', CASE WHEN g > 0 THEN '$claim{failed}{claim_id}'::uuid END, 'no', 'refused') r}),
	'1000|t|failed|2',
	'the same failure again');

# a mistake of the caller is an error and changes nothing either
my $before = traces();
is($node->sqlstate(q{SELECT idem.claim_action('completed', 'act', '{"n": 2}')}), 'IA001', 'other params: IA001');
is(traces(), $before, 'a mismatch writes nothing');
is(silent('mismatch', q{SELECT outcome FROM idem.claim_actions('act', ARRAY['completed'], ARRAY['{"n": 2}'::jsonb])}),
	'mismatch', 'nor in a batch');

# In an open transaction: no transaction id, and afterwards no lock of ours
my $session = $node->session;
$session->query_safe('BEGIN');
$node->call_in($session, 'claim_action', key => $_, intent => 'act', in_transaction => 't') foreach keys %claim;
$node->call_in($session, 'claim_actions', intent => 'act', keys => [ keys %claim ], in_transaction => 't');
$node->call_in($session, 'find_action', key => 'completed', intent => 'act');
$node->call_in($session, 'complete_action', holder('completed'), external_ref => 'ref-1');
is($session->query_safe('SELECT pg_current_xact_id_if_assigned() IS NULL'), 't', 'repeats take no transaction id');
is( $node->safe_psql(
		'postgres', qq{
		SELECT count(*) FROM pg_locks l LEFT JOIN pg_class c ON c.oid = l.relation
		WHERE l.pid = $session->{backend}
			AND (l.locktype IN ('advisory', 'transactionid', 'tuple') OR c.relnamespace = 'idem'::regnamespace)}),
	0,
	'repeats hold no lock');
$session->query_safe('COMMIT');
$session->quit;

$node->stop;
done_testing();
