# Copyright (c) 2026, idem_action contributors

# Workers die: before they act, while they act, after they have acted and before
# they say so; and the server dies with them.
#
# Protects: a lost attempt is judged by the doubt list when its lease is over,
# never handed out blindly: what may have taken effect goes to a person, or is
# done again only where the rule says that this is safe; and one that kills its
# workers is not handed out for ever.

use strict;
use warnings;

use IdemAction;
use Test::More;

my $node = IdemAction->node('main');

my %settings = (
	review => {},
	repeat => { on_uncertain => 'repeat' },
	retry => { on_uncertain => 'retry', provider_window => '1 day' },
	verify => { on_uncertain => 'verify', settle => '0' });

foreach my $doubt (sort keys %settings)
{
	$node->rule("plain-$doubt", lease => '1 hour', %{ $settings{$doubt} });
	$node->rule("marked-$doubt", lease => '1 hour', marks_effect => 't', %{ $settings{$doubt} });
}
$node->safe_psql('postgres', 'CREATE TABLE outside (provider_key text)');

# The effect, and how often it is found outside
sub act
{
	my ($claim) = @_;
	$node->safe_psql('postgres', "INSERT INTO outside VALUES ('$claim->{provider_key}')");
	return;
}

sub done
{
	my ($claim) = @_;
	return $node->safe_psql('postgres', "SELECT count(*) FROM outside WHERE provider_key = '$claim->{provider_key}'");
}

#
# A27: kill -9 of the worker's process, at each moment
#
my %first;

foreach my $intent (map { ("plain-$_", "marked-$_") } sort keys %settings)
{
	foreach my $moment (qw(before_begin before_effect after_effect))
	{
		next if $moment eq 'before_begin' && $intent =~ /plain/;
		my $worker = $node->session;
		my $claim = $node->call_in($worker, 'claim_action', key => "$intent $moment", intent => $intent, worker => 'w', draft => { d => 1 });

		$node->call_in($worker, 'begin_effect', action_id => $claim->{action_id}, claim_id => $claim->{claim_id})
		  if $intent =~ /marked/ && $moment ne 'before_begin';
		act($claim) if $moment eq 'after_effect';
		$node->kill_client($worker);
		$first{$intent}{$moment} = $claim;
	}
}

# and the server goes down with a backend of another worker
my $worker = $node->session;
my $in_crash = $node->call_in($worker, 'claim_action', key => 'marked-review crash', intent => 'marked-review', worker => 'w');
$node->call_in($worker, 'begin_effect', action_id => $in_crash->{action_id}, claim_id => $in_crash->{claim_id});
act($in_crash);
$node->kill_process($worker->{backend});
$first{'marked-review'}{crash} = $in_crash;

foreach my $intent (sort keys %first)
{
	foreach my $moment (sort keys %{ $first{$intent} })
	{
		my $claim = $first{$intent}{$moment};
		my $name = "$intent, killed $moment";
		my $answer = $node->claim(key => "$intent $moment", intent => $intent);

		is_deeply(
			[ @$answer{qw(granted outcome worker)} ],
			[ 0, 'in_progress', 'w' ],
			"$name: nobody is granted while its lease holds");
		ok(defined $answer->{retry_after}, "$name: the message is kept");

		$node->lapse("$intent $moment");
		my $next = $node->claim(key => "$intent $moment", intent => $intent, worker => 'next', draft => { d => 2 });
		if ($moment eq 'before_begin')
		{
			is_deeply(
				[ @$next{qw(granted outcome attempt uncertain)} ],
				[ 1, 'claimed', 2, 0 ],
				"$name: it did nothing, so it is handed out again");
		}
		elsif ($intent =~ /review/)
		{
			is_deeply(
				[ @$next{qw(granted outcome reason uncertain attempt retry_after)} ],
				[ 0, 'needs_attention', 'lease_expired', 1, 1, undef ],
				"$name: a person decides");
			is($node->claim(key => "$intent $moment", intent => $intent)->{outcome}, 'needs_attention', "$name: and nobody else gets it");
		}
		elsif ($intent =~ /verify/)
		{
			my @search = (action_id => $claim->{action_id}, claim_id => $next->{claim_id});

			is_deeply(
				[ @$next{qw(granted outcome attempt uncertain worker)} ],
				[ 0, 'verify', 2, 1, 'next' ],
				"$name: to be searched for before anybody acts");
			ok(defined $next->{retry_after}, "$name: the message is kept");
			is($node->sqlstate("SELECT idem.begin_effect('$claim->{action_id}', '$next->{claim_id}')"),
				'IA002', "$name: who searches may not act");
			is($node->claim(key => "$intent $moment", intent => $intent)->{outcome}, 'in_progress', "$name: only one searches");
			my $after = $node->call('verify_action', @search, found => done($next) ? 't' : 'f', external_ref => done($next) ? 'found' : undef);
			if ($moment eq 'before_effect')
			{
				is_deeply(
					[ @$after{qw(granted outcome claim_id uncertain)} ],
					[ 1, 'claimed', $next->{claim_id}, 0 ],
					"$name: not there: the search becomes the grant");
				$node->call('begin_effect', @search) if $intent =~ /marked/;
				act($after);
				$node->call('complete_action', @search);
			}
			else
			{
				is_deeply(
					[ @$after{qw(granted outcome external_ref)} ],
					[ 0, 'completed', 'found' ],
					"$name: found: completed, with no second effect");
			}
			is(done($claim), 1, "$name: done once");
			is($node->claim(key => "$intent $moment", intent => $intent)->{outcome}, 'completed', "$name: and known as done");
		}
		else
		{
			is_deeply(
				[ @$next{qw(granted outcome attempt uncertain worker)} ],
				[ 1, 'claimed', 2, 1, 'next' ],
				"$name: the rule says that doing it again is safe");
		}
		is($next->{provider_key}, $claim->{provider_key}, "$name: with the same provider key");
		is_deeply($next->{draft}, { d => 1 }, "$name: and the draft that was kept")
		  if $next->{granted};
		is($node->safe_psql('postgres', "SELECT count(*) FROM idem.history WHERE action_id = '$claim->{action_id}' AND event = 'expired' AND attempt = 1"),
			1, "$name: the lost attempt stands in the history");
	}
}

# A43: restart right after the tool succeeded: the worker remembers what it was
# about, and its success is accepted, or known as a second one
my $report = $node->call(
	'complete_action',
	action_id => $in_crash->{action_id},
	claim_id => $in_crash->{claim_id},
	external_ref => 'sent');
is_deeply([ @$report{qw(accepted state)} ], [ 1, 'completed' ], 'the success is accepted after the restart, though late');
is($node->claim(key => 'marked-review crash', intent => 'marked-review')->{external_ref}, 'sent', 'a repeat gets the reference');

my $taken = $first{'plain-repeat'}{after_effect};
$report = $node->call('complete_action', action_id => $taken->{action_id}, claim_id => $taken->{claim_id}, external_ref => 'sent');
is_deeply([ @$report{qw(accepted state)} ], [ 0, 'needs_attention' ], 'after a takeover it stops the next attempt');

# a search before the effect could settle proves nothing, and one that nobody can
# make is a person's
$node->rule('settling', lease => '1 hour', on_uncertain => 'verify', settle => '30 minutes');
my $settling = $node->claim(key => 'settling', intent => 'settling');
$node->lapse('settling');
$settling = $node->claim(key => 'settling', intent => 'settling');
is_deeply([ @$settling{qw(granted outcome claim_id)} ], [ 0, 'not_due', undef ], 'not before it had time to settle');
cmp_ok($settling->{retry_after}, '>', 1700, 'counted from the end of the lease');

my $unclear = $node->claim(key => 'unclear', intent => 'plain-verify');
$node->lapse('unclear');
$unclear = $node->claim(key => 'unclear', intent => 'plain-verify');
my $after = $node->call('verify_action', action_id => $unclear->{action_id}, claim_id => $unclear->{claim_id}, found => undef);
is_deeply([ @$after{qw(granted outcome reason)} ], [ 0, 'needs_attention', 'verify_inconclusive' ], 'who could not find out leaves it to a person');

# the searcher dies too
$unclear = $node->claim(key => 'searcher', intent => 'plain-verify');
$node->lapse('searcher');
is($node->claim(key => 'searcher', intent => 'plain-verify')->{outcome}, 'verify', 'a search');
$node->lapse('searcher');
is($node->claim(key => 'searcher', intent => 'plain-verify')->{outcome}, 'verify', 'lost, so another');
$node->lapse('searcher');
is($node->claim(key => 'searcher', intent => 'plain-verify')->{reason}, 'attempts_exhausted', 'searches that are lost count too');

# fail_action means unknown unless told otherwise
my $timeout = $node->claim(key => 'timeout', intent => 'plain-review');
$node->call('fail_action', action_id => $timeout->{action_id}, claim_id => $timeout->{claim_id}, error => 'timeout');
$timeout = $node->claim(key => 'timeout', intent => 'plain-review');
is_deeply([ @$timeout{qw(outcome reason)} ], [ 'needs_attention', 'outcome_unknown' ], 'a timeout is not a failure');

#
# A38: retry only within the provider's window, counted from the first claim
#
my $window = $node->claim(key => 'window', intent => 'plain-retry');
$node->lapse('window');
$node->safe_psql('postgres',
	q{UPDATE idem.idem_actions SET first_claimed_at = clock_timestamp() - interval '22 hours 50 minutes' WHERE key = 'window'});
is($node->claim(key => 'window', intent => 'plain-retry')->{attempt}, 2, 'handed out again while the window holds the lease');
$node->lapse('window');
$node->safe_psql('postgres',
	q{UPDATE idem.idem_actions SET first_claimed_at = clock_timestamp() - interval '23 hours 10 minutes' WHERE key = 'window'});
is($node->claim(key => 'window', intent => 'plain-retry', lease => '10 minutes')->{attempt},
	3, 'a shorter lease still fits');
$node->lapse('window');
$window = $node->claim(key => 'window', intent => 'plain-retry');
is_deeply([ @$window{qw(granted reason)} ], [ 0, 'attempts_exhausted' ], 'three are lost');

$window = $node->claim(key => 'window2', intent => 'plain-retry');
$node->lapse('window2');
$node->safe_psql('postgres',
	q{UPDATE idem.idem_actions SET first_claimed_at = clock_timestamp() - interval '23 hours 10 minutes' WHERE key = 'window2'});
$window = $node->claim(key => 'window2', intent => 'plain-retry');
is_deeply([ @$window{qw(granted outcome reason)} ],
	[ 0, 'needs_attention', 'provider_window_over' ], 'a lease that would outlive the window is not handed out');
is($node->sqlstate(q{SELECT idem.define_rule('r', 'u', 'r', on_uncertain => 'retry')}),
	'22023', 'retry without a window is refused');

#
# an action that kills its worker
#
foreach my $intent ('plain-repeat', 'marked-review', 'marked-repeat', 'plain-retry')
{
	my @keys;

	foreach my $attempt (1 .. 3)
	{
		my $victim = $node->session;
		my $claim = $node->call_in($victim, 'claim_action', key => "killer of $intent", intent => $intent);

		is($claim->{attempt}, $attempt, "$intent: hand-out $attempt");
		push @keys, $claim->{provider_key};
		$node->kill_client($victim);
		$node->lapse("killer of $intent");
	}
	my $fourth = $node->claim(key => "killer of $intent", intent => $intent);
	is_deeply(
		[ @$fourth{qw(granted outcome reason attempt)} ],
		[ 0, 'needs_attention', 'attempts_exhausted', 3 ],
		"$intent: no 4th hand-out");
	is($node->claim(key => "killer of $intent", intent => $intent)->{granted}, 0, "$intent: nor later");
	is(scalar(grep { $_ eq $keys[0] } @keys), 3, "$intent: one provider key throughout");

	# a person looks, and gives it a new budget
	$node->call('resolve_action', action_id => $fourth->{action_id}, decision => 'not_happened', note => 'looked', revision => $fourth->{revision});
	foreach my $attempt (4 .. 6)
	{
		my $claim = $node->claim(key => "killer of $intent", intent => $intent);

		is_deeply([ @$claim{qw(granted attempt uncertain)} ], [ 1, $attempt, $attempt > 4 && $intent =~ /plain/ ? 1 : 0 ],
			"$intent: after 'not_happened' hand-out $attempt");
		$node->lapse("killer of $intent");
	}
	is($node->claim(key => "killer of $intent", intent => $intent)->{reason}, 'attempts_exhausted', "$intent: and no more");
}

#
# restart of a run from zero
#
my $run = sub {
	my ($n) = @_;
	return $node->claim(key => "step-$n", intent => 'plain-review');
};
foreach my $n (1, 2)
{
	my $claim = $run->($n);
	$node->call('complete_action', action_id => $claim->{action_id}, claim_id => $claim->{claim_id}, external_ref => "ref $n", result => { n => $n });
}
my $third = $run->(3);
$node->call('fail_action', action_id => $third->{action_id}, claim_id => $third->{claim_id}, error => 'not sent', effect => 'none', retry_after => '0');
$node->crash;
my @again = map { $run->($_) } 1 .. 3;
is_deeply(
	[ map { [ @$_{qw(granted outcome external_ref)}, $_->{result} && $_->{result}{n} ] } @again ],
	[ [ 0, 'completed', 'ref 1', 1 ], [ 0, 'completed', 'ref 2', 2 ], [ 1, 'claimed', undef, undef ] ],
	'1 and 2 answer with what is stored, only 3 is granted');

$node->stop;
done_testing();
