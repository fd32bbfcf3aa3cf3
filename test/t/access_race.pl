# Copyright (c) 2026, idem_action contributors

# 45 sessions give levels to 45 different roles at once, and take them back:
# all of them succeed, and each role has just what it was given.
#
# GRANT changes the same rows of the catalog whatever the role: two at once
# failed with XX000 "tuple concurrently updated".

use strict;
use warnings;

use IdemAction;
use Test::More;

my $sessions = 45;
my $node = IdemAction->node('main', conf => 'max_connections = 60');

$node->safe_psql('postgres', join "\n", map { "CREATE ROLE r$_;" } 0 .. $sessions - 1);

# pgbench, one role a session
sub race
{
	my ($name, $transactions, $script) = @_;

	$node->pgbench(
		"--no-vacuum --client=$sessions --jobs=2 --transactions=$transactions",
		0,
		[qr{processed: ${\($sessions * $transactions)}/}],
		[qr/^(?!.*ERROR)/s],
		"$name: no session fails",
		{ "race_$name" => $script });
	return;
}

sub holders
{
	return $node->safe_psql('postgres',
		"SELECT count(*) FILTER (WHERE has_function_privilege(rolname, '$_[0]', 'EXECUTE')), count(*) FROM pg_roles WHERE rolname ~ '^r[0-9]+\$'");
}

race('grant', 1, q{SELECT idem.grant_access(('r' || :client_id)::regrole, 'worker')});
is($node->safe_psql('postgres', 'SELECT count(*) FROM idem.access'), $sessions, 'all of them are remembered');
is(holders('idem.once(text, text, jsonb, text)'), "$sessions|$sessions", 'and may claim');

race('change', 1, q{
	SELECT idem.grant_access(('r' || :client_id)::regrole, 'operator');
	SELECT idem.revoke_access(('r' || :client_id)::regrole, 'worker');
	});
is(holders('idem.show_action(uuid)'), "$sessions|$sessions", 'of grants and revokes the last one holds');

race('revoke', 1, q{SELECT idem.revoke_access(('r' || :client_id)::regrole, 'operator')});
is($node->safe_psql('postgres', 'SELECT count(*) FROM idem.access'), 0, 'none is left');
is(holders('idem.once(text, text, jsonb, text)'), "0|$sessions", 'and nobody may claim');

done_testing();
