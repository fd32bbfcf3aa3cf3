# Copyright (c) 2026, idem_action contributors

# What is due long before the next ordinary pass is done when it is due.  Here
# naptime is an hour: whatever happens within a test was the launcher being told.

use strict;
use warnings;

use IdemAction;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemAction->node(
	'main', conf => q{
	idem_action.worker = on
	idem_action.naptime = '1 h'
	fsync = off
});
my $passes = q{SELECT last_pass FROM idem.worker_state()};

sub becomes
{
	my ($name, $condition) = @_;
	ok($node->poll_query_until('postgres', "SELECT $condition FROM idem.actions WHERE key = '$name'"), "$name: $condition");
	return;
}

$node->rule('mail');
$node->rule('short', keep_content => '2 s', keep_key => '4 s');

# --- leases -----------------------------------------------------------------

foreach my $lease ('1 ms', '500 ms', '3 s')
{
	$node->claim(key => "lease of $lease", intent => 'mail', lease => $lease);
	becomes("lease of $lease", "state = 'needs_attention'");
}

# later ones first: none is forgotten over the other
my @leases = ('4 s', '1 s', '3 s', '2 s');
$node->claim(key => "one of $_", intent => 'mail', lease => $_) foreach @leases;
becomes("one of $_", "state = 'needs_attention'") foreach @leases;

# a claim that was extended, and one that comes to light by its commit
my $claim = $node->claim(key => 'extended', intent => 'mail', lease => '1 s');
$node->call('extend_claim', action_id => $claim->{action_id}, claim_id => $claim->{claim_id}, lease => '3 s');
becomes('extended', "state = 'needs_attention'");
my $session = $node->session;
$session->query_safe(q{BEGIN; SELECT granted FROM idem.claim_action('late commit', 'mail', lease => '1 ms', in_transaction => true)});
$node->claim(key => 'meanwhile', intent => 'mail', lease => '1 ms');
becomes('meanwhile', "state = 'needs_attention'");
$session->query_safe('COMMIT');
becomes('late commit', "state = 'needs_attention'");

# a prepared one, committed in time
$session->query_safe(q{BEGIN; SELECT granted FROM idem.claim_action('prepared', 'mail', lease => '2 s', in_transaction => true); PREPARE TRANSACTION 'p'});
$node->safe_psql('postgres', q{COMMIT PREPARED 'p'});
becomes('prepared', "state = 'needs_attention'");

# a session tells of its pass when it ends
sub last_pass
{
	my ($database) = @_;
	$node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'idem_action worker'})
	  or die 'a worker does not end';
	return $node->safe_psql($database, $passes);
}

# one that was rolled back tells nobody
my $last = last_pass('postgres');
$session->query_safe(q{BEGIN; SELECT granted FROM idem.claim_action('rolled back', 'mail', lease => '1 ms', in_transaction => true); ROLLBACK});
$session->quit;

# --- retention --------------------------------------------------------------

$claim = $node->claim(key => 'short', intent => 'short', params => '{"to": "a"}');
$node->call('complete_action', action_id => $claim->{action_id}, claim_id => $claim->{claim_id});
is(last_pass('postgres'), $last, 'nothing was due, and no pass was made');
becomes('short', 'purged');
ok($node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM idem.actions WHERE key = 'short'}), 'short: forgotten');

# --- another ledger in the same session -------------------------------------

$session = $node->session;
my $again = q{
	DROP EXTENSION idem_action;
	CREATE EXTENSION idem_action;
	SELECT idem.define_rule('mail', 'order', 'support')};
foreach my $time ('before', 'after')
{
	$session->query_safe($again);
	$session->query_safe("SELECT granted FROM idem.claim_action('$time', 'mail', lease => '1 ms')");
	becomes($time, "state = 'needs_attention'");
}
$session->quit;

# --- a ledger used before it is committed -----------------------------------

$node->safe_psql('postgres', 'CREATE DATABASE early');
$session = $node->session(dbname => 'early');
$session->query_safe(q{
	BEGIN;
	CREATE EXTENSION idem_action;
	SELECT idem.define_rule('mail', 'order', 'support') IS NULL;
	SELECT granted FROM idem.claim_action('early', 'mail', lease => '1 h', in_transaction => true)});
# a worker that looks now sees no ledger
$node->safe_psql('postgres', q{SELECT idem.claim_action('look', 'mail', lease => '1 ms')});
becomes('look', "state = 'needs_attention'");
$session->query_safe('COMMIT');
$session->query_safe(q{SELECT granted FROM idem.claim_action('later', 'mail', lease => '1 ms')});
ok($node->poll_query_until('early', q{SELECT state = 'needs_attention' FROM idem.actions WHERE key = 'later'}),
	'early: served from its commit on');
$session->quit;

# --- naptime is made shorter ------------------------------------------------

$node->append_conf('postgresql.conf', 'idem_action.naptime = 2');
$last = last_pass('early');
$node->reload;
ok($node->poll_query_until('early', "SELECT last_pass > '$last' FROM idem.worker_state()"), 'a shorter naptime holds at once');

# --- a database that lets no worker in --------------------------------------

$node->safe_psql('postgres', 'CREATE DATABASE closed');
$node->safe_psql('closed', 'CREATE EXTENSION idem_action');
$node->append_conf('postgresql.conf', 'idem_action.naptime = 1');
my $files = $node->data_dir . '/base/' . $node->safe_psql('postgres', q{SELECT oid FROM pg_database WHERE datname = 'closed'});
$node->stop;
rename $files, "$files.away" or die;
my $offset = -s $node->logfile;
$node->start;
# others go on, pass by pass, while it is left alone for longer and longer
foreach my $n (1 .. 5)
{
	$node->claim(key => "beside $n", intent => 'mail', lease => '1 ms');
	becomes("beside $n", "state = 'needs_attention'");
}
my $fatal = () = substr(slurp_file($node->logfile), $offset) =~ /FATAL:  database "closed" does not exist/g;
ok($fatal >= 1 && $fatal <= 2, "closed: tried, but not at each pass ($fatal times)");
rename "$files.away", $files or die;
$node->safe_psql('closed', q{SELECT idem.define_rule('mail', 'order', 'support')});
$node->safe_psql('closed', q{SELECT idem.claim_action('opened', 'mail', lease => '1 ms')});
ok($node->poll_query_until('closed', q{SELECT state = 'needs_attention' FROM idem.actions WHERE key = 'opened'}),
	'closed: served as soon as somebody uses it again');

$node->stop;
done_testing();
