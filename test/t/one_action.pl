# Copyright (c) 2026, idem_action contributors

# One action that is met, claimed, revised or reported about for ever costs no
# more than its own calls: what maintenance, a purge, a decision and explain_action
# do for it does not grow with how often that happened.
#
# Protects: a counted repeat finds its row by index; a long history is thinned, with
# a line that says so, and keeps what later calls need; contents and keys go in
# bounded transactions.
#
# Sizes: IDEM_DELIVERIES (6000), IDEM_LOOPS (2048).

use strict;
use warnings;

use IdemAction;
use Test::More;

my $deliveries = $ENV{IDEM_DELIVERIES} // 6_000;
my $loops = $ENV{IDEM_LOOPS} // 2_048;
my $longest = 1_100;	# lines that a thinned history may have

my $node = IdemAction->node('main', conf => "idem_action.worker = off\nfsync = off\nlog_statement = none");
$node->rule('act');
$node->rule('loop', keep_content => '1 hour', keep_key => '2 hours', retry_delay => '0');
$node->rule('review', requires_approval => 'true');

sub one { return $node->safe_psql('postgres', $_[0]) }

# Each call is a transaction of its own, as from a client.
sub loop
{
	my ($times, $body) = @_;
	one("DO \$\$ DECLARE c idem.claim; r idem.report; BEGIN
		FOR i IN 1 .. $times LOOP $body COMMIT; END LOOP; END \$\$");
	return;
}

#
# Deliveries
#

my $claim = $node->claim(key => 'met', intent => 'act');
$node->call('complete_action', action_id => $claim->{action_id}, claim_id => $claim->{claim_id});

# how many rows of idem_repeats one run of maintenance reads by index
sub read_by_maintenance
{
	my $read = q{SELECT idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'idem_repeats'};
	my $before = one($read);

	one('CALL idem.run_maintenance()');
	# the session that ran it has ended, and its figures come in at that
	$node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE query LIKE 'CALL idem%'})
	  or die 'the session goes on';
	return one($read) - $before;
}

for (my $from = 1; $from <= $deliveries; $from += 8_000)
{
	my $to = $from + 7_999 < $deliveries ? $from + 7_999 : $deliveries;
	one("SELECT count(idem.claim_action('met', 'act', event_id => 'evt-' || i)) FROM generate_series($from, $to) i");
	one('CALL idem.run_maintenance()');
}
is(one('SELECT count(*) FROM idem.idem_repeats'), $deliveries, 'a row for each delivery');

one("SELECT count(idem.claim_action('met', 'act', event_id => 'evt-' || i)) FROM generate_series(1, 1000) i");
cmp_ok(read_by_maintenance(), '<=', 2_000, 'a repeat that comes again reads its own row only');
is(one('SELECT count(*) FROM idem.idem_repeats WHERE n = 2'), 1_000, 'which counts it');
one("SELECT count(idem.claim_action('met', 'act', event_id => 'new-' || i)) FROM generate_series(1, 1000) i");
cmp_ok(read_by_maintenance(), '<=', 2_000, 'a new one none');
is(one("SELECT sum(n) FROM idem.repeats WHERE key = 'met'"), $deliveries + 2_000, 'none is lost');

# source and event without a value, and outcomes and days, have rows of their own
one("SELECT idem.claim_action('met', 'act'), idem.claim_action('met', 'act', source => 's'), idem.claim_action('met', 'act', event_id => 's')");
one('CALL idem.run_maintenance()') for 1 .. 2;
is(one("SELECT string_agg(coalesce(source, '-') || '/' || coalesce(event_id, '-') || '=' || n, ' ' ORDER BY source, event_id)
	FROM idem.repeats WHERE key = 'met' AND (event_id IS NULL OR event_id = 's')"), 's/-=1 -/s=1 -/-=1', 'also one that names nothing');

#
# Claims that are given back
#

my $first = $node->claim(key => 'back', intent => 'loop', params => { to => 'a' });
$node->call('release_action', action_id => $first->{action_id}, claim_id => $first->{claim_id}, reason => 'first');
my $id = $first->{action_id};
loop($loops, q{
	c := idem.claim_action('back', 'loop', in_transaction => true);
	r := idem.fail_action(c.action_id, c.claim_id, 'error ' || i, 'none', retry_after => '0');
	IF NOT r.accepted OR r.state <> 'pending' THEN
		r := idem.resolve_action(c.action_id, 'not_happened', 'on with it', r.revision);
	END IF;});
my $lines = one("SELECT count(*) FROM idem.idem_events WHERE action_id = '$id' AND event <> 'resolved'");
cmp_ok($lines, '<', $longest, "after $loops failures the history has $lines lines of attempts");
is(one("SELECT count(*) FROM idem.idem_events WHERE action_id = '$id' AND event = 'thinned'"), 1, 'one line says what is left out');
is( one("SELECT (SELECT count(*) FROM idem.idem_events WHERE action_id = '$id' AND event IN ('failed', 'released'))
		+ (SELECT (detail ->> 'failed')::int FROM idem.idem_events WHERE action_id = '$id' AND event = 'thinned')"),
	$loops + 1, 'and how many of them');
is(one("SELECT count(*) FROM idem.idem_events e, idem.idem_events t WHERE t.event = 'thinned' AND e.action_id = '$id' AND t.action_id = '$id'
	AND (e.id < t.id) <> (e.at <= t.at) AND e.id <> t.id"), 0, 'it stands where they stood');
is(one("SELECT count(*) FROM idem.history WHERE action_id = '$id' AND event = 'failed' AND attempt > $loops - 100"), 101, 'the last ones are there');
like(one("SELECT string_agg(l, E'\\n') FROM idem.explain_action('$id') l"), qr/\d+ lines up to here are left out/, 'explain_action says it');
ok($node->call('release_action', action_id => $id, claim_id => $first->{claim_id}, reason => 'first')->{accepted},
	'the first report, repeated, is answered as before');
is(one("SELECT max(attempt) FROM idem.idem_actions WHERE action_id = '$id'"), $loops + 1, 'no attempt number comes twice');

#
# Reports by claims that the ledger does not know, and drafts
#

my $done = $node->claim(key => 'doubted', intent => 'loop');
$node->call('complete_action', action_id => $done->{action_id}, claim_id => $done->{claim_id}, external_ref => 'ref');
loop($loops, "r := idem.fail_action('$done->{action_id}', gen_random_uuid(), 'late');");
cmp_ok(one("SELECT count(*) FROM idem.idem_events WHERE action_id = '$done->{action_id}'"), '<', $longest, 'evidence is thinned too');
is(one("SELECT state || external_ref FROM idem.idem_actions WHERE action_id = '$done->{action_id}'"), 'completedref', 'and changes nothing');

my $draft = $node->call('enqueue_action', key => 'drafted', intent => 'review', draft => { text => 'first' });
loop($loops, "r := idem.revise_action('$draft->{action_id}', jsonb_build_object('text', i));");
cmp_ok(one("SELECT count(*) FROM idem.idem_events WHERE action_id = '$draft->{action_id}'"), '<', $longest, 'and replaced drafts');
is(one("SELECT draft ->> 'text' FROM idem.idem_actions WHERE action_id = '$draft->{action_id}'"), $loops, 'the last one stands');

#
# Contents and keys go in bounded transactions
#

my $last = $node->claim(key => 'back', intent => 'loop');
$node->call('complete_action', action_id => $id, claim_id => $last->{claim_id});
one("SELECT count(idem.claim_action('back', 'loop', event_id => 'evt-' || i)) FROM generate_series(1, 500) i");
one('CALL idem.run_maintenance()');
one("UPDATE idem.idem_actions SET purge_after = finished_at WHERE action_id = '$id'");
my $held = "FROM idem.idem_events WHERE action_id = '$id' AND detail ? 'error'";
my $errors = one("SELECT count(*) $held");
one('CALL idem.run_maintenance(100, 1)');
is(one("SELECT count(*) $held"), $errors - 100, 'one transaction purges 100 lines');
is(one("SELECT purged FROM idem.idem_actions WHERE action_id = '$id'"), 'f', 'the row does not say yet that the contents are gone');
one('CALL idem.run_maintenance(100)');
is(one("SELECT count(*) $held"), 0, 'the next ones the rest');
is(one("SELECT purged FROM idem.idem_actions WHERE action_id = '$id'"), 't', 'and the row');

one("UPDATE idem.idem_actions SET forget_after = finished_at WHERE action_id = '$id'");
my $about = "(SELECT count(*) FROM idem.idem_events WHERE action_id = '$id') + (SELECT count(*) FROM idem.idem_repeats WHERE action_id = '$id')";
my $left = one("SELECT $about");
one('CALL idem.run_maintenance(100, 1)');
is(one("SELECT $about"), $left - 100, 'one transaction forgets 100 lines');
is(one("SELECT count(*) FROM idem.idem_actions WHERE action_id = '$id'"), 1, 'the key goes last');
one('CALL idem.run_maintenance(100)');
is(one("SELECT $about"), 0, 'nothing is left');
is(one("SELECT count(*) FROM idem.idem_actions WHERE action_id = '$id'"), 0, 'nor the key');

$node->stop;
done_testing();
