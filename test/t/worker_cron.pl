# Copyright (c) 2026, idem_action contributors

# A site without background workers of ours: pg_cron calls run_maintenance.

use strict;
use warnings;

use IdemAction;
use PostgreSQL::Test::Utils;
use Test::More;

my $package = 'postgresql-15-cron';
my $library = `pg_config --pkglibdir`;
chomp $library;
plan skip_all => "$package is not installed: apt-get install $package" unless -e "$library/pg_cron.so";

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf('postgresql.conf', q{
	shared_preload_libraries = 'pg_cron'
	cron.database_name = 'postgres'
	cron.use_background_workers = on
	cron.log_run = on
	fsync = off
	idem_action.require_rule = off
});
$node->start;
bless $node, 'IdemAction';

# pg_cron is where the server is, idem_action where the suites install it
my $has_destdir = $node->safe_psql('postgres', "SELECT count(*) FROM pg_settings WHERE name = 'extension_destdir'");
$node->safe_psql('postgres', ($has_destdir ? "SET extension_destdir = ''; " : '') . 'CREATE EXTENSION pg_cron');
$node->safe_psql('postgres', 'CREATE EXTENSION idem_action');

$node->safe_psql('postgres', "SELECT idem.claim_action('lapsed', 'probe', lease => '1 ms')");
like($node->safe_psql('postgres', 'SELECT problem FROM idem.worker_status'), qr/CALL idem\.run_maintenance\(\)/,
	'worker_status says what to call');
# every minute is too long for a test, and the least that this version of pg_cron knows
$node->safe_psql('postgres', q{SELECT cron.schedule('idem_action', '@reboot', 'CALL idem.run_maintenance()')});
$node->restart;
ok($node->poll_query_until('postgres', q{SELECT count(*) > 0 FROM cron.job_run_details WHERE end_time IS NOT NULL}), 'pg_cron ran it');
is($node->safe_psql('postgres', 'SELECT status, return_message FROM cron.job_run_details ORDER BY runid LIMIT 1'), 'succeeded|CALL', 'it succeeded');
is($node->safe_psql('postgres', q{SELECT state, reason FROM idem.actions WHERE key = 'lapsed'}), 'needs_attention|lease_expired', 'and did its work');

$node->stop;
done_testing();
