# Copyright (c) 2026, idem_action contributors

# The connection is cut after the commit and before the answer.
#
# Protects: whoever lost the reply calls again with the same call_id and gets the
# same grant, and nobody else does: no twin, no other worker, nobody later.
#
# A client is killed while its call waits for a lock; the call then goes on,
# commits, and finds nobody to answer.

use strict;
use warnings;

use IdemAction;
use Test::More;

my $node = IdemAction->node('main', conf => 'autovacuum = off');

$node->rule('act', lease => '1 hour', on_uncertain => 'repeat');
$node->rule('marked', lease => '1 hour', marks_effect => 't');

my $call = '0b5e7c1e-0000-4000-8000-00000000000';

# Makes the call in a session whose client does not live to see the answer,
# which is kept short: a long one is sent, and missed, before the commit.
sub unanswered
{
	my ($function, %arg) = @_;
	my $blocker = $node->session;
	my $client = $node->session;

	$blocker->query_safe('BEGIN; LOCK TABLE idem.idem_actions IN SHARE ROW EXCLUSIVE MODE');
	$node->send($client, "SELECT count(*) FROM idem.$function(" . IdemAction::arguments(%arg) . ')');
	$node->wait_until_blocked($client);
	$node->cut($client);
	$blocker->query_safe('COMMIT');
	$blocker->quit;
	$node->wait_until_gone($client);
	return;
}

sub rows
{
	return $node->safe_psql('postgres',
		q{SELECT md5(string_agg(concat(ctid, xmin, a), ',' ORDER BY key)) FROM idem.idem_actions a; SELECT count(*) FROM idem.idem_events});
}

sub value
{
	my ($key, $column) = @_;
	return $node->safe_psql('postgres', "SELECT $column FROM idem.idem_actions WHERE key = '$key'");
}

#
# A single claim
#
my %single = (key => 'single', intent => 'act', worker => 'w', params => { n => 1 }, draft => { d => 1 });

unanswered('claim_action', %single, call_id => $call . 1);
is(value('single', 'state'), 'in_progress', 'B3: the claim was committed, its answer lost');
my $rows = rows();
my $again = $node->claim(%single, call_id => $call . 1);
is_deeply(
	[ @$again{qw(granted outcome attempt repeat claim_id)} ],
	[ 1, 'claimed', 1, 0, value('single', 'claim_id') ],
	'the same call again gets the same grant, told as it was the first time');
is_deeply([ $again->{params}, $again->{draft} ], [ { n => 1 }, { d => 1 } ], 'with what to act on');
is_deeply($node->claim(%single, call_id => $call . 1)->{claim_id}, $again->{claim_id}, 'and a third time');
is(rows(), $rows, 'nothing was written');

is($node->claim(%single)->{granted}, 0, 'a twin without a call_id is not granted');
is($node->claim(%single, call_id => $call . 2)->{granted}, 0, 'nor one with its own');
foreach my $worker ('other', undef)
{
	my $other = $node->claim(%single, worker => $worker, call_id => $call . 1);
	is_deeply([ @$other{qw(granted outcome claim_id)} ],
		[ 0, 'in_progress', undef ], 'nor another worker with the same call_id');
}
is(value('single', 'claim_id'), $again->{claim_id}, 'the claim is still the first');
is($node->sqlstate("SELECT idem.claim_action('single', 'act', '{\"n\": 2}', worker => 'w', call_id => '${call}1')"),
	'IA001', 'the same call with other params is a mistake');

# a call_id that is the key or the event would give every delivery the grant
foreach my $as ("'${call}3'", "upper('${call}3')")
{
	is($node->sqlstate("SELECT idem.claim_action($as, 'act', call_id => '${call}3')"),
		'IA006', "a call_id that is the key is refused ($as)");
	is($node->sqlstate("SELECT idem.claim_action('k', 'act', event_id => $as, call_id => '${call}3')"),
		'IA006', "or the event ($as)");
}

# after the lease it is a new hand-out, with a fresh claim
$node->lapse('single');
my $later = $node->claim(%single, call_id => $call . 1);
is_deeply([ @$later{qw(granted attempt)} ], [ 1, 2 ], 'after the lease a new hand-out');
isnt($later->{claim_id}, $again->{claim_id}, 'by a claim_id of its own');
is($node->sqlstate("SELECT idem.extend_claim('$again->{action_id}', '$again->{claim_id}')"),
	'IA002', 'the first claim is lost');

# the same where the waiting was for a rival
my $rival = $node->session;
my $client = $node->session;
$rival->query_safe('BEGIN');
$node->call_in($rival, 'claim_action', key => 'rival', intent => 'act', in_transaction => 't');
$node->send($client, $node->call_sql('claim_action', key => 'rival', intent => 'act', wait => '30 s', worker => 'w', call_id => $call . 4));
$node->wait_until_blocked($client);
$node->cut($client);
$rival->query_safe('ROLLBACK');
$rival->quit;
$node->wait_until_gone($client);
is($node->claim(key => 'rival', intent => 'act', worker => 'w', call_id => $call . 4)->{granted},
	1, 'a claim that was granted after a wait');

#
# Reports: lost replies, the same call again
#
my @same = (action_id => $later->{action_id}, claim_id => $later->{claim_id});
unanswered('extend_claim', @same, lease => '2 hours');
cmp_ok($node->call('extend_claim', @same, lease => '2 hours'), '>', 7000, 'extend_claim again');
unanswered('complete_action', @same, external_ref => 'ref', result => { ok => 1 });
$rows = rows();
my $report = $node->call('complete_action', @same, external_ref => 'ref', result => { ok => 1 });
is_deeply([ @$report{qw(accepted state note)} ], [ 1, 'completed', undef ], 'complete_action again is accepted');
is(rows(), $rows, 'and writes nothing');
is($node->claim(%single, call_id => $call . 1)->{outcome}, 'completed', 'once it is done the call is a repeat');

foreach my $effect (qw(unknown none refused))
{
	my $claim = $node->claim(key => "fail $effect", intent => 'act');
	my %fail = (action_id => $claim->{action_id}, claim_id => $claim->{claim_id}, error => 'e', effect => $effect);

	unanswered('fail_action', %fail);
	$rows = rows();
	is($node->call('fail_action', %fail)->{accepted}, 1, "fail_action ($effect) again is accepted");
	is(rows(), $rows, "and writes nothing ($effect)");
}

my $claim = $node->claim(key => 'release', intent => 'act');
@same = (action_id => $claim->{action_id}, claim_id => $claim->{claim_id});
unanswered('release_action', @same);
$rows = rows();
is($node->call('release_action', @same)->{accepted}, 1, 'release_action again is accepted');
is(rows(), $rows, 'and writes nothing');

$claim = $node->claim(key => 'begin', intent => 'marked');
@same = (action_id => $claim->{action_id}, claim_id => $claim->{claim_id});
unanswered('begin_effect', @same, draft => { d => 2 });
$rows = rows();
cmp_ok($node->call('begin_effect', @same, draft => { d => 2 }), '>', 0, 'begin_effect again');
is(rows(), $rows, 'and writes nothing');

is($node->call('once', key => 'unseen', intent => 'act'), 1, 'once');
unanswered('once', key => 'lost', intent => 'act');
is($node->call('once', key => 'lost', intent => 'act'), 0, 'once, its answer lost: done');

#
# a batch whose reply was lost holds leases that nobody knows of
#
my @keys = map { "b-$_" } 1 .. 500;
my %batch = (intent => 'act', keys => \@keys, worker => 'w');

$node->claim(key => 'b-7', intent => 'act', worker => 'earlier');
unanswered('claim_actions', %batch, call_id => $call . 5);
is($node->safe_psql('postgres', q{SELECT count(*) FROM idem.idem_actions WHERE key LIKE 'b-%' AND state = 'in_progress'}),
	500, '500 claims, their answer lost');
$rows = rows();
my @row = $node->call('claim_actions', %batch, call_id => $call . 5);
is(scalar(grep { $_->{granted} } @row), 499, 'the same batch again gets the same grants');
is_deeply([ map { $_->{key} } @row ], \@keys, 'in input order');
is($row[6]{granted}, 0, 'but not what was held before it');
is(rows(), $rows, 'nothing was written');
is(scalar(grep { $_->{granted} } $node->call('claim_actions', %batch, worker => 'v', call_id => $call . 5)),
	0, 'nor another worker');
is(scalar(grep { $_->{granted} } $node->call('claim_actions', %batch, call_id => $call . 6)), 0, 'nor another call');
is_deeply(
	[ map { $_->{granted} } $node->call('claim_actions', %batch, keys => [ 'b-1', 'b-1' ], call_id => $call . 5) ],
	[ 1, 0 ],
	'a twin inside the batch never gets the grant');

my @mine = grep { $_->{granted} } @row;
my %ids = (action_ids => [ map { $_->{action_id} } @mine ], claim_ids => [ map { $_->{claim_id} } @mine ]);
unanswered('extend_claims', %ids, lease => '2 hours');
is(scalar(grep { $_->{seconds_left} > 7000 && !defined $_->{problem} } $node->call('extend_claims', %ids, lease => '2 hours')),
	499, 'extend_claims again');
my @refs = map { "ref $_->{key}" } @mine;
unanswered('complete_actions', %ids, external_refs => \@refs);
$rows = rows();
my @report = $node->call('complete_actions', %ids, external_refs => \@refs);
is(scalar(grep { $_->{accepted} && $_->{state} eq 'completed' } @report), 499, 'complete_actions again is accepted');
is(rows(), $rows, 'and writes nothing');
is($node->safe_psql('postgres', q{SELECT count(*) FROM idem.idem_actions WHERE external_ref = 'ref ' || key}),
	499, 'each has its own reference');
is(scalar(grep { $_->{seconds_left} || $_->{problem} !~ /lost/ } $node->call('extend_claims', %ids)),
	0, 'what is completed has no lease to extend');

# an unknown action is a row, not an error
my $unknown = '00000000-0000-8000-8000-000000000001';
@report = $node->call(
	'complete_actions',
	action_ids => [ $unknown, $row[6]{action_id} ],
	claim_ids => [ $unknown, $unknown ]);
is_deeply([ @{ $report[0] }{qw(accepted state)} ], [ 0, undef ], 'an unknown action is a row of the answer');
like($report[0]{note}, qr/no such action/, 'which says so');
like($node->call('extend_claims', action_ids => [$unknown], claim_ids => [$unknown])->{problem}, qr/no such action/, 'so with extend_claims');

$node->stop;
done_testing();
