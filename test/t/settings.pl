# Copyright (c) 2026, idem_action contributors

# A setting with a wrong name is never taken in silence, and nobody changes a
# setting before the library is loaded that they may not change afterwards.

use strict;
use warnings;

use IdemAction;
use PostgreSQL::Test::Utils;
use Test::More;

# --- preloaded --------------------------------------------------------------

my $node = IdemAction->node('main', conf => q{
	fsync = off
	idem_action.naptme = '1s'
});
like(slurp_file($node->logfile), qr/WARNING:  invalid configuration parameter name "idem_action\.naptme"/, 'preloaded: a wrong name in the file is said at the start');
is($node->sqlstate('SET idem_action.naptme = 1'), '42602', 'preloaded: and refused by SET');
is($node->sqlstate('ALTER SYSTEM SET idem_action.naptme = 1'), '42704', 'preloaded: by ALTER SYSTEM');
is($node->sqlstate('ALTER DATABASE postgres SET idem_action.start_pause = on'), '42602', 'preloaded: by ALTER DATABASE');

# --- loaded by the first call -----------------------------------------------

$node->safe_psql('postgres', q{
	CREATE ROLE service LOGIN;
	SELECT idem.grant_access('service', 'worker');
	SELECT idem.define_rule('act', 'the key', 'the test');
});
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->restart;

# what a role of level worker is told that sets before its first call
sub first_call
{
	my ($set, $intent) = @_;
	my ($rc, $stdout, $stderr) = $node->psql('postgres', "$set; SELECT outcome FROM idem.claim_action('k-' || gen_random_uuid(), '$intent')",
		extra_params => [ '-U', 'service' ]);
	return ($stdout, $stderr);
}

my ($stdout, $stderr) = first_call('SELECT', 'act');
like($stderr, qr/WARNING:  invalid configuration parameter name "idem_action\.naptme", removing it/, 'loaded later: a wrong name in the file is said by the first call');
like($stdout, qr/claimed/, 'loaded later: which is served');
$node->adjust_conf('postgresql.conf', 'idem_action.naptme', undef);
$node->restart;

($stdout, $stderr) = first_call('SET idem_action.require_rul = off', 'act');
like($stderr, qr/WARNING:  invalid configuration parameter name "idem_action\.require_rul"/, 'loaded later: a wrong name in SET is said');
like($stdout, qr/claimed/, 'loaded later: and nothing else');

($stdout, $stderr) = first_call('SET idem_action.require_rule = off', 'no rule');
like($stderr, qr/WARNING:  permission denied to set parameter "idem_action\.require_rule".*ERROR:  IA005|WARNING:  permission denied.*intent "no rule" has no rule/s,
	'loaded later: a superuser\'s setting cannot be changed beforehand');
unlike($stdout, qr/claimed/, 'loaded later: nothing is claimed without a rule');

$node->append_conf('postgresql.conf', 'idem_action.start_paused = on');
$node->restart;
($stdout, $stderr) = first_call('SET idem_action.start_paused = off', 'act');
like($stderr, qr/WARNING:  parameter "idem_action\.start_paused" cannot be changed now/, 'loaded later: nor one of the server');
like($stdout, qr/paused/, 'loaded later: start_paused holds');

$node->stop;
done_testing();
