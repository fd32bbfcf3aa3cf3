# Copyright (c) 2026, idem_action contributors

# Retention by several processes: the worker is killed between its batches, a
# pass is cancelled and called again, rows come and go while the table stays as
# large as it is.  What retention means is in test/pgtap/090_retention.sql.
#
#	IDEM_RETENTION_KILLS	kills of the worker (200 for a release)
#	IDEM_RETENTION_ACTIONS	claims and completions (10 million for a release)

use strict;
use warnings;

use IdemAction;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use constant KILLS => $ENV{IDEM_RETENTION_KILLS} // 15;
use constant ACTIONS => $ENV{IDEM_RETENTION_ACTIONS} // 30_000;

my $node = IdemAction->node(
	'main', conf => q{
	idem_action.naptime = 1
	idem_action.require_rule = off
	fsync = off
	max_wal_size = 2GB
	log_statement = none
});
my $worker = "backend_type = 'idem_action worker'";

$node->safe_psql('postgres', 'CREATE EXTENSION amcheck');

# Finished actions past everything or purgeable, a third each; half of them with
# two lines of history and a counted repeat
sub fill
{
	my ($rows, $prefix) = @_;
	$node->safe_psql('postgres', 'BEGIN;'
		  . IdemAction::aged($rows, $prefix, contents => 'i % 3 = 2', key => 'i % 3 > 0')
		  . IdemAction::aged_past($rows, $prefix, 2, 2)
		  . qq{
		INSERT INTO idem.idem_repeats (day, intent, action_id, delivery, outcome, n, first_at, last_at)
		SELECT current_date, 'aged', idem.action_id('$prefix-' || i, 'aged'), 0, 'completed', 1, now(), now()
		FROM generate_series(2, $rows, 2) i;
		COMMIT});
	return;
}

# What must hold at every moment
sub is_whole
{
	my ($name) = @_;

	is($node->safe_psql('postgres', q{
		SELECT count(*) FROM idem.idem_events e WHERE e.action_id IS NOT NULL
			AND NOT EXISTS (SELECT FROM idem.idem_actions a WHERE a.action_id = e.action_id)}),
		0, "$name: no history without its action");
	is($node->safe_psql('postgres', q{
		SELECT count(*) FROM idem.idem_repeats r
		WHERE NOT EXISTS (SELECT FROM idem.idem_actions a WHERE a.action_id = r.action_id)}),
		0, "$name: no repeats without their action");
	# What is about an action goes before its row, over several batches if need be.
	is($node->safe_psql('postgres', q{
		SELECT count(*) FROM idem.idem_actions a
			LEFT JOIN (SELECT action_id, count(*) AS n, count(content) AS kept FROM idem.idem_events GROUP BY 1) e USING (action_id)
			LEFT JOIN (SELECT action_id, count(*) AS n FROM idem.idem_repeats GROUP BY 1) r USING (action_id),
			LATERAL (SELECT CASE WHEN split_part(a.key, '-', 2)::int % 2 = 0 THEN 2 ELSE 0 END AS events,
				a.forget_after < now() AS going, a.purge_after < now() AS purging) w
		WHERE a.intent = 'aged' AND (
			CASE WHEN going THEN coalesce(e.n, 0) > events OR coalesce(r.n, 0) > events / 2
				ELSE coalesce(e.n, 0) <> events OR coalesce(r.n, 0) <> events / 2 END
			OR a.purged AND (a.params IS NOT NULL OR a.result IS NOT NULL OR coalesce(e.kept, 0) <> 0)
			OR NOT a.purged AND (a.params IS NULL OR a.result IS NULL OR NOT purging AND coalesce(e.kept, 0) <> coalesce(e.n, 0)))}),
		0, "$name: every action is whole");
	return;
}

sub left
{
	return split /\|/, $node->safe_psql('postgres', q{
		SELECT count(*) FILTER (WHERE forget_after < now()),
			count(*) FILTER (WHERE purge_after < now() AND forget_after > now() AND NOT purged) FROM idem.idem_actions});
}

# --- cancelled and repeated -------------------------------------------------

fill(30_000, 'cancelled');
my ($forget, $purge) = left();
my ($calls, $monotonic) = (0, 1);
while ($forget + $purge > 0 && $calls < 200)
{
	# in the middle of a batch, some fifty milliseconds on
	my (undef, undef, $stderr) = $node->psql('postgres', 'SET statement_timeout = 60; CALL idem.run_maintenance(500)');
	my ($f, $p) = left();
	$monotonic &&= $f <= $forget && $p <= $purge;
	($forget, $purge) = ($f, $p);
	$calls++;
	is_whole("cancelled $calls times") if $calls == 2;
}
ok($monotonic, 'cancelled: never more is left than before');
is($forget + $purge, 0, "cancelled: finished after $calls calls");
cmp_ok($calls, '>', 1, 'cancelled: more than one was needed');
is_whole('cancelled');

# --- rests as VACUUM does ---------------------------------------------------

fill(6000, 'paced');
my $paced = $node->session;
$node->send($paced, "SET vacuum_cost_delay = '100ms'; CALL idem.run_maintenance()");
ok( $node->poll_query_until('postgres', "SELECT wait_event = 'VacuumDelay' AND backend_xid IS NULL FROM pg_stat_activity WHERE pid = $paced->{backend}"),
	'run_maintenance rests by vacuum_cost_delay, between its batches');
$node->safe_psql('postgres', "SELECT pg_cancel_backend($paced->{backend})");
$paced->query('SELECT 1');
$paced->quit;
is_whole('cancelled at rest');
$node->safe_psql('postgres', 'CALL idem.run_maintenance()');

# --- the worker is killed between its batches -------------------------------

fill(30_000, 'killed');
$node->append_conf('postgresql.conf', 'idem_action.worker = on');
$node->reload;
my ($killed, $fills) = (0, 0);
my $start = time;
while ($killed < KILLS && time - $start < 10 * KILLS)
{
	my (undef, $pid) = $node->psql('postgres', "SELECT pid FROM pg_stat_activity WHERE $worker LIMIT 1");
	next unless $pid;
	eval { $node->kill_process($pid); $killed++ };	# or it had ended already
	fill(6000, 'more' . ++$fills) if (left())[0] < 3000;
}
is($killed, KILLS, "the worker was killed $killed times");
is_whole('killed');
$node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM idem.idem_actions
	WHERE forget_after < now() OR purge_after < now() AND NOT purged});
is(join(' ', left()), '0 0', 'killed: in the end all is done');
is_whole('afterwards');

# --- a ledger stays as large as it is ---------------------------------------

# rows that live for seconds ask for a vacuum that does not pause
$node->append_conf('postgresql.conf', "autovacuum_naptime = 1\nautovacuum_vacuum_cost_delay = 0\n");
$node->restart;
$node->safe_psql('postgres', 'TRUNCATE idem.idem_actions, idem.idem_events, idem.idem_repeats');
$node->rule('short', keep_content => '1 s', keep_key => '2 s');
my $script = $node->basedir . '/life.sql';
append_to_file($script, q{
SELECT action_id, claim_id FROM idem.claim_action(gen_random_uuid()::text, 'short', '{"to": "a"}') \gset
SELECT idem.complete_action(:action_id, :claim_id, 'ref', '{"ok": true}');
});
my $batch = $node->basedir . '/batch.sql';
append_to_file($batch, q{
SELECT array_agg(action_id) AS action_ids, array_agg(claim_id) AS claim_ids
FROM idem.claim_actions('short', (SELECT array_agg(gen_random_uuid()::text) FROM generate_series(1, 100)), array_fill('{"to": "a"}'::jsonb, '{100}')) \gset
SELECT count(*) FROM idem.complete_actions(:action_ids, :claim_ids, array_fill('ref'::text, '{100}'), array_fill('{"ok": true}'::jsonb, '{100}'));
});

# a quarter one by one, the rest a hundred at a time
my @sizes;
for my $part (1 .. 5)
{
	my $n = int(ACTIONS / 5 / 4 / 4);
	foreach my $run ([ $script, $n ], [ $batch, int(3 * $n / 100) ])
	{
		$node->command_ok(
			[ 'pgbench', '-n', '-M', 'prepared', '-c', 4, '-j', 2, '-t', $run->[1], '-f', $run->[0], 'postgres' ], "part $part");
	}
	push @sizes, [ split /\|/, $node->safe_psql('postgres', q{
		SELECT pg_relation_size('idem.idem_actions') / 1024, pg_relation_size('idem.idem_actions_pkey') / 1024,
			(SELECT count(*) FROM idem.idem_actions)}) ];
	note("part $part: heap $sizes[-1][0] kB, index $sizes[-1][1] kB, $sizes[-1][2] actions");

	# how fast parts follow each other is the machine's; each finds the room of the last
	$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM idem.idem_actions');
	$node->safe_psql('postgres', 'VACUUM idem.idem_actions');
}
is($node->safe_psql('postgres', 'SELECT count(*) FROM idem.idem_actions'), 0, 'flat: all are forgotten in the end');
# of the first part, which had nothing to reuse; a page or two is nothing
foreach my $what ([ 'heap', 0, 4096 ], [ 'index', 1, 1024 ])
{
	my ($name, $i, $least) = @$what;
	my $largest = (sort { $b <=> $a } $least / 2, $sizes[0][$i])[0];
	cmp_ok($sizes[-1][$i], '<=', 2 * $largest, "flat: the $name, $sizes[-1][$i] kB after $largest kB");

	# and a part that takes a minute, within itself: half of its actions, of 400
	# bytes and 40 in the index, would not fit
	next if ACTIONS < 5_000_000;
	my ($most) = sort { $b <=> $a } map { $_->[$i] } @sizes;
	cmp_ok($most, '<', ACTIONS / 5 / 2 * ($i ? 40 : 400) / 1024, "flat: the $name, never more than $most kB");
}

# --- and every index is sound -----------------------------------------------

my @index = split /\n/, $node->safe_psql('postgres', q{
	SELECT indexrelid::regclass FROM pg_index JOIN pg_class c ON c.oid = indrelid
	WHERE c.relnamespace = 'idem'::regnamespace});
foreach my $index (@index)
{
	is($node->safe_psql('postgres', "SELECT bt_index_parent_check('$index', true)"), '', "amcheck: $index");
}
is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_class c, verify_heapam(c.oid)
	WHERE c.relnamespace = 'idem'::regnamespace AND c.relkind = 'r'}), 0, 'amcheck: the tables');

$node->stop;
done_testing();
