# Copyright (c) 2026, idem_action contributors

# Databases of every encoding agree about action_ids and fingerprints, so that
# a dump can move from one to the other.  What SQL_ASCII holds counts as bytes.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init(extra => [ '--encoding', 'UTF8', '--locale', 'C' ]);
$node->start;

my @databases = qw(utf8 latin1 sql_ascii);

foreach my $encoding (@databases, 'win1252')
{
	$node->safe_psql('postgres',
		"CREATE DATABASE $encoding ENCODING '$encoding' TEMPLATE template0");
	$node->safe_psql($encoding, 'CREATE EXTENSION idem_action');
}

# The answers of all databases to a query in UTF-8, which is what clients send
sub answers
{
	my ($query) = @_;

	return
	  map { $node->safe_psql($_, "SET client_encoding = 'UTF8'; $query") }
	  @databases;
}

sub all_agree
{
	my ($query, $name) = @_;
	my ($utf8, @others) = answers($query);

	like($utf8, qr/^[0-9a-f-]{32,64}$/, "$name: an answer");
	is($_, $utf8, "$name: the same as in UTF-8") foreach @others;
	return;
}

sub fingerprint
{
	my ($params) = @_;

	return qq{
		BEGIN;
		SET LOCAL idem_action.require_rule = off;
		SELECT FROM idem.enqueue_action('any', 'any', '$params');
		SELECT encode(params_digest, 'hex') FROM idem.idem_actions;
		ROLLBACK;
	};
}

all_agree(q{SELECT idem.action_id('evt_1', 'send-reply')}, 'ASCII');
all_agree(q{SELECT idem.action_id('Größe-Ä', 'verschicken-ü', 'Café')},
	'action_id');
all_agree(
	q{SELECT idem.action_id(idem.action_key('Größe/Ä', '~é'), 'any')},
	'action_key');

# one byte in LATIN1 and two in UTF-8: the order of fields must not follow
all_agree(fingerprint('{"é": 1, "z": 2, "aa": ["ß", {"ü": null, "x": true}]}'),
	'fingerprint');

# a field name is cut between characters
my $long = 'é' x 100;
foreach my $database (@databases)
{
	my ($code, $out, $err) = $node->psql(
		$database, qq{
		SET client_encoding = 'UTF8';
		SET idem_action.require_rule = off;
		SELECT FROM idem.enqueue_action('k', 'i', '{"$long": 1}');
		SELECT FROM idem.enqueue_action('k', 'i', '{"$long": 2}');
	});
	like($err, qr/"(é)+"/, "$database: name of a field that differs");
	unlike($err, qr/\Q$long\E/, "$database: it is cut");
}

# what bytes mean is unknown in SQL_ASCII, so they count as they stand
isnt(
	$node->safe_psql(
		'sql_ascii', q{SELECT idem.action_id(convert_from('\xe9', 'SQL_ASCII'), 'any')}
	),
	(answers(q{SELECT idem.action_id('é', 'any')}))[0],
	'a byte that is not UTF-8 in SQL_ASCII');

# a byte that means nothing has no identity
my ($code, $out, $err) =
  $node->psql('win1252', q{SELECT idem.action_id(chr(129), 'any')});
like($err, qr/has no equivalent in encoding "UTF8"/,
	'a byte without meaning is refused');

done_testing();
