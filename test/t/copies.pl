# Copyright (c) 2026, idem_action contributors

# A ledger that was restored into another cluster must not send real mail: its
# takes answer nothing until a person says that it is the real one.  Claims go
# on.  A restore into the same cluster is none of that.
#
# Rows: CASES 23.

use strict;
use warnings;

use IdemAction;
use PostgreSQL::Test::Utils;
use Test::More;

my $made = IdemAction->node('made', conf => 'fsync = off');
my $copy = IdemAction->node('copy', conf => 'fsync = off', extension => 0);
my $dump = $made->basedir . '/ledger.dump';

isnt(
	$made->safe_psql('postgres', 'SELECT system_identifier FROM pg_control_system()'),
	$copy->safe_psql('postgres', 'SELECT system_identifier FROM pg_control_system()'),
	'two clusters');

$made->rule('send-mail');
$made->call('enqueue_actions', intent => 'send-mail', keys => [ map { "mail-$_" } 1 .. 4 ]);
my $held = $made->claim(key => 'held', intent => 'send-mail');
my $done = $made->claim(key => 'done', intent => 'send-mail');
$made->call('complete_action', action_id => $done->{action_id}, claim_id => $done->{claim_id}, external_ref => 'msg-1');
is($made->safe_psql('postgres', q{SELECT count(*) FROM idem.worker_status WHERE problem LIKE '%another cluster%'}),
	0, 'where it was made nothing is said');

sub restore
{
	my ($node, $database) = @_;
	$node->safe_psql('postgres', "CREATE DATABASE $database TEMPLATE template0") if $database ne 'postgres';
	$node->command_ok([ 'pg_restore', '--exit-on-error', '-d', $database, $dump ], "restored as $database");
	return;
}

$made->command_ok([ 'pg_dump', '-Fc', '-f', $dump, 'postgres' ], 'dumped');
restore($made, 'beside');
restore($copy, 'postgres');

my $taken = q{SELECT count(*) FROM idem.take_actions('{send-mail}', max => 2)};

# --- the same cluster -------------------------------------------------------

is($made->safe_psql('beside', $taken), 2, 'same cluster: takes go on');
is($made->safe_psql('beside', q{SELECT count(*) FROM idem.worker_status WHERE problem LIKE '%another cluster%'}),
	0, 'same cluster: nothing is said');

# --- another ----------------------------------------------------------------

my $offset = -s $copy->logfile;
is($copy->safe_psql('postgres', "$taken; $taken"), "0\n0", 'copy: takes answer nothing');
is($copy->safe_psql('postgres', q{SELECT count(*) FROM idem.take_to_verify('{send-mail}', max => 2)}),
	0, 'copy: nor those that search');
is(scalar($copy->call('take_actions', intents => ['send-mail'], wait => '200 ms')), undef, 'copy: nor after a wait');
my $said = () = substr(slurp_file($copy->logfile), $offset) =~ /LOG:  this ledger was made in another cluster/g;
cmp_ok($said, '>=', 1, 'copy: said in the log');
cmp_ok($said, '<=', 3, 'copy: once by each session');
like($copy->safe_psql('postgres', 'SELECT problem FROM idem.worker_status'),
	qr/another cluster.*resume_intent\(NULL\)/, 'copy: said by worker_status');

is($copy->claim(key => 'done', intent => 'send-mail')->{outcome}, 'completed', 'copy: what is done is a repeat');
is($copy->claim(key => 'held', intent => 'send-mail')->{outcome}, 'in_progress', 'copy: what is held is held');
is($copy->claim(key => 'new', intent => 'send-mail')->{outcome}, 'claimed', 'copy: a new key is claimed');
is($copy->claim(key => 'mail-1', intent => 'send-mail')->{outcome}, 'claimed', 'copy: and one that waits');
is(scalar($copy->call('enqueue_action', key => 'mail-5', intent => 'send-mail'))->{outcome}, 'pending', 'copy: enqueue goes on');

$copy->safe_psql('postgres', q{SELECT idem.resume_intent('send-mail')});
is($copy->safe_psql('postgres', $taken), 0, 'resuming one intent does not lift it');
$copy->restart;
is($copy->safe_psql('postgres', $taken), 0, 'nor does a restart');

my $session = $copy->session;
is($session->query_safe($taken), 0, 'a session that knows');
$copy->safe_psql('postgres', 'SELECT idem.resume_intent(NULL)');
is($session->query_safe($taken), 2, 'resume_intent(NULL) lifts it, in running sessions too');
is($copy->safe_psql('postgres', $taken), 2, 'and in new ones');
$session->quit;
is($copy->safe_psql('postgres', q{SELECT count(*) FROM idem.worker_status WHERE problem LIKE '%another cluster%'}),
	0, 'worker_status has nothing more to say');
is($copy->safe_psql('postgres', q{SELECT count(*) FROM idem.history WHERE event = 'resumed'}), 1, 'the history does');

# --- a session that is cancelled while it reads what holds ------------------

$session = $copy->session;
$session->query_safe(q{SELECT (idem.claim_action('held', 'send-mail')).outcome});
$copy->safe_psql('postgres', q{SELECT idem.pause_intent('send-mail', 'wait')});
# the cancel is there when the call begins, and takes effect in its first scan: of idem_state
$session->query(q{SELECT (idem.claim_action(CASE WHEN pg_cancel_backend(pg_backend_pid()) THEN 'cut' END, 'send-mail')).outcome});
is($session->query(q{SELECT outcome FROM idem.claim_action('cut', 'send-mail')}), 'paused', 'a cancel in the middle hides no pause');
$session->quit;
$copy->safe_psql('postgres', q{SELECT idem.resume_intent('send-mail')});

# --- back to an older moment ------------------------------------------------

my ($since) = $copy->safe_psql('postgres', 'SELECT now()');
my $open = $copy->safe_psql('postgres',
	q{SELECT count(*) FROM idem.actions WHERE state IN ('pending', 'in_progress')});
cmp_ok($open, '>', 3, 'some actions are open');
is($copy->sqlstate("SELECT idem.after_restore(NULL, 'lost')"), '22023', 'after_restore without a moment');
is($copy->sqlstate('SELECT idem.after_restore(now(), NULL)'), '22023', 'after_restore without a note');
is($copy->safe_psql('postgres', "SELECT idem.after_restore('$since', 'standby was behind')"), $open, 'after_restore: all that were open');
is($copy->safe_psql('postgres', "SELECT count(*) FROM idem.attention WHERE reason = 'ledger_restored'"), $open, 'they wait for a person');
is($copy->safe_psql('postgres', "SELECT count(*) FROM idem.actions WHERE state IN ('pending', 'in_progress')"), 0, 'none is open');
is($copy->safe_psql('postgres', "SELECT count(*) FROM idem.history WHERE event = 'restored' AND detail->>'reason' = 'standby was behind' AND detail ? 'since'"),
	$open, 'the history tells when and why');
is($copy->safe_psql('postgres', $taken), 0, 'nothing is handed out');
is($copy->claim(key => 'mail-2', intent => 'send-mail')->{outcome}, 'needs_attention', 'not to claims either');
is($copy->claim(key => 'done', intent => 'send-mail')->{external_ref}, 'msg-1', 'what was done stays done');
is($copy->safe_psql('postgres', "SELECT idem.after_restore('$since', 'again')"), 0, 'again: nothing more to do');

# a moment of another timeline, in the copy alone
$copy->safe_psql('postgres', q{UPDATE idem.idem_state SET value = '77' WHERE kind = 'timeline'});
like($copy->safe_psql('postgres', 'SELECT problem FROM idem.worker_status'), qr/the timeline has changed/, 'another timeline is said');
$copy->safe_psql('postgres', "SELECT idem.after_restore('$since', 'recovered')");
unlike($copy->safe_psql('postgres', 'SELECT problem FROM idem.worker_status'), qr/timeline/, 'until after_restore');

# its holder was told, before the restore, to act: a late success counts
my $report = $copy->call('complete_action', action_id => $held->{action_id}, claim_id => $held->{claim_id}, external_ref => 'msg-2');
is($report->{accepted} ? $report->{state} : $report->{note}, 'completed', 'the success of one that was held counts');

$made->stop;
$copy->stop;
done_testing();
