# Copyright (c) 2026, idem_action contributors

# The outbox: what is enqueued is handed out to one taker at a time, in order,
# never more than asked for, and none is lost or done twice whoever dies.
#
# IDEM_OUTBOX_ACTIONS sets how many actions the takers fight over.

use strict;
use warnings;

use POSIX qw(WNOHANG);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use IdemAction;

my $actions = $ENV{IDEM_OUTBOX_ACTIONS} || 5000;
my $takers = 16;

my $node = IdemAction->node('main',
	conf => "fsync = off\nmax_connections = 60\nautovacuum = off\nlog_min_messages = fatal");

# An action grows older by so much: its row, its entry in the queue, its history.
$node->safe_psql('postgres', q{
	CREATE FUNCTION age_action(uuid, interval) RETURNS void LANGUAGE sql AS $$
		UPDATE idem.idem_queue SET due_at = due_at - $2 WHERE action_id = $1;
		UPDATE idem.idem_events SET at = at - $2 WHERE action_id = $1;
		UPDATE idem.idem_actions SET created_at = created_at - $2,
			first_claimed_at = first_claimed_at - $2, claimed_at = claimed_at - $2,
			lease_until = lease_until - $2, due_at = due_at - $2,
			doubt_until = doubt_until - $2, finished_at = finished_at - $2,
			purge_after = purge_after - $2, forget_after = forget_after - $2
		WHERE action_id = $1;
	$$
});

sub age
{
	my ($action_id, $by) = @_;
	$node->safe_psql('postgres', "SELECT age_action('$action_id', '$by')");
	return;
}

sub enqueue
{
	my ($intent, $key, %arg) = @_;
	return scalar $node->call('enqueue_action', key => $key, intent => $intent, %arg);
}

sub take
{
	my ($intent, %arg) = @_;
	return $node->call('take_actions',
		intents => ref $intent ? $intent : [$intent], max => 10, %arg);
}

sub take_to_verify
{
	my ($intent, %arg) = @_;
	return $node->call('take_to_verify', intents => [$intent], max => 10, %arg);
}

sub complete
{
	my ($claim, %arg) = @_;
	return scalar $node->call('complete_action',
		action_id => $claim->{action_id}, claim_id => $claim->{claim_id}, %arg);
}

sub state_of
{
	my ($key, $intent) = @_;
	return $node->safe_psql('postgres',
		"SELECT state || coalesce(' ' || reason, '') FROM idem.actions WHERE (key, intent) = ('$key', '$intent')");
}

sub keys_of
{
	return join ' ', map { $_->{key} } @_;
}

# Everything that must hold of the tables at any time.
sub consistent
{
	my ($name) = @_;
	is($node->safe_psql('postgres', q{
		SELECT count(*) FROM idem.idem_queue q
		FULL JOIN (SELECT * FROM idem.idem_actions WHERE due_at IS NOT NULL AND NOT purged) a
			ON (q.action_id, q.intent, q.priority, q.due_at) = (a.action_id, a.intent, a.priority, a.due_at)
		WHERE a.action_id IS NULL OR q.action_id IS NULL}),
		0, "$name: the queue agrees with the actions");
	is($node->safe_psql('postgres',
		'SELECT count(*) FROM idem.idem_actions a WHERE idem.violated_invariant(a) IS NOT NULL'),
		0, "$name: no invariant is violated");
	return;
}

#
# Sixteen takers, killed at random
#

$node->rule('deliver', on_uncertain => 'repeat', lease => '3 s', max_attempts => 1000);
$node->safe_psql('postgres', qq{
	CREATE TABLE holds (action_id uuid, claim_id uuid, attempt int, pid int, at timestamptz, lease_until timestamptz);
	CREATE TABLE reports (action_id uuid, accepted boolean, state text, note text, pid int, at timestamptz);
	CREATE INDEX ON holds (pid);
	CREATE INDEX ON reports (action_id);
	SELECT FROM idem.enqueue_actions('deliver', (SELECT array_agg('k' || n) FROM generate_series(1, $actions) n));
});

# One look at the queue, the effects of what was handed out, and the reports.
# What a taker holds is recorded by the statement that takes it.
my $taker = "SELECT pg_backend_pid() AS me \\gset\n" . q{
INSERT INTO holds SELECT action_id, claim_id, attempt, pg_backend_pid(), clock_timestamp(), lease_until
	FROM idem.take_actions('{deliver}', 3);
INSERT INTO reports SELECT r.action_id, r.accepted, r.state, r.note, pg_backend_pid(), clock_timestamp()
	FROM (SELECT array_agg(action_id) AS a, array_agg(claim_id) AS c FROM holds h WHERE pid = :me
		AND NOT EXISTS (SELECT FROM reports p WHERE (p.action_id, p.pid) = (h.action_id, h.pid))) h,
	idem.complete_actions(h.a, h.c) r WHERE h.a IS NOT NULL;
} x 30;
my $file = $node->basedir . '/taker.sql';
append_to_file($file, $taker);

my $killer = $node->session;
my $deadline = time() + $PostgreSQL::Test::Utils::timeout_default * (1 + $actions / 50_000);
my ($killed_clients, $killed_backends, $rounds) = (0, 0, 0);
my %running;
my $left;

sub start_taker
{
	my $pid = fork() // die "fork: $!";
	if ($pid == 0)
	{
		open STDOUT, '>', '/dev/null';
		open STDERR, '>', '/dev/null';
		exec('psql', '-XAtq', '-f', $file, $node->connstr('postgres')) or POSIX::_exit(1);
	}
	$running{$pid} = 1;
	return;
}

while (1)
{
	$left = $killer->query_safe("SELECT count(*) FROM idem.idem_queue WHERE intent = 'deliver'");
	last if $left == 0 || time() > $deadline;
	$rounds++;
	waitpid($_, WNOHANG) == 0 or delete $running{$_} foreach keys %running;
	start_taker() while keys %running < $takers;
	if ($rounds % 3 > 0)
	{
		kill 'KILL', (keys %running)[0];
		$killed_clients++;
	}
	else
	{
		$killed_backends += $killer->query_safe(q{
			SELECT count(pg_terminate_backend(pid)) FROM (
				SELECT pid FROM pg_stat_activity
				WHERE pid <> pg_backend_pid() AND query LIKE 'INSERT INTO%'
				ORDER BY random() LIMIT 1) x});
	}
}
kill 'KILL', keys %running;
waitpid($_, 0) foreach keys %running;
$killer->quit;

is($left, 0, "$takers takers have emptied the queue");
cmp_ok($killed_clients, '>', 3, "$killed_clients takers were killed");
cmp_ok($killed_backends, '>', 3, "$killed_backends takers' backends were terminated");
is($node->safe_psql('postgres', q{
	SELECT count(*) FILTER (WHERE state = 'completed') + count(*) FILTER (WHERE reason = 'late_result')
	FROM idem.actions WHERE intent = 'deliver'}),
	$actions, 'none is lost: each is completed, or a success came so late that a person looks');
is($node->safe_psql('postgres', 'SELECT count(*) FROM (SELECT FROM reports WHERE accepted GROUP BY action_id HAVING count(*) > 1) x'),
	0, 'none is completed twice');
is($node->safe_psql('postgres', q{
	SELECT count(*) FROM (
		SELECT h.*, lead(at) OVER (PARTITION BY action_id ORDER BY attempt) AS next FROM holds h) h
	WHERE next < lease_until}),
	0, 'one holder at a time: the next begins when the lease of the one before is over');
is($node->safe_psql('postgres', q{
	SELECT count(*) FROM holds h JOIN reports r USING (action_id, pid)
	JOIN idem.actions a USING (action_id)
	WHERE r.accepted AND h.attempt > a.attempt}),
	0, 'nobody is handed what is completed');
is($node->safe_psql('postgres', 'SELECT count(*) FROM (SELECT FROM holds GROUP BY action_id, attempt HAVING count(*) > 1) x'),
	0, 'no attempt has two holders');
cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM holds WHERE attempt > 1'),
	'>', 0, 'what died with its taker was handed out again, without a worker');
consistent('after the takers');

#
# Order, and what is not handed out
#

$node->rule($_) foreach qw(a b c);
enqueue('a', 'low', priority => -1);
enqueue('a', 'old');
enqueue('b', 'between');
enqueue('a', 'young');
enqueue('b', 'high', priority => 5);
enqueue('a', 'later', not_before => '2126-01-01', priority => 9);
enqueue('c', 'other intent', priority => 99);
enqueue('a', 'tenant', priority => 1, scope => 'eu');
is(keys_of(take([ 'a', 'b', 'a' ], max => 4)),
	'high tenant old between', 'order: priority, then age, across intents');
is(keys_of(take([ 'a', 'b' ], scope => '')), 'young low', 'scope: of this tenant only');
is(keys_of(take([ 'a', 'b' ])), '', 'not_before: not handed out before it is due');
is(keys_of(take('c')), 'other intent', 'only the intents asked for');
is($node->sqlstate("SELECT idem.take_actions('{a}', $_)"), '22023', "max $_ is refused")
  foreach 0, -1, 10001;
is($node->sqlstate("SELECT idem.take_actions('{}')"), '22023', 'no intents: refused');
is($node->sqlstate("SELECT idem.take_actions('{nobody-knows}')"), 'IA005', 'no rule');
is($node->sqlstate("BEGIN; SELECT idem.take_actions('{a}')"), '25001', 'an open transaction');
enqueue('a', 'future', not_before => '2126-01-01');
age(enqueue('a', 'future')->{action_id}, '100 years');
is(keys_of(take('a', max => 1)), 'future', 'not_before: handed out when it is due');

# max holds whatever the planner thinks, and however the call is embedded
$node->rule('plans');
my %settings = (
	'as it comes' => '',
	'without scans of indexes' => 'SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off;',
	'without sequential scans' => 'SET enable_seqscan = off; SET enable_sort = off;',
	'without joins' => 'SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_nestloop = off;',
	'with generic plans' => 'SET plan_cache_mode = force_generic_plan; SET jit_above_cost = 0;',
);
$node->safe_psql('postgres',
	"ANALYZE idem.idem_actions, idem.idem_queue; SELECT FROM generate_series(1, 500) n, LATERAL (SELECT n, idem.enqueue_action(to_char(n, 'fm0000'), 'plans')) e"
);
my $expected = 0;
foreach my $name (sort keys %settings)
{
	my $got = $node->safe_psql('postgres', "$settings{$name} SELECT string_agg(key, ' ') FROM idem.take_actions('{plans}', 7)");
	is($got, join(' ', map { sprintf '%04d', ++$expected } 1 .. 7), "max and order, $name");
}
is($node->safe_psql('postgres',
	q{SELECT count(*) FROM generate_series(1, 5) n, LATERAL (SELECT n + key::int FROM idem.take_actions('{plans}', 2 + 0 * n)) t}),
	10, 'max holds for each call of a lateral join');
is($node->safe_psql('postgres', q{SELECT count(*) FROM (SELECT idem.take_actions('{plans}', 3) LIMIT 1) x}),
	1, 'max, in a select list');
is($node->safe_psql('postgres', q{PREPARE t AS SELECT count(*) FROM idem.take_actions('{plans}', $1); EXECUTE t(3); EXECUTE t(0 + 4)}),
	"3\n4", 'max, prepared');

#
# Locked rows, waiting, replays
#

$node->rule('lock');
enqueue('lock', "k$_") foreach 1 .. 4;
my $holder = $node->session;
$holder->query_safe(q{BEGIN});
$holder->query_safe(q{SELECT idem.revise_action(idem.action_id('k1', 'lock'), '{"text": "new"}')});
$holder->query_safe(q{SELECT idem.enqueue_action('k0', 'lock', priority => 9)});
is(keys_of(take('lock', max => 2)), 'k2 k3', 'a row held by an open transaction is passed over');
$holder->query_safe('ROLLBACK');
is(keys_of(take('lock')), 'k1 k4', 'after its rollback the row is handed out, and nothing else is left');
is($node->call('find_action', key => 'k0', intent => 'lock')->{outcome},
	'unknown', 'A34: the rollback of enqueue leaves nothing');

my $before = $node->safe_psql('postgres', q{SELECT count(*) FROM idem.idem_events});
$holder->query_safe(q{BEGIN; SELECT idem.enqueue_actions('lock', '{x1,x2,x3}')});
is(keys_of(take('lock')), '', 'what is not committed is not handed out');
$holder->query_safe('ROLLBACK');
is($node->safe_psql('postgres', q{SELECT (SELECT count(*) FROM idem.idem_queue WHERE intent = 'lock' AND due_at < clock_timestamp()),
	(SELECT count(*) FROM idem.idem_actions WHERE key IN ('x1', 'x2', 'x3')), (SELECT count(*) FROM idem.idem_events)}),
	"0|0|$before", 'A34: of a batch neither: no entry, no row, no event');

# a take in a transaction that is rolled back has taken nothing
$holder->query_safe(q{SELECT idem.enqueue_action('back', 'lock')});
is($holder->query_safe(q{BEGIN; SELECT key FROM idem.take_actions('{lock}', in_transaction => true)}),
	'back', 'taken in a transaction');
is(keys_of(take('lock')), '', 'and by nobody else');
$holder->query_safe('ROLLBACK');
is(keys_of(take('lock')), 'back', 'rolled back: for the next one');

# wait
my $waiter = $node->session;
$node->send($waiter, q{SELECT key FROM idem.take_actions('{lock}', wait => '30 s')});
$node->poll_query_until('postgres', "SELECT wait_event = 'Extension' FROM pg_stat_activity WHERE pid = $waiter->{backend}")
  or die 'it does not wait';
enqueue('lock', 'awaited');
like($waiter->query(''), qr/awaited/, 'wait: a taker gets what comes meanwhile');
is($node->safe_psql('postgres', q{SELECT count(*), clock_timestamp() - now() < '20 s' FROM idem.take_actions('{lock}', wait => '50 ms')}),
	'0|t', 'wait: it ends');
is($node->sqlstate("SELECT idem.take_actions('{lock}', wait => '31 s')"), '22023', 'wait: at most 30 seconds');

# call_id
$node->rule('call', lease => '5 min');
enqueue('call', "k$_") foreach 1 .. 5;
my $call_id = '11111111-1111-4111-8111-111111111111';
my @first = take('call', max => 3, call_id => $call_id, worker => 'w');
my @again = take('call', max => 3, call_id => $call_id, worker => 'w');
is(keys_of(@first), 'k1 k2 k3', 'call_id: taken');
is_deeply([ sort map { "$_->{key} $_->{claim_id}" } @again ],
	[ sort map { "$_->{key} $_->{claim_id}" } @first ],
	'call_id: the same call gets the same claims');
complete($first[1]);
is(keys_of(sort { $a->{key} cmp $b->{key} } take('call', max => 3, call_id => $call_id, worker => 'w')),
	'k1 k3', 'call_id: just those that it still holds');
is(keys_of(take('call', max => 1, call_id => $call_id, worker => 'other')),
	'k4', 'call_id: another worker gets none of them');
age($_->{action_id}, '10 min') foreach @first[ 0, 2 ];
is(keys_of(take('call', max => 3, call_id => $call_id, worker => 'w')),
	'k5', 'call_id: not after the lease');

# the reply is lost with the client, after the commit
enqueue('call', 'lost');
my $lost = '22222222-2222-4222-8222-222222222222';
my $client = $node->session;
$node->send($client, "SELECT idem.take_actions('{call}', 10, call_id => '$lost', worker => 'l')");
$node->poll_query_until('postgres',
	"SELECT count(*) > 0 FROM idem.idem_actions WHERE call_id = '$lost'");
$node->kill_client($client);
my @found = take('call', max => 10, call_id => $lost, worker => 'l');
cmp_ok(scalar(@found), '>', 0, 'CASE 22: a lost reply is asked for again');
is($node->safe_psql('postgres', "SELECT count(*), max(attempt) FROM idem.idem_actions WHERE call_id = '$lost'"),
	scalar(@found) . '|1', 'CASE 22: and nothing was handed out a second time for it');
is($node->safe_psql('postgres', "SELECT count(*) FILTER (WHERE seconds_left > 500) FROM idem.extend_claims(ARRAY["
		  . join(', ', map { "'$_->{action_id}'" } @found) . ']::uuid[], ARRAY['
		  . join(', ', map { "'$_->{claim_id}'" } @found) . "]::uuid[], '10 min')"),
	scalar(@found), 'CASE 22: extend_claims keeps them for as long as the batch takes');

#
# Doubt, without any worker process
#

$node->rule('doubt-review');
$node->rule('doubt-verify', on_uncertain => 'verify', settle => '2 min');
$node->rule('doubt-retry', on_uncertain => 'retry', provider_window => '1 h');
$node->rule('doubt-repeat', on_uncertain => 'repeat', max_attempts => 3);
$node->rule('doubt-marked', marks_effect => 'true', max_attempts => 2);

my %claim;
foreach my $name (qw(review verify retry repeat marked))
{
	enqueue("doubt-$name", 'k');
	($claim{$name}) = take("doubt-$name");
	is($claim{$name}{outcome}, 'claimed', "doubt, $name: handed out");
	is(keys_of(take("doubt-$name")), '', "doubt, $name: not twice");
	age($claim{$name}{action_id}, '6 min');
}
is(keys_of(take('doubt-review')), '', 'doubt, review: a lapsed lease is handed out to nobody');
is(state_of('k', 'doubt-review'), 'needs_attention lease_expired', 'doubt, review: a person decides');

is(keys_of(take_to_verify('doubt-verify')), '', 'doubt, verify: not before the settle time');
is(state_of('k', 'doubt-verify'), 'pending', 'doubt, verify: it waits');
age($claim{verify}{action_id}, '3 min');
is(keys_of(take('doubt-verify')), '', 'doubt, verify: never to act');
my ($search) = take_to_verify('doubt-verify');
is("$search->{outcome} $search->{granted} $search->{attempt}", 'verify 0 2', 'doubt, verify: to search');
is(keys_of(take_to_verify('doubt-verify')), '', 'doubt, verify: by one');
my $verified = $node->call('verify_action',
	action_id => $search->{action_id}, claim_id => $search->{claim_id}, found => 'false');
is("$verified->{granted} $verified->{claim_id}", "1 $search->{claim_id}", 'doubt, verify: not there, so it may act');
is(complete($search, external_ref => 'm-1')->{state}, 'completed', 'doubt, verify: done');

my ($retried) = take('doubt-retry');
is($retried->{provider_key}, $claim{retry}{provider_key}, 'doubt, retry: again with the same provider key');
is(keys_of(take_to_verify('doubt-retry')), '', 'doubt, retry: nothing to search for');
age($retried->{action_id}, '1 h');
is(keys_of(take('doubt-retry')), '', 'doubt, retry: not outside the provider window');
is(state_of('k', 'doubt-retry'), 'needs_attention provider_window_over', 'doubt, retry: a person decides');

# CASE 9: what kills its taker is not handed out for ever
for my $attempt (2, 3)
{
	my ($again) = take('doubt-repeat');
	is($again->{attempt}, $attempt, "CASE 9: attempt $attempt");
	age($again->{action_id}, '6 min');
}
is(keys_of(take('doubt-repeat')), '', 'CASE 9: no attempt after max_attempts');
is(state_of('k', 'doubt-repeat'), 'needs_attention attempts_exhausted', 'CASE 9: a person decides');
$node->call('resolve_action', action_id => $claim{repeat}{action_id}, decision => 'not_happened',
	note => 'looked', revision => $node->safe_psql('postgres', "SELECT revision FROM idem.actions WHERE intent = 'doubt-repeat'"));
my ($fourth) = take('doubt-repeat');
is($fourth->{attempt}, 4, 'CASE 9: not_happened gives a new budget');

my ($clean) = take('doubt-marked');
is("$clean->{attempt} " . ($clean->{uncertain} ? 't' : 'f'), '2 f', 'doubt, marked: not begun, so nothing happened');
age($clean->{action_id}, '6 min');
is(keys_of(take('doubt-marked')), '', 'doubt, marked: attempts end');
is(state_of('k', 'doubt-marked'), 'needs_attention attempts_exhausted', 'doubt, marked: a person decides');

# CASE 24: the lease was judged a moment before the slow holder reports
$node->rule('slow', on_uncertain => 'verify');
enqueue('slow', $_) foreach qw(nobody-took-it taken-since);
my @slow = take('slow');
age($_->{action_id}, '6 min') foreach @slow;
take_to_verify('slow');
is(state_of($_, 'slow'), 'pending', "CASE 24, $_: judged") foreach qw(nobody-took-it taken-since);
is(complete($slow[0], external_ref => 'm-1')->{state}, 'completed', 'CASE 24: a late success counts');
age($slow[1]{action_id}, '3 min');
my ($searching) = take_to_verify('slow');
is($searching->{key}, 'taken-since', 'CASE 24: what is done is not searched for');
is(complete($slow[1], external_ref => 'm-2')->{state}, 'needs_attention',
	'CASE 24: and where another has it, it stops the next hand-out');
is($node->sqlstate("SELECT idem.extend_claim('$searching->{action_id}', '$searching->{claim_id}')"),
	'IA002', 'CASE 24: the other is told');
is(keys_of(take('slow'), take_to_verify('slow')), '', 'CASE 24: nobody gets it');

#
# Approval, pause
#

$node->rule('approve', requires_approval => 'true', on_uncertain => 'verify');
is(enqueue('approve', 'k', draft => { text => 'one' })->{outcome}, 'awaiting_approval', 'approval: enqueued');
is(keys_of(take('approve'), take_to_verify('approve')), '', 'approval: not handed out before');
$node->call('approve_action', action_id => $node->safe_psql('postgres', q{SELECT idem.action_id('k', 'approve')}), revision => 1);
$node->call('revise_action', action_id => $node->safe_psql('postgres', q{SELECT idem.action_id('k', 'approve')}), draft => { text => 'two' });
is(keys_of(take('approve'), take_to_verify('approve')), '', 'approval: nor after a revision');
$node->call('approve_action', action_id => $node->safe_psql('postgres', q{SELECT idem.action_id('k', 'approve')}), revision => 3);
my ($approved) = take('approve');
is($approved->{draft}{text}, 'two', 'approval: then, with the draft that was approved');

# A39: regenerated output is not authorisation, and what nobody approved never goes out
$node->call('enqueue_action', key => 'bare', intent => 'approve', params => { to => 'a' });
$node->call('approve_action', action_id => $node->safe_psql('postgres', q{SELECT idem.action_id('bare', 'approve')}), revision => 1);
my $bare_approved = $node->claim(key => 'bare', intent => 'approve', params => { to => 'a' }, draft => { text => 'never seen' });
is($bare_approved->{draft}, undef, 'A39: approved without a draft, it gets none from the caller');
is( $node->sqlstate(
		"SELECT idem.begin_effect('$bare_approved->{action_id}', '$bare_approved->{claim_id}', '{\"text\": \"never seen\"}')"),
	'IA008',
	'A39: nor at the last look');

$node->rule('approve-later', on_uncertain => 'repeat');
enqueue('approve-later', 'k');
my ($unapproved) = take('approve-later');
age($unapproved->{action_id}, '6 min');
$node->rule('approve-later', on_uncertain => 'repeat', requires_approval => 'true');
is($node->claim(key => 'k', intent => 'approve-later')->{outcome},
	'awaiting_approval', 'approval asked for since: a lapsed lease is not handed out to a claim');
is(keys_of(take('approve-later')), '', 'approval asked for since: nor to a taker');

# a search of an earlier generation grants nothing
my $generation = $node->claim(key => 'generation', intent => 'doubt-verify');
complete($generation);
$node->call('rerun_action', action_id => $generation->{action_id}, reason => 'again', revision => 2);
foreach my $found ('false', undef)
{
	my $late = $node->call('verify_action',
		action_id => $generation->{action_id}, claim_id => $generation->{claim_id}, found => $found);
	ok(!$late->{granted}, 'verify_action by a claim of an earlier generation grants nothing');
}

$node->rule('pause', on_uncertain => 'verify');
enqueue('pause', "k$_") foreach 1 .. 2;
my ($paused) = take('pause', max => 1);
$node->call('pause_intent', intent => 'pause', reason => 'test');
is(keys_of(take('pause')), '', 'pause: nothing is handed out');
is(enqueue('pause', 'k3')->{outcome}, 'pending', 'pause: enqueue works');
is($node->sqlstate("SELECT idem.extend_claim('$paused->{action_id}', '$paused->{claim_id}')"), 'IA004', 'pause: holders hear of it');
is(keys_of(take([ 'pause', 'a' ])), '', 'pause: beside another intent');
age($paused->{action_id}, '20 min');
is(keys_of(take_to_verify('pause')), '', 'pause: nothing to search for either');
is(complete($paused)->{state}, 'completed', 'pause: reports count');
$node->call('pause_intent', intent => undef, reason => 'all');
$node->call('resume_intent', intent => 'pause');
is(keys_of(take('pause')), '', 'pause of all: not lifted by name');
$node->call('resume_intent', intent => undef);
is(keys_of(take('pause')), 'k2 k3', 'resumed');

#
# One bad row
#

# the slow enqueuer
$node->rule('ids');
$holder->query_safe(q{BEGIN; SELECT idem.enqueue_action('slow', 'ids')});
enqueue('ids', 'fast');
is(keys_of(take('ids')), 'fast', 'CASE 10: the fast one is delivered');
$holder->query_safe('COMMIT');
is(keys_of(take('ids')), 'slow', 'CASE 10: and so is the slow one');

# CASE 12: a restart from zero repeats nothing that was done
$node->rule('steps');
my @steps = map { $node->claim(key => "step$_", intent => 'steps') } 1 .. 3;
complete($steps[$_], external_ref => "ref$_", result => { step => $_ }) foreach 0, 1;
$node->call('fail_action', action_id => $steps[2]{action_id}, claim_id => $steps[2]{claim_id},
	error => 'boom', effect => 'none', retry_after => '0');
my @restart = map { $node->claim(key => "step$_", intent => 'steps') } 1 .. 3;
is(join(' ', map { $_->{outcome} } @restart), 'completed completed claimed', 'CASE 12: only the third is granted');
is("$restart[0]{external_ref} $restart[1]{result}{step}", 'ref0 1', 'CASE 12: with the stored reference and result');

# CASE 16: rules gone, roles gone, contents gone: the others go on
$node->rule('batch');
$node->safe_psql('postgres', q{
	CREATE ROLE courier; SELECT idem.define_rule('courier', 'u', 'r', worker_role => 'courier');
	SELECT idem.define_rule('dropped', 'u', 'r');
	SELECT FROM idem.enqueue_actions('batch', (SELECT array_agg('k' || n) FROM generate_series(1, 99) n));
	SELECT idem.enqueue_action('gone', 'courier', priority => 5), idem.enqueue_action('gone', 'dropped', priority => 5);
	DELETE FROM idem.idem_rules WHERE intent = 'dropped';
	DROP ROLE courier;
});
my @rest = take([ 'dropped', 'courier', 'batch' ], max => 1000);
is(scalar(grep { $_->{intent} eq 'batch' } @rest), 99, 'CASE 16: a rule dropped behind its back does not stop the others');
$node->safe_psql('postgres', q{
	SELECT FROM idem.enqueue_actions('batch', '{p1,p2,p3}');
	DELETE FROM idem.idem_actions WHERE key = 'p1';
});
is(keys_of(sort { $a->{key} cmp $b->{key} } take('batch')), 'p2 p3', 'CASE 16: nor an entry whose action is gone');
$node->safe_psql('postgres', q{DELETE FROM idem.idem_queue WHERE action_id = idem.action_id('p1', 'batch')});

# what was erased is handed out to claims only, however it comes to be pending
$node->rule('erased');
my $erased = $node->claim(key => 'k', intent => 'erased', params => { to => 'a' }, draft => { text => 'one' });
complete($erased);
$node->call('erase_action', action_id => $erased->{action_id}, reason => 'asked for');
$node->call('rerun_action', action_id => $erased->{action_id}, reason => 'again', revision => 3);
is(keys_of(take('erased')), '', 'erased and run again: not taken');
my $bare = $node->claim(key => 'k', intent => 'erased', draft => { text => 'two' });
is($bare->{outcome}, 'claimed', 'erased and run again: claimed');
$node->call('release_action', action_id => $bare->{action_id}, claim_id => $bare->{claim_id});
is(keys_of(take('erased')), '', 'erased, claimed with a draft only and released: not taken without its params');
my $whole = $node->claim(key => 'k', intent => 'erased', params => { to => 'a' });
$node->call('release_action', action_id => $whole->{action_id}, claim_id => $whole->{claim_id});
is_deeply([ map { $_->{params} } take('erased') ], [ { to => 'a' } ], 'erased, claimed with its params and released: taken');

#
# What a take costs
#

sub blocks_of_a_take
{
	my $session = $node->session;
	my $sum = q{
		SELECT sum(heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit)
		FROM pg_statio_all_tables WHERE schemaname = 'idem'};
	my ($from, $to);

	$session->query_safe(q{SELECT key FROM idem.take_actions('{cost}')});    # fills the caches of the session
	$session->query_safe('SELECT pg_stat_force_next_flush()');
	$from = $session->query_safe($sum);
	is($session->query_safe(q{SELECT count(*) FROM idem.take_actions('{cost}')}), 1, 'cost: one is taken');
	$session->query_safe('SELECT pg_stat_force_next_flush()');
	$session->query_safe('SELECT pg_stat_clear_snapshot()');
	$to = $session->query_safe($sum);
	$session->quit;
	return $to - $from;
}

$node->rule('cost');
$node->safe_psql('postgres', q{VACUUM idem.idem_queue, idem.idem_actions; SELECT FROM idem.enqueue_actions('cost', '{k1,k2}')});
my $empty = blocks_of_a_take();
$node->safe_psql('postgres', q{SELECT idem.import_actions('cost', (SELECT array_agg('i' || n) FROM generate_series(1, 45000) n))});
$node->safe_psql('postgres', q{
	SELECT FROM idem.enqueue_actions('cost', (SELECT array_agg('d' || n) FROM generate_series(1, 5000) n));
	SELECT count(*) FROM (SELECT array_agg(action_id) AS a, array_agg(claim_id) AS c FROM idem.take_actions('{cost}', 5000)) t,
		idem.complete_actions(t.a, t.c);
	SELECT FROM idem.enqueue_actions('cost', '{n1,n2,n3,n4}');
});
# autovacuum is off here: this is what it does
$node->safe_psql('postgres', 'VACUUM idem.idem_queue');
my $full = blocks_of_a_take();
cmp_ok($full, '<=', $empty + 6, "a take costs $empty blocks, and $full beside 50000 finished actions");

consistent('at the end');
$holder->quit;
$waiter->quit;
$node->stop;
done_testing();
