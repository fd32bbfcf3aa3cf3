# Copyright (c) 2026, idem_action contributors

# Many claims in one transaction, a large batch, many calls in one backend.
#
# Protects: nothing runs out on default settings (lock table, memory), and other
# sessions are served meanwhile.

use strict;
use warnings;

use IdemAction;
use List::Util qw(max);
use PostgreSQL::Test::Utils qw(slurp_file);
use Test::More;

my $node = IdemAction->node('main', conf => "log_statement = none\nmax_wal_size = 4GB\nshared_buffers = 16MB");
my $log = -s $node->logfile;

$node->rule('act', lease => '1 hour', on_uncertain => 'repeat', max_attempts => 2_000_000_000, max_failures => 2_000_000_000);
$node->safe_psql(
	'postgres', q{
	CREATE FUNCTION timed_claim(key text, OUT outcome text, OUT ms float8)
	LANGUAGE plpgsql AS $$
	DECLARE
		start timestamptz := clock_timestamp();
	BEGIN
		outcome := (idem.claim_action(key, 'act')).outcome;
		ms := 1000 * extract(epoch FROM clock_timestamp() - start);
	END$$;
	/* asked anew each time: within one query the view is read only once */
	CREATE FUNCTION in_use(g bigint) RETURNS numeric LANGUAGE plpgsql AS
	$$BEGIN RETURN (SELECT sum(used_bytes) FROM pg_backend_memory_contexts); END$$;
});
is($node->safe_psql('postgres', q{SELECT setting FROM pg_settings WHERE name = 'max_locks_per_transaction' AND source = 'default'}),
	64, 'the lock table has its default size');

sub locks
{
	my ($session) = @_;
	return $node->safe_psql('postgres',
		"SELECT count(*), count(*) FILTER (WHERE locktype = 'advisory') FROM pg_locks WHERE pid = $session->{backend}");
}

#
# 20 000 single claims in one transaction
#
my $session = $node->session;
$session->query_safe('BEGIN');
is( $session->query_safe(
		q{SELECT count(*) FILTER (WHERE granted) FROM generate_series(1, 20000) g,
		idem.claim_action('single-' || g, 'act', in_transaction => true)}),
	20_000,
	'20 000 claims in one transaction');
my ($all, $advisory) = split /\|/, locks($session);
cmp_ok($all, '<', 40, "they hold $all locks");
is($advisory, 0, 'none of them on a key');
my ($outcome, $ms) = split /\|/, $node->safe_psql('postgres', q{SELECT * FROM timed_claim('elsewhere')});
is($outcome, 'claimed', 'another session claims another key meanwhile');
cmp_ok($ms, '<', 1000, "in less than a second ($ms ms)");
($outcome, $ms) = split /\|/, $node->safe_psql('postgres', q{SELECT * FROM timed_claim('single-20000')});
is($outcome, 'contended', 'and is told contended about one of these');
cmp_ok($ms, '<', 1000, "in less than a second ($ms ms)");

# each in a savepoint of its own, as drivers nest transactions
$session->query_safe(
	q{DO $$
	BEGIN
		FOR i IN 1 .. 3000 LOOP
			BEGIN
				PERFORM idem.claim_action('saved-' || i, 'act', in_transaction => true);
				IF i % 3 = 0 THEN RAISE division_by_zero; END IF;
			EXCEPTION WHEN division_by_zero THEN
			END;
		END LOOP;
	END$$});
is($node->safe_psql('postgres', q{SELECT outcome FROM timed_claim('saved-1')}), 'contended', 'claims in savepoints are open');
is($node->safe_psql('postgres', q{SELECT outcome FROM timed_claim('saved-3')}), 'claimed', 'but those rolled back');
$session->query_safe('COMMIT');
is($node->safe_psql('postgres', q{SELECT count(*) FROM idem.idem_actions WHERE key LIKE 'single-%' OR key LIKE 'saved-%'}),
	20_000 + 2001, 'all were kept');

#
# 100 000 keys in one call, the most there can be
#
my @ms;
$node->send($session,
	q{SELECT count(*) FILTER (WHERE granted), count(DISTINCT claim_id)
	FROM idem.claim_actions('act', ARRAY(SELECT 'batch-' || g FROM generate_series(1, 100000) g))});
my $busy = "SELECT state = 'active' FROM pg_stat_activity WHERE pid = $session->{backend}";
my $most = 0;
while ($node->safe_psql('postgres', $busy) eq 't')
{
	my ($other, $took) = split /\|/, $node->safe_psql('postgres', "SELECT * FROM timed_claim('beside-" . @ms . "')");

	is($other, 'claimed', 'another session claims meanwhile') if $other ne 'claimed';
	push @ms, $took;
	my ($held) = split /\|/, locks($session);
	$most = max($most, $held);
}
is($session->query(''), '100000|100000', '100 000 keys in one call');
cmp_ok(scalar(@ms), '>', 3, scalar(@ms) . ' claims by another session while it ran');
cmp_ok(max(@ms), '<', 1000, 'each in less than a second (' . max(@ms) . ' ms)');
cmp_ok($most, '<', 40, "the batch never held more than $most locks");

#
# Memory
#
$session->quit;

# What the backend has in use early in a statement and late in it
sub grows
{
	my ($name, $n, $call) = @_;
	my $early = $n / 100;
	my $samples = $session->query_safe(
		qq{SELECT CASE WHEN g IN ($early, $n) THEN in_use(g) END
		FROM generate_series(1, $n) g, $call r WHERE g IN ($early, $n) OR r IS NULL});
	my ($first, $last) = split /\n/, $samples;

	cmp_ok($last, '<', $first + 300_000, "$name: memory within a statement, after $early calls $first, after $n $last");
	return;
}

sub in_use
{
	return $session->query_safe('SELECT sum(total_bytes) FROM pg_backend_memory_contexts');
}

$session = $node->session;
grows('repeats', 20_000, q{idem.claim_action('single-' || g, 'act')});
my $before = in_use();
grows('claims', 10_000, q{idem.claim_action('new-' || g, 'act')});
grows('batches', 10_000, q{idem.claim_actions('act', ARRAY['new2-' || g, 'single-' || g])});
grows('completions', 10_000,
	q{LATERAL (SELECT * FROM idem.idem_actions a WHERE a.action_id = idem.action_id('new-' || g, 'act')) a,
	idem.complete_action(a.action_id, a.claim_id, 'ref', '{"n": 1}')});
grows('failures', 10_000,
	q{LATERAL (SELECT * FROM idem.idem_actions a WHERE a.action_id = idem.action_id('single-' || g, 'act')) a,
	idem.fail_action(a.action_id, a.claim_id, 'not sent', 'none', '0')});
grows('taken up again', 10_000, q{idem.claim_action('single-' || g, 'act')});
grows('evidence', 10_000,
	q{LATERAL (SELECT * FROM idem.idem_actions a WHERE a.action_id = idem.action_id('new-' || g, 'act')) a,
	idem.complete_action(a.action_id, a.claim_id, 'other ref')});
grows('finds', 20_000, q{idem.find_action('nothing-' || g, 'act')});
grows('once', 10_000, q{idem.once('once-' || g, 'act')});

# and over many statements: 2000 calls, then 100 times as many
sub many
{
	my ($from, $to) = @_;

	$session->query_safe(
		qq{DO \$\$
		BEGIN
			FOR i IN $from .. $to LOOP
				PERFORM idem.claim_action('single-' || i % 20000, 'act');
			END LOOP;
		END\$\$});
	return in_use();
}
my $few = many(1, 2000);
my $many = many(2001, 200_000);
cmp_ok($many, '<=', $few + 100_000, "memory of the backend: $few after 2000 calls, $many after 200 000");
cmp_ok($many, '<', $before + 1_000_000, "and $before before all");
$session->quit;

# maintenance looks at one action at a time, however large they are; what a
# backend has seen of the shared buffers counts too, so these are few
SKIP:
{
	skip 'no /proc', 4 unless -e '/proc/self/status';
	$session = $node->session;
	my $peak = sub { slurp_file("/proc/$session->{backend}/status") =~ /VmHWM:\s*(\d+)/ ? $1 : die 'no VmHWM' };
	$session->query_safe('CALL idem.run_maintenance()');
	my $at_first = $peak->();
	$node->rule('large', keep_content => '1 hour', keep_key => '1 hour');
	$node->safe_psql('postgres', q{
		SELECT count(idem.complete_action(c.action_id, c.claim_id, 'ref'))
		FROM generate_series(1, 200) g, LATERAL (SELECT string_agg(md5(g::text || i), '') AS text FROM generate_series(1, 25000) i) t,
			idem.claim_action('large-' || g, 'large', jsonb_build_object('n', t.text), lease => '1 h') c});
	$node->rule('large', keep_content => '0', keep_key => '1 hour');
	is($session->query_safe(q{SELECT idem.apply_retention('large')}), 200, 'large ones are to go');
	cmp_ok($peak->() - $at_first, '<', 30_000, 'apply_retention: kB beyond the first pass');
	$session->query_safe('CALL idem.run_maintenance()');
	is($node->safe_psql('postgres', q{SELECT count(*) FROM idem.actions WHERE intent = 'large' AND purged}), 200, 'large ones are gone');
	cmp_ok($peak->() - $at_first, '<', 30_000, 'run_maintenance: kB beyond the first pass');
	$session->quit;
}

unlike(slurp_file($node->logfile, $log), qr/ (ERROR|WARNING|FATAL): /, 'nothing in the server log');

$node->stop;
done_testing();
