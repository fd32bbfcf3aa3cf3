# Copyright (c) 2026, idem_action contributors

# The secret file: who may read it, what may stand in it, when it is read again.
# Whatever is wrong with it is told without its contents, and nothing is granted.

use strict;
use warnings;

use Digest::SHA qw(sha256_hex);
use File::Basename qw(dirname);
use lib dirname(__FILE__) . '/../lib';
use IdemAction;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $tmp = PostgreSQL::Test::Utils::tempdir();
my $file = "$tmp/secrets";
my %hex = map { $_ => sha256_hex("secret of $_") } map { "s$_" } 1 .. 4;

sub write_file
{
	my ($content, $mode) = @_;

	unlink $file;
	append_to_file($file, $content);
	chmod $mode // 0600, $file or die "chmod: $!";
	return;
}

sub lines { return join '', map { "$_ $hex{$_}\n" } @_; }

write_file(lines('s1', 's2'));
my $node = IdemAction->node('main', conf => "idem_action.secret_file = '$file'\nlog_min_messages = debug5");

sub one { return $node->safe_psql('postgres', $_[0]); }

sub errors
{
	my ($sql) = @_;
	my (undef, undef, $stderr) = $node->psql('postgres', "\\set VERBOSITY verbose\n$sql");

	return $stderr;
}

# reloading is seen by a session once it is idle and asks again
sub setting
{
	my ($path) = @_;

	$node->adjust_conf('postgresql.conf', 'idem_action.secret_file', "'$path'");
	$node->reload;
	$node->poll_query_until('postgres', "SELECT current_setting('idem_action.secret_file') = '$path'") or die 'no reload';
	return;
}

# a fresh session is told what is wrong, with this detail, and nothing is granted
sub refused
{
	my ($name, $message, $line) = @_;
	my $text = errors("SELECT idem.use_secret('s1')");

	like($text, qr/ERROR:  IA014: \Q$message\E/, "$name: use_secret");
	like($text, qr/^DETAIL:  Line $line\.$/m, "$name: line $line") if defined $line;
	unlike($text, qr/^DETAIL/m, "$name: no line") unless defined $line;
	unlike($text, qr/[0-9a-f]{20}/i, "$name: nothing of the file is told");
	$text = errors("SELECT idem.claim_action('k', 'i')");
	like($text, qr/ERROR:  IA014: \Q$message\E/, "$name: a claim");
	is(one('SELECT count(*) FROM idem.idem_actions'), 1, "$name: nothing was granted");
	return;
}

#
# Before any secret
#
$node->rule('i', confidential_key => 'true');
like(errors("SELECT idem.claim_action('k', 'i')"), qr/ERROR:  IA014: no secret is current\nHINT:  .*use_secret/, 'none is current');
like(errors("SELECT idem.keyed_digest('v')"), qr/ERROR:  IA014: no secret is current/, 'keyed_digest too');
like(errors("SELECT idem.use_secret('s9')"), qr/ERROR:  IA014: secret "s9" is not in the secret file/, 'an unknown id');
like(errors("SELECT idem.use_secret('')"), qr/ERROR:  IA014: secret "" is not in the secret file/, 'an empty id');
like(errors('SELECT idem.use_secret(NULL)'), qr/ERROR:  22023: id must not be null/, 'no id');
is(one('SELECT count(*) FROM idem.secrets'), 0, 'what is refused is not in use');

one("SELECT idem.use_secret('s1')");
is($node->claim(key => 'k', intent => 'i')->{outcome}, 'claimed', 'a claim under s1');
is($node->claim(key => 'k', intent => 'i')->{outcome}, 'in_progress', 'and its repeat');

#
# Contents
#
my $s1 = "s1 $hex{s1}\n";
my @bad = (
	[ 'no secret', "s1\n", 'a line is not an id and a secret', 1 ],
	[ 'no secret after a blank', "s1 \t\n", 'a line is not an id and a secret', 1 ],
	[ 'an id of 65 bytes', 'x' x 65 . " $hex{s2}\n", 'a line is not an id and a secret', 1 ],
	[ 'a secret of 31 bytes', 's1 ' . 'ab' x 31 . "\n", 'the secret file cannot be used: a secret is too short', 1 ],
	[ 'half a byte', "s1 $hex{s1}a\n", 'a secret is not hexadecimal', 1 ],
	[ 'not hexadecimal', 's1 ' . 'xy' x 32 . "\n", 'a secret is not hexadecimal', 1 ],
	[ 'with 0x', "s1 0x$hex{s1}\n", 'a secret is not hexadecimal', 1 ],
	[ 'three words', "s1 $hex{s1} $hex{s2}\n", 'a secret is not hexadecimal', 1 ],
	[ 'a comment behind a secret', "s1 $hex{s1} # current\n", 'a secret is not hexadecimal', 1 ],
	[ 'separated by =', "s1=$hex{s1}\n", 'a line is not an id and a secret', 1 ],
	[ 'an id with a quote', qq("s1" $hex{s1}\n), 'an id may hold letters', 1 ],
	[ 'an id beyond ASCII', "sécret $hex{s1}\n", 'an id may hold letters', 1 ],
	[ 'a byte order mark', "\xEF\xBB\xBF$s1", 'an id may hold letters', 1 ],
	[ 'the same twice', "$s1$s1", 'an id stands there twice', 2 ],
	[ 'one id for two secrets', "$s1# other\n\ns1 $hex{s2}\n", 'an id stands there twice', 4 ],
	[ 'a bad line behind a good one', "${s1}s2 abc\n", 'a secret is not hexadecimal', 2 ],
	[ 'a zero byte', "s1\0 $hex{s1}\n", 'a line is not an id and a secret', 1 ],
	[ 'a line without end', 's1 ' . 'ab' x 3000, 'a line is too long', 1 ],
	[ 'an over-long comment', $s1 . '#' x 5000 . "\n", 'a line is too long', 2 ]);
foreach my $case (@bad)
{
	my ($name, $content, $what, $line) = @$case;

	write_file($content);
	refused($name, $what =~ /^the secret file/ ? $what : "the secret file cannot be used: $what", $line);
}
write_file('');
refused('empty', 'secret "s1" is not in the secret file');
write_file("# nothing\n\n  \t\n");
refused('comments only', 'secret "s1" is not in the secret file');
write_file(lines('s2'));
refused('another id', 'secret "s1" is not in the secret file');
write_file(lines('s2') . "S1 $hex{s1}\n");
refused('an id in upper case', 'secret "s1" is not in the secret file');

# what is allowed
foreach my $content ("# a comment\n\n$s1", "s1\t$hex{s1}", " s1   $hex{s1} \t\r\n", 's1 ' . uc($hex{s1}) . "\n",
	$s1 . 'x' x 64 . ' ' . 'ab' x 2000 . "\n", "${s1}A-b_c.9 $hex{s2}\n")
{
	write_file($content);
	is($node->claim(key => 'k', intent => 'i')->{outcome}, 'in_progress', 'a good file: ' . substr($content, 0, 16) =~ s/\s+/ /gr);
}
is($node->sqlstate("SELECT idem.use_secret('A-b_c.9'), idem.use_secret('s1')"), '', 'an id of all kinds of characters');

#
# Permissions
#
my $others = 'the secret file cannot be used: others may read it';
foreach my $mode (0640, 0604, 0620, 0610, 0602, 0601, 0660, 0666, 0644, 0777)
{
	write_file($s1, $mode);
	refused(sprintf('mode %04o', $mode), $others);
}
foreach my $mode (0600, 0400, 0700, 0500)
{
	write_file($s1, $mode);
	is($node->claim(key => 'k', intent => 'i')->{outcome}, 'in_progress', sprintf 'mode %04o', $mode);
}
SKIP:
{
	skip 'root reads everything', 3 if $> == 0;
	write_file($s1, 0200);
	refused('mode 0200', 'the secret file cannot be opened: Permission denied');
}
setting('/etc/passwd');
refused('a file of root that all may read', $others);

#
# What is not a file
#
setting('/dev/null');
refused('a device', 'the secret file cannot be used: it is not a regular file');
system_or_bail('mkfifo', "$tmp/pipe");
setting("$tmp/pipe");
refused('a pipe that nobody writes to', 'the secret file cannot be used: it is not a regular file');
mkdir "$tmp/folder" or die "mkdir: $!";
setting("$tmp/folder");
refused('a folder', 'the secret file cannot be used: it is not a regular file');
setting("$tmp/none");
refused('no file', 'the secret file cannot be opened: No such file or directory');
setting("$tmp/none/none");
refused('no folder', 'the secret file cannot be opened: No such file or directory');
setting('');
refused('no setting', 'confidential keys need a secret file');
like(errors("SELECT idem.use_secret('s1')"), qr/^HINT:  Set idem_action\.secret_file/m, 'which is told');
symlink $file, "$tmp/link" or die "symlink: $!";
write_file(lines('s1'));
setting("$tmp/link");
is($node->claim(key => 'k', intent => 'i')->{outcome}, 'in_progress', 'a link to a good file');
write_file(lines('s1'), 0644);
refused('a link to a file that others may read', $others);
write_file(lines('s1'));
setting($file);

#
# When it is read again, by a session that is there all the time
#
my $session = $node->session;
my $claim = "SELECT outcome FROM idem.claim_action('k', 'i')";

# the answer, or the message; the session's errors so far are taken away
sub asks
{
	my ($sql) = @_;

	$session->{stderr} = '';
	my $answer = $session->query($sql);
	return $session->{stderr} =~ /ERROR:  (.*)/ ? $1 : $answer;
}

# reads the configuration again; returns once the session has done so
my $reloads = 0;

sub reload
{
	$node->append_conf('postgresql.conf', 'test.reloads = ' . ++$reloads);
	$node->reload;
	foreach (1 .. 10_000)
	{
		return if $session->query("SELECT current_setting('test.reloads', true)") eq "$reloads";
	}
	die 'the session does not reload';
}

is(asks($claim), 'in_progress', 'a session reads the file');
unlink $file;
is(asks($claim), 'in_progress', 'and keeps what it has read, whatever becomes of the file');
reload();
like(asks($claim), qr/cannot be opened/, 'until it is told to read it again');
like(asks($claim), qr/cannot be opened/, 'what was read before is gone');
write_file(lines('s1', 's2'));
is(asks($claim), 'in_progress', 'the file is back: no reload is needed for what is missing');

# a secret added to the file
write_file(lines('s1', 's2', 's3'));
one("SELECT idem.use_secret('s3')");
is(asks($claim), 'in_progress', 'a session that lacks a secret reads the file again');
is(asks("SELECT outcome FROM idem.claim_action('k3', 'i')"), 'claimed', 'a new key');
is(one("SELECT string_agg(secret_id, ' ' ORDER BY secret_id) FROM idem.idem_actions"), 's1 s3', 'is made under it');

write_file(lines('s1', 's2', 's3'), 0644);
is(asks($claim), 'in_progress', 'permissions count when the file is read');
reload();
is(asks($claim), $others, 'and at the next reading');
write_file(lines('s1', 's2', 's3') . "s4 short\n");
like(asks($claim), qr/not hexadecimal/, 'of a file with a fault nothing is used, not even what is good');
write_file(lines('s1', 's2', 's3'));
is(asks($claim), 'in_progress', 'nor is it kept in mind');

#
# Other bytes under an id that is in use
#
sub other_bytes
{
	my ($name, $id, @good) = @_;

	write_file(lines(@good) . "$id $hex{s4}\n");
	reload();
	my $wrong = qr/secret "$id" is not the one that rows were made under/;
	like(asks($claim), $wrong, "$name: a repeat");
	like(asks("SELECT outcome FROM idem.claim_action('never seen', 'i')"), $wrong, "$name: a new key");
	like(asks("SELECT idem.keyed_digest('v')"), $wrong, "$name: keyed_digest");
	like(asks("SELECT idem.use_secret('$id')"), $wrong, "$name: use_secret");
	like(errors("SELECT idem.claim_action('never seen', 'i')"), qr/ERROR:  IA014: $wrong/, "$name: a fresh session");
	is(one('SELECT count(*) FROM idem.idem_actions'), 2, "$name: nothing was granted");
	return;
}

other_bytes('the current one', 's3', 's1', 's2');
other_bytes('an older one', 's1', 's2', 's3');

# no reload at all: the session has read the right bytes, and those are what counts
write_file(lines('s1', 's2', 's3'));
is(asks($claim), 'in_progress', 'right again, without a reload');
write_file(lines('s2', 's3') . "s1 $hex{s4}\n");
is(asks($claim), 'in_progress', 'the bytes read are those that rows were made under');
write_file(lines('s1', 's2', 's3'));

# an id that nothing needs any more is free
one("SELECT idem.use_secret('s2')");
is(one("SELECT idem.use_secret('s3'); SELECT string_agg(id, ' ' ORDER BY id) FROM idem.secrets") =~ s/\s*\n//r, 's1 s3',
	'an unused secret is out of use');
write_file(lines('s1', 's3') . "s2 $hex{s4}\n");
is($node->sqlstate("SELECT idem.use_secret('s2')"), '', 'so its id may get other bytes');
is($node->sqlstate("SELECT idem.use_secret('s3')"), '', 'and back');

#
# Who may
#
one(q{
	CREATE ROLE a_worker LOGIN; CREATE ROLE an_operator LOGIN; CREATE ROLE an_admin LOGIN; CREATE ROLE an_analyst LOGIN; CREATE ROLE nobody LOGIN;
	SELECT idem.grant_access('a_worker', 'worker'), idem.grant_access('an_operator', 'operator'),
		idem.grant_access('an_admin', 'admin'), idem.grant_access('an_analyst', 'analyst');
});
my %may = (
	a_worker => '', an_operator => 'keyed_digest secrets', an_admin => 'use_secret keyed_digest secrets',
	an_analyst => 'secrets', nobody => '');
my %call = (
	use_secret => "SELECT idem.use_secret('s3')",
	keyed_digest => "SELECT idem.keyed_digest('v')",
	secrets => 'SELECT * FROM idem.secrets',
	'set the file' => "SET idem_action.secret_file = '/tmp/x'",
	'alter system' => "ALTER SYSTEM SET idem_action.secret_file = '/tmp/x'",
	'show the file' => 'SHOW idem_action.secret_file',
	'read the table' => 'SELECT * FROM idem.idem_state');
foreach my $role (sort keys %may)
{
	foreach my $call (sort keys %call)
	{
		my $wanted = grep({ $_ eq $call } split / /, $may{$role}) ? '' : 'refused';
		my $state = $node->sqlstate("SET ROLE $role;\n$call{$call}");

		is($state eq '' ? '' : 'refused', $wanted, "$role: $call: " . ($wanted || 'allowed'));
	}
}
is($node->sqlstate("SET ROLE a_worker; SELECT idem.use_secret('s3')"), '42501', 'the SQLSTATE of it');
is($node->sqlstate("SET idem_action.secret_file = '/tmp/x'"), '55P02', 'a superuser sets it in the configuration only');

is(one("SELECT count(*) || ' ' || min(role) FROM idem.history WHERE event = 'secret_used' AND detail ->> 'id' = 's2'"),
	'2 ' . one('SELECT current_user'), 'history tells who made which one current');

# no secret in any log of the most verbose kind
$session->quit;
$node->stop;
my $log = slurp_file($node->logfile);
my @told = grep { $log =~ /$hex{$_}/i } sort keys %hex;
is("@told", '', 'no secret in the log');

done_testing();
