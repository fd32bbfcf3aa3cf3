# Copyright (c) 2026, idem_action contributors

# One wrong reading of the clock forgets nothing and doubles nothing.
#
# The clock of the server is shifted in all of its processes (clock_shim.c):
# 402 days ahead for some seconds and back, while the worker runs; 8 hours back;
# 36 seconds back while callers wait; ahead at the start of the server, with and
# without preload, and at a promotion.  Finished keys stay known, purged contents stay, what is in
# doubt is not handed out, a lease taken before the jump stays its holder's,
# passes go on, and the log and worker_status say what happened.

use strict;
use warnings;

use FindBin;
use IdemAction;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use constant { DAY => 86400, KEYS => 300 };

my $shim = "$PostgreSQL::Test::Utils::tmp_check/clock_shim.so";
my $shift = "$PostgreSQL::Test::Utils::tmp_check/clock_shift";
my $compiler = $ENV{CC} // 'cc';

system_or_bail("$compiler -shared -fPIC -O2 -o '$shim' '$FindBin::RealBin/../lib/clock_shim.c'");

sub set_clock
{
	my ($seconds) = @_;
	PostgreSQL::Test::Utils::append_to_file("$shift.new", "$seconds\n");
	rename "$shift.new", $shift or die "rename: $!";
	return;
}

set_clock(0);
my $node;

sub with_shim
{
	my ($do) = @_;
	local $ENV{LD_PRELOAD} = $shim;
	local $ENV{IDEM_CLOCK_SHIFT} = $shift;
	return $do->();
}

sub restart
{
	$node->stop('fast') if $node->safe_psql('postgres', 'SELECT 1');
	with_shim(sub { $node->start });
	return;
}

$node = with_shim(sub {
	IdemAction->node('main', conf => "fsync = off\nidem_action.worker = on\nidem_action.naptime = 1\nlog_min_messages = log");
});

sub sql { return $node->safe_psql('postgres', $_[0]); }
sub problem { return sql('SELECT problem FROM idem.worker_status'); }
sub known { return sql(q{SELECT count(*) FROM idem.idem_actions WHERE key LIKE 'k%' AND state = 'completed' AND NOT purged}); }

# a pass that begins from now on
sub whole_pass
{
	my $before = sql('SELECT clock_timestamp()');
	return $node->poll_query_until('postgres', "SELECT last_pass > '$before' FROM idem.worker_status");
}

sub count_log
{
	my ($pattern, $offset) = @_;
	return scalar(() = substr(slurp_file($node->logfile), $offset) =~ /$pattern/g);
}

sub state_of
{
	my ($key) = @_;
	return sql("SELECT concat_ws(' ', state, reason) FROM idem.idem_actions WHERE key = '$key'");
}

$node->rule('mail', keep_content => '90 days', keep_key => '400 days');
$node->rule('again', on_uncertain => 'repeat', lease => '1 s');
$node->rule('retry', on_uncertain => 'retry', provider_window => '1 day', retry_delay => '0', lease => '1 minute');
$node->rule('later');
$node->rule('search', on_uncertain => 'verify', settle => '0', retry_delay => '0');

sql(sprintf q{
	WITH c AS (SELECT * FROM idem.claim_actions('mail', ARRAY(SELECT 'k' || i FROM generate_series(1, %d) i), params => ARRAY(SELECT '{"to": "a"}'::jsonb FROM generate_series(1, %d))))
	SELECT count(*) FROM c, idem.complete_action(c.action_id, c.claim_id)}, KEYS, KEYS);
is(known(), KEYS, 'finished keys');

# in doubt, and due
foreach my $intent (qw(retry search))
{
	my $claim = $node->claim(key => $intent, intent => $intent);
	$node->call('fail_action', action_id => $claim->{action_id}, claim_id => $claim->{claim_id}, error => 'timeout', retry_after => '0');
}
my $long = $node->claim(key => 'long', intent => 'again', lease => '1 hour');
ok($node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM idem.idem_state WHERE kind = 'clock'}), 'a pass records the time');
ok(whole_pass(), 'and passes go on');
is(problem(), '', 'with no problem');

# --- ahead, and back --------------------------------------------------------

my $offset = -s $node->logfile;
set_clock(402 * DAY);
$node->wait_for_log(qr/LOG: .*the clock can not be believed/, $offset);
ok(whole_pass(), 'passes go on');
like(problem(), qr/the clock can not be believed.*confirm_time/, 'worker_status says that the clock is not believed');
is(known(), KEYS, 'nothing was forgotten, nothing purged');

is($node->claim(key => 'k1', intent => 'mail')->{outcome}, 'completed', 'a row past forget_after answers a claim as known');
is($node->call('find_action', key => 'k1', intent => 'mail')->{outcome}, 'completed', 'find_action');
is($node->call('enqueue_action', key => 'k1', intent => 'mail')->{outcome}, 'completed', 'enqueue_action');
is(sql(q{SELECT idem.once('k1', 'mail')}), 'f', 'once');
is(sql(q{SELECT idem.import_actions('mail', '{k1}')}), '0', 'import_actions');

my $versions = q{SELECT string_agg(xmin::text || ctid::text, ' ' ORDER BY key) FROM idem.idem_actions WHERE key IN ('retry', 'search', 'long')};
my $before = sql($versions);
foreach my $intent (qw(retry search))
{
	my $claim = $node->claim(key => $intent, intent => $intent);
	is("$claim->{outcome} $claim->{retry_after}", 'not_due 60', "in doubt under $intent: not due");
}
is($node->claim(key => 'long', intent => 'again')->{outcome}, 'in_progress', 'a lease taken before the jump is not over');
is(sql($versions), $before, 'and nothing was written');

my $taken = $node->claim(key => 'taken ahead', intent => 'again');
is($taken->{granted}, 1, 'a new key is handed out');
ok($node->poll_query_until('postgres', q{SELECT state = 'pending' FROM idem.idem_actions WHERE key = 'taken ahead'}), 'its lease is judged when it is over');
$node->claim(key => 'ahead', intent => 'mail', lease => '5 min');
$node->claim(key => 'sent ahead', intent => 'retry');
is($node->call('enqueue_action', key => 'q', intent => 'later')->{outcome}, 'pending', 'a decision is kept');

# last_pass is left ahead
whole_pass();
sql('ALTER SYSTEM SET idem_action.worker = off');
$node->reload;
ok($node->poll_query_until('postgres', q{SELECT NOT current_setting('idem_action.worker')::boolean}), 'the worker is off');
set_clock(0);
like(problem(), qr/last_pass lies ahead by 40[12] days/, 'worker_status says that last_pass lies ahead');
sql('ALTER SYSTEM SET idem_action.worker = on');
$node->reload;
my $began = time;
$node->claim(key => 'short', intent => 'again', lease => '3 s');
ok($node->poll_query_until('postgres', q{SELECT state = 'pending' FROM idem.idem_actions WHERE key = 'short'}), 'a lease of 3 s is judged');
cmp_ok(time - $began, '<', 6, 'within two naptimes');
$node->wait_for_log(qr/LOG: .*the clock can be believed again/, $offset);
is(count_log(qr/can not be believed in/, $offset), 1, 'the jump was said once');
is(count_log(qr/can be believed again/, $offset), 1, 'its end was said once');
is(problem(), '', 'no problem is left');
is(known(), KEYS, 'all finished keys are still known');
is($node->claim(key => 'retry', intent => 'retry')->{outcome}, 'claimed', 'what was in doubt is handed out');

# --- what was written meanwhile ----------------------------------------------

my $other = $node->claim(key => 'ahead', intent => 'mail');
ok($other->{outcome} eq 'in_progress' && $other->{retry_after} <= 300, 'a lease taken ahead is as long as it was asked for');
is(sql(q{SELECT first_claimed_at < clock_timestamp() FROM idem.idem_actions WHERE key = 'sent ahead'}), 't', 'a provider window begins when the claim was');
is(sql(q{SELECT count(*) FROM idem.take_actions('{later}')}), 1, 'what was enqueued is handed out');
my $report = $node->call('resolve_action', action_id => $long->{action_id}, decision => 'not_happened', note => 'n', revision => $long->{revision});
like($report->{note}, qr/^refused/, 'a lease is waited for');

# --- back -------------------------------------------------------------------

$offset = -s $node->logfile;
my $held = $node->claim(key => 'held', intent => 'mail', lease => '1 hour');
set_clock(-8 * 3600);
$began = time;
$node->claim(key => 'back', intent => 'again', lease => '1 s');
ok($node->poll_query_until('postgres', q{SELECT state = 'pending' FROM idem.idem_actions WHERE key = 'back'}), 'set back 8 hours: the worker goes on');
cmp_ok(time - $began, '<', 4, 'at once');
like(problem(), qr/the clock can not be believed/, 'and says that the clock is not believed');
$before = sql($versions);
is($node->claim(key => 'search', intent => 'search')->{outcome}, 'not_due', 'what is in doubt is not handed out');
is(sql($versions), $before, 'and nothing was written');
$node->call('complete_action', action_id => $held->{action_id}, claim_id => $held->{claim_id});
$node->claim(key => 'taken behind', intent => 'again', lease => '5 min');
set_clock(0);
is($node->claim(key => 'taken behind', intent => 'again')->{outcome}, 'in_progress', 'a lease taken behind holds when the clock is right again');
is(sql(q{SELECT forget_after > clock_timestamp() + interval '399 days 23 hours' FROM idem.idem_actions WHERE key = 'held'}), 't',
	'what was finished meanwhile is remembered as long as the rest');
whole_pass();

# --- waits ------------------------------------------------------------------

# on a lease, on an open transaction, and of a take
my $open = $node->session;
$open->query_safe(q{BEGIN; SELECT granted FROM idem.claim_action('open', 'mail', in_transaction => true)});
my %waiter = map { $_ => $node->session } qw(lease transaction take);
$began = time;
$node->send($waiter{lease}, q{SELECT outcome FROM idem.claim_action('long', 'again', wait => '4 s')});
$node->send($waiter{transaction}, q{SELECT outcome FROM idem.claim_action('open', 'mail', wait => '4 s')});
$node->send($waiter{take}, q{SELECT count(*) FROM idem.take_actions('{mail}', wait => '4 s')});
$node->wait_until_blocked($waiter{transaction});
set_clock(-36);
my %answer = map { $_ => scalar $waiter{$_}->query('') } sort keys %waiter;
my $lasted = time - $began;
is("$answer{lease} $answer{transaction} $answer{take}", 'in_progress contended 0', 'three waits end without a grant');
ok($lasted >= 3.9 && $lasted < 10, "after 4 s, although the clock was set back by 36 s ($lasted)");
$_->quit foreach values %waiter;
$open->quit;
set_clock(0);

# --- at the start -----------------------------------------------------------

sql('ALTER SYSTEM SET idem_action.worker = off');
$node->stop('fast');
set_clock(402 * DAY);
$offset = -s $node->logfile;
with_shim(sub { $node->start });
sql('CALL idem.run_maintenance()');
is(known(), KEYS, 'started with the clock ahead: nothing is forgotten');
is(count_log(qr/can not be believed in.*?the last time known to the ledger is/s, $offset), 1, 'the log says what it was compared with');
set_clock(0);
sql('CALL idem.run_maintenance()');
unlike(problem(), qr/believed/, 'once the clock is right it is believed');
set_clock(402 * DAY);
sql('CALL idem.run_maintenance()');
is(known(), KEYS, 'and no longer where it jumps again');
like(problem(), qr/believed/, 'and that is said');

# without preload only the known time is there to compare with
$node->stop('fast');
$node->append_conf('postgresql.conf', q{shared_preload_libraries = ''});
with_shim(sub { $node->start });
sql('CALL idem.run_maintenance()');
is(known(), KEYS, 'without preload nothing is forgotten either');
like(problem(), qr/the clock can not be believed/, 'and that is said');

# nor does anything tell how far ahead a lease is: a person ends it
my $ahead = $node->claim(key => 'far ahead', intent => 'mail', lease => '5 min');
set_clock(0);
cmp_ok($node->claim(key => 'far ahead', intent => 'mail')->{retry_after}, '>', 400 * DAY, 'a lease taken ahead ends in more than a year');
$report = $node->call('resolve_action', action_id => $ahead->{action_id}, decision => 'not_happened', note => 'asked the provider', revision => $ahead->{revision});
is("$report->{accepted} $report->{state}", '1 pending', 'an operator ends it');
like($report->{note}, qr/taken while the clock ran ahead; its holder/, 'and reads what that means for the holder');
is($node->sqlstate("SELECT idem.extend_claim('$ahead->{action_id}', '$ahead->{claim_id}')"), 'IA002', 'the holder is told');
$node->call('complete_action', action_id => $ahead->{action_id}, claim_id => $ahead->{claim_id});
is(state_of('far ahead'), 'needs_attention late_result', 'and its success waits for a person');
$node->append_conf('postgresql.conf', q{shared_preload_libraries = 'idem_action'});

# --- a promotion ------------------------------------------------------------

# the standby knows the last time of its primary, and was promoted an age later
set_clock(0);
$node->stop('fast');
$node->append_conf('postgresql.conf', "wal_level = replica\nmax_wal_senders = 2");
with_shim(sub { $node->start });
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
with_shim(sub { $standby->start });
$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
is($standby->safe_psql('postgres', 'SELECT idem.clock_problem()'), '', 'a standby has no problem');
$standby->safe_psql('postgres', q{SELECT outcome FROM idem.find_action('k1', 'mail')});
set_clock(402 * DAY);
$standby->promote;
$standby->safe_psql('postgres', 'CALL idem.run_maintenance()');
is($standby->safe_psql('postgres', q{SELECT count(*) FROM idem.idem_actions WHERE key LIKE 'k%' AND NOT purged}), KEYS, 'promoted with the clock ahead: nothing is forgotten');
like($standby->safe_psql('postgres', 'SELECT problem FROM idem.worker_status'), qr/the clock can not be believed/, 'and that is said');
$standby->stop('immediate');

# --- confirmed --------------------------------------------------------------

# a dump that is 40 days old is restored: that asks once
set_clock(0);
$node->stop('fast');
with_shim(sub { $node->start });
sql(q{UPDATE idem.idem_state SET since = since - interval '40 days' WHERE kind = 'clock'});
like(problem(), qr/the last time known to the ledger is/, 'the ledger of a dump of 40 days ago: that is said');
sql('SELECT idem.confirm_time()');
unlike(problem(), qr/believed/, 'confirm_time settles it');

set_clock(402 * DAY);
like(problem(), qr/believed/, 'ahead once more');
is($node->sqlstate("BEGIN;\nSELECT idem.confirm_time();"), '25001', 'confirm_time stands by itself');
like(problem(), qr/believed/, 'or confirms nothing');
sql(q{SELECT idem.confirm_time(actor => 'Ann')});
unlike(problem(), qr/believed/, 'confirm_time ends it');
is(sql(q{SELECT count(*) FROM idem.history WHERE event = 'time_confirmed' AND actor = 'Ann' AND detail ? 'known_before'}), '1', 'the history says who confirmed');
$offset = -s $node->logfile;
sql('CALL idem.run_maintenance()');
is(known(), 0, 'keys are forgotten then');
like(substr(slurp_file($node->logfile), $offset), qr/LOG: .*maintenance forgot \d+ keys in "postgres"/, 'and the log says how many');

$node->stop;
done_testing();
