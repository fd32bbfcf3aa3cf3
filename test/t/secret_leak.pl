# Copyright (c) 2026, idem_action contributors

# Ten confidential values, passed as parameters through a run with errors of
# every kind, are nowhere afterwards: not in the files of the database, a dump,
# the views, the logs or what clients were told.  Nor can they be found by trying.
#
# IDEM_GUESSES: how many phone numbers to try (1000000).

use strict;
use warnings;

use Digest::SHA qw(hmac_sha256 sha256 sha256_hex);
use Encode qw(decode);
use File::Basename qw(dirname);
use IPC::Run ();
use lib dirname(__FILE__) . '/../lib';
use IdemAction;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $tmp = PostgreSQL::Test::Utils::tempdir();
my $file = "$tmp/secrets";
my $secret = sha256_hex('the secret of this test');
append_to_file($file, "s1 $secret\n");
chmod 0600, $file or die "chmod: $!";

my $node = IdemAction->node('main', conf => <<"EOC");
shared_preload_libraries = 'idem_action, pg_stat_statements'
pg_stat_statements.track = all
compute_query_id = on
idem_action.secret_file = '$file'
idem_action.max_content = '1kB'
idem_action.worker = on
idem_action.naptime = '1s'
log_min_messages = debug5
log_min_error_statement = debug5
log_error_verbosity = verbose
log_statement = all
log_duration = on
log_lock_waits = on
log_parameter_max_length = 0
log_parameter_max_length_on_error = 0
logging_collector = on
log_destination = 'stderr,csvlog,jsonlog'
log_directory = 'log'
log_filename = 'server.log'
log_rotation_size = 0
log_rotation_age = 0
deadlock_timeout = '100ms'
track_activity_query_size = 16kB
EOC
my $log = $node->data_dir . '/log';

sub one { return $node->safe_psql('postgres', $_[0]); }

one(q{CREATE EXTENSION pg_stat_statements; SELECT idem.use_secret('s1')});

#
# The values
#
my %key = (
	phone => '+49301234567',
	mail => 'jane.doe@example.org',
	name => 'Jürgen Großmann',
	quoted => q{O'Neill "Red" \\ Smith},
	order => 'ORDER/2026/000417');
my %field = (
	to => '+49307654321',
	inner => '4929123456781234',
	element => 'Mechthild Überall',
	whole => 'Unter den Linden 77',
	shape => 'a.person@example.net');
my @secret_values = (values %key, values %field);

# as they may stand in a text, in JSON, in CSV, in an array
my $pattern = do
{
	my %form;
	foreach my $value (@secret_values)
	{
		my $json = JSON::PP->new->allow_nonref->encode(decode('UTF-8', $value));
		my $ascii = JSON::PP->new->allow_nonref->ascii->encode(decode('UTF-8', $value));

		(my $csv = $value) =~ s/"/""/g;
		(my $sql = $value) =~ s/'/''/g;
		$form{$_} = 1 foreach ($value, $csv, $sql, map { substr $_, 1, -1 } $json, Encode::encode('UTF-8', $json), $ascii);
	}
	my $any = join '|', map { quotemeta } sort keys %form;
	qr/$any/;
};

sub clean
{
	my ($what, $text) = @_;
	my @found = $text =~ /^(.*(?:$pattern).*)$/mg;

	ok(length($text) > 0 && !@found, "no value in $what");
	diag(substr $_, 0, 600) foreach @found[ 0 .. ($#found < 4 ? $#found : 4) ];
	return;
}

# the test would notice
like("x $_ y", $pattern, 'a value is recognised') foreach ($key{quoted}, 'J\u00fcrgen Gro\u00dfmann', 'O\'Neill \"Red\" \\\\ Smith');

my $params = qq({"to": "$field{to}", "customer": {"phone": $field{inner}, "vip": true},
	"items": [{"name": "$field{element}"}, {"sku": "A-1"}], "address": {"lines": ["$field{whole}"]},
	"list": "$field{shape}", "amount": 1});
my $other = $params =~ s/7654321/7654399/r =~ s/"amount": 1/"amount": 2/r;
my $long_params = $params =~ s/"amount"/'"more": "' . "$field{to} " x 200 . '", "amount"'/er;

#
# Statements with bound parameters: variables of pgbench's extended protocol.
#
my $told = '';
my $script_number = 0;

sub bench_command
{
	my ($sql, %var) = @_;
	my $script = "$tmp/script" . $script_number++;

	append_to_file($script, $sql);
	return ('pgbench', '--no-vacuum', '-M', 'extended', '-t', 1,
		(map { ('-D', "$_=$var{$_}") } sort keys %var), '-f', $script, $node->connstr('postgres'));
}

# what the client is told; it has to match
sub bound
{
	my ($name, $expected, $sql, %var) = @_;
	my ($out, $err) = ('', '');

	IPC::Run::run([ bench_command($sql, %var) ], '>', \$out, '2>', \$err);
	$told .= $err;
	if ($expected eq '') { is($err, '', $name); }
	else { like($err, qr/$expected/, $name); }
	return;
}

sub start_bound
{
	my ($sql, %var) = @_;
	my %run = (out => '', err => '');

	$run{run} = IPC::Run::start([ bench_command($sql, %var) ], '>', \$run{out}, '2>', \$run{err});
	return \%run;
}

sub finish_bound
{
	my ($run) = @_;

	$run->{run}->finish;
	$told .= $run->{err};
	return $run->{err};
}

# What one can see meanwhile
my $seen = '';

sub look
{
	$seen .= one("SELECT * FROM $_") . "\n" foreach ('pg_locks', 'pg_stat_activity', 'idem.worker_status', 'idem.stuck');
	return;
}

sub wait_for
{
	my ($condition, $n) = @_;

	$node->poll_query_until('postgres', "SELECT count(*) = $n FROM pg_stat_activity WHERE $condition")
	  or die "timed out: $condition";
	return;
}

my $claim = "SELECT granted FROM idem.claim_action(:key, 'call', :params, worker => :worker, in_transaction => true);\n";
my $once = "SELECT idem.once(:key, 'local', :params);\n";
my %rule = (confidential_key => 'true', confidential_fields => '{to,customer.phone,items[].name,address,list[]}');
my $fields = '{to,customer.phone,items[].name,address,list[].name}';

$node->rule('call', %rule, confidential_fields => $fields, lease => '1 hour');
$node->rule('local', %rule, confidential_fields => $fields);
$node->rule('short', %rule, confidential_fields => $fields, lease => '1 microsecond');
$node->rule('queue', confidential_key => 'true');
$node->rule('plain', confidential_fields => '{to}');

#
# The run
#
foreach my $which (sort keys %key)
{
	my %var = (key => $key{$which}, params => $params, worker => $which);

	bound("$which: claim", '', $claim, %var);
	bound("$which: repeat", '', $claim, %var);
	bound("$which: once", '', $once, %var);
	bound("$which: a claim that is lost", '', $claim =~ s/'call'/'short'/r, %var);
	bound("$which: enqueue", '', "SELECT idem.enqueue_action(:key, 'queue');\n", %var);
	bound("$which: find", '', "SELECT idem.find_action(:key, 'call');\n", %var);
	bound("$which: batch", '',
		"SELECT outcome FROM idem.claim_actions('call', ARRAY[:key, :key]::text[], ARRAY[:params, :other]::jsonb[]);\n", %var, other => $other);
	bound("$which: IA001", 'known with other params\nDETAIL:  Differing: "to", "amount"\.', $claim, %var, params => $other);
	bound("$which: IA001 by once", 'known with other params', $once, %var, params => $other);
	bound("$which: IA003", 'not as done: it is in_progress', $once =~ s/'local'/'call'/r, %var);
	bound("$which: IA005", 'has no rule', $claim =~ s/'call'/'no such intent'/r, %var);
	bound("$which: IA006", 'ERROR:  .*key', $claim, %var, key => "$key{$which} " x 2000);
	bound("$which: IA010", 'ERROR:  .*params', $claim, %var, params => $long_params);
	bound("$which: 22023", 'must be positive|lease', $claim =~ s/worker/lease => '-1 s', worker/r, %var);
	bound("$which: 22023 by enqueue", 'cannot be enqueued', "SELECT idem.enqueue_action(:key, 'call', :params);\n", %var);
	bound("$which: 2202E", 'ERROR:', "SELECT idem.claim_actions('call', ARRAY[:key]::text[], ARRAY[:params, :params]::jsonb[]);\n", %var);
	bound("$which: 25001", 'open transaction', "BEGIN;\n" . $claim =~ s/, in_transaction => true//r, %var, key => "$key{$which} new");
	bound("$which: 25006", 'read-only', "BEGIN READ ONLY;\n$claim", %var, key => "$key{$which} new");
}
look();

# reports and decisions
my ($id, $claim_id) = split /\|/, one("SELECT action_id, claim_id FROM idem.idem_actions WHERE intent = 'call' AND worker = 'phone'");
bound('IA016', 'no such action|ERROR', "SELECT idem.resolve_action(gen_random_uuid(), 'happened', 'n', 1);\n");
bound('IA002', 'ERROR', "SELECT idem.begin_effect('$id', gen_random_uuid());\n");
bound('fail', '', "SELECT idem.fail_action('$id', '$claim_id', 'the provider said no', 'none');\n");
bound('claimed again', '', $claim, key => $key{phone}, params => $params, worker => 'phone');
bound('import', '', "SELECT idem.import_actions('queue', ARRAY[:key, :key || ' old']::text[]);\n", key => $key{mail});
bound('search by key', '', "SELECT idem.search_actions(:key);\n", key => $key{mail});
bound('search by field', '', "SELECT idem.search_actions(idem.keyed_digest(:value));\n", value => $field{to});
bound('take', '', "SELECT idem.take_actions('{queue}', 10, in_transaction => true);\n");
bound('action_id', '', "SELECT idem.action_id(:key, 'call');\n", key => $key{name});
foreach my $function ('explain_action', 'show_action')
{
	$seen .= one("SELECT (idem.$function(action_id))::text FROM idem.idem_actions") . "\n";
}

# a DBA's own unique index tells what the row holds
one(q{CREATE UNIQUE INDEX own ON idem.idem_actions ((params ->> 'to'), intent) WHERE worker = 'own'});
my %own = (params => $params, worker => 'own');
bound('own index: first', '', $claim, %own, key => 'own 1');
bound('by 23505', 'duplicate key.*\nDETAIL: .*"digest"|duplicate key.*\nDETAIL:  Key', $claim, %own, key => "$key{phone} 2");
one(q{DROP INDEX idem.own});

# 40001: done after the snapshot was taken
{
	my $gate = $node->session;
	$gate->query_safe('SELECT pg_advisory_lock(1)');
	my $late = start_bound(
		"BEGIN ISOLATION LEVEL REPEATABLE READ;\nSELECT 1;\nSELECT pg_advisory_xact_lock_shared(1);\n$once",
		key => "$key{mail} raced", params => $params);
	wait_for(q{wait_event = 'advisory'}, 1);
	bound('done meanwhile', '', $once, key => "$key{mail} raced", params => $params);
	$gate->quit;
	finish_bound($late);
}

# deadlock: two transactions take two keys in opposite orders
{
	my $gate = $node->session;
	my $step = "SELECT idem.once(:k1, 'local', :params);\nSELECT pg_advisory_xact_lock_shared(1);\nSELECT idem.once(:k2, 'local', :params);\nCOMMIT;\n";
	my @k = ("$key{mail} a", "$key{name} b");

	$gate->query_safe('SELECT pg_advisory_lock(1)');
	my @run = map { start_bound("BEGIN;\n$step", k1 => $k[$_], k2 => $k[ 1 - $_ ], params => $params) } 0, 1;
	wait_for(q{wait_event = 'advisory'}, 2);
	look();
	$gate->quit;
	finish_bound($_) foreach @run;
}

# a waiter that is cancelled, one that gives up, one whose server process dies
{
	my $gate = $node->session;
	my $waits = q{wait_event_type = 'Lock' AND query ~ 'once'};

	$gate->query_safe('SELECT pg_advisory_lock(1)');
	my $holder = start_bound("BEGIN;\n${once}SELECT pg_advisory_xact_lock_shared(1);\n", key => "$key{order} held", params => $params);
	wait_for(q{wait_event = 'advisory'}, 1);
	bound('cancelled', 'canceling statement', "BEGIN;\nSET LOCAL statement_timeout = '300ms';\n$once", key => "$key{order} held", params => $params);
	bound('gave up', 'lock timeout', "BEGIN;\nSET LOCAL lock_timeout = '200ms';\n$once", key => "$key{order} held", params => $params);

	# IA014 meanwhile
	rename $file, "$file.away" or die "rename: $!";
	one('SELECT pg_reload_conf()');
	bound('IA014', 'secret file cannot be opened', $claim, key => $key{phone}, params => $params, worker => 'phone');
	bound('IA014 by keyed_digest', 'secret file', "SELECT idem.keyed_digest(:value);\n", value => $field{to});
	append_to_file($file, "s1 " . sha256_hex('another') . "\n");
	chmod 0600, $file;
	bound('IA014, other bytes', 'not the one', $claim, key => $key{phone}, params => $params, worker => 'phone');
	rename "$file.away", $file or die "rename: $!";
	one('SELECT pg_reload_conf()');

	my $victim = start_bound("BEGIN;\n$once", key => "$key{order} held", params => $params);
	wait_for($waits, 1);
	look();
	my $pid = one("SELECT pid FROM pg_stat_activity WHERE $waits");
	kill 'KILL', $pid or die "no process $pid";
	finish_bound($_) foreach ($victim, $holder);
	eval { $gate->quit };
	$node->poll_query_until('postgres', 'SELECT true') or die 'server did not recover';
}
bound('after the crash', '', $claim, key => $key{phone}, params => $params, worker => 'phone');

# expiry, purge and forgetting by the worker
one("UPDATE idem.idem_actions SET purge_after = '2000-01-01' WHERE intent = 'local' AND worker IS NULL AND state = 'completed'");
$node->poll_query_until('postgres',
	"SELECT count(*) = 0 FROM idem.idem_actions WHERE intent = 'short' AND state = 'in_progress'")
  or die 'the worker does nothing';
look();
ok($seen =~ /idem_action/, 'the worker was seen');
one('CHECKPOINT');
bound('erase', '', "SELECT idem.erase_action(action_id, 'asked') FROM idem.idem_actions WHERE intent = 'short' AND worker = 'name';\n");

#
# Where to look
#
clean('what clients were told', $told);
clean('locks and activity', $seen);

my $dump = '';
IPC::Run::run([ 'pg_dumpall', '--no-sync', '-h', $node->host, '-p', $node->port ], '>', \$dump) or die 'pg_dumpall';
clean('a dump', $dump);
ok($dump =~ /"digest"/, 'which has the rows');

foreach my $view (split /\n/, one(q{SELECT oid::regclass FROM pg_class
	WHERE (relnamespace = 'idem'::regnamespace AND relkind IN ('r', 'v', 'S')) OR relname ~ '^pg_stat_statements$' ORDER BY 1}))
{
	clean("$view", one("SELECT * FROM $view") . "\n");
}
cmp_ok(one(q{SELECT count(*) FROM pg_stat_statements WHERE query ~ 'idem\.'}), '>', 10, 'pg_stat_statements saw the run');

$node->stop;
my %logged = map { $_ => slurp_file("$log/server.$_") } grep { -e "$log/server.$_" } ('log', 'csv', 'json');
clean("server.$_", $logged{$_}) foreach sort keys %logged;
foreach my $state (qw(IA001 IA002 IA003 IA005 IA006 IA010 IA014 IA016 22023 2202E 23505 25001 25006 40001 40P01 55P03 57014))
{
	ok($logged{log} =~ /ERROR:  $state:/, "SQLSTATE $state was raised");
}
ok($logged{log} =~ /terminated by signal 9/, 'a process died');
ok($logged{log} =~ /DEBUG:  /, 'the log is verbose');

# every file of the server, WAL included; the client's own files are elsewhere
{
	my @files;
	require File::Find;
	File::Find::find(sub { push @files, $File::Find::name if -f $_ && $File::Find::name !~ m{/log/} }, $node->data_dir);
	my @found;
	foreach my $path (@files)
	{
		push @found, $path if slurp_file($path) =~ $pattern;
	}
	cmp_ok(scalar @files, '>', 500, 'files of the server');
	is("@found", '', 'no value in any of them');
}

#
# What PostgreSQL itself tells of malformed JSON, parameter or not, is as
# docs/confidential.md says
#
$node->start;
foreach my $bad (qq({"to": "+49301111111"), q({"to": "+49301111111\u0000"}))
{
	bound('malformed JSON', 'ERROR', $claim, key => 'k', params => $bad, worker => 'w');
}
$node->stop;
my @lines = grep { /49301111111/ } split /\n/, substr slurp_file("$log/server.log"), length $logged{log};
cmp_ok(scalar @lines, '>=', 1, 'PostgreSQL quotes malformed JSON');
is(scalar(grep { !/CONTEXT:  JSON data, line 1:/ } @lines), 0, 'as CONTEXT, and nowhere else');

#
# Trying phone numbers against the dump
#
my $guesses = $ENV{IDEM_GUESSES} || 1_000_000;

# 16 bytes with what uuid8 sets taken out
sub stem
{
	my ($bytes) = @_;
	return substr($bytes, 0, 6) . substr($bytes, 7, 1) . substr($bytes, 9, 7);
}

# all that looks like a digest, as a set of stems
sub digests
{
	my ($text) = @_;
	my %set;

	$set{ stem(pack 'H*', $_ =~ tr/-//dr) } = 1
	  foreach $text =~ /\b([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\b/g;
	$set{ stem(pack 'H*', $_) } = 1 foreach $text =~ /([0-9a-f]{32,})/g;
	return \%set;
}

sub counted { return pack('N', length $_[0]) . $_[0]; }

# the numbers found, by any hash that docs/action-id.md describes
sub guess
{
	my ($dump_of, $hash, $from, $n) = @_;
	my $set = digests($dump_of);
	my $head = pack('N', 0) . counted('call') . pack('N', 12);
	my $to = 'o' . pack('N', 1) . counted('to') . 's' . pack('N', 12);
	my @found;

	for my $i ($from .. $from + $n - 1)
	{
		my $number = "+49$i";

		push @found, $number
		  if exists $set->{ stem($hash->("A1$head$number", "K1$head$number")) }
		  || exists $set->{ stem($hash->("V1s" . pack('N', 12) . $number, "V1s" . pack('N', 12) . $number)) }
		  || exists $set->{ stem(sha256("F1$to$number")) }
		  || exists $set->{ stem(sha256($number)) };
	}
	return "@found";
}

my $unkeyed = sub { return sha256($_[0]); };
my $first = 301234567 - int($guesses / 2);

$node->start;
one('DELETE FROM idem.idem_actions; DELETE FROM idem.idem_events; DELETE FROM idem.idem_repeats');
bound('the stolen row', '', $claim, key => $key{phone}, params => qq({"to": "$key{phone}"}), worker => 'w');
my $stolen = '';
IPC::Run::run([ 'pg_dump', '--no-sync', $node->connstr('postgres') ], '>', \$stolen) or die 'pg_dump';
is(guess($stolen, $unkeyed, $first, $guesses), '', "$guesses guesses at a confidential row find nothing");
is(guess($stolen, sub { return hmac_sha256($_[1], pack 'H*', $secret) }, 301234567 - 500, 1000),
	$key{phone}, 'with the secret they would');

# the same where nothing is confidential, after the params have gone
one(q{DELETE FROM idem.idem_actions; SELECT idem.define_rule('call', 'k', 'r')});
bound('a plain row', '', $claim, key => $key{phone}, params => qq({"to": "$key{phone}"}), worker => 'w');
one(q{UPDATE idem.idem_actions SET key = 'k', params = NULL});
IPC::Run::run([ 'pg_dump', '--no-sync', $node->connstr('postgres') ], '>', \$stolen) or die 'pg_dump';
ok($stolen !~ $pattern, 'a row whose key and params have been taken out');
is(guess($stolen, $unkeyed, $first, $guesses), $key{phone}, "is found by $guesses guesses");

done_testing();
