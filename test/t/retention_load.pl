# Copyright (c) 2026, idem_action contributors

# Retention of a table full of expired rows while claims go on, 500 a second:
# by run_maintenance that is cancelled and called again, then by the worker.
# It ends, never more is left than before, no claim fails, and claims take at
# most three times as long.  Both rest as VACUUM is told to.
#
#	IDEM_EXPIRED_ROWS	how many (3 million for a release, each call then has
#						10 seconds); where it is set, how long claims take is
#						judged too, and otherwise only told

use strict;
use warnings;

use IPC::Run;
use IdemAction;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use constant ROWS => $ENV{IDEM_EXPIRED_ROWS} // 60_000;
use constant TIMED => defined $ENV{IDEM_EXPIRED_ROWS};
use constant CALL => TIMED ? 10 : 0.25;	# seconds until a call is cancelled
use constant CLAIMS => TIMED ? 10 : 1;	# of a run of pgbench
use constant RATE => 500;

# flushed to disk where it is timed, as claims are
my $node = IdemAction->node(
	'main', conf => q{
	idem_action.naptime = 1
	wal_level = replica
	max_wal_size = 16GB
	min_wal_size = 8GB
	shared_buffers = } . (TIMED ? '2GB' : '128MB') . q{
	log_statement = none
	fsync = } . (TIMED ? 'on' : 'off'));
$node->rule('live', lease => '1 day');
$node->rule('aged');

# a server that has run for a while writes over old WAL segments
$node->safe_psql('postgres', q{
	CREATE TABLE filler AS SELECT repeat('x', 1000) FROM generate_series(1, 3000000);
	DROP TABLE filler;
	CHECKPOINT})
  if TIMED;

my $script = $node->basedir . '/claim.sql';
append_to_file($script, q{
SELECT 1 / granted::int FROM idem.claim_action(gen_random_uuid()::text, 'live', '{"to": "a"}');
});

# Finished actions, one half to forget and one to purge, each fifth with a
# line of history
sub fill
{
	$node->safe_psql('postgres', 'TRUNCATE idem.idem_actions, idem.idem_events, idem.idem_repeats;'
		  . IdemAction::aged(ROWS, 'aged', key => 'i % 2 > 0')
		  . IdemAction::aged_past(ROWS, 'aged', 5, 1)
		  . 'VACUUM (ANALYZE) idem.idem_actions, idem.idem_events');
	$node->safe_psql('postgres', 'CHECKPOINT');
	return;
}

sub left
{
	return $node->safe_psql('postgres', q{
		SELECT count(*) FROM idem.idem_actions WHERE forget_after < now() OR purge_after < now() AND NOT purged});
}

my @failed;	# what was said
my $cut_off = 0;	# calls
my $claims = 0;
my $runs = 0;

# Claims while the code runs; their milliseconds from its begin to its end
sub claims_during
{
	my ($code) = @_;
	my $log = $node->basedir . '/claims-' . ++$runs;
	my ($out, $err) = ('', '');
	my $pgbench;
	{
		local %ENV = $node->_get_env;
		$pgbench = IPC::Run::start(
			[
				'pgbench', '-n', '-M', 'prepared', '-c', 8, '-j', 2, '-R', RATE, '-T', CLAIMS,
				'-l', '--log-prefix', $log, '-f', $script, 'postgres'
			],
			'>', \$out, '2>', \$err);
	}
	my $from = time;
	$code->() if $code;
	my $to = time;
	$pgbench->finish;
	push @failed, $err if $pgbench->full_result(0) != 0 || $err =~ /error|aborted/;
	my ($done) = $out =~ /transactions actually processed: (\d+)/;
	$claims += $done // 0;

	# client, number, microseconds since it was due, script, second, microsecond
	return map { $_->[2] / 1000 }
	  grep { !$code || ($_->[4] + $_->[5] / 1e6 >= $from && $_->[4] + $_->[5] / 1e6 - $_->[2] / 1e6 <= $to) }
	  map { [split] } map { split /\n/, slurp_file($_) } glob "$log.*";
}

sub percentile
{
	my ($p, @values) = @_;
	@values = sort { $a <=> $b } @values;
	return $values[ $p * $#values ];
}

# The table is filled; rounds of claims alone and of claims beside the work, in
# turn, so that what else the machine does is in both.  $work->() returns what
# claims_during does.
sub retention_by
{
	my ($name, $work) = @_;

	fill();
	is(left(), ROWS, "$name: all is left to do");
	my $claimed = $claims;
	my ($left, $rounds, $monotonic, $seconds) = (ROWS, 0, 1, 0);
	my (@quiet, @busy, @ratio);
	while ($left > 0 && $rounds < 200)
	{
		my @alone = TIMED || !$rounds ? claims_during() : ();
		my $begin = time;
		my @beside = $work->();
		$seconds += time - $begin;
		my $now = left();
		$monotonic &&= $now <= $left;
		$left = $now;
		$rounds++;
		if (@alone && @beside)
		{
			push @quiet, percentile(0.99, @alone);
			push @busy, percentile(0.99, @beside);
			push @ratio, $busy[-1] / $quiet[-1];
			note(sprintf '%s: %d left; 99 of 100 claims took less than %.2f ms, %.2f ms when alone', $name, $left, $busy[-1], $quiet[-1]);
		}
	}
	is($left, 0, sprintf('%s: finished in %d rounds, %.0f s', $name, $rounds, $seconds));
	ok($monotonic, "$name: never more is left than before");
	is_deeply(\@failed, [], "$name: no claim failed, nor a call");
	is($node->safe_psql('postgres', "SELECT count(*) FROM idem.idem_actions WHERE intent = 'live' AND state = 'in_progress'"),
		$claims - $claimed, "$name: every claim is there");
	is($node->safe_psql('postgres', "SELECT count(*) FROM idem.idem_actions WHERE intent = 'aged'"), ROWS / 2, "$name: as many as remain");
	is($node->safe_psql('postgres', q{SELECT count(*) FROM idem.idem_events e WHERE action_id IS NOT NULL
			AND (content IS NOT NULL OR NOT EXISTS (SELECT FROM idem.idem_actions a WHERE a.action_id = e.action_id))}),
		0, "$name: no history without its action, none with contents");

	cmp_ok(percentile(0.5, @ratio), '<=', 3, sprintf('%s: 99 of 100 claims took less than %.2f ms, %.2f ms when alone',
			$name, percentile(0.5, @busy), percentile(0.5, @quiet)))
	  if TIMED;
	return;
}

sub cut_off_call
{
	my (undef, undef, $stderr) =
	  $node->psql('postgres', "SET vacuum_cost_delay = '1ms'; SET statement_timeout = ${\(CALL * 1000)}; CALL idem.run_maintenance()");
	my $cancelled = $stderr =~ /canceling statement due to statement timeout/;
	$cut_off++ if $cancelled;
	push @failed, $stderr if $stderr ne '' && !$cancelled;
	return;
}

retention_by('run_maintenance', sub { return claims_during(\&cut_off_call) });
cmp_ok($cut_off, '>', 0, "$cut_off calls were cut off");

sub set_worker
{
	my ($value) = @_;
	$node->append_conf('postgresql.conf', "idem_action.worker = $value");
	$node->reload;
	return;
}

retention_by('worker', sub {
	set_worker('on');
	my @claims = claims_during();
	set_worker('off');
	$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'idem_action worker'");
	return @claims;
});

$node->stop;
done_testing();
