# Copyright (c) 2026, idem_action contributors

# The history is copied elsewhere, page by page, and kept longer than the keys.
#
# Protects: each line arrives once, and none is skipped because a slow transaction
# committed it after later ones had been read; a reader that remembers the highest
# time or id loses those.  What cannot be known stops the copy and does not skip.
# An analyst without pg_read_all_stats is told the same.  What was copied stays
# when the ledger forgets the key.

use strict;
use warnings;

use IdemAction;
use Test::More;

my $node = IdemAction->node('main');

$node->rule('act', keep_content => '0', keep_key => '1 ms', retry_delay => '0', on_uncertain => 'repeat');
$node->safe_psql('postgres', q{
	CREATE ROLE copier LOGIN;
	SELECT idem.grant_access('copier', 'analyst');
	CREATE TABLE archive (LIKE idem.history);
	CREATE TABLE archived (upto timestamptz NOT NULL);
	INSERT INTO archived VALUES ('-infinity');
	CREATE TABLE naive (LIKE idem.history);
	GRANT SELECT, INSERT, UPDATE ON archive, archived, naive TO copier;
});

# The recipe of docs/analysis.md, as a role of level analyst.  The horizon is
# asked for in a statement of its own.
sub copy
{
	$node->safe_psql('postgres', q{
		SELECT greatest(upto, idem.history_horizon()) AS upto FROM archived \gset
		BEGIN;
		INSERT INTO archive SELECT h.* FROM idem.history h, archived a WHERE h.at >= a.upto AND h.at < :'upto' ORDER BY at, id;
		UPDATE archived SET upto = :'upto';
		COMMIT;
		INSERT INTO naive SELECT * FROM idem.history WHERE at > (SELECT coalesce(max(at), '-infinity') FROM naive);
	}, extra_params => [ '-U', 'copier' ]);
	return;
}

# lines of the ledger that a copy has not, or not once
sub missing
{
	my ($table) = @_;
	my $columns = 'at, action_id, generation, attempt, event';

	return $node->safe_psql('postgres',
		"SELECT count(*) FROM (SELECT $columns FROM idem.history EXCEPT ALL SELECT $columns FROM $table) s");
}

sub horizon
{
	return $node->safe_psql('postgres', 'SELECT idem.history_horizon()', extra_params => [ '-U', 'copier' ]);
}

sub act
{
	my ($key) = @_;
	my $claim = $node->claim(key => $key, intent => 'act');

	$node->call('complete_action', action_id => $claim->{action_id}, claim_id => $claim->{claim_id}, external_ref => $key);
	return;
}

act('first');
copy();
is(missing('archive'), 0, 'all lines were copied');
copy();
is($node->safe_psql('postgres', 'SELECT count(*) = count(DISTINCT (at, id)) FROM archive'), 't', 'and none of them twice');

# a transaction that takes its time
my $slow = $node->session;
$slow->query_safe('BEGIN');
$slow->query_safe($node->call_sql('claim_action', key => 'slow', intent => 'act', in_transaction => 't'));
my $failed = $node->claim(key => 'failed', intent => 'act');
$node->call('fail_action', action_id => $failed->{action_id}, claim_id => $failed->{claim_id}, error => 'no', effect => 'none');
act('quick');
copy();
is($node->safe_psql('postgres', 'SELECT count(*) > 0 FROM archive WHERE key = ' . "'quick'"), 'f', 'what is later than the open transaction waits');
is($node->safe_psql('postgres',
		"SELECT xact_start = (SELECT upto FROM archived) FROM pg_stat_activity WHERE pid = $slow->{backend}"),
	't', 'up to its start the history is whole');
$slow->query_safe('COMMIT');
copy();
is(missing('archive'), 0, 'after its commit all is there');
isnt(missing('naive'), 0, 'a copy that went on behind the last line has lost some');

# a prepared transaction is known by nothing but its locks
$slow->query_safe('BEGIN');
$slow->query_safe($node->call_sql('claim_action', key => 'prepared', intent => 'act', in_transaction => 't'));
$slow->query_safe(q{PREPARE TRANSACTION 'slow'});
act('meanwhile');
is(horizon(), '', 'prepared: not known');
copy();
isnt(missing('archive'), 0, 'so nothing is copied');
$node->safe_psql('postgres', q{COMMIT PREPARED 'slow'});
copy();
is(missing('archive'), 0, 'and nothing is lost');

# a session that does not tell when its transaction began
$slow->query_safe('SET track_activities = off');
$slow->query_safe('BEGIN');
$slow->query_safe($node->call_sql('claim_action', key => 'untold', intent => 'act', in_transaction => 't'));
is(horizon(), '', 'track_activities = off: not known');
$slow->query_safe('SET track_activities = on');
is(horizon(), '', 'nor turned on again');
$slow->query_safe('ROLLBACK');
isnt(horizon(), '', 'after its end it is');
$slow->quit;

# lines of rules and access are lines too; reading only does not hold up
my $reader = $node->session;
$reader->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ');
$reader->query_safe('SELECT count(*) FROM idem.history');
my $writer = $node->session;
$writer->query_safe('BEGIN');
$writer->query_safe(q{SELECT idem.pause_intent('act', 'a moment')});
is($node->safe_psql('postgres',
		"SELECT idem.history_horizon() = xact_start FROM pg_stat_activity WHERE pid = $writer->{backend}"),
	't', 'a pause that is not committed');
$writer->query_safe('ROLLBACK');
is($node->safe_psql('postgres', q{SELECT idem.history_horizon() > clock_timestamp() - interval '10 s'}), 't', 'a reader');
$reader->quit;
$writer->quit;

# the keys are forgotten, the archive is not
$node->safe_psql('postgres', 'CALL idem.run_maintenance()');
is($node->safe_psql('postgres', q{SELECT count(*) FROM idem.history WHERE key = 'first'}), 0, 'the ledger has forgotten the action');
is($node->safe_psql('postgres', q{SELECT string_agg(event, ' ' ORDER BY at, id) FROM archive WHERE key = 'first'}),
	'recorded claimed completed', 'the copy tells its whole story');

done_testing;
