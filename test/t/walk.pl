# Copyright (c) 2026, idem_action contributors

# Three actors call whatever they like, in any order and with claims of any
# age; after each call the ledger is where a second implementation of the
# design says it must be.  test/walk/model.py is that implementation.
#
# IDEM_WALK_STEPS sets how far, IDEM_WALK_SEED repeats a walk, IDEM_WALK_STORY
# how many calls are told after a difference.

use strict;
use warnings;

use FindBin;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

use IdemAction;

my $node = IdemAction->node('main', conf => 'fsync = off');
local $ENV{PGHOST} = $node->host;
local $ENV{PGPORT} = $node->port;
local $ENV{PGDATABASE} = 'postgres';
local $ENV{IDEM_WALK_STEPS} = $ENV{IDEM_WALK_STEPS} || 6000;

# prints TAP itself
my $output = '';
my $ended = IPC::Run::run([ 'python3', "$FindBin::RealBin/../walk/walk.py" ],
	'>', \$output, '2>&1');
foreach my $line (split /\n/, $output)
{
	if ($line =~ /^(not )?ok \d+ - (.*)/)
	{
		ok(!$1, $2);
	}
	else
	{
		note($line) unless $line =~ /^1\.\./;
	}
}
ok($ended, 'the walk ended well') or diag($output);

$node->stop;
done_testing();
