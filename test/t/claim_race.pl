# Copyright (c) 2026, idem_action contributors

# 48 sessions claim the same 1000 keys, each in an order of its own, under every
# isolation level; then in open transactions of which three in four roll back.
#
# Protects: exactly one grant a key, every loser is told about the winner's
# action, nobody meets an error.

use strict;
use warnings;

use IdemAction;
use PostgreSQL::Test::Utils qw(slurp_file);
use Test::More;

my $sessions = 48;
my $keys = 1000;
my $node = IdemAction->node('main', conf => "max_connections = 60\nlog_statement = none");
my $log = -s $node->logfile;

$node->safe_psql(
	'postgres', q{
	CREATE UNLOGGED TABLE answers (client int, key text, granted boolean, outcome text,
		action_id uuid, claim_id uuid, state text, attempt int, worker text, repeat boolean, keep boolean);
	CREATE UNLOGGED TABLE kept (client int, key text, action_id uuid);
});

# pgbench with one script in all sessions; all transactions succeed, if need be
# by being tried again after 40001
sub race
{
	my ($name, $level, $transactions, $script) = @_;

	local $ENV{PGOPTIONS} = "-c default_transaction_isolation=$level";
	$node->pgbench(
		"--no-vacuum --client=$sessions --jobs=2 --transactions=$transactions --max-tries=1000 -D i=-1",
		0,
		[ qr{processed: ${\($sessions * $transactions)}/}, qr/number of failed transactions: 0 / ],
		[qr/^(?!.*ERROR)/s],
		"$name: no session fails",
		{ "race_$name" => $script });
	return;
}

foreach my $level ('read committed', 'repeatable read', 'serializable')
{
	my $name = $level =~ s/ /_/r;

	$node->rule($name);
	race(
		$name, $level =~ s/ /\\ /r,
		$keys, qq{
		\\set i :i + 1
		\\set k permute(:i, $keys, :client_id)
		INSERT INTO answers
		SELECT :client_id, key, granted, outcome, action_id, claim_id, state, attempt, worker, repeat, retry_after > 0
		FROM idem.claim_action(:k::text, '$name', worker => 'w' || :client_id);
		});

	is($node->safe_psql('postgres', 'SELECT count(*), count(DISTINCT key) FROM answers'),
		$sessions * $keys . "|$keys", "$name: every call is answered by one row");
	is( $node->safe_psql(
			'postgres',
			'SELECT count(*) FROM (SELECT FROM answers GROUP BY key HAVING count(*) FILTER (WHERE granted) <> 1) x'),
		0,
		"$name: exactly one grant a key");
	is( $node->safe_psql(
			'postgres', qq{
			SELECT count(*) FROM answers a LEFT JOIN idem.idem_actions r USING (action_id)
			WHERE a.granted AND (r.claim_id, r.worker, r.attempt, r.state, a.outcome, a.attempt, a.repeat)
				IS DISTINCT FROM (a.claim_id, a.worker, 1, 'in_progress', 'claimed', 1, false)}),
		0,
		"$name: a grant is what the ledger has stored");
	is( $node->safe_psql(
			'postgres', qq{
			SELECT count(*) FROM answers l JOIN answers w ON w.key = l.key AND w.granted
			WHERE NOT l.granted AND (
				l.action_id <> w.action_id OR l.action_id <> idem.action_id(l.key, '$name')
				OR l.claim_id IS NOT NULL OR NOT l.repeat OR l.keep IS NOT TRUE
				OR (l.outcome, l.state, l.worker, l.attempt) IS DISTINCT FROM ('in_progress', 'in_progress', w.worker, 1)
				AND (l.outcome, l.state) IS DISTINCT FROM ('contended', NULL))}),
		0,
		"$name: every loser is told the winner's action and its state, and to ask again");
	note $node->safe_psql('postgres', q{SELECT string_agg(outcome || ' ' || n, ', ') FROM (SELECT outcome, count(*) AS n FROM answers GROUP BY outcome ORDER BY outcome) x});
	$node->safe_psql('postgres', 'TRUNCATE answers');
}

# All in the same order, so that all want the same key: claim, do, complete in
# one transaction, which as a rule rolls back.  Half of the sessions wait.
my $few = 100;

foreach my $level ('read committed', 'repeatable read', 'serializable')
{
	my $name = 'open_' . $level =~ s/ /_/r;

	$node->rule($name);
	race(
		$name, $level =~ s/ /\\ /r,
		$few, qq{
		\\set i :i + 1
		\\set keep random(1, 4)
		BEGIN;
		WITH c AS MATERIALIZED (
			SELECT * FROM idem.claim_action(:i::text, '$name', worker => 'w' || :client_id, in_transaction => true,
				wait => make_interval(secs => (:client_id % 2) * 20)))
		INSERT INTO kept
		SELECT :client_id, c.key, r.action_id
		FROM c, idem.complete_action(c.action_id, c.claim_id, 'by ' || :client_id) r
		WHERE c.granted AND r.accepted;
		\\if :keep = 1
		COMMIT;
		\\else
		ROLLBACK;
		\\endif
		});

	is( $node->safe_psql(
			'postgres', qq{
			SELECT count(*) FROM (SELECT key FROM kept GROUP BY key HAVING count(*) <> 1) x}),
		0,
		"$name: no key was done twice");
	is( $node->safe_psql(
			'postgres', qq{
			SELECT count(*) FROM kept FULL JOIN (SELECT * FROM idem.idem_actions WHERE intent = '$name') a USING (action_id)
			WHERE (a.state, a.external_ref) IS DISTINCT FROM ('completed', 'by ' || kept.client)}),
		0,
		"$name: effect and action were kept together or not at all");
	cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM kept'), '>', $few / 2, "$name: most keys were done");
	is( $node->safe_psql(
			'postgres', qq{
			SELECT count(*) FROM generate_series(0, $few - 1) k, idem.claim_action(k::text, '$name') c
			WHERE c.granted = EXISTS (SELECT FROM kept WHERE kept.key = k::text)}),
		0,
		"$name: what was rolled back by all is granted, the rest is a repeat");
	$node->safe_psql('postgres', 'TRUNCATE kept');
}

is($node->safe_psql('postgres', "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"),
	0, 'no advisory lock is left');
unlike(slurp_file($node->logfile, $log), qr/ (ERROR|WARNING|FATAL): /, 'nothing in the server log');

$node->stop;
done_testing();
