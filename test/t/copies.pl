# Copyright (c) 2026, idem_action contributors

# A copy of a ledger must not send real mail: its takes answer nothing until a
# person says by accept_copy() that it is the real one.  Claims go on.
#
# A copy is: a dump restored into another cluster, into another database of the
# same one, over the database that it was made of, or as data only into a ledger
# that was there; and what CREATE DATABASE TEMPLATE makes.  Renaming a database
# makes none.  A server started with idem_action.start_paused hands out nothing
# at all, claims included, whatever is resumed or accepted.

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
is($made->safe_psql('postgres', q{SELECT count(*) FROM idem.worker_status WHERE problem LIKE '%copied or restored%'}),
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
my $problem = 'SELECT problem FROM idem.worker_status';

# --- the same cluster -------------------------------------------------------

# The rows of an accepted place are added to, none of them changes or goes.
my $accepted = q{SELECT string_agg(kind || name || coalesce(value, ''), ' ' ORDER BY kind, name) FROM idem.idem_state WHERE kind IN ('ledger', 'accepted')};
my $known = $made->safe_psql('postgres', $accepted);

sub is_held_until_accepted
{
	my ($database, $name) = @_;
	my $before = $made->safe_psql($database, $accepted);

	is($made->safe_psql($database, $taken), 0, "$name: takes answer nothing");
	like($made->safe_psql($database, $problem), qr/copied or restored.*accept_copy\(\)/, "$name: worker_status names the call");
	$made->safe_psql($database, q{SELECT idem.resume_intent(NULL), idem.resume_intent('send-mail'), idem.acknowledge_timeline()});
	is($made->safe_psql($database, $taken), 0, "$name: no other call lifts it");
	$made->safe_psql($database, q{SELECT idem.accept_copy('Ann'), idem.accept_copy('Bob')});
	is($made->safe_psql($database, $taken), 2, "$name: accept_copy() lifts it");
	unlike($made->safe_psql($database, $problem), qr/copied|timeline/, "$name: nothing more to say");
	is( $made->safe_psql($database,
			q{SELECT actor, count(*) OVER () FROM idem.history WHERE event = 'copy_accepted' ORDER BY at DESC LIMIT 1}),
		'Ann|1', "$name: the history has who, once");
	my $after = $made->safe_psql($database, $accepted);
	is(scalar(grep { index($after, $_) < 0 } split / /, $before), 0, "$name: what was there is still there");
	return;
}

is_held_until_accepted('beside', 'restored beside it');

$made->safe_psql('postgres', 'CREATE DATABASE staging TEMPLATE beside');
$made->safe_psql('staging', q{DELETE FROM idem.idem_events WHERE event = 'copy_accepted'});
$made->safe_psql('staging', q{SELECT idem.enqueue_actions('send-mail', '{s-1,s-2,s-3}')});
is_held_until_accepted('staging', 'CREATE DATABASE TEMPLATE');
$made->safe_psql('postgres', 'ALTER DATABASE staging RENAME TO moved');
is($made->safe_psql('moved', $taken), 2, 'renamed: the same ledger');

# the names of its rows must not meet those that are there
$made->safe_psql('postgres', 'CREATE DATABASE filled TEMPLATE template0');
$made->safe_psql('filled', 'CREATE EXTENSION idem_action');
$made->safe_psql('filled', q{SELECT idem.accept_copy()});
is($made->safe_psql('filled', q{SELECT count(*) FROM idem.history}), 0, 'a new ledger is accepted: accept_copy() changes nothing');
$made->command_ok([ 'pg_restore', '--exit-on-error', '--data-only', '-d', 'filled', $dump ], 'restored as data only');
is_held_until_accepted('filled', 'data only into a ledger that was there');

# yesterday's actions again: some of them were handed out since
$made->command_ok([ 'pg_dump', '-Fc', '-f', "$dump.moved", 'moved' ], 'dumped once more');
$made->command_ok([ 'pg_restore', '--exit-on-error', '--clean', '-d', 'moved', "$dump.moved" ], 'restored over itself');
$made->safe_psql('moved', q{DELETE FROM idem.idem_events WHERE event = 'copy_accepted'; SELECT idem.enqueue_actions('send-mail', '{m-1,m-2}')});
is_held_until_accepted('moved', 'over the database it was made of');

is($made->safe_psql('postgres', $accepted), $known, 'the original is as it was');
is($made->safe_psql('postgres', $taken), 2, 'and its takes go on');
$made->safe_psql('postgres', 'SELECT idem.accept_copy(), idem.acknowledge_timeline()');
is($made->safe_psql('postgres', $accepted), $known, 'accepted already: nothing changes');
is($made->safe_psql('postgres', q{SELECT count(*) FROM idem.history WHERE event IN ('copy_accepted', 'timeline_acknowledged')}), 0, 'nor does the history');
is($made->sqlstate('BEGIN READ ONLY; SELECT idem.accept_copy()'), '25006', 'accept_copy() writes');

# --- another ----------------------------------------------------------------

my $offset = -s $copy->logfile;
is($copy->safe_psql('postgres', "$taken; $taken"), "0\n0", 'copy: takes answer nothing');
is($copy->safe_psql('postgres', q{SELECT count(*) FROM idem.take_to_verify('{send-mail}', max => 2)}),
	0, 'copy: nor those that search');
is(scalar($copy->call('take_actions', intents => ['send-mail'], wait => '200 ms')), undef, 'copy: nor after a wait');
my $said = () = substr(slurp_file($copy->logfile), $offset) =~ /LOG:  this ledger was copied or restored/g;
cmp_ok($said, '>=', 1, 'copy: said in the log');
cmp_ok($said, '<=', 3, 'copy: once by each session');
like($copy->safe_psql('postgres', $problem), qr/copied or restored.*accept_copy\(\)/, 'copy: said by worker_status');

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
$copy->safe_psql('postgres', q{SELECT idem.pause_intent(NULL, 'not yet')});
$copy->safe_psql('postgres', 'SELECT idem.accept_copy()');
is($session->query_safe($taken), 0, 'accepted: a pause of all intents stands');
$copy->safe_psql('postgres', 'SELECT idem.resume_intent(NULL)');
is($session->query_safe($taken), 2, 'accepted and resumed: in running sessions too');
is($copy->safe_psql('postgres', $taken), 2, 'and in new ones');
$session->quit;
is($copy->safe_psql('postgres', q{SELECT count(*) FROM idem.worker_status WHERE problem LIKE '%copied or restored%'}),
	0, 'worker_status has nothing more to say');
is($copy->safe_psql('postgres', q{SELECT count(*) FROM idem.history WHERE event IN ('resumed', 'copy_accepted')}), 2, 'the history does');

# a crash after the answer finds it accepted, whatever the caller's synchronous_commit
$copy->safe_psql('postgres', q{DELETE FROM idem.idem_state WHERE kind = 'accepted'});
$copy->safe_psql('postgres', 'SET synchronous_commit = off; SELECT idem.accept_copy()');
$copy->crash;
unlike($copy->safe_psql('postgres', $problem), qr/copied or restored/, 'accept_copy() survives a crash');

# --- a server that may be a physical copy -----------------------------------

$copy->safe_psql('postgres', q{SELECT idem.enqueue_action('held back', 'send-mail')});
$copy->stop;
$copy->append_conf('postgresql.conf', 'idem_action.start_paused = on');
$copy->start;
is($copy->safe_psql('postgres', $taken), 0, 'start_paused: takes answer nothing');
is($copy->safe_psql('postgres', q{SELECT count(*) FROM idem.take_to_verify('{send-mail}')}), 0, 'start_paused: nor those that search');
is($copy->claim(key => 'held back', intent => 'send-mail')->{outcome}, 'paused', 'start_paused: a claim of what waits is paused');
is($copy->claim(key => 'newer', intent => 'send-mail')->{outcome}, 'paused', 'start_paused: and of a new key');
is($copy->claim(key => 'done', intent => 'send-mail')->{outcome}, 'completed', 'start_paused: repeats are answered');
like($copy->safe_psql('postgres', $problem), qr/idem_action\.start_paused is on/, 'start_paused: worker_status says so');
like($copy->safe_psql('postgres', q{SELECT string_agg(e, ' ') FROM idem.find_action('held back', 'send-mail') f, idem.explain_action(f.action_id) e}),
	qr/nothing is handed out while idem_action\.start_paused is on/, 'start_paused: explain_action too');
$copy->safe_psql('postgres', q{SELECT idem.resume_intent(NULL), idem.resume_intent('send-mail'), idem.accept_copy()});
is($copy->safe_psql('postgres', $taken), 0, 'start_paused: no call lifts it');
is($copy->sqlstate('SET idem_action.start_paused = off'), '55P02', 'start_paused: nor can a session');
$copy->append_conf('postgresql.conf', 'idem_action.start_paused = off');
$copy->reload;
ok($copy->poll_query_until('postgres', q{SELECT problem !~ 'start_paused' FROM idem.worker_status}), 'start_paused: off, and read again');
is($copy->claim(key => 'held back', intent => 'send-mail')->{outcome}, 'claimed', 'start_paused: then the hand-outs go on');

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
$copy->safe_psql('postgres', q{UPDATE idem.idem_state SET value = '77' WHERE kind = 'accepted'});
like($copy->safe_psql('postgres', $problem), qr/the timeline has changed/, 'another timeline is said');
$copy->safe_psql('postgres', "SELECT idem.after_restore('$since', 'recovered')");
unlike($copy->safe_psql('postgres', $problem), qr/timeline/, 'until after_restore');

# its holder was told, before the restore, to act: a late success counts
my $report = $copy->call('complete_action', action_id => $held->{action_id}, claim_id => $held->{claim_id}, external_ref => 'msg-2');
is($report->{accepted} ? $report->{state} : $report->{note}, 'completed', 'the success of one that was held counts');

$made->stop;
$copy->stop;
done_testing();
