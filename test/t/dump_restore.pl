# Copyright (c) 2026, idem_action contributors

# The ledger goes through pg_dump and pg_restore in every format.
#
# Protects: after a restore old keys are repeats, whoever held a claim still
# holds it, new keys are claimed, and numbers go on where they stood.  Rules,
# levels, pauses, the current secret and the order of the queue are as before.

use strict;
use warnings;

use Digest::SHA qw(sha256_hex);
use IdemAction;
use PostgreSQL::Test::Utils;
use Test::More;

my $n = 10_000;

my $secrets = PostgreSQL::Test::Utils::tempdir() . '/secrets';
append_to_file($secrets, "$_ " . sha256_hex("secret of $_") . "\n") foreach qw(old new);
chmod 0600, $secrets or die "chmod: $!";

my $node = IdemAction->node('main',
	conf => "autovacuum = off\nfsync = off\nlog_statement = none\nidem_action.secret_file = '$secrets'");
my $dir = $node->basedir;

$node->rule('act', lease => '1 day', retry_delay => '0', keep_content => '10 days');
$node->rule('repeat', lease => '1 day', retry_delay => '0', on_uncertain => 'repeat', marks_effect => 't');
$node->rule('queued');
$node->rule('secret', confidential_key => 't', confidential_fields => ['phone']);
$node->rule('paused');

# actions in all states, with contents that a dump has to quote
$node->safe_psql(
	'postgres', qq{
	CREATE TEMP TABLE claims AS
	SELECT row_number() OVER () AS n, c.* FROM generate_series(1, $n) g,
		idem.claim_action('k-' || g || E'-\\u00e9\\t\\\\''"', CASE WHEN g % 2 = 0 THEN 'act' ELSE 'repeat' END,
			jsonb_build_object('n', g, 'text', E'\\\\ " \\n'), jsonb_build_object('draft', g), scope => CASE g % 5 WHEN 0 THEN 'tenant' ELSE '' END,
			worker => 'w' || g % 7, source => 'queue', event_id => 'e' || g, call_id => gen_random_uuid()) c;
	SELECT count(idem.begin_effect(action_id, claim_id)) FROM claims WHERE n % 10 = 1;
	SELECT count(*) FROM claims, idem.complete_action(action_id, claim_id, 'ref ' || n, jsonb_build_object('r', n)) r WHERE n % 10 IN (2, 3, 4);
	SELECT count(*) FROM claims, idem.fail_action(action_id, claim_id, E'not\\tsent', 'none') r WHERE n % 10 IN (5, 6);
	SELECT count(*) FROM claims, idem.fail_action(action_id, claim_id, 'timeout') r WHERE n % 10 IN (0, 7);
	SELECT count(*) FROM claims, idem.fail_action(action_id, claim_id, 'no', 'refused') r WHERE n % 10 = 8;
	SELECT count(*) FROM claims, idem.complete_action(action_id, claim_id, 'another') r WHERE n % 20 = 2;
	SELECT count(*) FROM claims c, idem.claim_action(c.key, c.intent, scope => c.scope, source => 'queue', event_id => 'again') WHERE n % 50 = 2;

	-- a queue whose order is not that of its rows, some of it taken
	SELECT count(*) FROM generate_series(1, 60) g,
		idem.enqueue_action('q-' || g, 'queued', priority => g * 7 % 5, not_before => now() - g * 11 % 17 * interval '1 min');
	SELECT count(*) FROM idem.take_actions('{queued}', max => 10, call_id => gen_random_uuid());

	-- two secrets, the older of them still needed
	SELECT idem.use_secret('old');
	SELECT idem.complete_action(action_id, claim_id, 'old') FROM idem.claim_action('+49 30 1', 'secret', '{"phone": "+49 30 1"}');
	SELECT idem.use_secret('new');
	SELECT idem.complete_action(action_id, claim_id, 'new') FROM idem.claim_action('+49 30 2', 'secret', '{"phone": "+49 30 2"}');

	CREATE ROLE regress_idem_service;
	CREATE ROLE "regress_idem Auditor";
	SELECT idem.grant_access('regress_idem_service', 'worker'), idem.grant_access('"regress_idem Auditor"', 'analyst');
	SELECT outcome FROM idem.enqueue_action('waits', 'paused');
	SELECT idem.pause_intent('paused', 'the provider is down', actor => 'Ann');
	CALL idem.run_maintenance();
});

my @tables = split /\n/, $node->safe_psql(
	'postgres', q{
	SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'idem'::regnamespace AND c.relkind = 'r' ORDER BY 1});
cmp_ok(scalar(@tables), '>=', 7, 'the tables of the ledger');

# Where a ledger is accepted is each database's own
sub content
{
	my ($database) = @_;
	return join "\n", map
	{
		my $except = $_ eq 'idem_state' ? q{WHERE kind NOT IN ('ledger', 'accepted')} : '';
		$node->safe_psql($database, "SELECT '$_', count(*), md5(string_agg(t::text, ',' ORDER BY t::text)) FROM idem.$_ t $except")
	} @tables;
}

# What the extension consists of.
my $members = q{SELECT count(*) FROM pg_depend WHERE refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idem_action')};

# The whole timeline; the lines that rows tell have ids of their own.
my $history = q{SELECT count(*), md5(string_agg(h::text, ',' ORDER BY at, id, action_id)) FROM idem.history h};

# Who may what, beside the owner.
my $rights = q{
	SELECT o.name, a.grantee::regrole, a.privilege_type
	FROM (
		SELECT oid::regclass::text AS name, relacl AS acl FROM pg_class WHERE relnamespace = 'idem'::regnamespace
		UNION ALL SELECT oid::regprocedure::text, proacl FROM pg_proc WHERE pronamespace = 'idem'::regnamespace
		UNION ALL SELECT nspname, nspacl FROM pg_namespace WHERE nspname = 'idem') o, aclexplode(o.acl) a
	WHERE a.grantee <> a.grantor ORDER BY 1, 2, 3};

my $waiting = q{SELECT string_agg(key, ' ' ORDER BY priority DESC, due_at, action_id)
	FROM idem.idem_actions WHERE intent = 'queued' AND state = 'pending'};

my $content = content('postgres');
unlike($content, qr/\|0\|/, 'none of them is empty');
my %before = map { $_ => $node->safe_psql('postgres', $_) } $members, $history, $rights, $waiting;
my $events = $node->safe_psql('postgres', 'SELECT max(id) FROM idem.idem_events');
is($node->safe_psql('postgres', 'SELECT count(DISTINCT state) FROM idem.idem_actions'), 5, 'actions in every state but cancelled');
like($before{$rights}, qr/claim_action.*\|regress_idem_service\|EXECUTE/, 'a service may claim');
like($before{$rights}, qr/idem\.history\|"regress_idem Auditor"\|SELECT/, 'an auditor may read');

my %restore = (
	plain => sub {
		$node->command_ok([ 'pg_dump', '--format=plain', "--file=$dir/plain.sql", 'postgres' ], 'plain: dumped');
		$node->command_ok([ 'psql', '-Xqv', 'ON_ERROR_STOP=1', '-d', 'plain', '-f', "$dir/plain.sql" ], 'plain: restored');
	},
	custom => sub {
		$node->command_ok([ 'pg_dump', '--format=custom', "--file=$dir/custom", 'postgres' ], 'custom: dumped');
		$node->command_ok([ 'pg_restore', '--exit-on-error', '-d', 'custom', "$dir/custom" ], 'custom: restored');
	},
	directory => sub {
		$node->command_ok([ 'pg_dump', '--format=directory', '--jobs=2', "--file=$dir/directory", 'postgres' ], 'directory: dumped');
		$node->command_ok([ 'pg_restore', '--exit-on-error', '--jobs=2', '-d', 'directory', "$dir/directory" ], 'directory: restored');
	},
	data_only => sub {
		$node->command_ok([ 'pg_dump', '--data-only', "--file=$dir/data.sql", 'postgres' ], 'data only: dumped');
		$node->safe_psql('data_only', 'CREATE EXTENSION idem_action');
		$node->command_ok([ 'psql', '-Xqv', 'ON_ERROR_STOP=1', '-d', 'data_only', '-f', "$dir/data.sql" ], 'data only: restored');
	});

foreach my $format (sort keys %restore)
{
	my $name = "$format";

	$node->safe_psql('postgres', "CREATE DATABASE $format TEMPLATE template0");
	$restore{$format}->();
	is(content($format), $content, "$name: the tables hold the same");
	is($node->safe_psql($format, $members), $before{$members}, "$name: the extension is whole");
	is($node->safe_psql($format, $history), $before{$history}, "$name: the history tells the same");

	# GRANT is no data: the levels are there, and giving them again is enough
	$node->safe_psql($format, 'SELECT idem.grant_access(role_id, level) FROM idem.access WHERE role_id IS NOT NULL') if $format eq 'data_only';
	is($node->safe_psql($format, $rights), $before{$rights}, "$name: who may what is the same");
	is($node->safe_psql($format, q{SELECT string_agg(role || ' ' || level, ', ' ORDER BY level) FROM idem.access}),
		'regress_idem Auditor analyst, regress_idem_service worker',
		"$name: the levels are there");

	# the claims of before, asked for again
	$node->safe_psql(
		$format, q{
		CREATE TABLE again AS
		SELECT a.action_id, c.granted, c.outcome, c.repeat, c.external_ref, c.result, c.provider_key, a.state AS was, a.external_ref AS ref, a.result AS was_result,
			a.attempt AS was_attempt, c.attempt
		FROM (SELECT * FROM idem.idem_actions WHERE intent IN ('act', 'repeat') OFFSET 0) a, idem.claim_action(a.key, a.intent, a.params, scope => a.scope) c});
	is($node->safe_psql($format, q{SELECT count(*), count(*) FILTER (WHERE repeat) FROM again}), "$n|$n", "$name: all $n are repeats");
	is( $node->safe_psql($format, q{SELECT was, outcome, granted, count(*) FROM again GROUP BY was, outcome, granted ORDER BY was, outcome}),
		$node->safe_psql('postgres', q{SELECT state, CASE state WHEN 'pending' THEN 'claimed' ELSE state END, state = 'pending', count(*)
			FROM idem.idem_actions WHERE intent IN ('act', 'repeat') GROUP BY state ORDER BY 1}),
		"$name: each is answered by its state, and only what is due is granted");
	is( $node->safe_psql(
			$format, q{
			SELECT count(*) FROM again WHERE external_ref IS DISTINCT FROM ref OR result IS DISTINCT FROM was_result
				OR provider_key <> action_id::text OR attempt <> was_attempt + granted::int}),
		0,
		"$name: references, results, provider keys and attempts go on");
	is($node->safe_psql($format, q{SELECT granted, attempt FROM idem.claim_action('new', 'act')}), 't|1', "$name: a new key is claimed");
	is($node->safe_psql($format, q{SELECT idem.describe_rule('repeat') ~ 'repeated: doing it twice harms nobody'}), 't', "$name: the rules are there");

	# what waits is handed out once this is said to be the place for it, in the old
	# order; what is taken is not
	is($node->safe_psql($format, q{SELECT count(*) FROM idem.take_actions('{queued}', max => 100)}), 0, "$name: takers get nothing from a copy");
	$node->safe_psql($format, 'SELECT idem.accept_copy()');
	is($node->safe_psql($format, q{SELECT string_agg(key, ' ') FROM (SELECT key FROM idem.take_actions('{queued}', max => 100)) t}),
		$before{$waiting}, "$name: the queue hands out in the old order");

	# pauses and secrets
	is($node->safe_psql($format, q{SELECT outcome FROM idem.claim_action('waits', 'paused')}), 'paused', "$name: what is paused stays paused");
	is($node->safe_psql($format, q{SELECT count(*) FROM idem.take_actions('{paused}')}), 0, "$name: for takers too");
	is($node->safe_psql($format, q{SELECT outcome, external_ref FROM unnest('{"+49 30 1","+49 30 2"}'::text[]) k, idem.claim_action(k, 'secret', jsonb_build_object('phone', k))}),
		"completed|old\ncompleted|new",
		"$name: confidential keys are repeats under either secret");
	is($node->safe_psql($format, q{SELECT id, current, rows FROM idem.secrets ORDER BY id}), "new|t|1\nold|f|1", "$name: the current secret is the same");

	# the holder of before reports; events go on above the old ones
	is( $node->safe_psql(
			$format, qq{
			SELECT count(*), bool_and(r.accepted) FROM
				(SELECT * FROM idem.idem_actions WHERE state = 'in_progress' AND begun ORDER BY action_id LIMIT 50) a,
				idem.fail_action(a.action_id, a.claim_id, 'late', 'none') r}),
		'50|t',
		"$name: holders of before report");
	is( $node->safe_psql(
			$format, qq{
			SELECT count(*), bool_and(id > $events) FROM idem.idem_events
			WHERE at > (SELECT max(at) FROM idem.idem_events WHERE id <= $events) AND event NOT IN ('access_granted', 'copy_accepted')}),
		'50|t',
		"$name: event ids go on above the old maximum");
	is($node->safe_psql($format, q{SELECT count(*) FROM idem.idem_actions a WHERE idem.violated_invariant(a) IS NOT NULL}),
		0, "$name: no invariant is violated");
}

# restart
$node->restart;
is(content('postgres'), $content, 'the ledger after a restart');
is( $node->safe_psql(
		'postgres', q{
		SELECT c.outcome, c.external_ref FROM (SELECT * FROM idem.idem_actions WHERE key LIKE 'k-2-%' OFFSET 0) a,
			idem.claim_action(a.key, a.intent, a.params) c}),
	'completed|ref 2',
	'and it goes on');

$node->stop;
done_testing();
