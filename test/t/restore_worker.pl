# Copyright (c) 2026, idem_action contributors

# A dump is restored while the background worker runs: it comes between the
# table of the actions and those of history and rules.
#
# Protects: a ledger that is made while the server runs is left alone until it is
# used: nothing is judged without its rules, no line of history is in the way of
# those that are restored.

use strict;
use warnings;

use IdemAction;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemAction->node('main', conf => "fsync = off\nidem_action.naptime = '1s'");
my $dir = $node->basedir;

$node->rule('repeat', on_uncertain => 'repeat', retry_delay => '0');
$node->claim(key => 'lapsed', intent => 'repeat', lease => '1 second');
my $claim = $node->claim(key => 'failed', intent => 'repeat');
$node->call('fail_action', action_id => $claim->{action_id}, claim_id => $claim->{claim_id}, error => 'e', effect => 'none');
$node->command_ok([ 'pg_dump', '--format=custom', "--file=$dir/dump", 'postgres' ], 'dumped');

my ($list) = run_command([ 'pg_restore', '--list', "$dir/dump" ]);
my ($first, $rest) = $list =~ /(.*TABLE DATA idem idem_actions [^\n]*\n)(.*)/s or die 'no such line in the list';
append_to_file("$dir/first", $first);
append_to_file("$dir/rest", $rest);

$node->pass_time(1);
$node->append_conf('postgresql.conf', 'idem_action.worker = on');
$node->reload;
$node->safe_psql('postgres', 'CREATE DATABASE restored TEMPLATE template0');
$node->command_ok([ 'pg_restore', '--exit-on-error', '-d', 'restored', '-L', "$dir/first", "$dir/dump" ], 'actions restored');
ok($node->poll_query_until('restored', q{SELECT problem LIKE '%nobody has used the ledger%' FROM idem.worker_status}), 'the worker has come, and says what it waits for');
is($node->safe_psql('restored', q{SELECT state FROM idem.idem_actions WHERE key = 'lapsed'}), 'in_progress', 'it judged nothing without the rules');
$node->command_ok([ 'pg_restore', '--exit-on-error', '-d', 'restored', '-L', "$dir/rest", "$dir/dump" ], 'the rest restored');
is($node->safe_psql('restored', q{SELECT outcome FROM idem.claim_action('failed', 'repeat')}), 'claimed', 'the ledger is used');
ok($node->poll_query_until('restored', q{SELECT state = 'pending' FROM idem.idem_actions WHERE key = 'lapsed'}), 'it judges by the rule afterwards');

$node->stop;
done_testing();
