# Copyright (c) 2026, idem_action contributors

# What a DBA runs beside the ledger, which writes its rows without the executor.
#
# pg_repack of each table beside claims, completions, takes and a maintenance
# pass: no call is refused, no claim is lost and none is granted twice.  Any other
# trigger is refused as before.
#
# pgaudit sees the writes: by pgaudit.role as by pgaudit.log, those of the
# background worker too, and what the statement around them reads; where it
# logs nothing, nothing is said.  pg_stat_user_tables counts them.

use strict;
use warnings;

use IdemAction;
use PostgreSQL::Test::Utils;
use Test::More;

my $library = `pg_config --pkglibdir`;
chomp $library;
my @missing = grep { !-e "$library/$_.so" } qw(pg_repack pgaudit);
plan skip_all => "not installed: @missing" if @missing;

my $node = IdemAction->node(
	'main', conf => q{
	fsync = off
	shared_preload_libraries = 'pgaudit,idem_action'
	idem_action.naptime = '1s'
	autovacuum = off
	log_statement = none
});

# --- pg_repack --------------------------------------------------------------

my $clients = 4;
my $rounds = 400;

$node->safe_psql('postgres', 'CREATE EXTENSION pg_repack');
$node->rule('act');
$node->rule('aged', keep_content => '1 ms', keep_key => '1 ms');
$node->safe_psql('postgres', q{SELECT count(*) FROM generate_series(1, 20000) i, idem.claim_action('old-' || i, 'act') c, idem.complete_action(c.action_id, c.claim_id, 'r')});
$node->safe_psql('postgres', q{SELECT count(*) FROM generate_series(1, 2000) i, idem.enqueue_action('queued-' || i, 'act')});

# Each key is claimed by every client; what was granted is written down at once.
$node->safe_psql('postgres', q{
	CREATE TABLE granted (key text, taken boolean);
	CREATE SEQUENCE round;
	CREATE PROCEDURE work(rounds int) LANGUAGE plpgsql AS $$
	DECLARE
		c idem.claim;
		r record;
	BEGIN
		FOR i IN 1 .. rounds LOOP
			c := idem.claim_action('key-' || i, 'act', in_transaction => true);
			IF c.granted THEN
				INSERT INTO granted VALUES (c.key, false);
				COMMIT;
				PERFORM idem.complete_action(c.action_id, c.claim_id, 'ref-' || i);
			END IF;
			COMMIT;
			FOR r IN SELECT * FROM idem.take_actions('{act}', max => 2, in_transaction => true) LOOP
				INSERT INTO granted VALUES (r.key, true);
				IF i % 3 = 0 THEN
					PERFORM idem.complete_action(r.action_id, r.claim_id, 'taken');
				ELSIF i % 3 = 1 THEN
					PERFORM idem.fail_action(r.action_id, r.claim_id, 'timeout');
				END IF;
			END LOOP;
			COMMIT;
			PERFORM nextval('round');
			COMMIT;
		END LOOP;
	END
	$$;
});
my @session = map { $node->session } 1 .. $clients;
$node->send($_, "CALL work($rounds)") foreach @session;
$node->poll_query_until('postgres', 'SELECT last_value > 20 FROM round') or die 'nobody works';
my $repacked = 0;
do
{
	foreach my $table (qw(idem_actions idem_events idem_queue))
	{
		my ($out, $err) = run_command([ 'pg_repack', '--no-kill-backend', '-h', $node->host, '-p', $node->port, '-d', 'postgres', '-t', "idem.$table" ]);
		$repacked++ if $err !~ /ERROR|WARNING/;
		note $err;
	}
	$node->safe_psql('postgres', 'CALL idem.run_maintenance()');
} while ($node->safe_psql('postgres', 'SELECT last_value < ' . $clients * $rounds . ' FROM round') eq 't');
cmp_ok($repacked, '>=', 3, "tables were repacked meanwhile: $repacked");
$_->query_safe('SELECT 1') foreach @session;
$_->quit foreach @session;
is($node->safe_psql('postgres', 'SELECT last_value FROM round'), $clients * $rounds, 'every call was answered');
unlike(slurp_file($node->logfile), qr/has trigger/, 'none was refused');
is($node->safe_psql('postgres', q{SELECT count(*) FROM granted WHERE NOT taken}), $rounds, 'each claimed key was granted');
is($node->safe_psql('postgres', 'SELECT count(*) FROM (SELECT FROM granted GROUP BY key HAVING count(*) > 1) twice'), 0, 'none was granted twice');
is( $node->safe_psql('postgres', q{SELECT count(*) FROM granted g WHERE NOT EXISTS (SELECT FROM idem.idem_actions a
		WHERE a.key = g.key AND a.attempt = 1 AND (a.state = 'completed') = (NOT g.taken OR a.external_ref IS NOT NULL))}),
	0, 'the ledger holds each with its outcome');
is($node->safe_psql('postgres', q{SELECT count(*), count(DISTINCT action_id) FROM idem.idem_actions}), '22400|22400', 'no row is missing or there twice');
is( $node->safe_psql('postgres', q{SELECT count(*) FROM idem.idem_queue q FULL JOIN idem.idem_actions a USING (action_id)
		WHERE (a.due_at IS NOT NULL) <> (q.action_id IS NOT NULL) OR q.due_at <> a.due_at}),
	0, 'the queue is in step');
is($node->safe_psql('postgres', q{SELECT count(*) FROM idem.idem_actions a WHERE idem.violated_invariant(a) IS NOT NULL}), 0, 'no invariant is violated');
my $index = q{SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(*) FROM idem.idem_actions a WHERE EXISTS (SELECT FROM idem.idem_actions b WHERE b.action_id = a.action_id)};
is($node->safe_psql('postgres', $index), 22400, 'the index finds all of them');

$node->safe_psql('postgres', 'DROP EXTENSION pg_repack');
$node->safe_psql('postgres', q{
	CREATE FUNCTION repack_trigger() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
	CREATE TRIGGER repack_trigger AFTER INSERT ON idem.idem_actions FOR EACH ROW EXECUTE FUNCTION repack_trigger()});
is($node->sqlstate(q{SELECT idem.claim_action('refused', 'act')}), '0A000', 'a trigger that only has the name of it is refused');
$node->safe_psql('postgres', 'DROP TRIGGER repack_trigger ON idem.idem_actions');

# --- pg_stat_user_tables ----------------------------------------------------

sub counted
{
	$node->safe_psql('postgres', 'SELECT pg_stat_force_next_flush()');
	return split /\|/, $node->safe_psql('postgres', q{SELECT n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_user_tables WHERE relname = 'idem_actions'});
}

my @before = counted();
my $claim = $node->claim(key => 'counted', intent => 'aged');
$node->call('complete_action', action_id => $claim->{action_id}, claim_id => $claim->{claim_id});
$node->safe_psql('postgres', 'CALL idem.run_maintenance()');
ok($node->poll_query_until('postgres', "SELECT pg_stat_force_next_flush(); SELECT n_tup_ins >= $before[0] + 1 AND n_tup_upd >= $before[1] + 1 AND n_tup_del >= $before[2] + 1 FROM pg_stat_user_tables WHERE relname = 'idem_actions'", "\nt"),
	'pg_stat_user_tables counts a claim, its completion and its end');

# --- pgaudit ----------------------------------------------------------------

my $offset;

# What pgaudit wrote since $offset: kind, command and object of each line.
sub audited
{
	return join ' ', map { /AUDIT: (\w+),\d+,\d+,\w+,(\w+),\w*,([\w.]*)/ ? "$1:$2:$3" : () } split /\n/, substr(slurp_file($node->logfile), $offset);
}

sub audited_of
{
	my ($settings, $sql) = @_;
	$offset = -s $node->logfile;
	$node->safe_psql('postgres', "$settings; $sql");
	return audited();
}

$node->safe_psql('postgres', q{
	CREATE EXTENSION pgaudit;
	CREATE ROLE auditor;
	CREATE TABLE keys AS SELECT 'audited-' || i AS key FROM generate_series(1, 3) i;
	GRANT SELECT ON keys TO auditor;
	GRANT INSERT, UPDATE, DELETE ON idem.idem_actions, idem.idem_events, idem.idem_queue, idem.idem_repeats TO auditor;
	CREATE ROLE service LOGIN;
	SELECT idem.grant_access('service', 'worker');
});

is(audited_of('', q{SELECT idem.claim_action('nothing', 'act')}), '', 'pgaudit: where nothing is to be logged, nothing is');

# what an auditing role is to see
$node->safe_psql('postgres', 'ALTER DATABASE postgres SET pgaudit.role = auditor');
like(audited_of('', q{SELECT idem.claim_action('first', 'act')}), qr/\bOBJECT:INSERT:idem\.idem_actions\b/, 'pgaudit.role: a claim is an insert');
like(audited_of('', q{SELECT idem.complete_action(action_id, claim_id) FROM idem.idem_actions WHERE key = 'first'}), qr/OBJECT:UPDATE:idem\.idem_actions/, 'pgaudit.role: a completion is an update');
unlike(audited_of('', q{SELECT idem.claim_action('first', 'act')}), qr/idem_actions/, 'pgaudit.role: a repeat that writes nothing is not there');
is(audited_of('', q{SELECT (idem.enqueue_action('queued', 'act')).outcome}), 'OBJECT:INSERT:idem.idem_actions OBJECT:INSERT:idem.idem_queue', 'pgaudit.role: an enqueue');
my $batch = audited_of('', q{SELECT idem.claim_action(key, 'act', in_transaction => true) FROM keys});
is($batch, 'OBJECT:SELECT:public.keys OBJECT:INSERT:idem.idem_actions', 'pgaudit.role: once for a statement, and what the statement reads stays in the log');
my $rows = audited_of('SET pgaudit.log_rows = on', q{SELECT idem.claim_action(key || '-again', 'act', in_transaction => true) FROM keys});
is(join(' ', sort split / /, $rows), 'OBJECT:INSERT:idem.idem_actions OBJECT:SELECT:public.keys', 'pgaudit.log_rows: the same');
$node->safe_psql('postgres', q{SELECT idem.claim_action('swept', 'act', lease => '1 ms')});
like(audited_of('', 'CALL idem.run_maintenance()'), qr/OBJECT:UPDATE:idem\.idem_actions/, 'pgaudit.role: a pass by hand');
$node->safe_psql('postgres', q{SELECT count(*) FROM idem.claim_action('to the worker', 'act', lease => '1 ms')});

# whoever calls has no right on the tables
$offset = -s $node->logfile;
$node->safe_psql('postgres', q{SELECT idem.claim_action('by service', 'act')}, extra_params => [ '-U', 'service' ]);
is(audited(), 'OBJECT:INSERT:idem.idem_actions', 'pgaudit.role: a caller without rights on the tables');
like(audited_of(q{SET pgaudit.log = 'write, function'; SET pgaudit.log_relation = on; SET ROLE service}, q{SELECT idem.claim_action('session', 'act')}),
	qr/SESSION:EXECUTE:idem\.claim_action.*SESSION:INSERT:idem\.idem_actions/, 'pgaudit.log: the call, and the write');

# nothing about the action in what we add
unlike(substr(slurp_file($node->logfile), $offset), qr/INSERT INTO idem\.idem_actions[^"]*session/, 'the statement that stands for the write holds no key');

$offset = -s $node->logfile;
$node->append_conf('postgresql.conf', "pgaudit.role = 'auditor'\nidem_action.worker = on");
$node->reload;
ok($node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM idem.idem_actions WHERE key = 'to the worker' AND state = 'needs_attention'}), 'the worker judges');
like(audited(), qr/OBJECT:UPDATE:idem\.idem_actions/, 'pgaudit.role: a pass of the background worker');

$node->stop;
done_testing();
