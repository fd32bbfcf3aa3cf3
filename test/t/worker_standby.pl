# Copyright (c) 2026, idem_action contributors

# A streaming standby does nothing and says nothing.  Once promoted it looks
# after the ledger by itself.  A person who paused everything before a planned
# switch-over finds it paused after the new timeline was acknowledged.

use strict;
use warnings;

use IdemAction;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use constant NAPTIME => 1;

my $primary = IdemAction->node(
	'primary',
	init => [ allows_streaming => 1 ],
	conf => 'fsync = off');
$primary->rule('to-a-person');
$primary->rule('again', on_uncertain => 'repeat');
$primary->rule('marked', marks_effect => 1);
$primary->backup('base');

my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf', 'idem_action.worker = on');
$standby->append_conf('postgresql.conf', 'idem_action.naptime = ' . NAPTIME);
$standby->start;

my %claim = map { $_ => $primary->claim(key => 'k', intent => $_, lease => '1 ms') } qw(to-a-person again marked);
my $long = $primary->claim(key => 'long', intent => 'to-a-person', lease => '1 hour');
$primary->call('enqueue_action', key => 'waiting', intent => 'again');
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
bless $standby, 'IdemAction';

# what a person holds back before a planned switch-over
$primary->safe_psql('postgres', q{SELECT idem.pause_intent(NULL, 'until the provider is back', actor => 'Ann')});

sub state_of
{
	my ($intent, $key) = @_;
	$key //= 'k';
	return $standby->safe_psql('postgres',
		"SELECT state, reason, uncertain FROM idem.actions WHERE intent = '$intent' AND key = '$key'");
}

sub log_since
{
	my ($offset) = @_;
	return split /\n/, substr(slurp_file($standby->logfile), $offset);
}

# --- standby ----------------------------------------------------------------

my $offset = -s $standby->logfile;
is($standby->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'idem_action%'"),
	0, 'standby: no launcher, no worker');
is(state_of('again'), 'in_progress||f', 'standby: a lease that is over stays');
is($standby->safe_psql('postgres', q{SELECT outcome FROM idem.find_action('k', 'again')}), 'in_progress', 'standby: find answers');
is($standby->safe_psql('postgres', 'SELECT problem FROM idem.worker_status'),
	'this is a standby: the primary does the maintenance', 'standby: worker_status says so');
$primary->safe_psql('postgres', 'CHECKPOINT; SELECT pg_switch_wal()');
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
is(scalar(grep { /idem_action/ && !/LOG:  statement:/ } log_since($offset)), 0, 'standby: not a word in the log');
is($standby->sqlstate('CALL idem.run_maintenance()'), '25006', 'standby: run_maintenance is refused');

# --- promoted ---------------------------------------------------------------

$primary->stop('immediate');
$standby->promote;
my $start = time;
my $passed = 0;
until ($passed || time - $start > 30)
{
	$passed = $standby->safe_psql('postgres', 'SELECT last_pass IS NOT NULL FROM idem.worker_status') eq 't';
}
my $took = time - $start;
cmp_ok($took, '<', NAPTIME + 5, sprintf('promoted: first pass after %.2f s', $took));
is(state_of('to-a-person'), 'needs_attention|lease_expired|t', 'promoted: by the rule, review');
is(state_of('again'), 'pending||t', 'promoted: by the rule, repeat');
is(state_of('marked'), 'pending||f', 'promoted: by the rule, had not begun');
is(state_of('to-a-person', 'long'), 'in_progress||f', 'promoted: a valid lease is left alone');

# what it was told last may be lost: said until somebody has looked
my $problem = 'SELECT problem FROM idem.worker_status';
like($standby->safe_psql('postgres', $problem), qr/^the timeline has changed: .*after_restore/, 'promoted: worker_status tells of the timeline');
$standby->wait_for_log(qr/the timeline of the ledger in "postgres" has changed from 1/, $offset);
$standby->restart;
is($standby->sqlstate("SELECT idem.after_restore(now(), NULL)"), '22023', 'promoted: no after_restore without a note');
like($standby->safe_psql('postgres', $problem), qr/^the timeline has changed/, 'promoted: and so after a restart');
$standby->poll_query_until('postgres', 'SELECT last_pass IS NOT NULL FROM idem.worker_status');
is(scalar(grep { /the timeline of the ledger/ } log_since($offset)), 2, 'promoted: said in the log once in each start');
like($standby->safe_psql('postgres', $problem), qr/idem\.acknowledge_timeline\(\)/, 'promoted: the call for it is named');
$standby->safe_psql('postgres', q{SELECT idem.acknowledge_timeline(actor => 'Bea'), idem.acknowledge_timeline()});
is($standby->safe_psql('postgres', $problem), '', 'promoted: until acknowledge_timeline()');
is( $standby->safe_psql('postgres',
		q{SELECT actor, detail->>'timeline', count(*) OVER () FROM idem.history WHERE event = 'timeline_acknowledged'}),
	'Bea|2|1', 'promoted: the history has it, once');

# that was about the timeline, and the pause of all intents is a person's
is(scalar(my @held = $standby->call('take_actions', intents => ['again'], max => 5)), 0, 'promoted: the pause of all stands after acknowledge_timeline()');
is($standby->claim(key => 'paused', intent => 'again')->{outcome}, 'paused', 'promoted: for claims too');
$standby->safe_psql('postgres', 'SELECT idem.accept_copy()');
is($standby->claim(key => 'paused', intent => 'again')->{outcome}, 'paused', 'promoted: and after accept_copy()');
$standby->safe_psql('postgres', 'SELECT idem.resume_intent(NULL)');
$standby->safe_psql('postgres', 'CREATE DATABASE later');
$standby->safe_psql('later', 'CREATE EXTENSION idem_action');
unlike($standby->safe_psql('later', $problem), qr{timeline}, 'promoted: a ledger made later knows the timeline');

my $report = $standby->call('complete_action', action_id => $long->{action_id}, claim_id => $long->{claim_id});
ok($report->{accepted}, 'promoted: and its holder can complete');
is(scalar(my @taken = $standby->call('take_actions', intents => ['again'], max => 5)), 2, 'promoted: takes go on');
is($standby->safe_psql('postgres', q{SELECT count(*) FROM idem.worker_status WHERE problem LIKE '%copied or restored%'}),
	0, 'promoted: no copy, the same system');
is(join("\n", grep { /maintenance failed|FATAL:  / && !/FATAL:  (?:terminating|could not (?:connect|receive))/ } log_since($offset)),
	'', 'promoted: no complaint');

$standby->stop;
done_testing();
