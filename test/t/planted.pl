# Copyright (c) 2026, idem_action contributors

# An attacker owns the first schema of a superuser's search_path, and plants
# there whatever a statement could be made to use instead of what it means.
#
# Protects: nothing planted is ever executed, neither by CREATE EXTENSION, nor by
# any function or view of the ledger, nor by the background worker.
#
# Planted are: every function and operator of pg_catalog that SQL can declare,
# under the same name and with the same arguments; = and the like for types that
# have none of their own; domains by the names of types; tables by the names of
# the ledger's and of the catalogs, in pg_temp too; casts, which only the owner
# of a type can make, from and to planted types.  Each raises an error when it
# is used, so both the caller and the server's log would tell.

use strict;
use warnings;

use Digest::SHA qw(sha256_hex);
use IdemAction;
use PostgreSQL::Test::Utils;
use Test::More;

my $secrets = PostgreSQL::Test::Utils::tempdir() . '/secrets';
append_to_file($secrets, 's1 ' . sha256_hex('secret') . "\n");
chmod 0600, $secrets or die "chmod: $!";

my $node = IdemAction->node(
	'main',
	extension => 0,
	conf => "log_statement = none\nidem_action.secret_file = '$secrets'\nidem_action.naptime = '1s'");

# --- planting ---------------------------------------------------------------

my $planted = $node->safe_psql(
	'postgres', q{
	CREATE ROLE attacker;
	CREATE SCHEMA evil AUTHORIZATION attacker;
	GRANT CREATE ON DATABASE postgres TO attacker;

	-- what all of it comes down to
	CREATE FUNCTION evil.planted(what text) RETURNS boolean LANGUAGE plpgsql AS
	$$BEGIN RAISE EXCEPTION 'planted: % was executed by %', what, current_user; END$$;
	ALTER FUNCTION evil.planted(text) OWNER TO attacker;

	SET ROLE attacker;
	CREATE PROCEDURE evil.plant(what text) LANGUAGE plpgsql AS
	$$BEGIN EXECUTE what; EXCEPTION WHEN OTHERS THEN NULL; END$$;
	DO $plant$
	DECLARE
		arguments text;
		body text := 'AS $$BEGIN PERFORM evil.planted(%L); END$$';
		r record;
	BEGIN
		FOR r IN
			SELECT p.*, format_type(prorettype, NULL) AS returns,
				ARRAY(SELECT format_type(t, NULL) FROM unnest(proargtypes) WITH ORDINALITY a (t, n) ORDER BY n) AS types
			FROM pg_proc p WHERE pronamespace = 'pg_catalog'::regnamespace
		LOOP
			arguments := array_to_string(r.types, ', ');
			-- "any" is for C only: what comes nearest
			FOREACH arguments IN ARRAY CASE WHEN '"any"' <> ALL (r.types) THEN ARRAY[arguments]
				ELSE ARRAY[replace(arguments, '"any"', 'text'), replace(arguments, '"any"', 'anyelement'),
					regexp_replace(arguments, '"any"$', 'VARIADIC text[]'), regexp_replace(arguments, '"any"$', 'text, text'),
					regexp_replace(arguments, '"any"$', 'text, anyelement')] END
			LOOP
				CALL evil.plant(format('CREATE FUNCTION evil.%I(%s) RETURNS %s%s LANGUAGE plpgsql ' || body, r.proname, arguments,
					CASE WHEN r.proretset THEN 'SETOF ' ELSE '' END, r.returns, r.proname || '(' || arguments || ')'));
			END LOOP;
		END LOOP;

		FOR r IN
			SELECT oprname, oprcode::regproc::text AS code, format_type(nullif(oprleft, 0), NULL) AS l, format_type(oprright, NULL) AS r
			FROM pg_operator WHERE oprnamespace = 'pg_catalog'::regnamespace
			UNION ALL
			SELECT o, 'of_' || t || '_' || u, t, u
			FROM unnest('{=,<>,<,>,<=,>=,||,~,~~,->>,+,-}'::text[]) o, unnest('{text,uuid,oid,regrole,regclass,regproc,name,"\"char\"",unknown}'::text[]) t,
				unnest('{text,uuid,integer,bigint,jsonb,oid,regrole,regclass,regproc,name,timestamptz,date}'::text[]) u
		LOOP
			CALL evil.plant(format('CREATE FUNCTION evil.%I(%s) RETURNS boolean LANGUAGE plpgsql ' || body, r.code, concat_ws(', ', r.l, r.r), r.code));
			CALL evil.plant(format('CREATE OPERATOR evil.%s (FUNCTION = evil.%I, %sRIGHTARG = %s)', r.oprname, r.code, 'LEFTARG = ' || r.l || ', ', r.r));
		END LOOP;

		FOR r IN SELECT typname AS name FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype = 'b' AND typelem = 0
		LOOP
			CALL evil.plant(format('CREATE DOMAIN evil.%I AS pg_catalog.%I CHECK (evil.planted(%L))', r.name, r.name, 'type ' || r.name));
		END LOOP;
	END $plant$;

	CREATE TYPE evil.claim AS ENUM ('claimed');
	CREATE TYPE evil.report AS (accepted boolean);
	CREATE FUNCTION evil.cast_claim(evil.claim) RETURNS text LANGUAGE plpgsql AS $$BEGIN PERFORM evil.planted('cast'); END$$;
	CREATE FUNCTION evil.cast_report(text) RETURNS evil.report LANGUAGE plpgsql AS $$BEGIN PERFORM evil.planted('cast'); END$$;
	CREATE CAST (evil.claim AS text) WITH FUNCTION evil.cast_claim AS IMPLICIT;
	CREATE CAST (text AS evil.report) WITH FUNCTION evil.cast_report AS IMPLICIT;
	SELECT (SELECT count(*) FROM pg_proc WHERE pronamespace = 'evil'::regnamespace),
		(SELECT count(*) FROM pg_operator WHERE oprnamespace = 'evil'::regnamespace),
		(SELECT count(*) FROM pg_type WHERE typnamespace = 'evil'::regnamespace AND typtype = 'd');
});
my ($functions, $operators, $types) = split /\|/, $planted;
cmp_ok($functions, '>', 2500, 'functions are planted');
cmp_ok($operators, '>', 900, 'operators are planted');
cmp_ok($types, '>', 50, 'types are planted');

# Tables, as views that raise: by the names of catalogs, and of the ledger's
# tables once they are there.  pg_temp, which is searched first for tables and
# types, asked or not, gets types too.
my $tables = q{
	SELECT format('CREATE OR REPLACE VIEW %s.%I AS SELECT evil.planted(%L) AS x', s, relname, 'table ' || relname)
	FROM unnest('{evil,pg_temp}'::text[]) s, (
		SELECT DISTINCT relname FROM pg_class
		WHERE relkind IN ('r', 'v') AND relnamespace IN (to_regnamespace('idem'), 'pg_catalog'::regnamespace)) c \gexec
	SELECT format('CREATE DOMAIN pg_temp.%I AS pg_catalog.%I CHECK (evil.planted(%L))', t, t, 'type ' || t)
	FROM unnest('{text,uuid,jsonb,timestamptz,int4,int8,bool,oid,regrole,regclass,name,bytea,date,interval}'::text[]) t \gexec
};

# the attacker's path, as a superuser has it
my $path = 'SET search_path = evil, pg_temp, pg_catalog, public;';

# Runs a script as the victim, its statements one by one.  Returns its output;
# anything on stderr fails the test.
sub victim
{
	my ($what, $script) = @_;
	my (undef, $out, $err) = $node->psql('postgres', "\\set VERBOSITY terse\n$script", on_error_stop => 0);

	is($err, '', "$what: nothing planted, no error");
	return $out;
}

# does it work at all?
foreach my $what ("SELECT 'a' = 'a'::pg_catalog.text", 'SELECT now()', "SELECT format('%s', 'a'::pg_catalog.text)", 'SELECT x FROM pg_class',
	"SELECT 'a'::text", 'SELECT max(1)', "SELECT 'a'::pg_catalog.text IS DISTINCT FROM 'b'", "SELECT 'claimed'::evil.claim::pg_catalog.text")
{
	my (undef, undef, $err) = $node->psql('postgres', "$tables$path$what");
	like($err, qr/planted: .* was executed by postgres/, "planted: $what");
}

# --- CREATE EXTENSION -------------------------------------------------------

my $offset = -s $node->logfile;
victim('CREATE EXTENSION', "$tables$path CREATE EXTENSION idem_action;");
is($node->safe_psql('postgres', q{SELECT nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE extname = 'idem_action'}),
	'pg_catalog', 'it is where it belongs');
is( $node->safe_psql(
		'postgres', q{
		SELECT count(*) FROM pg_depend d JOIN pg_depend e ON (e.classid, e.objid) = (d.classid, d.objid) AND e.deptype = 'e'
		WHERE d.deptype <> 'e' AND (d.refclassid, d.refobjid) IN (
			SELECT 'pg_proc'::regclass, oid FROM pg_proc WHERE pronamespace = 'evil'::regnamespace
			UNION ALL SELECT 'pg_operator'::regclass, oid FROM pg_operator WHERE oprnamespace = 'evil'::regnamespace
			UNION ALL SELECT 'pg_type'::regclass, oid FROM pg_type WHERE typnamespace = 'evil'::regnamespace)}),
	0, 'no part of it depends on what is planted');

# --- every function, procedure and view -------------------------------------

my $calls = q{
	SELECT idem.define_rule('act', 'u', 'r', on_uncertain => 'repeat', retry_delay => '0') IS NOT NULL;
	SELECT idem.define_rule('search', 'u', 'r', on_uncertain => 'verify', settle => '0', retry_delay => '0') IS NOT NULL;
	SELECT idem.define_rule('approve', 'u', 'r', requires_approval => true, worker_role => 'attacker', resolver_role => 'attacker') IS NOT NULL;
	SELECT idem.define_rule('secret', 'u', 'r', confidential_key => true, confidential_fields => '{phone}') IS NOT NULL;
	SELECT idem.define_rule('dropped', 'u', 'r') IS NOT NULL;
	SELECT idem.drop_rule('dropped');
	SELECT idem.describe_rule('act') IS NOT NULL;
	SELECT idem.grant_access('attacker', 'admin');
	SELECT idem.revoke_access('attacker', 'admin');
	SELECT idem.grant_access('attacker', 'analyst');
	SELECT idem.may_see('act'), idem.may_see('act', 10::pg_catalog.oid), idem.role_here('attacker', 10, 'elsewhere') IS NOT NULL;
	SELECT idem.library_version() IS NOT NULL, idem.timeline() IS NOT NULL, idem.place() IS NOT NULL;
	SELECT idem.action_key('a', 'b'), idem.period_key('2026-11-29 12:00+00', 'week', 'Europe/Berlin'), idem.action_id('a', 'act') IS NOT NULL;

	SELECT outcome, action_id, claim_id FROM idem.claim_action('a', 'act', '{"a": 1}', '{"d": 1}', worker => 'w', source => 's', event_id => 'e', call_id => '0b5e7c1e-0000-4000-8000-000000000001') \gset
	\echo :outcome
	SELECT idem.provider_key(:'action_id', 2) IS NOT NULL, idem.quote_label('an event');
	SELECT outcome FROM idem.claim_action('a', 'act', '{"a": 1}', source => 's', event_id => 'e', wait => '10 ms');
	SELECT outcome FROM idem.find_action('a', 'act');
	SELECT idem.begin_effect(:'action_id', :'claim_id', '{"d": 2}') IS NOT NULL;
	SELECT idem.extend_claim(:'action_id', :'claim_id', '1 hour') IS NOT NULL;
	SELECT problem FROM idem.extend_claims(ARRAY[:'action_id'::pg_catalog.uuid], ARRAY[:'claim_id'::pg_catalog.uuid]);
	SELECT accepted, note FROM idem.complete_action(:'action_id', :'claim_id', 'ref', '{"r": 1}');
	SELECT accepted, state, note FROM idem.complete_action(:'action_id', :'claim_id', 'other');
	SELECT accepted, note FROM idem.resolve_action(:'action_id', 'happened', 'seen', 4);
	SELECT accepted, note FROM idem.rerun_action(:'action_id', 'again', 5);
	SELECT accepted, note FROM idem.revise_action(:'action_id', '{"d": 3}');
	SELECT accepted, note FROM idem.cancel_action(:'action_id', 'not wanted');
	SELECT accepted, note FROM idem.erase_action(:'action_id', 'asked for');
	SELECT outcome FROM idem.show_action(:'action_id');
	SELECT line IS NOT NULL FROM idem.explain_action(:'action_id') line LIMIT 1;
	SELECT key FROM idem.search_actions('a');
	SELECT key FROM idem.search_actions(:'action_id');
	SELECT key FROM idem.search_actions('ref');

	SELECT outcome FROM idem.claim_actions('act', '{b,c,b}', ARRAY['{"p": "value"}', NULL, NULL]::pg_catalog.jsonb[], source => 's', event_ids => '{1,2,3}');
	SELECT key FROM idem.search_actions('value');
	SELECT action_id, claim_id FROM idem.claim_action('d', 'act') \gset
	SELECT state FROM idem.complete_actions(ARRAY[:'action_id'::pg_catalog.uuid], ARRAY[:'claim_id'::pg_catalog.uuid], '{ref}', ARRAY['{}']::pg_catalog.jsonb[]);
	SELECT action_id, claim_id FROM idem.claim_action('f', 'act') \gset
	SELECT state FROM idem.fail_action(:'action_id', :'claim_id', 'timeout');
	SELECT action_id, claim_id FROM idem.claim_action('f', 'act') \gset
	SELECT state FROM idem.release_action(:'action_id', :'claim_id', 'cannot');
	SELECT idem.once('o', 'act'), idem.once('o', 'act');

	SELECT outcome FROM idem.enqueue_action('q', 'act', priority => 3);
	SELECT outcome FROM idem.enqueue_actions('act', '{q1,q2}', event_ids => '{1,2}');
	SELECT key FROM idem.take_actions('{act}', max => 2, call_id => '0b5e7c1e-0000-4000-8000-000000000002');
	SELECT key FROM idem.take_actions('{act}', max => 2, call_id => '0b5e7c1e-0000-4000-8000-000000000002');
	SELECT action_id, claim_id FROM idem.claim_action('v', 'search') \gset
	SELECT state FROM idem.fail_action(:'action_id', :'claim_id', 'timeout', retry_after => '0');
	SELECT outcome, action_id, claim_id FROM idem.take_to_verify('{search}') \gset
	\echo :outcome
	SELECT outcome FROM idem.verify_action(:'action_id', :'claim_id', false, note => 'not there');
	SELECT outcome, action_id, revision FROM idem.enqueue_action('p', 'approve', draft => '{"d": 1}') \gset
	\echo :outcome
	SELECT accepted, note FROM idem.approve_action(:'action_id', :'revision');

	SELECT idem.use_secret('s1');
	SELECT outcome FROM idem.claim_action('+49 30 1', 'secret', '{"phone": "+49 30 1"}');
	SELECT idem.keyed_digest('+49 30 1') IS NOT NULL;
	SELECT idem.import_actions('act', '{i1,i2}', '{r1,r2}');
	SELECT idem.pause_intent('act', 'a moment'), idem.pause_intent(NULL, 'a moment');
	SELECT outcome FROM idem.claim_action('paused', 'act');
	SELECT idem.resume_intent('act'), idem.resume_intent(NULL);
	SELECT idem.apply_retention('act');
	SELECT idem.after_restore('2026-11-29 12:00+00', 'restored');
	SELECT idem.accept_copy('Ann'), idem.acknowledge_timeline('Ann'), idem.confirm_time('Ann'), idem.clock_problem();
	SELECT pg_catalog.count(idem.violated_invariant(a)) FROM idem.idem_actions a;
	SELECT kind FROM idem.reconcile('act', '{ref}', '2026-11-29 12:00+00');
	SELECT idem.history_horizon() IS NOT NULL, idem.sees_all(), idem.holds_value('{"a": ["b"]}', 'b');
	SELECT pg_catalog.count(v) FROM idem.visible_actions() v;
	SELECT pg_catalog.count(v) FROM idem.visible_attention() v;
	SELECT pg_catalog.count(v) FROM idem.visible_backlog() v;
	SELECT pg_catalog.count(v) FROM idem.visible_history() v;
	SELECT pg_catalog.count(v) FROM idem.visible_repeats() v;
	SELECT pg_catalog.count(v) FROM idem.visible_rules() v;
	SELECT pg_catalog.count(v) FROM idem.visible_stat_intents() v;
	SELECT pg_catalog.count(v) FROM idem.visible_stuck() v;
	SELECT outcome FROM idem.claim_action('a', 'act', source => 's', event_id => 'e');
	CALL idem.run_maintenance();
	SELECT outcome FROM idem.claim_action('a', 'act', source => 's', event_id => 'e');
	SELECT outcome FROM idem.claim_action('a', 'act', event_id => 'e');
	CALL idem.run_maintenance(10, 5);
	SELECT problem FROM idem.worker_state();
};
my @views = split /\n/, $node->safe_psql('postgres', q{SELECT relname FROM pg_class WHERE relnamespace = 'idem'::regnamespace AND relkind = 'v' ORDER BY 1});
cmp_ok(scalar(@views), '>', 10, 'views to be read');
$calls .= "SELECT * FROM idem.$_ \\g (format=unaligned) /dev/null\nSELECT 'read $_';\n" foreach @views;

foreach my $function (
	split /\n/, $node->safe_psql(
		'postgres', q{SELECT DISTINCT proname FROM pg_proc WHERE pronamespace = 'idem'::regnamespace AND prorettype <> 'trigger'::regtype ORDER BY 1}))
{
	like($calls, qr/\bidem\.\Q$function\E\(/, "there is a call of $function");
}

my $out = victim('every function and view', $tables . $path . $calls);
my $times = () = $out =~ /^read /mg;
is($times, scalar(@views), 'it came to the end');
unlike($out, qr/^f\|refused/m, 'no report was refused');
foreach my $outcome (qw(claimed completed in_progress pending verify awaiting_approval paused cancelled))
{
	like($out, qr/^\Q$outcome\E$/m, "something is $outcome");
}

# --- the worker -------------------------------------------------------------

# Its sessions take over the settings of the database, whose owner may be anyone.
$node->safe_psql('postgres', q{
	SELECT outcome FROM idem.claim_actions('act', '{l1,l2}');
	UPDATE idem.idem_actions SET lease_until = clock_timestamp() - interval '1 second' WHERE state = 'in_progress';
	SELECT outcome FROM idem.claim_action('a', 'act', source => 's', event_id => 'e');
	ALTER DATABASE postgres SET search_path = evil, pg_temp, pg_catalog});
$ENV{PGOPTIONS} = '-c search_path=pg_catalog';
is($node->safe_psql('postgres', q{SELECT count(*) > 0 FROM idem.actions WHERE lease_until < now()}), 't', 'leases are over');
$node->append_conf('postgresql.conf', 'idem_action.worker = on');
$node->reload;
ok( $node->poll_query_until(
		'postgres', q{SELECT problem IS NOT NULL OR lease_backlog = 0 AND last_pass IS NOT NULL FROM idem.worker_status}),
	'the worker makes its pass');
is($node->safe_psql('postgres', q{SELECT problem FROM idem.worker_status}), '', 'the worker executes nothing planted');

unlike(substr(slurp_file($node->logfile), $offset), qr/planted: /, 'nor does the log tell of anything');

victim('DROP EXTENSION', "$tables$path DROP EXTENSION idem_action;");

$node->stop;
done_testing();
