# Copyright (c) 2026, idem_action contributors

# A key made under one secret is known under every later one: whatever is
# rotated, restarted, restored or missing, it is granted once or refused with
# IA014.

use strict;
use warnings;

use Digest::SHA qw(sha256_hex);
use File::Basename qw(dirname);
use lib dirname(__FILE__) . '/../lib';
use IdemAction;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $file = PostgreSQL::Test::Utils::tempdir() . '/secrets';

# the secret file: lines for these ids, or "id => hex"
sub write_secrets
{
	my %hex = @_;

	unlink $file;
	append_to_file($file, "$_ $hex{$_}\n") foreach sort keys %hex;
	chmod 0600, $file or die "chmod: $!";
	return;
}

my %all = map { $_ => sha256_hex("secret of $_") } map { "s$_" } 1 .. 9;
write_secrets(%all);

my $node = IdemAction->node('main',
	conf => "idem_action.secret_file = '$file'\nmax_connections = 60");

sub one
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', $sql);
}

sub use_secret { one("SELECT idem.use_secret('$_[0]')"); return; }

# outcome of a claim by a fresh session, "claimed" only where it is granted
sub outcome
{
	my ($key, $intent, %arg) = @_;
	my $answer = $node->claim(key => $key, intent => $intent, %arg);

	die 'granted without a claim' if $answer->{granted} && $answer->{outcome} ne 'claimed';
	return $answer->{outcome};
}

# rows of an intent, as "secret state" lines
sub rows
{
	my ($intent) = @_;
	return one(
		"SELECT secret_id, state, count(*) FROM idem.idem_actions WHERE intent = '$intent' GROUP BY 1, 2 ORDER BY 1, 2"
	);
}

# Whether the statement sent waits for a lock; false where it has ended.
sub blocked
{
	my ($session) = @_;
	my $of = "FROM pg_stat_activity WHERE pid = $session->{backend}";

	$node->poll_query_until('postgres',
		"SELECT wait_event_type = 'Lock' OR state LIKE 'idle%' $of")
	  or die 'neither waits nor ends';
	return one("SELECT wait_event_type = 'Lock' $of") eq 't';
}

# A session on which every transaction has this isolation level
sub session_at
{
	my ($level) = @_;
	my $session = $node->session;

	$session->query_safe("SET default_transaction_isolation = '$level'");
	return $session;
}

# Runs scripts, "name@weight => text", by many clients; none may fail.
sub bench
{
	my ($options, $name, %script) = @_;
	my @command = ('pgbench', '--no-vacuum', split(' ', $options));

	foreach my $which (sort keys %script)
	{
		my ($script, $weight) = split /@/, $which;
		my $path = PostgreSQL::Test::Utils::tempdir() . "/$script";

		append_to_file($path, $script{$which});
		push @command, '-f', "$path\@$weight";
	}
	command_checks_all([ @command, $node->connstr('postgres') ],
		0, [qr/actually processed/], [qr/^$/], $name);
	return;
}

my @levels = ('read committed', 'repeatable read', 'serializable');

use_secret('s1');

#
# use_secret and open claims
#

# The only row under s1 is not committed yet when s2 becomes current: if
# use_secret overlooks it, nobody ever looks for it again.
foreach my $level (@levels)
{
	my $intent = "open-$level";
	my ($holder, $admin, $newcomer) = ($node->session, session_at($level), $node->session);

	one('TRUNCATE idem.idem_actions');
	use_secret('s1');
	$node->rule($intent, confidential_key => 'true');
	$holder->query_safe('BEGIN');
	is($holder->query_safe("SELECT granted FROM idem.claim_action('k', '$intent', in_transaction => true)"),
		't', "$level: an open claim under s1");
	$node->send($admin, "SELECT idem.use_secret('s2')");
	ok(blocked($admin), "$level: use_secret waits for it");
	$node->send($newcomer, "SELECT outcome FROM idem.claim_action('later', '$intent')");
	ok(blocked($newcomer), "$level: a claim that starts now waits for use_secret");
	$holder->query_safe('COMMIT');
	$admin->query('');
	like($newcomer->query(''), qr/claimed/, "$level: and goes on");

	is(outcome('k', $intent), 'in_progress', "$level: the key stays taken");
	is(outcome('later', $intent), 'in_progress', "$level: the later one too");
	is(rows($intent), "s1|in_progress|1\ns2|in_progress|1", "$level: each under the secret of its time");
	is(one("SELECT string_agg(id || ':' || current, ' ' ORDER BY id) FROM idem.secrets"),
		's1:false s2:true', "$level: both are needed");
	$_->quit foreach ($holder, $admin, $newcomer);
}

# a prepared transaction holds its claim open without any session
use_secret('s1');
$node->rule('prepared', confidential_key => 'true');
one(q{
	BEGIN;
	SELECT granted FROM idem.claim_action('k', 'prepared', in_transaction => true);
	PREPARE TRANSACTION 'open claim';
});
{
	my $admin = $node->session;

	$node->send($admin, "SELECT idem.use_secret('s2')");
	ok(blocked($admin), 'use_secret waits for a prepared transaction');
	one("COMMIT PREPARED 'open claim'");
	$admin->query('');
	is(outcome('k', 'prepared'), 'in_progress', 'its key stays taken');
	$admin->quit;
}

# what is taken back has never been current
$node->rule('taken-back', confidential_key => 'true');
one(q{
	BEGIN;
	SELECT granted FROM idem.claim_action('k1', 'taken-back', in_transaction => true);
	SAVEPOINT s;
	SELECT idem.use_secret('s3');
	SELECT granted FROM idem.claim_action('k2', 'taken-back', in_transaction => true);
	ROLLBACK TO s;
	SELECT granted FROM idem.claim_action('k3', 'taken-back', in_transaction => true);
	COMMIT;
});
is(rows('taken-back'), 's2|in_progress|2', 'a use_secret that is rolled back leaves nothing');
is(one("SELECT count(*) FROM idem.secrets WHERE id = 's3'"), '0', 'and s3 is not in use');

#
# What is confidential cannot change under rows
#
foreach my $level (@levels)
{
	my $intent = "rule-$level";
	my ($holder, $admin) = ($node->session, session_at($level));

	$node->rule($intent);
	$holder->query_safe('BEGIN');
	is($holder->query_safe("SELECT granted FROM idem.claim_action('k', '$intent', in_transaction => true)"),
		't', "$level: an open claim by a plain key");
	$node->send($admin,
		"SELECT idem.define_rule('$intent', 'key', 'us', confidential_key => true) IS NULL");
	ok(blocked($admin), "$level: define_rule waits for it");
	$holder->query_safe('COMMIT');
	$admin->query('');
	like($admin->{stderr}, qr/intent "\Q$intent\E" has actions, so what is confidential cannot change/,
		"$level: and is refused");
	is(outcome('k', $intent), 'in_progress', "$level: the key stays taken");
	$_->quit foreach ($holder, $admin);
}

# A definition that does not mention confidentiality, made while another one
# turns it on: it must not turn it off again under the rows made in between.
{
	my ($on, $other) = ($node->session, $node->session);

	$node->rule('two-admins');
	$on->query_safe('BEGIN');
	$on->query_safe("SELECT idem.define_rule('two-admins', 'key', 'us', confidential_key => true)");
	$other->query_safe('BEGIN');
	$node->send($other, "SELECT idem.define_rule('two-admins', 'key', 'us', lease => '1 hour')");
	ok(blocked($other), 'a second define_rule waits for the first');
	$on->query_safe('COMMIT');
	$other->query('');
	my $claimer = $node->session;
	$node->send($claimer, "SELECT outcome FROM idem.claim_action('k', 'two-admins')");
	blocked($claimer);
	$other->query('COMMIT');
	$claimer->query('');
	is(outcome('k', 'two-admins'), 'in_progress', 'a key claimed between the two stays taken');
	$_->quit foreach ($on, $other, $claimer);
}

#
# A row under an old secret that goes while others look at it
#
$node->rule('goes', confidential_key => 'true');
foreach my $call ('once', 'enqueue_action', 'claim_action')
{
	my ($deleter, $waiter) = ($node->session, $node->session);
	my %sql = (
		once => "SELECT idem.once('$call', 'goes')",
		enqueue_action => "SELECT NOT repeat FROM idem.enqueue_action('$call', 'goes')",
		claim_action => "SELECT granted FROM idem.claim_action('$call', 'goes', wait => '20 s')");

	use_secret('s1');
	one("SELECT idem.once('$call', 'goes')");
	one("UPDATE idem.idem_actions SET purge_after = '2000-01-01', forget_after = '2000-01-01' WHERE intent = 'goes'");
	use_secret('s2');
	$deleter->query_safe('BEGIN');
	$deleter->query_safe("DELETE FROM idem.idem_actions WHERE intent = 'goes'");
	$node->send($waiter, $sql{$call});
	ok(blocked($waiter), "$call: waits for the end of the old row");
	my $first = $deleter->query_safe("SELECT idem.once('$call', 'goes')");
	$deleter->query_safe('COMMIT');
	my $second = $waiter->query('');
	is($first, 't', "$call: the key is free again and taken");
	unlike($second, qr/^t$/m, "$call: by one of two only");
	is(rows('goes'), 's2|completed|1', "$call: under the current secret");
	one("DELETE FROM idem.idem_actions WHERE intent = 'goes'");
	$_->quit foreach ($deleter, $waiter);
}

#
# A row under an old secret that moves while others look at it
#
# An index on a column that each call changes makes every update write new
# index entries; a scan that has read the old one misses the row then.
$node->rule('moves', confidential_key => 'true');
use_secret('s1');
one(q{
	CREATE INDEX moves ON idem.idem_actions (lease_until);
	CREATE TABLE held AS SELECT c.action_id, c.claim_id, i
		FROM generate_series(1, 2) i, idem.claim_action('k' || i, 'moves', lease => '1 hour') c;
});
use_secret('s2');
bench(
	'--client=8 --time=8',
	'a moving row is looked for by claims',
	'extend@1' => q{
		\set i random(1, 2)
		SELECT idem.extend_claim(action_id, claim_id, '1 hour') FROM held WHERE i = :i;
	},
	'claim@1' => q{
		\set i random(1, 2)
		SELECT outcome FROM idem.claim_action('k' || :i, 'moves');
	});
is(rows('moves'), 's1|in_progress|2', 'and has no twin under the current secret');
one('DROP INDEX idem.moves; DROP TABLE held');

#
# Rotation under load
#
$node->rule('load', confidential_key => 'true', confidential_fields => '{to}');
one('CREATE TABLE granted (key text, how text)');
bench(
	'--client=24 --jobs=2 --transactions=120',
	'claims by 24 clients while secrets change',
	'load_claim@8' => q{
		\set k random(1, 1500)
		INSERT INTO granted SELECT :k, 'claim' FROM idem.claim_action('k' || :k, 'load', jsonb_build_object('to', :k)) c WHERE c.granted;
	},
	'load_batch@3' => q{
		\set k random(1, 1500)
		\set l random(1, 1500)
		INSERT INTO granted SELECT substr(k, 2), 'batch' FROM ROWS FROM (
			unnest(ARRAY['k' || :k, 'k' || :l, 'k' || :k]),
			idem.claim_actions('load', ARRAY['k' || :k, 'k' || :l, 'k' || :k])) AS c(k, granted) WHERE granted;
	},
	'load_find@1' => q{
		\set k random(1, 1500)
		SELECT outcome FROM idem.find_action('k' || :k, 'load');
	},
	'load_rotate@1' => q{
		\set s random(1, 9)
		SELECT idem.use_secret('s' || :s);
	});
cmp_ok(one("SELECT count(DISTINCT secret_id) FROM idem.idem_actions WHERE intent = 'load'"),
	'>=', 5, 'the secrets changed meanwhile');
cmp_ok(one('SELECT count(*) FROM granted'), '>=', 1000, 'there was something to grant');
is(one('SELECT key FROM granted GROUP BY key HAVING count(*) > 1'), '', 'no key was granted twice');
is(one("SELECT count(*) FROM idem.idem_actions WHERE intent = 'load'"),
	one('SELECT count(*) FROM granted'), 'each grant has its one row');

#
# Every call knows a key from before the rotation
#
one('TRUNCATE idem.idem_actions');
use_secret('s1');
$node->rule('send', confidential_key => 'true', confidential_fields => '{to}', on_uncertain => 'repeat');
$node->rule('queue', confidential_key => 'true');
$node->rule('local', confidential_key => 'true');
$node->rule('fields', confidential_fields => '{to}');
$node->rule('plain');
$node->rule('short', confidential_key => 'true', keep_content => '0', keep_key => '1 microsecond');

my $call_id = '6cf8a9a2-6d1e-4f7e-93a4-000000000001';
my $held = $node->claim(key => 'k', intent => 'send', params => { to => 'a' }, call_id => $call_id, worker => 'w');
my $fields = $node->claim(key => 'k', intent => 'fields', params => { to => 'a' });
$node->claim(key => 'no params', intent => 'fields');
one("SELECT idem.once('k', 'local')");
one("SELECT idem.once('k', 'short')");
$node->call('enqueue_action', key => 'k', intent => 'queue');
is(one("SELECT idem.import_actions('queue', '{old}')"), '1', 'an import under s1');
$node->claim(key => 'k', intent => 'plain');

sub repeats_stay_repeats
{
	my ($when) = @_;

	my $answer = $node->claim(key => 'k', intent => 'send', params => { to => 'a' });
	is($answer->{outcome}, 'in_progress', "$when: claim");
	is($answer->{action_id}, $held->{action_id}, "$when: the id stays that of the old secret");
	is($answer->{provider_key}, $held->{provider_key}, "$when: so does the provider key");
	my $again = $node->claim(key => 'k', intent => 'send', params => { to => 'a' }, call_id => $call_id, worker => 'w');
	is($again->{claim_id}, $held->{claim_id}, "$when: a lost reply is replayed");
	is_deeply([ map { $_->{outcome} }
			$node->call('claim_actions', intent => 'send', keys => [ 'k', 'k' ], params => [ { to => 'a' }, { to => 'b' } ]) ],
		[ 'in_progress', 'mismatch' ], "$when: batch");
	is($node->sqlstate(q{SELECT idem.claim_action('k', 'send', '{"to": "b"}')}), 'IA001', "$when: mismatch");
	is($node->call('find_action', key => 'k', intent => 'send')->{outcome}, 'in_progress', "$when: find_action");
	is(one("SELECT idem.once('k', 'local')"), 'f', "$when: once");
	is($node->call('enqueue_action', key => 'k', intent => 'queue')->{repeat}, 1, "$when: enqueue_action");
	is(one("SELECT count(*) FROM idem.enqueue_actions('queue', '{k,old,k}') WHERE NOT repeat"), '0', "$when: enqueue_actions");
	is(one("SELECT idem.import_actions('queue', '{k,old,old}')"), '0', "$when: import_actions");
	is(outcome('k', 'fields', params => { to => 'a' }), 'in_progress', "$when: fields, same values");
	is($node->sqlstate(q{SELECT idem.claim_action('k', 'fields', '{"to": "b"}')}), 'IA001', "$when: fields, other values");
	is(outcome('no params', 'fields', params => { to => 'c' }), 'in_progress', "$when: fields, none stored");
	is(outcome('k', 'plain'), 'in_progress', "$when: what is not confidential");
	return;
}

repeats_stay_repeats('before');
use_secret('s2');
repeats_stay_repeats('rotated');
is(one("SELECT outcome FROM idem.claim_action('new', 'send')"), 'claimed', 'a new key');
is(one("SELECT secret_id FROM idem.idem_actions WHERE action_id = idem.action_id('new', 'send')"),
	's2', 'is made under the current secret');
use_secret('s3');
repeats_stay_repeats('rotated again');

# of twins in a batch one is granted, wherever the row comes from
is_deeply([ map { $_->{outcome} } $node->call('claim_actions', intent => 'send', keys => [ 't', 'k', 't', 'new', 't' ]) ],
	[ 'claimed', 'in_progress', 'in_progress', 'in_progress', 'in_progress' ], 'twins among old and new keys');

# once inside the transaction that rotates
is(one(q{
	BEGIN;
	SELECT idem.once('same', 'local');
	SELECT idem.use_secret('s4');
	SELECT idem.once('same', 'local');
	COMMIT;
}), "t\n\nf", 'once on both sides of a rotation in one transaction');

is(outcome('under s4', 'send'), 'claimed', 'a row under s4');

# what the rule has forgotten is new, once
is(outcome('k', 'short'), 'claimed', 'a forgotten key under an old secret is new');
is(outcome('k', 'short'), 'in_progress', 'once');
is($node->call('find_action', key => 'k', intent => 'short')->{generation}, 1, 'from the start');

# a holder reports without any secret: nothing is looked up by key
write_secrets(s9 => $all{s9});
$node->reload;
my $unkeyed = $node->claim(key => 'reports', intent => 'plain');
is($node->call('complete_action', action_id => $fields->{action_id}, claim_id => $fields->{claim_id})->{accepted},
	1, 'a report needs no secret');
is($unkeyed->{granted}, 1, 'nor does an intent without anything confidential');
write_secrets(%all);
$node->reload;

#
# Restart, crash
#
one("UPDATE idem.idem_actions SET state = 'in_progress', lease_until = now() + '1 hour', finished_at = NULL, purge_after = NULL, forget_after = NULL, ended_by = NULL WHERE action_id = '$fields->{action_id}'");
$node->restart;
repeats_stay_repeats('restarted');
$node->crash;
repeats_stay_repeats('crashed');

#
# Dump and restore into another cluster, with and without the secrets
#
my $dump = PostgreSQL::Test::Utils::tempdir() . '/ledger.sql';
command_ok([ 'pg_dump', '--no-sync', '-f', $dump, '-d', $node->connstr('postgres') ], 'dump');

my $copy = IdemAction->node('copy', extension => 0, conf => "idem_action.secret_file = '$file'");
command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-f', $dump, '-d', $copy->connstr('postgres') ], 'restore');
my $source = $node;
$node = $copy;
repeats_stay_repeats('restored');
my $before = one('SELECT count(*) FROM idem.idem_actions');

my @asks = (
	q{SELECT idem.claim_action('k', 'send')},
	q{SELECT idem.claim_action('never seen', 'send')},
	q{SELECT idem.claim_action('k', 'fields', '{"to": "a"}')},
	q{SELECT idem.claim_actions('send', '{k,never seen}')},
	q{SELECT idem.once('k', 'local')},
	q{SELECT idem.once('never seen', 'local')},
	q{SELECT idem.find_action('k', 'send')},
	q{SELECT idem.enqueue_action('k', 'queue')},
	q{SELECT idem.enqueue_actions('queue', '{k}')},
	q{SELECT idem.import_actions('queue', '{k}')},
	q{SELECT idem.action_id('k', 'send')},
	q{SELECT idem.keyed_digest('a')});

sub refuses_everything
{
	my ($when) = @_;

	$node->reload;
	foreach my $ask (@asks)
	{
		is($node->sqlstate($ask), 'IA014', "$when: $ask");
	}
	is(one('SELECT count(*) FROM idem.idem_actions'), $before, "$when: no row was made");
	is(outcome('k', 'plain'), 'in_progress', "$when: other intents go on");
	return;
}

unlink $file;
refuses_everything('no file');
write_secrets(s4 => $all{s4});
refuses_everything('the current one only');
write_secrets(%all, s1 => $all{s2});
refuses_everything('an old one with other bytes');
write_secrets(%all, s4 => $all{s5});
refuses_everything('the current one with other bytes');
is($node->sqlstate(q{SELECT idem.use_secret('s4')}), 'IA014', 'use_secret does not take other bytes either');
is($node->sqlstate(q{SELECT idem.use_secret('s1')}), '', 'but it can go back to an older one');
write_secrets(%all);
$node->reload;
repeats_stay_repeats('the file is back');

#
# A secret goes with its last row
#
$node = $source;
is(one(q{SELECT string_agg(id, ' ' ORDER BY id) FROM idem.secrets WHERE rows > 0}), 's1 s2 s3 s4', 'secrets with rows');
one(q{DELETE FROM idem.idem_actions WHERE secret_id = 's2'});
is(one(q{SELECT rows FROM idem.secrets WHERE id = 's2'}), '0', 'the last row of s2 goes');
use_secret('s5');
is(one(q{SELECT string_agg(id, ' ' ORDER BY id) FROM idem.secrets}), 's1 s3 s4 s5', 'so s2 goes at the next rotation');
is(one(q{SELECT bool_or(needed_until = 'infinity') FROM idem.secrets WHERE id = 's1'}), 't',
	'one with unfinished rows is needed without end');
delete $all{s2};
write_secrets(%all);
$node->reload;
repeats_stay_repeats('s2 is gone for good');

done_testing();
