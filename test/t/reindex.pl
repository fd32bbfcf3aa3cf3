# Copyright (c) 2026, idem_action contributors

# While REINDEX CONCURRENTLY builds another index beside the primary key's, and
# where a DBA has added a unique index on the action_id, claims go on.
#
# Protects: a row that a probe has missed is found by the arbiter, whichever unique
# index it is; the claim starts over and never raises 23505.  The missed row is
# made by gdb, as it cannot be waited for; without gdb the claims alone are tried.

use strict;
use warnings;

use IdemAction;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemAction->node('main', conf => "idem_action.worker = off\nfsync = off");
$node->rule('act');
$node->claim(key => 'known', intent => 'act');

$node->safe_psql('postgres', 'CREATE UNIQUE INDEX mine ON idem.idem_actions (action_id)');

# REINDEX waits for this snapshot with its new index ready for inserts
my $old = $node->session;
$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM idem.idem_actions');
my $reindex = $node->session;
$node->send($reindex, 'REINDEX INDEX CONCURRENTLY idem.idem_actions_pkey');
$node->poll_query_until('postgres', q{SELECT indisready FROM pg_index WHERE indexrelid = to_regclass('idem.idem_actions_pkey_ccnew')})
  or die 'no second index';

is($node->claim(key => 'new', intent => 'act')->{outcome}, 'claimed', 'a new key is claimed beside the new index');
is($node->claim(key => 'new', intent => 'act')->{outcome}, 'in_progress', 'and known');
is($node->safe_psql('postgres', q{SELECT string_agg(outcome, ',') FROM idem.claim_actions('act', '{known,b1,b2,b1}')}),
	'in_progress,claimed,claimed,in_progress', 'a batch too');

SKIP:
{
	my $session = $node->session;
	my $printed = '';
	my $gdb = eval {
		IPC::Run::start(
			[
				'gdb', '-nx', '-batch', '-p', $session->{backend},
				map { ('-ex', $_) } 'handle SIGUSR1 nostop noprint pass', 'set confirm off', 'break idem_ledger_probe',
				'shell echo attached', 'continue', 'return (int) 0', 'continue', 'return (int) 0', 'delete', 'shell echo missed', 'detach'
			],
			'<', \undef, '>&', \$printed, IPC::Run::timeout(60));
	} or skip 'no gdb', 3;

	$gdb->pump until $printed =~ /attached|ptrace|not permitted/ || !$gdb->pumpable;
	if ($printed !~ /attached/ || $printed =~ /ptrace|not permitted/)
	{
		$gdb->kill_kill;
		skip 'gdb may not stop a backend', 3;
	}
	$node->send($session, q{SELECT outcome FROM idem.claim_action('known', 'act')});
	$gdb->finish;
	like($printed, qr/missed/, 'the probes of a claim miss the row') or diag($printed);
	like($session->query(''), qr/in_progress/, 'the claim starts over and finds it');
	is($node->safe_psql('postgres', q{SELECT count(*) FROM idem.idem_actions WHERE key = 'known'}), 1, 'and leaves no second row');
	$session->quit;
}

$old->query_safe('COMMIT');
is($reindex->query('SELECT 1'), '1', 'the index is built');
$_->quit foreach $old, $reindex;
$node->safe_psql('postgres', 'CREATE EXTENSION amcheck');
is($node->safe_psql('postgres', q{SELECT bt_index_check('idem.idem_actions_pkey', true), bt_index_check('idem.mine', true)}), '|', 'and whole');

$node->stop;
done_testing();
