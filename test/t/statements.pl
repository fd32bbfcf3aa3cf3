# Copyright (c) 2026, idem_action contributors

# A claim in every kind of statement that a caller may put around it.
#
# Protects: the answer is always one full row with the facts that hold now,
# whatever snapshot the statement has; a statement that calls twice gets one
# grant; nothing of one caller is left in the session for the next.

use strict;
use warnings;

use IdemAction;
use Test::More;

my $node = IdemAction->node('main');

$node->rule('act', lease => '1 hour');
$node->safe_psql(
	'postgres', q{
	CREATE FUNCTION stable_sql(k text) RETURNS SETOF idem.claim LANGUAGE sql STABLE
	AS 'SELECT * FROM idem.claim_action(k, ''act'', in_transaction => true)';
	CREATE FUNCTION stable_plpgsql(k text) RETURNS idem.claim LANGUAGE plpgsql STABLE
	AS 'DECLARE c idem.claim; BEGIN SELECT * INTO c FROM idem.claim_action(k, ''act'', in_transaction => true); RETURN c; END';
	CREATE FUNCTION volatile_sql(k text) RETURNS idem.claim LANGUAGE sql
	AS 'SELECT idem.claim_action(k, ''act'', in_transaction => true)';
	CREATE PROCEDURE claims(k text, INOUT o text) LANGUAGE plpgsql
	AS 'BEGIN o := (SELECT outcome FROM idem.claim_action(k, ''act'')); END';
	CREATE TABLE orders (k text);
	INSERT INTO orders VALUES ('done');
});

my $winner = $node->claim(key => 'done', intent => 'act', worker => 'winner', params => { n => 1 }, draft => { d => 1 });
$node->call('complete_action', action_id => $winner->{action_id}, claim_id => $winner->{claim_id}, external_ref => 'ref', result => { r => 1 });

#
# by a snapshot that the winner's commit is not in
#
my $facts = 'c.granted, c.outcome, c.state, c.worker, c.external_ref, c.result, c.params, c.attempt, c.action_id, c.repeat';
my %statement = (
	'a select list' => "SELECT $facts FROM (SELECT (idem.claim_action(%s, 'act', in_transaction => true)) AS r OFFSET 0) s, LATERAL (SELECT (s.r).*) c",
	'a CTE' => "WITH c AS (SELECT * FROM idem.claim_action(%s, 'act', in_transaction => true)) SELECT $facts FROM c",
	'a materialized CTE' => "WITH c AS MATERIALIZED (SELECT * FROM idem.claim_action(%s, 'act', in_transaction => true)) SELECT $facts FROM c",
	'a join' => "SELECT $facts FROM orders o JOIN LATERAL idem.claim_action(CASE WHEN o.k <> '' THEN %s END, 'act', in_transaction => true) c ON true",
	'a left join' => "SELECT $facts FROM (VALUES (1)) v LEFT JOIN idem.claim_action(%s, 'act', in_transaction => true) c ON true",
	'a subquery' => "SELECT $facts FROM (SELECT * FROM idem.claim_action(%s, 'act', in_transaction => true) LIMIT 1) c",
	'a batch' => "SELECT $facts FROM idem.claim_actions('act', ARRAY[%s], in_transaction => true) c",
	'a STABLE SQL function' => "SELECT $facts FROM stable_sql(%s) c",
	'a STABLE PL/pgSQL function' => "SELECT $facts FROM stable_plpgsql(%s) c",
	'a VOLATILE SQL function' => "SELECT $facts FROM volatile_sql(%s) c",
	'find_action' => "SELECT $facts FROM idem.find_action(%s, 'act') c");
my $won = qq{f|completed|completed|winner|ref|{"r": 1}|{"n": 1}|1|$winner->{action_id}|t};

foreach my $where (sort keys %statement)
{
	is($node->safe_psql('postgres', sprintf $statement{$where}, "'done'"), $won, "in $where: the winner's facts");

	# the statement takes its snapshot, waits, and only then claims: what is
	# done meanwhile it can't see
	my $key = "during $where";
	my $gate = $node->session;
	my $late = $node->session;
	my $sql = sprintf $statement{$where}, "(SELECT '$key' FROM (SELECT pg_advisory_xact_lock_shared(1) OFFSET 0) gate)";

	$gate->query_safe('SELECT pg_advisory_lock(1)');
	$late->query_safe("PREPARE late AS $sql");
	$node->send($late, 'EXECUTE late');
	$node->wait_until_blocked($late);
	my $claim = $node->claim(key => $key, intent => 'act', worker => 'winner', params => { n => 1 });
	$node->call('complete_action', action_id => $claim->{action_id}, claim_id => $claim->{claim_id}, external_ref => 'ref', result => { r => 1 });
	$gate->query_safe('SELECT pg_advisory_unlock(1)');
	is($late->query('') =~ s/$claim->{action_id}/$winner->{action_id}/r,
		$won, "in a prepared statement with $where: also where it was done after the statement's snapshot");
	$_->quit foreach $gate, $late;
}

# a statement that is granted, and goes on to look at the row
is( $node->safe_psql('postgres', q{WITH c AS MATERIALIZED (SELECT * FROM idem.claim_action('granted', 'act'))
	SELECT c.granted, c.claim_id IS NOT NULL, c.lease_until > clock_timestamp() FROM c}),
	't|t|t', 'a grant in a CTE');
is($node->safe_psql('postgres', q{SELECT granted, outcome FROM stable_sql('granted by stable')}), 't|claimed', 'a grant in a STABLE function');
is($node->claim(key => 'granted by stable', intent => 'act')->{outcome}, 'in_progress', 'that is stored');
is( $node->safe_psql('postgres', q{INSERT INTO orders SELECT outcome FROM idem.claim_action('inserted', 'act') RETURNING k}),
	'claimed', 'a grant in an INSERT');
is($node->safe_psql('postgres', q{CALL claims('called', NULL)}), 'claimed', 'a grant in a procedure');
is($node->sqlstate(q{BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT * FROM idem.claim_action('cursor', 'act'); COMMIT}),
	'25001', 'a cursor is in a transaction');

# many rows at once, on every page, also where a row does not fit its page any
# more and gets new index entries
$node->safe_psql('postgres', q{
	CREATE TABLE many AS SELECT * FROM idem.claim_actions('act', ARRAY(SELECT 'many-' || g FROM generate_series(1, 3000) g))});
is( $node->safe_psql('postgres', q{
	SELECT count(*), bool_and(r.accepted) FROM many m, idem.complete_action(m.action_id, m.claim_id, 'ref ' || m.key, to_jsonb(repeat('x', 700))) r}),
	'3000|t', 'every row of many is completed with a large result');
is( $node->safe_psql('postgres', q{
	SELECT count(*) FROM many m, idem.claim_action(m.key, 'act') c WHERE (c.outcome, c.external_ref) = ('completed', 'ref ' || m.key)}),
	3000, 'and each is found by its key');
is( $node->safe_psql('postgres', q{
	SET enable_indexscan = off; SET enable_bitmapscan = off; SELECT count(*), count(DISTINCT action_id) FROM idem.idem_actions WHERE key LIKE 'many-%'}),
	'3000|3000', 'and is there once');

#
# SELECT (f(k)).* calls once per column
#
my $star = $node->safe_psql('postgres', q{SELECT to_json(s) FROM (SELECT (idem.claim_action('star', 'act')).*) s});
my $row = $node->decode($star);
is($row->{granted}, 1, 'granted is of the first call');
is_deeply([ @$row{qw(outcome claim_id)} ], [ 'in_progress', undef ], 'the later calls give none: never two grants');
is($node->safe_psql('postgres', q{SELECT attempt, revision FROM idem.idem_actions WHERE key = 'star'}), '1|1', 'one hand-out');
is($node->safe_psql('postgres', q{SELECT count(*) FROM idem.idem_actions WHERE key = 'star'}), 1, 'one row');
my $call = '5ca1ab1e-0000-4000-8000-000000000001';
$row = $node->decode($node->safe_psql('postgres', qq{SELECT to_json(s) FROM (SELECT (idem.claim_action('star2', 'act', call_id => '$call')).*) s}));
is_deeply(
	[ @$row{qw(granted outcome claim_id attempt)} ],
	[ 1, 'claimed', $node->safe_psql('postgres', q{SELECT claim_id FROM idem.idem_actions WHERE key = 'star2'}), 1 ],
	'with a call_id they give the same grant');
is($node->safe_psql('postgres', q{SELECT attempt, revision FROM idem.idem_actions WHERE key = 'star2'}), '1|1', 'handed out once');

#
# an open transaction block
#
my ($code, $out, $err) = $node->psql('postgres', q{BEGIN; SELECT granted FROM idem.claim_action('open', 'act'); });
like($err, qr/HINT: .*autocommit/, 'in an open transaction: a hint naming the setting');
foreach my $sql (
	q{BEGIN; SELECT idem.claim_action('open', 'act')},
	q{BEGIN; SELECT idem.claim_action('done', 'act')},
	q{BEGIN; SAVEPOINT s; SELECT idem.claim_action('open', 'act')},
	q{BEGIN; SELECT idem.claim_actions('act', ARRAY['open'])},
	qq{BEGIN; SELECT idem.begin_effect('$winner->{action_id}', '$winner->{claim_id}')})
{
	is($node->sqlstate($sql), '25001', "25001: $sql");
}

# several statements in one message are one transaction: what the first was
# granted the last could roll back
is($node->sqlstate(q{SELECT 1 \; SELECT idem.claim_action('message', 'act')}), '25001', 'the last of several statements in one message');
is($node->sqlstate(q{SELECT idem.claim_action('message', 'act') \; SELECT 1 / 0}), '25001', 'the first of several');
is($node->call('find_action', key => 'message', intent => 'act')->{outcome}, 'unknown', 'nothing was claimed');
is($node->safe_psql('postgres', q{BEGIN; SELECT granted FROM idem.claim_action('open', 'act', in_transaction => true); ROLLBACK;
	SELECT granted FROM idem.claim_action('open', 'act')}),
	"t\nt", 'with in_transaction it is granted, and forgotten on rollback');

#
# nothing in an error's text keeps a failure from being recorded
#
my %text = (
	control => q{E'a\001\002\033[31mred\r\n\tend\177'},
	long => q{repeat('long ', 100000)},
	multibyte => q{repeat(chr(8364), 20000)},
	empty => q{''},
	null => q{NULL},
	quotes => q{E'\'"\\\\;--$$'},
	bidi => q{U&'\202E\FEFF\FFFF'});
foreach my $what (sort keys %text)
{
	my $claim = $node->claim(key => "error $what", intent => 'act');
	my $answer = $node->safe_psql('postgres',
		"SELECT accepted, state FROM idem.fail_action('$claim->{action_id}', '$claim->{claim_id}', $text{$what}, 'refused')");

	is($answer, 't|failed', "a failure whose text is $what is recorded");
	is($node->safe_psql('postgres', qq{SELECT coalesce(octet_length(error) <= 8192 AND error !~ E'[\\\\x01-\\\\x08\\\\x0b\\\\x0c\\\\x0e-\\\\x1f\\\\x7f]', true)
		FROM idem.idem_actions WHERE key = 'error $what'}),
		't', "$what: cleaned and bounded");
}
foreach my $what (qw(control long multibyte quotes bidi))
{
	my $claim = $node->claim(key => "release $what", intent => 'act');

	is($node->safe_psql('postgres', "SELECT accepted FROM idem.release_action('$claim->{action_id}', '$claim->{claim_id}', $text{$what})"),
		't', "a release whose reason is $what is recorded");
}

# a result that jsonb can't hold fails before the call; without it the
# completion is recorded
my $claim = $node->claim(key => 'zero', intent => 'act');
like($node->sqlstate(qq{SELECT idem.complete_action('$claim->{action_id}', '$claim->{claim_id}', 'ref', '"cut \\u0000"')}),
	qr/^22/, 'a zero byte in the result: class 22');
like($node->sqlstate(qq{SELECT idem.complete_action('$claim->{action_id}', '$claim->{claim_id}', 'ref', '"\\ud83d"')}),
	qr/^22/, 'half an emoji: class 22');
is($node->call('complete_action', action_id => $claim->{action_id}, claim_id => $claim->{claim_id}, external_ref => 'ref')->{accepted},
	1, 'completed again without it');
$claim = $node->claim(key => 'large', intent => 'act');
my $large = $node->safe_psql('postgres', qq{
	SELECT accepted, state, note ~ 'larger' FROM idem.complete_action('$claim->{action_id}', '$claim->{claim_id}', 'ref', to_jsonb(repeat('x', 2000000)))});
is($large, 't|completed|t', 'a result too large is dropped, not the success');
$claim = $node->claim(key => 'long ref', intent => 'act');
is( $node->safe_psql('postgres', qq{
	SELECT accepted, state, note IS NOT NULL FROM idem.complete_action('$claim->{action_id}', '$claim->{claim_id}', repeat('x', 3000))}),
	't|completed|t', 'nor for an external_ref too long');

#
# nothing of a caller stays in the session for the next one
#
my $pooled = $node->session;
my $state = q{SELECT (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'),
	(SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_cursors),
	(SELECT count(*) FROM pg_class WHERE relpersistence = 't'),
	(SELECT md5(string_agg(name || setting, ',' ORDER BY name)) FROM pg_settings WHERE name !~ '^transaction'),
	current_user, pg_current_xact_id_if_assigned()};
my $before = $pooled->query_safe($state);
my $a = $node->call_in($pooled, 'claim_action', key => 'a', intent => 'act', scope => 'tenant a', worker => 'worker a', source => 'sa', event_id => 'ea', call_id => $call);
$node->call_in($pooled, 'extend_claim', action_id => $a->{action_id}, claim_id => $a->{claim_id});
my $b = $node->call_in($pooled, 'claim_action', key => 'b', intent => 'act');
is_deeply([ @$b{qw(granted worker scope source event_id)} ], [ 1, undef, '', undef, undef ], 'the next caller brings its own worker and scope');
isnt($b->{claim_id}, $a->{claim_id}, 'and gets its own claim');
is($node->call_in($pooled, 'claim_action', key => 'a', intent => 'act', scope => 'tenant a')->{claim_id}, undef, 'and not the one of the former');
is($node->call_in($pooled, 'find_action', key => 'a', intent => 'act')->{outcome}, 'unknown', 'nor its scope');
$pooled->query(q{SELECT idem.claim_action('', 'act')});
$pooled->{stderr} = '';
$pooled->query(q{SELECT idem.claim_action('waits', 'act', wait => '31 s')});
$pooled->{stderr} = '';
$node->call_in($pooled, 'claim_action', key => 'b', intent => 'act', wait => '0.01 s');
is($pooled->query_safe($state), $before, 'no lock, cursor, prepared statement, temporary table or setting is left');
$pooled->quit;

$node->stop;
done_testing();
