# Copyright (c) 2026, idem_action contributors

# A ledger that is published, and a subscriber that takes over from it.
#
# Protects: FOR ALL TABLES breaks nothing, whatever is called; the subscriber
# is equal to the publisher; after a switch to it, also without setting its
# sequences, numbers of the history go on above what is there, and what sessions
# have cached of rules and pauses follows what is replicated.

use strict;
use warnings;

use IdemAction;
use Test::More;

my $conf = q{
	idem_action.naptime = 1
	idem_action.worker = on
	fsync = off
};
my $publisher = IdemAction->node('publisher', init => [ allows_streaming => 'logical' ], conf => $conf);
my $subscriber = IdemAction->node('subscriber', conf => $conf . 'idem_action.worker = off');

# what CREATE EXTENSION has put there is the publisher's to say
my @tables = map { "idem.$_" } qw(idem_actions idem_events idem_queue idem_rules idem_repeats idem_access idem_state);
$subscriber->safe_psql('postgres', 'DELETE FROM idem.idem_state');
$publisher->safe_psql('postgres', 'CREATE PUBLICATION everything FOR ALL TABLES');
$subscriber->safe_psql('postgres', q{CREATE SUBSCRIPTION copy CONNECTION '} . $publisher->connstr . q{ dbname=postgres' PUBLICATION everything});
$subscriber->wait_for_subscription_sync($publisher, 'copy');

sub one { return $publisher->safe_psql('postgres', $_[0]) }

# a session that has cached what was so before
my $reader = $subscriber->session;
is($reader->query_safe(q{SELECT count(*) FROM idem.rules}), 0, 'the subscriber has no rule yet');
$reader->query_safe(q{SET idem_action.require_rule = off});
like($reader->query_safe(q{SELECT outcome FROM idem.find_action('k', 'act')}), qr/unknown/, 'a session asks for it');

$publisher->rule('act', max_failures => 100, retry_delay => '0');
$publisher->rule('review', requires_approval => 'true', rerun_by => 'resolver');
$publisher->rule('short', keep_content => '0', keep_key => '1 ms');
my $decided = q{
	SELECT idem.approve_action(action_id, revision) FROM idem.enqueue_action('approved', 'review', draft => '{"a": 1}');
	SELECT count(*) FROM idem.take_actions('{review}');
	SELECT idem.complete_action(action_id, claim_id, 'ref') FROM idem.idem_actions WHERE key = 'approved';
	SELECT idem.rerun_action(action_id, 'a test', revision) FROM idem.idem_actions WHERE key = 'approved';
	SELECT idem.revise_action(action_id, '{"a": 2}') FROM idem.idem_actions WHERE key = 'approved';
	SELECT idem.cancel_action(action_id) FROM idem.idem_actions WHERE key = 'approved';
	SELECT idem.erase_action(action_id, 'a test') FROM idem.idem_actions WHERE key = 'approved'};
foreach my $i (1 .. 20)
{
	my $claim = $publisher->claim(key => "k$i", intent => 'act', params => { i => $i });
	$publisher->call('begin_effect', action_id => $claim->{action_id}, claim_id => $claim->{claim_id}) if $i % 3 == 0;
	$publisher->call($i % 2 ? 'complete_action' : 'release_action', action_id => $claim->{action_id}, claim_id => $claim->{claim_id});
	$publisher->call('claim_action', key => "k$i", intent => 'act', source => 's', event_id => "e$i");
	my $short = $publisher->claim(key => "s$i", intent => 'short');
	$publisher->call('complete_action', action_id => $short->{action_id}, claim_id => $short->{claim_id});
}
$publisher->call('enqueue_actions', intent => 'act', keys => [ map { "q$_" } 1 .. 10 ]);
$publisher->call('take_actions', intents => ['act'], max => 5, lease => '1 ms');
one($decided);
one(q{SELECT idem.once('o', 'act'), idem.import_actions('act', '{i1,i2}'), idem.grant_access('pg_monitor', 'analyst'), idem.pause_intent('review', 'a test')});
$publisher->poll_query_until('postgres', q{SELECT count(*) = 0 FROM idem.idem_actions WHERE intent = 'short' OR lease_until < now()})
  or die 'the pass did not go';
$publisher->poll_query_until('postgres', q{SELECT count(*) >= 10 FROM idem.idem_repeats}) or die 'repeats are not written';
one(q{SELECT count(idem.claim_action('k1', 'act', event_id => 'e1')) FROM generate_series(1, 5)});
$publisher->poll_query_until('postgres', q{SELECT bool_or(n = 5) FROM idem.idem_repeats}) or die 'repeats are not written';

my @wrong = split /\n/, PostgreSQL::Test::Utils::slurp_file($publisher->logfile);
is(scalar(grep { /(?:ERROR|WARNING):/ } @wrong), 0, 'nothing is refused') or diag(grep { /ERROR|WARNING/ } @wrong);

$publisher->append_conf('postgresql.conf', 'idem_action.worker = off');
$publisher->reload;
$publisher->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'idem_action worker'}) or die;
$publisher->wait_for_catchup('copy');
foreach my $table (@tables)
{
	my $all = "SELECT count(*), md5(string_agg(t::text, E'\\n' ORDER BY t::text)) FROM $table t";
	is($subscriber->safe_psql('postgres', $all), one($all), "$table: the subscriber is equal");
}

# --- what a publication cannot send is refused, as for SQL ---------------------

$publisher->safe_psql('postgres', q{CREATE PUBLICATION filtered FOR TABLE idem.idem_actions WHERE (intent = 'act'), TABLE idem.idem_rules (intent, unique_by)});
my $held = $publisher->claim(key => 'filtered', intent => 'act');
my (undef, undef, $stderr) = $publisher->psql('postgres', "SELECT idem.complete_action('$held->{action_id}', '$held->{claim_id}')");
like($stderr, qr/ERROR:  cannot update table "idem_actions"\nDETAIL:  Column used in the publication WHERE expression is not part of the replica identity/,
	'a row filter on what does not identify a row');
$publisher->safe_psql('postgres', q{ALTER PUBLICATION filtered SET TABLE idem.idem_actions WHERE (action_id > '80000000-0000-0000-0000-000000000000')});
ok($publisher->call('complete_action', action_id => $held->{action_id}, claim_id => $held->{claim_id})->{accepted}, 'one on the action_id is fine');
$publisher->safe_psql('postgres', 'DROP PUBLICATION filtered');

# --- the switch, without setting sequences ------------------------------------

$publisher->stop;
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION copy DISABLE; ALTER SUBSCRIPTION copy SET (slot_name = NONE); DROP SUBSCRIPTION copy');
is($subscriber->safe_psql('postgres', q{SELECT count(*) FROM idem.take_actions('{act}')}), 0, 'it is a copy, and hands out nothing until it is accepted');
like($subscriber->safe_psql('postgres', 'SELECT problem FROM idem.worker_status'), qr/accept_copy/, 'which is said');
$subscriber->safe_psql('postgres', 'SELECT idem.accept_copy()');
is($subscriber->safe_psql('postgres', q{SELECT count(*) > 0 FROM idem.take_actions('{act}', max => 10)}), 't', 'then it does');
like($reader->query_safe(q{SELECT outcome FROM idem.claim_action('r', 'review')}), qr/awaiting_approval/, 'an older session follows the rules that came');
$reader->quit;

my $claim = $subscriber->claim(key => 'later', intent => 'act');
ok($subscriber->call('fail_action', action_id => $claim->{action_id}, claim_id => $claim->{claim_id}, error => 'x', effect => 'none')->{accepted},
	'a failure gets a number above those that came');
is($subscriber->safe_psql('postgres', q{SELECT idem.resume_intent('review')}), '', 'and so does a resumption');
is($subscriber->safe_psql('postgres', 'SELECT count(*) = count(DISTINCT id) AND max(id) = (SELECT last_value FROM idem.idem_events_id_seq) FROM idem.idem_events'), 't', 'each its own');
is($subscriber->claim(key => 'k1', intent => 'act')->{outcome}, 'completed', 'what was done is known');

$subscriber->stop;
done_testing();
