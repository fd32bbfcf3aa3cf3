# Copyright (c) 2026, idem_action contributors

# A streaming standby, a read-only transaction, a promotion.
#
# Protects: looking works wherever reading does; everything that would write
# raises 25006 there, whatever the action's state; after promotion the ledger
# goes on with what it had.

use strict;
use warnings;

use IdemAction;
use PostgreSQL::Test::Utils qw(slurp_file);
use Test::More;

my $primary = IdemAction->node(
	'primary',
	init => [ allows_streaming => 1 ],
	conf => "max_connections = 30\nautovacuum = off");

$primary->rule('act', lease => '1 hour', on_uncertain => 'repeat');
$primary->rule('marked', lease => '1 hour', marks_effect => 't');

my %claim = map { $_ => $primary->claim(key => $_, intent => 'act', worker => 'w', params => { k => $_ }) }
  qw(completed in_progress not_due lapsed);
$primary->call(
	'complete_action',
	action_id => $claim{completed}{action_id},
	claim_id => $claim{completed}{claim_id},
	external_ref => 'ref',
	result => { n => 1 });
$primary->call(
	'fail_action',
	action_id => $claim{not_due}{action_id},
	claim_id => $claim{not_due}{claim_id},
	error => 'not sent',
	effect => 'none',
	retry_after => '1 hour');
$primary->lapse('lapsed');

$primary->backup('base');
my $standby = IdemAction->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;

# an action that came after the backup, and one that is open
$claim{late} = $primary->claim(key => 'late', intent => 'act');
my $open = $primary->session;
$open->query_safe('BEGIN');
$primary->call_in($open, 'claim_action', key => 'open', intent => 'act', in_transaction => 't');
my $changing = $primary->session;
$changing->query_safe('BEGIN');
$primary->call_in($changing, 'complete_action', action_id => $claim{late}{action_id}, claim_id => $claim{late}{claim_id});
$primary->safe_psql('postgres', 'CREATE TABLE later ()');
$primary->wait_for_catchup($standby);

# Who may only read: the standby, and a read-only transaction
my $ids = "'$claim{in_progress}{action_id}', '$claim{in_progress}{claim_id}'";
my $arrays = "ARRAY['$claim{in_progress}{action_id}'::uuid], ARRAY['$claim{in_progress}{claim_id}'::uuid]";
my @writers = (
	(map { "idem.claim_action('$_', 'act')" } qw(completed in_progress not_due lapsed new)),
	"idem.claim_actions('act', ARRAY['completed', 'new'])",
	"idem.once('new', 'act')",
	"idem.begin_effect($ids)",
	"idem.extend_claim($ids)",
	"idem.extend_claims($arrays)",
	"idem.complete_action($ids)",
	"idem.complete_action('$claim{completed}{action_id}', '$claim{completed}{claim_id}', 'ref')",
	"idem.complete_actions($arrays)",
	"idem.fail_action($ids, 'e')",
	"idem.release_action($ids)",
	"idem.define_rule('new', 'u', 'r')",
	"idem.drop_rule('act')");

foreach my $where ([ 'on a standby', $standby, '' ], [ 'in a read-only transaction', $primary, q{SET lock_timeout = '10 s'; SET default_transaction_read_only = on; } ])
{
	my ($name, $node, $set) = @$where;

	foreach my $key (qw(completed in_progress not_due lapsed late never))
	{
		my %outcome = (not_due => 'pending', lapsed => 'in_progress', late => 'in_progress', never => 'unknown');
		my $found = $node->safe_psql('postgres', "${set}SELECT outcome FROM idem.find_action('$key', 'act')");

		is($found, $outcome{$key} // $key, "find_action $name: $key");
	}
	is( $node->safe_psql('postgres', "${set}SELECT external_ref, result, worker FROM idem.find_action('completed', 'act')"),
		'ref|{"n": 1}|w',
		"with all that a repeat is told $name");
	is($node->safe_psql('postgres', "${set}SELECT outcome FROM idem.find_action('open', 'act')"),
		'contended', "a key that is only being claimed $name");
	is($node->safe_psql('postgres', "${set}SELECT count(*) FROM idem.actions WHERE intent = 'act'"), 5, "the views $name");
	is($node->safe_psql('postgres', "${set}SELECT idem.describe_rule('act') ~ '^Rule'"), 't', "describe_rule $name");
	is($node->sqlstate("${set}SELECT * FROM idem.find_action('k', 'no rule')"), 'IA005', "IA005 $name");
	foreach my $writer (@writers)
	{
		is($node->sqlstate("${set}SELECT * FROM $writer"), '25006', "25006 $name: " . $writer =~ s/\(.*//r);
	}
}

# nothing of it has changed anything, or stays locked
is($standby->safe_psql('postgres', q{SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation WHERE c.relnamespace = 'idem'::regnamespace}),
	0, 'no lock is left on the standby');

# a snapshot of the standby, and what is committed meanwhile
my $reader = $standby->session;
$reader->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ');
is($reader->query_safe(q{SELECT outcome FROM idem.find_action('late', 'act')}), 'in_progress', 'a snapshot on the standby');
$changing->query_safe('COMMIT');
$primary->safe_psql('postgres', 'CREATE TABLE still_later ()');
$primary->wait_for_catchup($standby);
is($reader->query_safe(q{SELECT outcome FROM idem.find_action('late', 'act')}),
	'completed', 'find_action reads the latest committed row there too');
$reader->query_safe('COMMIT');
$reader->quit;
$changing->quit;

#
# Promotion
#
$primary->wait_for_catchup($standby);
$primary->stop('immediate');
$standby->promote;
$open->{run}->kill_kill;

my $repeat = $standby->claim(key => 'completed', intent => 'act');
is_deeply([ @$repeat{qw(granted outcome external_ref)} ], [ 0, 'completed', 'ref' ], 'promoted: what was done is a repeat');
is($standby->claim(key => 'in_progress', intent => 'act')->{outcome}, 'in_progress', 'promoted: leases hold');
is($standby->claim(key => 'late', intent => 'act')->{outcome}, 'completed', 'promoted: up to the last commit');
is($standby->claim(key => 'open', intent => 'act')->{granted}, 1, 'promoted: what was open on the primary never was');
is($standby->claim(key => 'lapsed', intent => 'act')->{attempt}, 2, 'promoted: what had lapsed is judged');
my $new = $standby->claim(key => 'new', intent => 'act');
is($new->{granted}, 1, 'promoted: new actions are claimed');
my $report = $standby->call('complete_action', action_id => $new->{action_id}, claim_id => $new->{claim_id});
is($report->{accepted}, 1, 'and completed');
$report = $standby->call(
	'complete_action',
	action_id => $claim{in_progress}{action_id},
	claim_id => $claim{in_progress}{claim_id});
is($report->{accepted}, 1, 'by whoever was granted before the promotion, too');
is($standby->safe_psql('postgres', 'SELECT count(*) = count(DISTINCT id) FROM idem.idem_events'), 't', 'events have ids of their own');

$standby->stop;
done_testing();
