# Copyright (c) 2026, idem_action contributors

# The ledger as a driver talks to it: psycopg, with its defaults and without.
#
# Protects: a driver that opens transactions by itself is told so, by an error
# that names its setting, before anything is claimed; statements of a pipeline
# are a transaction too, so nobody is told of a grant that could still be rolled
# back; a result that the driver or the server refuses does not lose the
# completion.
#
# Needs Debian's python3-psycopg; skipped where it is missing.

use strict;
use warnings;

use IdemAction;
use IPC::Run ();
use JSON::PP;
use Test::More;

my $python = '/usr/bin/python3';

plan skip_all => "no psycopg for $python"
  if system("$python -c 'import psycopg' > /dev/null 2>&1") != 0;

my $node = IdemAction->node('main');
$node->rule('act', lease => '1 hour');
$node->rule('marked', lease => '1 hour', marks_effect => 't');

# Runs a script with a connection string in "dsn"; what it stores in "said" comes
# back as a hash.
sub python
{
	my ($script) = @_;
	my $dsn = $node->connstr('postgres');
	my ($out, $err);

	$script = qq{
import json, psycopg, select
from psycopg import pq
dsn = """$dsn"""
said = \{\}

def code(call):
    try:
        call()
        return ''
    except psycopg.Error as e:
        said['hint'] = e.diag.message_hint or ''
        return e.sqlstate or type(e).__name__
$script
print(json.dumps(said))
};
	IPC::Run::run([ $python, '-' ], '<', \$script, '>', \$out, '2>', \$err) or die "python failed: $err";
	return decode_json($out);
}

sub outcome
{
	my ($key) = @_;
	return $node->call('find_action', key => $key, intent => 'act')->{outcome};
}

#
# the default connection opens a transaction with its first statement
#
my $said = python(
	q{
conn = psycopg.connect(dsn)
claim = "SELECT granted, outcome FROM idem.claim_action(%s, 'act')"
said['claim'] = code(lambda: conn.execute(claim, ['default']))
said['claim hint'] = said['hint']
conn.rollback()
said['batch'] = code(lambda: conn.execute("SELECT * FROM idem.claim_actions('act', %s)", [['default']]))
conn.rollback()
with conn.transaction():
    said['block'] = code(lambda: conn.execute(claim, ['default']))
conn.rollback()
said['begin'] = code(lambda: conn.execute("SELECT idem.begin_effect(gen_random_uuid(), gen_random_uuid())"))
said['begin hint'] = said['hint']
});
is($said->{claim}, '25001', 'psycopg as it is: claim_action raises 25001');
like($said->{'claim hint'}, qr/autocommit/, 'with a hint that names its setting');
is($said->{batch}, '25001', 'so does claim_actions');
is($said->{block}, '25001', 'and inside conn.transaction()');
is($said->{begin}, '25001', 'and begin_effect');
like($said->{'begin hint'}, qr/autocommit/, 'with the same hint');
is(outcome('default'), 'unknown', 'nothing was claimed');

$said = python(
	q{
conn = psycopg.connect(dsn)
mine = "SELECT granted FROM idem.claim_action(%s, 'act', in_transaction => true)"
said['first'] = conn.execute(mine, ['died']).fetchone()[0]
conn.close()
conn = psycopg.connect(dsn)
said['second'] = conn.execute(mine, ['kept']).fetchone()[0]
conn.commit()
conn = psycopg.connect(dsn, autocommit=True)
cur = conn.execute("SELECT granted, action_id, claim_id FROM idem.claim_action(%s, 'act')", ['auto'])
said['auto'], action, claim = cur.fetchone()
said['done'] = conn.execute("SELECT accepted FROM idem.complete_action(%s, %s, 'ref')", [action, claim]).fetchone()[0]
});
ok($said->{first}, 'in_transaction: granted inside');
is(outcome('died'), 'unknown', 'and forgotten where the client dies before COMMIT');
ok($said->{second}, 'in_transaction, committed');
is(outcome('kept'), 'in_progress', 'is kept');
ok($said->{auto} && $said->{done}, 'autocommit=True: claimed and completed');
is(outcome('auto'), 'completed', 'and kept');

#
# A pipeline: statements up to a Sync are one transaction, though no BEGIN is sent
#
$said = python(
	q{
def result(c):
    c.flush()
    while c.is_busy():
        select.select([c.socket], [], [], 10)
        c.consume_input()
    return c.get_result()

def told(sql):
    """The first row that the server tells while the pipeline is still open."""
    c = pq.PGconn.connect(dsn.encode())
    c.enter_pipeline_mode()
    for s in sql:
        c.send_query_params(s.encode(), None)
    c.send_flush_request()
    rows = []
    for s in sql:
        r = result(c)
        rows.append(r.get_value(0, 0).decode() if r.status == pq.ExecStatus.TUPLES_OK
                    else (r.error_field(pq.DiagnosticField.SQLSTATE) or b'').decode())
        result(c)
    c.finish()
    return rows

claim = "SELECT granted FROM idem.claim_action('%s', 'act')"
said['first'] = told([claim % 'first'])
said['then error'] = told([claim % 'then error', 'SELECT 1 / 0'])
said['after'] = told(['CREATE TABLE early ()', claim % 'after'])
said['two'] = told([claim % 'two 1', claim % 'two 2'])
said['inside'] = told(["SELECT granted FROM idem.claim_action('inside', 'act', in_transaction => true)", 'SELECT 1 / 0'])
said['batch'] = told(["SELECT granted FROM idem.claim_actions('act', ARRAY['batch'])"])
conn = psycopg.connect(dsn, autocommit=True)
action, claim = conn.execute("SELECT action_id, claim_id FROM idem.claim_action('begun', 'marked')").fetchone()
said['begun'] = told([f"SELECT idem.begin_effect('{action}', '{claim}') > 0"])
});
foreach my $key ('first', 'then error', 'batch')
{
	is($said->{$key}[0], 't', "a claim that begins a pipeline: granted ($key)");
	$node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE state ~ '^idle in transaction'});
	is(outcome($key), 'in_progress', "and kept, though the pipeline never ended well ($key)");
}
is($said->{after}[1], '25001', 'a claim after other statements of a pipeline');
is(outcome('after'), 'unknown', 'claims nothing');
is_deeply([ $said->{two}[0], outcome('two 1') ], [ 't', 'in_progress' ], 'two claims in a pipeline: the first is kept');
is(($said->{two}[1] eq 't' ? 'in_progress' : 'unknown'), outcome('two 2'), 'the second as it was told');
is($said->{inside}[0], 't', 'in_transaction: granted in a pipeline');
is(outcome('inside'), 'unknown', 'and gone with it');
is($said->{begun}[0], 't', 'begin_effect in a pipeline');
is($node->safe_psql('postgres', q{SELECT begun FROM idem.idem_actions WHERE key = 'begun'}), 't', 'is kept');

#
# cut model text as the result
#
$said = python(
	q{
from psycopg.types.json import Jsonb
conn = psycopg.connect(dsn, autocommit=True)

def finish(key, result):
    action, claim = conn.execute("SELECT action_id, claim_id FROM idem.claim_action(%s, 'act')", [key]).fetchone()
    call = "SELECT accepted, state FROM idem.complete_action(%s, %s, 'ref', %s)"
    try:
        return conn.execute(call, [action, claim, Jsonb(result)]).fetchone()
    except (psycopg.DataError, UnicodeError) as e:
        said[key + ' failed'] = getattr(e, 'sqlstate', None) or type(e).__name__
        return conn.execute(call, [action, claim, None]).fetchone()

said['zero'] = finish('zero', {'text': 'cut\x00'})
said['half'] = finish('half', {'text': 'cut \ud83d'})
said['nan'] = finish('nan', {'n': float('nan')})
said['fine'] = finish('fine', {'text': 'whole \U0001F600'})
});
foreach my $key (qw(zero half nan))
{
	ok($said->{"$key failed"}, "$key: the result is refused");
	is_deeply($said->{$key}, [ JSON::PP::true, 'completed' ], "$key: the completion is recorded without it");
	is(outcome($key), 'completed', "$key: and repeats are told");
}
ok(!$said->{'fine failed'}, 'a whole emoji is kept');

#
# A driver's prepared statements, by name and by the server's own plans
#
$said = python(
	q{
conn = psycopg.connect(dsn, autocommit=True)
conn.prepare_threshold = 0
q = "SELECT granted, outcome, action_id = idem.action_id(%s, 'act') FROM idem.claim_action(%s, 'act', worker => %s, lease => %s::interval)"
said['rows'] = [conn.execute(q, [k, k, 'w', '1 min']).fetchone() for k in ['p1', 'p2', 'p1', 'p2'] * 5]
conn.execute("DROP EXTENSION idem_action; CREATE EXTENSION idem_action; SELECT idem.define_rule('act', 'u', 'r')", prepare=False)
said['anew'] = conn.execute(q, ['p1', 'p1', 'w', '1 min']).fetchone()
});
is(scalar(grep { $_->[0] } @{ $said->{rows} }), 2, 'prepared statements: each key granted once');
is(scalar(grep { $_->[2] } @{ $said->{rows} }), 20, 'always a full row');
ok($said->{anew}[0], 'prepared statements outlive DROP and CREATE EXTENSION');

$node->stop;
done_testing();
