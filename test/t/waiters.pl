# Copyright (c) 2026, idem_action contributors

# Who waits for an action, or for work, holds nothing and is answered by the
# commit it waits for: at once where the library is preloaded, within a second
# where it is not.

use strict;
use warnings;

use IdemAction;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use constant WAITERS => 40;
use constant SLOW => $ENV{IDEM_SLOW} // 1;	# of a loaded machine

my $node = IdemAction->node('main', conf => "max_connections = 120\nfsync = off");
$node->rule('mail');
$node->rule('again', on_uncertain => 'repeat');
$node->safe_psql('postgres', 'CREATE TABLE answered (who int, claim idem.claim, at timestamptz)');

my $waiting = "application_name LIKE 'waiter%' AND state = 'active' AND wait_event_type <> 'Client'";

# Waits in a session of its own and keeps when it was answered
sub wait_in
{
	my ($session, $call, $who) = @_;
	$node->send($session, "INSERT INTO answered SELECT $who, c, clock_timestamp() FROM idem.$call c");
	return;
}

sub waiter
{
	my ($who) = @_;
	my $session = $node->session;
	$session->query_safe("SET application_name = 'waiter $who'");
	return $session;
}

sub until_waiting
{
	my ($n) = @_;
	$node->poll_query_until('postgres', "SELECT count(*) = $n FROM pg_stat_activity WHERE $waiting")
	  or die 'they do not wait';
	return;
}

sub answers
{
	my ($who) = @_;
	return $node->safe_psql('postgres', "SELECT (claim).outcome, (claim).granted FROM answered WHERE who = $who");
}

# Milliseconds from a moment of the server's to the answers: median and worst
sub delays
{
	my ($moment, $condition) = @_;
	$moment =~ s/^.*\n//s;
	return split /\|/, $node->safe_psql('postgres',
		"SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY ms)::int, max(ms)::int
		FROM (SELECT extract(epoch FROM at - '$moment') * 1000 FROM answered WHERE $condition) AS s (ms)");
}

my @sessions = map { waiter($_) } 1 .. WAITERS;

sub finish
{
	my ($n) = @_;
	$node->poll_query_until('postgres', "SELECT count(*) = $n FROM answered") or die 'not answered';
	$_->query('') foreach @sessions[ 0 .. $n - 1 ];
	return;
}

sub start_anew
{
	$node->safe_psql('postgres', 'TRUNCATE answered');
	return;
}

sub many_keys
{
	my ($name, $bound) = @_;

	start_anew();
	$node->safe_psql('postgres', "SELECT count(*) FROM generate_series(1, ${\WAITERS}) i,
		LATERAL idem.claim_action('$name-' || i, 'mail', lease => '1 hour')");
	wait_in($sessions[ $_ - 1 ], "claim_action('$name-$_', 'mail', wait => '30 s')", $_) foreach 1 .. WAITERS;
	until_waiting(WAITERS);
	is($node->safe_psql('postgres', "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
			WHERE $waiting AND l.locktype IN ('advisory', 'tuple', 'transactionid') "),
		0, "$name: who waits holds no lock of an action");
	is($node->safe_psql('postgres', "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
			JOIN pg_class c ON c.oid = l.relation AND l.database = (SELECT oid FROM pg_database WHERE datname = 'postgres')
			WHERE $waiting AND c.relnamespace = 'idem'::regnamespace AND l.mode NOT IN ('AccessShareLock', 'RowExclusiveLock')"),
		0, "$name: nor one of a table that is in the way");
	# in one commit, so that the moment is one
	my $moment = $node->safe_psql('postgres', q{
		BEGIN;
		SELECT FROM (SELECT array_agg(action_id) AS a, array_agg(claim_id) AS c FROM idem.idem_actions WHERE state = 'in_progress' AND key LIKE '} . $name . q{-%') x,
			LATERAL idem.complete_actions(x.a, x.c) r HAVING count(*) > 0 AND bool_and(r.accepted);
		COMMIT;
		SELECT clock_timestamp();
	});
	$moment =~ s/^.*\n//s;
	finish(WAITERS);
	is($node->safe_psql('postgres', q{SELECT count(*) FROM answered WHERE (claim).outcome = 'completed' AND NOT (claim).granted}),
		WAITERS, "$name: all hear that it is done");
	my ($p50, $worst) = delays($moment, 'true');
	cmp_ok($worst, '<', $bound * SLOW, "$name: answered after the commit, median $p50 ms, at most $worst ms");
	return;
}

# --- preloaded --------------------------------------------------------------

many_keys('preloaded', 500);

# work to take
start_anew();
wait_in($sessions[ $_ - 1 ], "take_actions('{mail}', wait => '30 s')", $_) foreach 1 .. 4;
until_waiting(4);
# long enough that looking from time to time would be seldom
$node->poll_query_until('postgres', "SELECT min(clock_timestamp() - query_start) > '2600 ms' FROM pg_stat_activity WHERE $waiting");
is($node->safe_psql('postgres', "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
		WHERE $waiting AND l.locktype IN ('advisory', 'tuple', 'transactionid')"), 0, 'a taker holds no lock while it waits');
my $moment = $node->safe_psql('postgres', q{
	SELECT FROM idem.enqueue_actions('mail', '{work-1,work-2,work-3,work-4}') HAVING count(*) > 4;
	SELECT clock_timestamp()});
finish(4);
is($node->safe_psql('postgres', q{SELECT count(DISTINCT (claim).action_id) FROM answered WHERE (claim).granted}), 4, 'four takers, four actions, none twice');
my ($p50, $worst) = delays($moment, 'true');
cmp_ok($worst, '<', 500 * SLOW, "taken after the commit, median $p50 ms, at most $worst ms");

# the winner rolls back: who waited for it is granted
start_anew();
my $winner = $node->session;
$winner->query_safe("BEGIN; SELECT idem.claim_action('undone', 'mail', in_transaction => true)");
wait_in($sessions[0], "claim_action('undone', 'mail', wait => '30 s')", 1);
until_waiting(1);
is($node->claim(key => 'undone', intent => 'mail', source => 'met')->{outcome}, 'contended', 'who does not wait is told') foreach 1 .. 2;
($moment) = $node->safe_psql('postgres', 'SELECT clock_timestamp()');
$winner->query_safe('ROLLBACK');
finish(1);
is(answers(1), 'claimed|t', 'the winner rolled back: the waiter is granted');
(undef, $worst) = delays($moment, 'true');
cmp_ok($worst, '<', 500 * SLOW, "after $worst ms");

# it commits: who waited goes on to wait for the holder, and hears its end
start_anew();
$winner->query_safe("BEGIN; SELECT idem.claim_action('held', 'mail', in_transaction => true, lease => '1 hour')");
wait_in($sessions[0], "claim_action('held', 'mail', wait => '30 s')", 1);
until_waiting(1);
$winner->query_safe('COMMIT');
$node->poll_query_until('postgres', "SELECT wait_event_type <> 'Lock' FROM pg_stat_activity WHERE application_name = 'waiter 1'");
is($node->safe_psql('postgres', 'SELECT count(*) FROM answered'), 0, 'a holder that committed is waited for');
$node->safe_psql('postgres', q{SELECT idem.complete_action(action_id, claim_id, 'ref') FROM idem.idem_actions WHERE key = 'held'});
finish(1);
is(answers(1), 'completed|f', 'and its end is heard');

# the lease ends during the wait: judged as any
start_anew();
my $lapse = $node->safe_psql('postgres', q{
	SELECT FROM idem.claim_action('lapse', 'again', lease => '1500 ms') WHERE NOT granted;
	SELECT FROM idem.claim_action('doubt', 'mail', lease => '1500 ms') WHERE NOT granted;
	SELECT max(lease_until) FROM idem.actions WHERE key IN ('lapse', 'doubt')});
wait_in($sessions[0], "claim_action('lapse', 'again', wait => '30 s')", 1);
wait_in($sessions[1], "claim_action('doubt', 'mail', wait => '30 s')", 2);
finish(2);
is(answers(1), 'claimed|t', 'the lease ends during the wait: handed out again where the rule says so');
is(answers(2), 'needs_attention|f', 'or left to a person');
(undef, $worst) = delays($lapse, 'true');
cmp_ok($worst, '<', 500 * SLOW, "$worst ms after the end of the lease");
is($node->safe_psql('postgres', q{SELECT bool_and(at - (claim).claimed_at < '1 s' AND (claim).lease_until - (claim).claimed_at = '5 min') FROM answered WHERE who = 1}),
	't', 'and the wait does not eat the lease');

# a prepared transaction rings no bell: looked at once a second
start_anew();
$node->safe_psql('postgres', "SELECT idem.claim_action('prepared', 'mail', lease => '1 hour')");
wait_in($sessions[0], "claim_action('prepared', 'mail', wait => '30 s')", 1);
until_waiting(1);
$node->safe_psql('postgres', q{
	BEGIN;
	SELECT idem.complete_action(action_id, claim_id, 'ref') FROM idem.idem_actions WHERE key = 'prepared';
	PREPARE TRANSACTION 'completion'});
($moment) = $node->safe_psql('postgres', 'SELECT clock_timestamp()');
$node->safe_psql('postgres', "COMMIT PREPARED 'completion'");
finish(1);
is(answers(1), 'completed|f', 'COMMIT PREPARED is noticed');
(undef, $worst) = delays($moment, 'true');
cmp_ok($worst, '<', 1500 * SLOW, "after $worst ms");

# a wait that comes to nothing
my $start = time;
is($node->claim(key => 'other', intent => 'mail', lease => '1 hour')->{outcome}, 'claimed', 'another holder');
is($node->claim(key => 'other', intent => 'mail', wait => '300 ms')->{outcome}, 'in_progress', 'a wait ends');
cmp_ok(time - $start, '>=', 0.3, 'not before its time');
is($node->sqlstate("SELECT idem.claim_action('other', 'mail', wait => '-1 s')"), '22023', 'a negative wait is refused');

# Ctrl-C, and the end of the session
start_anew();
wait_in($sessions[0], "claim_action('other', 'mail', wait => '30 s')", 1);
wait_in($sessions[1], "take_actions('{again}', wait => '30 s')", 2);
until_waiting(2);
$start = time;
$node->safe_psql('postgres', "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE $waiting");
until_waiting(0);
cmp_ok(time - $start, '<', 1 * SLOW, 'Ctrl-C is heard at once');
foreach my $session (@sessions[ 0, 1 ])
{
	$session->query('');
	like($session->{stderr}, qr/canceling statement due to user request/, 'and ends the call');
	$session->{stderr} = '';
}
is($sessions[0]->query_safe("SELECT outcome FROM idem.claim_action('after-cancel', 'mail')"), 'claimed', 'the session goes on');
wait_in($sessions[0], "claim_action('other', 'mail', wait => '30 s')", 1);
until_waiting(1);
is($node->safe_psql('postgres', "SELECT pg_terminate_backend(pid, 3000) FROM pg_stat_activity WHERE $waiting"), 't', 'a waiter can be terminated');

$node->safe_psql('postgres', 'CALL idem.run_maintenance()');
is($node->safe_psql('postgres', "SELECT contended FROM idem.stat_intents WHERE source = 'met'"), 2, 'contended calls are counted');

# --- without preload --------------------------------------------------------

$winner->quit;
$_->{run}->finish foreach shift @sessions;
$_->quit foreach @sessions;
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->restart;
@sessions = map { waiter($_) } 1 .. WAITERS;
like($node->safe_psql('postgres', 'SELECT problem FROM idem.worker_status'),
	qr/not in shared_preload_libraries.*not counted.*run_maintenance/, 'without preload worker_status says what is missing');
many_keys('polled', 1500);
start_anew();
wait_in($sessions[0], "take_actions('{mail}', wait => '30 s')", 1);
until_waiting(1);
$moment = $node->safe_psql('postgres', q{SELECT FROM idem.enqueue_action('work-5', 'mail') WHERE outcome <> 'pending'; SELECT clock_timestamp()});
finish(1);
is(answers(1), 'claimed|t', 'polled: work is found');
(undef, $worst) = delays($moment, 'true');
cmp_ok($worst, '<', 1500 * SLOW, "after $worst ms");
$_->quit foreach @sessions;

$node->stop;
done_testing();
