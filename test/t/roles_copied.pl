# Copyright (c) 2026, idem_action contributors

# A role's number is somebody else's in another cluster, and its name may be given
# to another role later: neither makes anyone a worker, a resolver or an admin.
#
# A rule's roles and an admin are dropped, the ledger is dumped and restored
# where their numbers are other roles: those may not act, by the documented steps
# neither, and worker_status.problem names whom the rule means.  Where the ledger
# was made, the OID decides and the pass follows a rename; elsewhere the name,
# and the OID that it has there once the copy is accepted.  What was granted to a
# role that is there by name goes on.

use strict;
use warnings;

use IdemAction;
use PostgreSQL::Test::Utils;
use Test::More;

my $made = IdemAction->node('made', conf => 'fsync = off', extension => 0);
my $copy = IdemAction->node('copy', conf => 'fsync = off', extension => 0);
my $dir = $made->basedir;

# the first OIDs of both clusters are the same
sub roles
{
	my ($node, @names) = @_;
	$node->safe_psql('postgres', join ';', map { "CREATE ROLE $_" } @names);
	return $node->safe_psql('postgres', q{SELECT string_agg(oid::text, ' ' ORDER BY oid) FROM pg_roles WHERE oid >= 16384});
}
is(roles($made, qw(workers leads admin kept before)), roles($copy, qw(other1 other2 other3 other4 other5)), 'the numbers of the roles are others');
roles($copy, qw(kept after));

$made->safe_psql('postgres', 'CREATE EXTENSION idem_action');
$made->rule('charge', worker_role => 'workers', resolver_role => 'leads');
$made->rule('mail', worker_role => 'kept');
$made->rule('post', worker_role => 'before');
$made->safe_psql('postgres', q{SELECT idem.grant_access('admin', 'admin'), idem.grant_access('kept', 'worker'), idem.grant_access('before', 'worker')});
$made->call('enqueue_action', intent => 'charge', key => '1');

# 00000 where the role may claim, otherwise the error's code
sub claims
{
	my ($node, $database, $role, $intent, $key) = @_;
	return $node->sqlstate("SET ROLE $role; SELECT idem.claim_action('$key', '$intent')", $database) || '00000';
}
my $names = q{SELECT string_agg(concat_ws(' ', intent, worker_role, resolver_role), ', ' ORDER BY intent) FROM idem.rules};
my $stored = q{SELECT string_agg(concat_ws(' ', intent, worker_role, worker_role_oid = to_regrole(worker_role)), ', ' ORDER BY intent) FROM idem.idem_rules};
my $problem = 'SELECT problem FROM idem.worker_status';

# --- where it was made ------------------------------------------------------

$made->safe_psql('postgres', 'DROP OWNED BY admin; DROP ROLE workers, leads, admin; ALTER ROLE before RENAME TO after');
like($made->safe_psql('postgres', $problem), qr/the rule of 'charge' names workers and leads, which is no role here/, 'dropped: the problem names rule and roles');
like($made->safe_psql('postgres', $problem), qr/idem\.access names admin, which is no role here/, 'and the admin');
is($made->safe_psql('postgres', $names), 'charge workers leads, mail kept, post after', 'a superuser sees the rule, by the names of its roles');
is($made->safe_psql('postgres', 'SELECT count(*) FROM idem.actions'), 1, 'and its actions');
like($made->call('describe_rule', intent => 'post'), qr/Who may act: members of after\./, 'a rename is followed at once');
is(claims($made, 'postgres', 'after', 'post', '1'), '00000', 'by the rights too');

$made->safe_psql('postgres', q{CREATE ROLE workers; SELECT idem.grant_access('workers', 'worker')});
is(claims($made, 'postgres', 'workers', 'charge', '1'), 'IA008', 'a role made anew under the name is another role');
is($made->sqlstate(q{SELECT idem.claim_action('1', 'charge')}), 'IA008', 'a dropped one lets nobody in');
$made->safe_psql('postgres', q{SELECT idem.revoke_access('workers', 'worker'); DROP OWNED BY workers; DROP ROLE workers});

$made->command_ok([ 'pg_dump', '-Fc', '-f', "$dir/early", 'postgres' ], 'dumped before the pass');
is($made->safe_psql('postgres', $stored), 'charge workers, mail kept t, post before', 'the name is the old one');
$made->safe_psql('postgres', 'CALL idem.run_maintenance()');
is($made->safe_psql('postgres', $stored), 'charge workers, mail kept t, post after t', 'the pass stores the new one');
is($made->safe_psql('postgres', q{SELECT string_agg(role, ' ' ORDER BY role) FROM idem.access}), 'after kept', 'and forgets the levels of a dropped role');
is($made->safe_psql('postgres', q{SELECT detail ->> 'role' FROM idem.history WHERE event = 'access_revoked' AND detail ->> 'reason' = 'there is no such role'}), 'admin', 'the history has it');
like($made->safe_psql('postgres', $problem), qr/names workers and leads/, 'the rule is still said to name nobody');
$made->command_ok([ 'pg_dump', '-Fc', '-f', "$dir/late", 'postgres' ], 'dumped after it');
my $before = $made->safe_psql('postgres', 'SELECT xmin, ctid FROM idem.idem_rules UNION ALL SELECT xmin, ctid FROM idem.idem_access');
$made->safe_psql('postgres', 'CALL idem.run_maintenance()');
is($made->safe_psql('postgres', 'SELECT xmin, ctid FROM idem.idem_rules UNION ALL SELECT xmin, ctid FROM idem.idem_access'), $before, 'a pass with nothing to do writes nothing');

# whoever changes rules in an open transaction is not waited for
$made->safe_psql('postgres', 'ALTER ROLE kept RENAME TO held');
my $session = $made->session;
$session->query_safe(q{BEGIN; SELECT idem.define_rule('other', 'key', 'support')});
$made->safe_psql('postgres', q{SET lock_timeout = '10s'; CALL idem.run_maintenance()});
like($made->safe_psql('postgres', $stored), qr/mail kept/, 'a pass beside an open define_rule goes on');
$session->query_safe('COMMIT');
$session->quit;
$made->safe_psql('postgres', 'CALL idem.run_maintenance()');
like($made->safe_psql('postgres', $stored), qr/mail held t/, 'the next one follows the rename');

# the background worker does the same
$made->safe_psql('postgres', q{ALTER SYSTEM SET idem_action.worker = on});
$made->safe_psql('postgres', q{ALTER SYSTEM SET idem_action.naptime = '1s'});
$made->safe_psql('postgres', 'SELECT pg_reload_conf(); ALTER ROLE held RENAME TO renamed');
ok($made->poll_query_until('postgres', q{SELECT worker_role = 'renamed' FROM idem.idem_rules WHERE intent = 'mail'}), 'a pass in the background follows a rename');

# --- where the numbers are others' ------------------------------------------

sub restored
{
	my ($database, $name, $after) = @_;

	is(claims($copy, $database, 'kept', 'mail', '1'), '00000', "$name: a role that is there by name claims, by the level it had");
	$copy->safe_psql($database, "SELECT idem.grant_access('$_', 'worker')") foreach qw(other1 other4 after workers);
	is(claims($copy, $database, 'other1', 'charge', '1'), 'IA008', "$name: who has the number of a dropped role does not");
	is(claims($copy, $database, 'other4', 'mail', '2'), 'IA008', "$name: nor who has the number of another");
	is(claims($copy, $database, 'after', 'post', '2'), $after, "$name: a renamed role, as far as the dump knows its name");
	is($copy->sqlstate(q{SET ROLE other3; SELECT idem.define_rule('charge', 'key', 'me', worker_role => 'other3')}, $database), '42501', "$name: who has the number of an admin is none");
	is($copy->sqlstate(q{SET ROLE other2; SELECT idem.resolve_action(idem.action_id('1', 'charge'), 'cancel', 'x', 1)}, $database), '42501', "$name: nor is who has the number of a resolver");
	like($copy->safe_psql($database, $problem), qr/the rule of 'charge' names .*leads, which is no role here/, "$name: the problem names the role");
	return;
}

foreach my $how (qw(early late data_only))
{
	my $dump = $how eq 'early' ? 'early' : 'late';

	$copy->safe_psql('postgres', "CREATE DATABASE $how TEMPLATE template0");
	$copy->safe_psql('postgres', 'CREATE ROLE workers') if $how ne 'early';
	$copy->safe_psql($how, 'CREATE EXTENSION idem_action') if $how eq 'data_only';
	$copy->command_ok([ 'pg_restore', '--exit-on-error', ($how eq 'data_only' ? '--data-only' : ()), '-d', $how, "$dir/$dump" ], "$how: restored");
	$copy->safe_psql('postgres', 'CREATE ROLE workers') if $how eq 'early';
	# by the documented steps
	$copy->safe_psql($how, 'SELECT idem.grant_access(role_id, level) FROM idem.access WHERE role_id IS NOT NULL') if $how eq 'data_only';
	restored($how, $how, $how eq 'early' ? 'IA008' : '00000');
	# only the dump of before the pass does not know that the role was dropped
	is(claims($copy, $how, 'workers', 'charge', '1'), $how eq 'early' ? '00000' : 'IA008', "$how: a role with the name of the dropped one");
	$copy->safe_psql($how, 'SELECT idem.accept_copy()');
	like($copy->safe_psql($how, $problem), qr/names .*leads, which is no role here/, "$how: accepted: the problem is still said");
	unlike($copy->safe_psql($how, $problem), qr/idem\.access/, "$how: accepted: levels of roles that are not there are gone");
	is(claims($copy, $how, 'other1', 'charge', '1'), 'IA008', "$how: accepted: the number is still no right");
	is($copy->safe_psql($how, q{SELECT count(*) FROM idem.idem_rules WHERE worker_role_oid NOT IN (SELECT oid FROM pg_roles UNION ALL SELECT 0)}), 0, "$how: accepted: the numbers are those of here");
	$copy->safe_psql('postgres', 'ALTER ROLE kept RENAME TO called');
	is(claims($copy, $how, 'called', 'mail', '3'), '00000', "$how: accepted: a rename is followed");
	$copy->safe_psql('postgres', 'ALTER ROLE called RENAME TO kept');
	$copy->safe_psql($how, q{SELECT idem.define_rule('charge', 'key', 'support', worker_role => 'other1')});
	is(claims($copy, $how, 'other1', 'charge', '1'), '00000', "$how: define_rule mends it");
	unlike($copy->safe_psql($how, $problem), qr/'charge'/, "$how: and the problem is gone");
	$copy->safe_psql($how, 'DROP OWNED BY workers');
	$copy->safe_psql('postgres', "DROP DATABASE $how; DROP ROLE workers");
}

$made->stop;
$copy->stop;
done_testing();
