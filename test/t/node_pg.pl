# Copyright (c) 2026, idem_action contributors

# The ledger as node-pg talks to it, which opens no transaction by itself: a
# claim in one is the program's own BEGIN.
#
# Protects: such a claim is refused before anything is claimed; what JavaScript
# has in hand (an object, a Date, a null) arrives as it should; a result that the
# server refuses does not lose the completion.
#
# Needs node and its package pg, by NODE_PATH or where node looks by itself;
# skipped where they are missing.  Not among the dependencies: Debian's node is
# larger than everything else that the tests need, and most of this is what
# drivers.pl tries with psycopg.

use strict;
use warnings;

use IdemAction;
use IPC::Run ();
use JSON::PP;
use Test::More;

plan skip_all => 'no node with package pg'
  if system(q{node -e 'require("pg")' > /dev/null 2>&1}) != 0;

my $node = IdemAction->node('main');
$node->rule('act', lease => '1 hour');

# Runs a script with a connected "client"; what it stores in "said" comes back.
sub javascript
{
	my ($script) = @_;
	my ($out, $err);

	local $ENV{PGHOST} = $node->host;
	local $ENV{PGPORT} = $node->port;
	local $ENV{PGDATABASE} = 'postgres';
	$script = qq{
const { Client } = require('pg');
const said = {};
const code = (promise) => promise.then(() => '', (e) => { said.hint = e.hint; return e.code || e.name; });
(async () => {
	let client = new Client();
	const again = async () => { await client.end(); client = new Client(); await client.connect(); };
	const one = async (sql, values) => (await client.query(sql, values)).rows[0];
	await client.connect();
	$script
	await client.end();
	console.log(JSON.stringify(said));
})().catch((e) => { console.error(e); process.exit(1); });
};
	IPC::Run::run([ 'node', '-' ], '<', \$script, '>', \$out, '2>', \$err) or die "node failed: $err";
	return decode_json($out);
}

sub outcome
{
	my ($key) = @_;
	return $node->call('find_action', key => $key, intent => 'act')->{outcome};
}

# --- what a driver does ---------------------------------------------------------------

my $said = javascript(
	q{
	const claim = "SELECT * FROM idem.claim_action($1, 'act')";
	await client.query('BEGIN');
	said.begun = await code(client.query(claim, ['begun']));
	await client.query('ROLLBACK');
	await client.query('BEGIN');
	said.batch = await code(client.query("SELECT * FROM idem.claim_actions('act', $1)", [['begun']]));
	await client.query('ROLLBACK');
	said.two = await code(client.query("SELECT 1; SELECT idem.claim_action('begun', 'act')"));

	const mine = "SELECT granted FROM idem.claim_action($1, 'act', in_transaction => true)";
	await client.query('BEGIN');
	said.first = (await one(mine, ['died'])).granted;
	await again();
	await client.query('BEGIN');
	said.second = (await one(mine, ['kept'])).granted;
	await client.query('COMMIT');

	said.claim = await one(claim, ['plain']);
	said.done = await one('SELECT * FROM idem.complete_action($1, $2, $3, $4)', [said.claim.action_id, said.claim.claim_id, 'ref', { a: [1, 2] }]);
	said.repeat = await one(claim, ['plain']);
});
is($said->{begun}, '25001', 'after BEGIN claim_action raises 25001');
is($said->{batch}, '25001', 'so does claim_actions');
is($said->{two}, '25001', 'and a claim beside another statement');
ok($said->{hint}, 'with a hint');
is(outcome('begun'), 'unknown', 'nothing was claimed');
ok($said->{first}, 'in_transaction: granted inside');
is(outcome('died'), 'unknown', 'and forgotten where the client dies before COMMIT');
ok($said->{second}, 'in_transaction, committed');
is(outcome('kept'), 'in_progress', 'is kept');
ok($said->{claim}{granted} && $said->{done}{accepted}, 'as it is by default: claimed and completed');
is_deeply($said->{repeat}{result}, { a => [ 1, 2 ] }, 'a repeat gets the result');

# --- cut model text, and what JavaScript makes of values ------------

$said = javascript(
	q{
	const finish = async (key, result) => {
		const c = await one("SELECT action_id, claim_id FROM idem.claim_action($1, 'act')", [key]);
		const call = 'SELECT accepted, state FROM idem.complete_action($1, $2, $3, $4)';
		try {
			return await one(call, [c.action_id, c.claim_id, 'ref', result]);
		} catch (e) {
			said[key + ' failed'] = e.code;
			return await one(call, [c.action_id, c.claim_id, 'ref', null]);
		}
	};
	said.zero = await finish('zero', { text: 'cut\u0000' });
	said.half = await finish('half', { text: 'cut \ud83d' });
	said.array = await finish('array', ['a', 'b']);
	said.fine = await finish('fine', { text: 'whole \u{1F600}' });
	said.list = await finish('list', JSON.stringify(['a', 'b']));
});
foreach my $key (qw(zero half array))
{
	like($said->{"$key failed"}, qr/^22/, "$key: the result is refused");
	is_deeply($said->{$key}, { accepted => JSON::PP::true, state => 'completed' }, "$key: the completion is recorded without it");
}
foreach my $key (qw(fine list))
{
	ok(!$said->{"$key failed"} && $said->{$key}{accepted}, "$key: is kept");
}
is_deeply($node->call('find_action', key => 'list', intent => 'act')->{result}, [qw(a b)], 'a list arrives as JSON where it is made JSON before');

$node->stop;
done_testing();
