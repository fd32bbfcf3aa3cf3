# Copyright (c) 2026, idem_action contributors

# The operating system's sort order changes under a database, as when a new
# version of ICU comes with an update, and nobody reindexes.
#
# Protects: rules, takes, pauses, secrets, levels and keys are found as before.

use strict;
use warnings;

use IdemAction;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdemAction->node('main', extension => 0, conf => q{
	idem_action.worker = off
	allow_system_table_mods = on
	fsync = off
});
my $secrets = $node->basedir . '/secrets';
append_to_file($secrets, 'aa ' . '11' x 32 . "\nzz " . '22' x 32 . "\n");
chmod 0600, $secrets;
$node->append_conf('postgresql.conf', "idem_action.secret_file = '$secrets'");
$node->reload;

# English: aa first; Danish: aa is a letter after z
$node->safe_psql('postgres', q{CREATE DATABASE ledger TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en' LOCALE 'C.UTF-8' ENCODING UTF8});
my @intents = qw(aa ab b m y z);
sub sql { return $node->safe_psql('ledger', $_[0]) }

sql('CREATE EXTENSION idem_action');
sql("SELECT idem.use_secret('aa')");
sql("SELECT idem.define_rule('$_', unique_by => 'the key', resolved_by => 'the test')") foreach @intents;
sql(q{SELECT idem.define_rule('aa-secret', unique_by => 'the key', resolved_by => 'the test', confidential_key => true)});
sql("SELECT idem.enqueue_action('waits', '$_')") foreach @intents;
sql(q{SELECT idem.enqueue_action('waits', 'aa-secret')});
sql(q{SELECT idem.pause_intent('ab', 'a test')});
sql("CREATE ROLE $_; SELECT idem.grant_access('$_', 'worker'), idem.grant_access('$_', 'analyst')") foreach 'aa', 'ab', 'z';

is(sql(q{SELECT 'aa' < 'z'}), 't', 'aa comes first');
$node->safe_psql('postgres', $node->safe_psql('postgres', 'SHOW server_version_num') < 170000 ?
	  q{UPDATE pg_database SET daticulocale = 'da' WHERE datname = 'ledger'} :
	  q{UPDATE pg_database SET datlocale = 'da' WHERE datname = 'ledger'});
is(sql(q{SELECT 'aa' < 'z'}), 'f', 'now aa comes last');

foreach my $intent (@intents)
{
	is(sql("SELECT outcome FROM idem.claim_action('new', '$intent')"), $intent eq 'ab' ? 'paused' : 'claimed', "$intent: its rule is found, and its pause");
	is(sql("SELECT count(*) FROM idem.take_actions('{$intent}')"), $intent eq 'ab' ? 0 : 1, "$intent: what waits is taken");
}
is(sql(q{SELECT outcome FROM idem.enqueue_action('waits', 'aa-secret')}), 'pending', 'a confidential key is known');
sql(q{SELECT idem.use_secret('zz')});
is(sql(q{SELECT outcome FROM idem.enqueue_action('waits', 'aa-secret')}), 'pending', 'also after a rotation of secrets');
is(sql(q{SET idem_action.require_rule = off; SELECT count(*) FROM idem.claim_action('secret', 'aa-secret') WHERE key IS NOT NULL}), 0,
	'a confidential key is never kept in plain text');
sql(q{SELECT idem.define_rule('aa', unique_by => 'the key', resolved_by => 'another')});
is(sql(q{SELECT count(*) FROM idem.idem_rules WHERE intent || '' = 'aa'}), 1, 'a rule is replaced, not doubled');
sql(q{SELECT idem.pause_intent('aa', 'a test'), idem.resume_intent('ab')});
sql(q{SELECT idem.resume_intent('aa')});
is(sql(q{SELECT count(*) FROM idem.idem_state WHERE kind || '' = 'pause'}), 0, 'pauses end');
sql(q{SELECT idem.revoke_access('aa', 'analyst')});
is(sql(q{SELECT string_agg(level, ',') FROM idem.idem_access WHERE role::text = 'aa'}), 'worker', 'a level goes');
sql(q{SELECT idem.claim_action('new', 'aa', source => 's', event_id => e) FROM unnest('{aa,ab,z,aa}'::text[]) e});
sql('CALL idem.run_maintenance()') for 1 .. 2;
is(sql(q{SELECT count(*) || ' ' || sum(n) FROM idem.idem_repeats WHERE intent || '' = 'aa' AND event_id IS NOT NULL}), '3 4', 'repeats are counted once each');
sql('CREATE EXTENSION amcheck');
is(sql(q{SELECT count(bt_index_check(i.indexrelid, true)) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
	WHERE c.relnamespace = 'idem'::regnamespace AND c.relam = (SELECT oid FROM pg_am WHERE amname = 'btree')}) > 0, 1, 'no index is out of order');

# every column that is compared says so itself
is(sql(q{SELECT string_agg(a.attrelid::regclass || '.' || a.attname, ', ') FROM pg_index i
		JOIN pg_class c ON c.oid = i.indrelid AND c.relnamespace = 'idem'::regnamespace
		JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey)
	WHERE a.attcollation <> 0 AND a.attcollation <> '"C"'::regcollation}), '', 'no index follows the order of the database');

$node->stop;
done_testing();
