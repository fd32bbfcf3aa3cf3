# Copyright (c) 2026, idem_action contributors

# What came in goes out, and what cannot be sent to one taker stops nobody.
#
# An emoji in a draft, a taker with client_encoding LATIN1, other due rows: the
# others are handed out, the row waits for a taker that can be sent it, and the
# view stuck says so.  A single claim of it fails, with nothing claimed.
#
# Numbers such as 1e131071 and deep nesting that were written by hand, past the
# bounds of the calls: takes go on, searches by value find what is there.

use strict;
use warnings;

use IdemAction;
use Test::More;

my $node = IdemAction->node('main', init => [ '--encoding', 'UTF8', '--locale', 'C' ]);
my $latin1 = "SET client_encoding = 'LATIN1';";
my $emoji = "chr(128512)";

# the keys that a take hands out, in order
sub taken
{
	my ($settings, $more, $function) = @_;

	return $node->safe_psql('postgres',
		"$settings SELECT string_agg(key, ' ' ORDER BY priority DESC) FROM idem.@{[$function // 'take_actions']}('{mail}', 10@{[$more // '']}) JOIN idem.actions USING (key)"
	);
}

sub stuck
{
	return $node->safe_psql('postgres',
		q{SELECT string_agg(key || ' ' || waits_for, ', ' ORDER BY key) FROM idem.stuck});
}

sub passed_over
{
	return $node->safe_psql('postgres', "SELECT count(*) FROM idem.history WHERE event = 'passed_over' AND key = '$_[0]'");
}

#
# client_encoding
#
$node->rule('mail', on_uncertain => 'repeat', max_attempts => 100);
$node->safe_psql('postgres', "SELECT idem.enqueue_action('emoji', 'mail', draft => jsonb_build_object('text', $emoji), priority => 9)");
$node->safe_psql('postgres', "SELECT idem.enqueue_action('label', 'mail', source => $emoji, priority => 8)");
$node->safe_psql('postgres', "SELECT idem.enqueue_action('umlaut', 'mail', draft => jsonb_build_object('ü', 'ß'), priority => 7)");
$node->safe_psql('postgres', "SELECT idem.enqueue_action('plain', 'mail')");

is(taken("$latin1", ", lease => '1 ms'"), 'umlaut plain', 'LATIN1: what can be sent is handed out');
is(stuck(), 'emoji another_taker, label another_taker, plain holder, umlaut holder', 'the rest is shown as what it waits for');
is(passed_over('emoji'), 1, 'the history has it');
like($node->safe_psql('postgres', q{SELECT string_agg(l, E'\n') FROM idem.actions, idem.explain_action(action_id) AS l WHERE key = 'emoji'}),
	qr/a taker was not given it: client_encoding LATIN1 lacks a character of its contents\./, 'explain_action says why');
is(taken($latin1), 'umlaut plain', 'again: what lapsed comes first no more, nor does it stop anything');
is(passed_over('emoji'), 1, 'which is not written down again');

my ($code, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\n$latin1 SELECT * FROM idem.claim_action('emoji', 'mail')");
like($err, qr/ERROR:  22P05/, 'a single claim of it fails with PostgreSQL\'s own error');
is($node->safe_psql('postgres', "SELECT state, attempt FROM idem.actions WHERE key = 'emoji'"), 'pending|0', 'with nothing claimed');

my $call = 'c0ffee00-0000-4000-8000-000000000001';
is(taken('', ", call_id => '$call'"), 'emoji label', 'a taker that can be sent all gets them');
is(taken($latin1, ", call_id => '$call'"), '', 'the same call by one that cannot: nothing');
is(taken('', ", call_id => '$call'"), 'emoji label', 'nor is anything lost by it');

# a row that was passed over is as it was for whoever held it before
$node->safe_psql('postgres', "UPDATE idem.idem_actions SET lease_until = clock_timestamp() - interval '1 s', due_at = clock_timestamp() - interval '1 s' WHERE key = 'emoji'");
$node->safe_psql('postgres', "UPDATE idem.idem_queue SET due_at = a.due_at FROM idem.idem_actions a WHERE a.action_id = idem_queue.action_id");
is(taken($latin1), '', 'its lease over, LATIN1 is not given it');
$node->safe_psql('postgres', 'CALL idem.run_maintenance()');
is(taken($latin1), '', 'nor when that was judged');
is(passed_over('emoji'), 3, 'each time as another version of the row');
is( $node->safe_psql('postgres', "SELECT r.accepted, r.state FROM idem.idem_actions a, idem.complete_action(action_id, claim_id, 'late') r WHERE key = 'emoji'"),
	't|completed', 'a late success of the last holder still counts');

# a search
$node->rule('mail', on_uncertain => 'verify', settle => '0', max_attempts => 100);
$node->safe_psql('postgres', "SELECT idem.claim_action('search', 'mail', draft => to_jsonb($emoji))");
$node->lapse('search');
$node->safe_psql('postgres', 'CALL idem.run_maintenance()');
is(taken($latin1, '', 'take_to_verify'), '', 'a search is not handed out either');
like(stuck(), qr/search another_taker/, 'and waits for another taker');
is(taken('', '', 'take_to_verify'), 'search', 'who gets it');

#
# SQL_ASCII: what is in the database is bytes
#
$node->safe_psql('postgres', 'CREATE DATABASE bytes ENCODING SQL_ASCII LOCALE "C" TEMPLATE template0');
$node->safe_psql('bytes', q{CREATE EXTENSION idem_action; SELECT idem.define_rule('mail', 'event', 'the team')});
$node->safe_psql('bytes', q{SET client_encoding = 'SQL_ASCII'; SELECT idem.enqueue_action('bytes', 'mail', draft => to_jsonb(convert_from('\xe9', 'SQL_ASCII')), priority => 9)});
$node->safe_psql('bytes', q{SET client_encoding = 'UTF8'; SELECT idem.enqueue_action('utf8', 'mail', draft => '"é"')});
is($node->safe_psql('bytes', q{SET client_encoding = 'UTF8'; SELECT key FROM idem.take_actions('{mail}', 10)}), 'utf8',
	'bytes that are no UTF-8 do not go to a client in UTF-8');
is($node->safe_psql('bytes', q{SET client_encoding = 'SQL_ASCII'; SELECT key FROM idem.take_actions('{mail}', 10)}), 'bytes', 'but to one in SQL_ASCII');
($code, $out, $err) = $node->psql('bytes', q{SET client_encoding = 'SQL_ASCII'; SELECT idem.claim_action(convert_from('\xc2a0', 'SQL_ASCII'), 'mail')});
like($err, qr/key must not be blank/, 'bytes that are blank in UTF-8 are so here');
is($node->safe_psql('bytes', q{SET client_encoding = 'SQL_ASCII'; SELECT outcome FROM idem.claim_action(convert_from('\xa0', 'SQL_ASCII'), 'mail')}), 'claimed',
	'others are something');

# in LATIN1 the no-break space is one byte, and a byte without meaning is no reason for an error
$node->safe_psql('postgres', 'CREATE DATABASE win1252 ENCODING WIN1252 LOCALE "C" TEMPLATE template0');
$node->safe_psql('win1252', q{CREATE EXTENSION idem_action; SELECT idem.define_rule('mail', 'event', 'the team')});
($code, $out, $err) = $node->psql('win1252', q{SELECT idem.claim_action(chr(160), 'mail')});
like($err, qr/key must not be blank/, 'WIN1252: the no-break space');
is( $node->safe_psql('win1252', q{SET client_encoding = 'WIN1252'; SELECT r.accepted FROM idem.claim_action('k', 'mail') c, idem.complete_action(c.action_id, c.claim_id, chr(129)) r}),
	't', 'a success whose reference has no equivalent in Unicode');

#
# What was written by hand, past every bound
#
$node->rule('mail', on_uncertain => 'repeat');
$node->safe_psql('postgres', q{
	DELETE FROM idem.idem_queue; DELETE FROM idem.idem_actions;
	SELECT idem.enqueue_action('numbers', 'mail', priority => 9), idem.enqueue_action('deep', 'mail', priority => 8),
		idem.enqueue_action('other', 'mail', '{"to": ["DE02"]}');
	UPDATE idem.idem_actions SET draft = (SELECT jsonb_agg('1e131071'::jsonb) FROM generate_series(1, 8300)) WHERE key = 'numbers';
});
$node->safe_psql('postgres', q{
	SET max_stack_depth = '7MB';
	UPDATE idem.idem_actions SET params = (repeat('[', 13000) || '"DE02"' || repeat(']', 13000))::jsonb WHERE key = 'deep';
});
is(taken('', ", lease => '1 ms'"), 'other', 'rows that are too large or too deep do not stop a take');
like(stuck(), qr/deep another_taker, numbers another_taker/, 'they are shown');
is($node->safe_psql('postgres', q{SELECT string_agg(key, ' ' ORDER BY key) FROM idem.search_actions('DE02')}), 'deep other',
	'a search by value finds what is there at any depth');
($code, $out, $err) = $node->psql('postgres', q{SELECT draft FROM idem.idem_actions WHERE key = 'numbers'});
like($err, qr/ERROR/, 'such numbers indeed cannot be sent');

done_testing();
