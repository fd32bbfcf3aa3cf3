# Copyright (c) 2026, idem_action contributors

# Every loop over an argument or a result can be stopped: by statement_timeout,
# by pg_terminate_backend and by a fast shutdown; and no argument makes a loop
# that takes more than its length says.
#
# 60 000 intents in one take ran for seconds past statement_timeout, comparing
# each with each.

use strict;
use warnings;

use IdemAction;
use Test::More;
use Time::HiRes qw(time);

my $node = IdemAction->node('main', conf => 'max_wal_size = 2GB');

$node->rule('act', on_uncertain => 'repeat');
$node->safe_psql('postgres', q{
	CREATE TABLE many AS SELECT array_agg('k' || g) AS keys FROM generate_series(1, 100000) g;
	CREATE TABLE ids AS SELECT array_agg(gen_random_uuid()) AS ids FROM generate_series(1, 100000) g;
	SELECT idem.define_rule('rule ' || g, 'event', 'the team') FROM generate_series(1, 1000) g;
});

# an error and how long it took
sub fails
{
	my ($sql, $error, $name) = @_;
	my $start = time;
	my ($code, $out, $err) = $node->psql('postgres', $sql);
	my $took = time - $start;

	like($err, $error, $name);
	cmp_ok($took, '<', 5, sprintf("$name: within %.1f s", $took));
	return;
}

# arrays are bounded, before anything is done with them
fails(q{SET statement_timeout = '2s'; SELECT * FROM idem.take_actions(ARRAY(SELECT 'i' || g FROM generate_series(1, 60000) g))},
	qr/intents has too many elements/, '60 000 intents');
fails(q{SET statement_timeout = '2s'; SELECT * FROM idem.take_to_verify(ARRAY(SELECT 'i' || g FROM generate_series(1, 150000) g))},
	qr/intents has too many elements/, '150 000 intents to verify');
foreach my $call (
	"claim_actions('act', keys || '{one too many}'::text[], in_transaction => true)",
	"enqueue_actions('act', keys || '{one too many}'::text[])",
	"import_actions('act', keys || '{one too many}'::text[])")
{
	fails("SELECT count(*) FROM many, idem.$call", qr/keys has too many elements\nDETAIL:  It has 100001, allowed are 100000/, $call);
}
foreach my $function (qw(complete_actions extend_claims))
{
	fails("SELECT count(*) FROM ids, idem.$function(ids || gen_random_uuid(), ids || gen_random_uuid())",
		qr/action_ids has too many elements/, $function);
}
fails(q{SELECT idem.action_key(VARIADIC ARRAY(SELECT 'p' FROM generate_series(1, 1000000)))}, qr/key is too long/, 'a million parts of a key');

# as many as are allowed: in time, each once
is($node->safe_psql('postgres', q{SET statement_timeout = '20s';
	SELECT count(*) FROM idem.take_actions(ARRAY(SELECT 'rule ' || g FROM generate_series(1, 1000) g))}), 0, '1000 intents');
$node->safe_psql('postgres', q{SELECT idem.enqueue_action('once', 'act')});
is($node->safe_psql('postgres', q{SELECT string_agg(key, ' ') FROM idem.take_actions(array_fill('act'::text, '{999}') || '{rule 1}'::text[], 100)}), 'once', 'twins are one intent');

# what runs is stopped
my %batch = (
	claim_actions => q{SELECT count(*) FROM many, idem.claim_actions('act', keys)},
	enqueue_actions => q{SELECT count(*) FROM many, idem.enqueue_actions('act', keys)},
	import_actions => q{SELECT idem.import_actions('act', keys) FROM many},
	complete_actions => q{SELECT count(*) FROM ids, idem.complete_actions(ids, ids)},
	extend_claims => q{SELECT count(*) FROM ids, idem.extend_claims(ids, ids)});
foreach my $name (sort keys %batch)
{
	fails("SET statement_timeout = '50ms'; $batch{$name}", qr/canceling statement due to statement timeout/, "$name, statement_timeout");
}
is($node->safe_psql('postgres', q{SELECT count(*) FROM idem.actions WHERE key <> 'once'}), 0, 'nothing of them is there');

my $session = $node->session;
my $start = time;
$node->send($session, $batch{import_actions});
$node->poll_query_until('postgres', "SELECT state = 'active' FROM pg_stat_activity WHERE pid = $session->{backend}") or die 'it does not run';
$node->safe_psql('postgres', "SELECT pg_terminate_backend($session->{backend})");
$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $session->{backend}") or die 'it goes on';
cmp_ok(time - $start, '<', 10, 'pg_terminate_backend ends it');

$session = $node->session;
$node->send($session, $batch{enqueue_actions});
$node->poll_query_until('postgres', "SELECT state = 'active' FROM pg_stat_activity WHERE pid = $session->{backend}") or die 'it does not run';
$start = time;
$node->stop('fast');
cmp_ok(time - $start, '<', 10, 'so does a fast shutdown');

done_testing();
