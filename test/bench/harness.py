"""What the benchmarks share: a build in a temp folder, throw-away clusters,
pgbench scripts composed from ours.sql and raw.sql, pairs of runs, a table.

Started by root, everything that PostgreSQL refuses to do as root runs as the
user postgres.  Nothing is written outside the temp folder, and that goes away.
"""

import concurrent.futures
import contextlib
import itertools
import os
import pwd
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).absolute().parent
TREE = HERE.parent.parent
PG_CONFIG = os.environ.get('PG_CONFIG', 'pg_config')
OWNER = pwd.getpwnam('postgres') if os.geteuid() == 0 else None
AS_OWNER = {'user': OWNER.pw_uid, 'group': OWNER.pw_gid, 'extra_groups': []} if OWNER else {}
CORES = os.sched_getaffinity(0) if hasattr(os, 'sched_getaffinity') else set()

# One action of the work size: a key of about 30 bytes (in the statements),
# params of about 150, a result of about 100.
FACTS = {
    'params': '{"order": 4711, "customer": "c-93f2a07b51", "amount": "129.90",'
              ' "currency": "EUR", "recipient": "accounts-payable@customer-93f2.example.com"}',
    'ref': 'ch_3OQ9f2LkdIwHu7ix0a1b',
    'result': '{"id": "ch_3OQ9f2LkdIwHu7ix0a1b", "status": "succeeded", "balance_transaction": "txn_1MiN3g"}',
}

# Ways to choose a key's number; a script starts with one of them.
BASE = 10 ** 17
FRESH = f'\\set n random({2 * BASE}, {9 * BASE})'
SEEDED_ACTIONS = 100_000
SEEDED = f'\\set n random({BASE + 1}, {BASE + SEEDED_ACTIONS})'
SEEDED_BATCH = f'\\set n random({BASE}, {BASE + SEEDED_ACTIONS} - :size)'
SEED = f'\\set i :i + 1\n\\set n {BASE} + (:i - 1) * :size'
HOT = f'\\set n {BASE + 1}'
RACE = f'\\set i :i + 1\n\\set n {BASE} + :run * 100000000 + :i * 2 + :client_id % 2'


def command(*args, **options):
    """Run a program, as postgres where we are root; its output, or its error."""
    done = subprocess.run([str(arg) for arg in args], text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, **AS_OWNER, **options)
    if done.returncode != 0:
        raise SystemExit(f'{Path(args[0]).name} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}')
    return done.stdout


def pg_config(what):
    return Path(command(PG_CONFIG, f'--{what}').strip())


def sections(path):
    """The parts of a file that `-- section: name` lines divide."""
    parts = re.split(r'^-- section: (.*)\n', path.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], (part.strip() for part in parts[2::2])))


class Side:
    """One of the two contestants: its statements, and scripts made of them."""

    def __init__(self, name, relation):
        self.name, self.table = name, relation
        self.says = sections(HERE / f'{name}.sql')

    def script(self, choice, *statements):
        return '\n'.join([choice, *(self.says[s] + ';' for s in statements)])

    def life(self):
        return '\n'.join([FRESH, self.says['claim'] + ' \\gset c_', self.says['complete'] + ';'])

    def batch_life(self, choice=FRESH):
        """Claims of one batch, then their completion: two transactions."""
        return '\n'.join([
            choice,
            f"WITH claimed AS ({self.says['claim batch']})",
            'SELECT array_agg(action_id) AS action_ids, array_agg(claim_id) AS claim_ids FROM claimed \\gset c_',
            self.says['complete batch'] + ';'])

    def take_life(self, size):
        """Some are taken from the queue, then completed: two transactions."""
        if size == 1:
            return self.says['take'] + ' \\gset c_\n' + self.says['complete'] + ';'
        return '\n'.join([
            f"WITH taken AS ({self.says['take']})",
            'SELECT array_agg(action_id) AS action_ids, array_agg(claim_id) AS claim_ids FROM taken \\gset c_',
            self.says['complete batch'] + ';'])

    def complete_opened(self):
        """Completion, one by one, of what Cluster.open() has left open."""
        return '\n'.join([
            '\\set i :i + 1',
            f'SELECT action_id, claim_id FROM opened_{self.name} WHERE n = :i \\gset c_',
            self.says['complete'] + ';'])

    def complete_opened_batch(self):
        """The same, :size of them at a time."""
        return '\n'.join([
            '\\set i :i + 1',
            'SELECT array_agg(action_id) AS action_ids, array_agg(claim_id) AS claim_ids',
            f'FROM opened_{self.name} WHERE n > (:i::int - 1) * :size::int AND n <= :i::int * :size::int \\gset c_',
            self.says['complete batch'] + ';'])


BOTH = OURS, RAW = Side('ours', 'idem.idem_actions'), Side('raw', 'raw')


class Cluster:
    """A throw-away server with the extension preloaded, reached by a socket."""

    calm = {
        'listen_addresses': "''", 'max_connections': 100, 'shared_buffers': '512MB',
        'synchronous_commit': 'on', 'full_page_writes': 'on',
        'max_wal_size': '16GB', 'checkpoint_timeout': '1h',
        'autovacuum_naptime': '5min', 'jit': 'off',
        'shared_preload_libraries': 'idem_action',
    }
    runs = itertools.count(1)

    def __init__(self, bench, name, **settings):
        self.bin, self.home = bench.bin, bench.home / name
        command(self.bin / 'initdb', '-A', 'trust', '-N', '-U', 'postgres', '-E', 'UTF8',
                '--no-locale', '-D', self.home, cwd=bench.home)
        settings = self.calm | bench.paths | {'unix_socket_directories': f"'{self.home}'"} | settings
        with open(self.home / 'postgresql.conf', 'a', encoding='utf-8') as conf:
            conf.writelines(f'{key} = {value}\n' for key, value in settings.items())
        self.env = {'PATH': os.environ['PATH'], 'LC_ALL': 'C', 'PGHOST': str(self.home), 'PGUSER': 'postgres'}

    def start(self, under=''):
        """Start the server, where wanted under a program that watches it."""
        program = self.home / 'postgres'
        program.write_text(f'#!/bin/sh\nexec {under} {self.bin}/postgres "$@"\n', encoding='utf-8')
        program.chmod(0o755)
        command(self.bin / 'pg_ctl', '-s', '-w', '-t', 300, '-D', self.home, '-l', self.home / 'log', '-p', program, 'start',
                cwd=self.home)
        self.postmaster = int((self.home / 'postmaster.pid').read_text().split()[0])

    def stop(self):
        command(self.bin / 'pg_ctl', '-s', '-w', '-m', 'immediate', '-D', self.home, 'stop', cwd=self.home)

    def psql(self, db):
        return [self.bin / 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', db]

    def sql(self, text, db='bench'):
        return command(*self.psql(db), '-c', text, cwd=self.home, env=self.env).strip()

    def say(self, text, db='bench', **variables):
        """The same for a section of a file, with its variables."""
        given = [f"-v{name}='{value}'" for name, value in (FACTS | variables).items()]
        return command(*self.psql(db), *given, input=text, cwd=self.home, env=self.env).strip()

    def expect(self, count, query, db='bench', **variables):
        """A figure means something only where the calls do what they are thought to do."""
        query = f'SELECT count(*) FROM ({query}) AS found'
        found = self.say(query, db, **variables)
        if int(found) != count:
            raise SystemExit(f'{found} rows, not {count}: {query}')

    def fresh(self, db='bench'):
        """An empty database with both contestants in it."""
        self.sql(f'DROP DATABASE IF EXISTS {db} WITH (FORCE)', 'postgres')
        self.sql(f'CREATE DATABASE {db}', 'postgres')
        for side in BOTH:
            self.sql(side.says['setup'], db)

    def seed(self, db='bench'):
        """Completed actions with the numbers that SEEDED chooses among."""
        for side in BOTH:
            self.pgbench(side.batch_life(SEED), count=SEEDED_ACTIONS // 1000, db=db, size=1000)
            self.expect(SEEDED_ACTIONS, f"SELECT FROM {side.table} WHERE state = 'completed'", db)
            for what in 'repeat', 'repeat with params', 'repeat batch', 'repeat batch with params':
                self.expect(100 if 'batch' in what else 1,
                            f"SELECT FROM ({side.says[what]}) AS a WHERE state = 'completed' AND result IS NOT NULL",
                            db, n=BASE + 1, size=100)
        self.sql('VACUUM ANALYZE', db)

    def fill(self, first, rows, purge_in, forget_in, db='bench'):
        """Finished actions with the numbers from `first` on, due for retention in so long; both sides at once."""
        with concurrent.futures.ThreadPoolExecutor() as threads:
            list(threads.map(lambda side: self.say(side.says['fill finished'], db, n=first, rows=rows,
                                                   purge_in=purge_in, forget_in=forget_in), BOTH))

    def open(self, actions, sides=BOTH, db='bench'):
        """Actions claimed and left so; tables opened_… number them in the order of their claims."""
        for side in sides:
            self.pgbench(side.script(FRESH, 'claim batch'), count=actions // 1000, db=db, size=1000)
            self.sql(f'DROP TABLE IF EXISTS opened_{side.name}', db)
            self.sql(f'CREATE TABLE opened_{side.name} AS SELECT row_number() OVER (ORDER BY ctid) AS n, action_id, claim_id'
                     f' FROM {side.table} WHERE lease_until IS NOT NULL', db)
            self.sql(f'CREATE INDEX ON opened_{side.name} (n)', db)
            self.expect(actions, f'SELECT FROM opened_{side.name}', db)
        self.sql('VACUUM ANALYZE', db)

    def pgbench(self, script, clients=1, seconds=0, count=0, rate=0, db='bench', log=False, **variables):
        """Run a script; what pgbench prints, with the latencies of statements."""
        how = ['-T', seconds] if seconds else ['-t', count]
        how += ['-R', rate] if rate else []
        how += ['-l', '--log-prefix', self.home / 'latency'] if log else []
        return command(*self.pgbench_command(script, clients, how, db, **variables), cwd=self.home, env=self.env)

    def pgbench_command(self, script, clients, how, db='bench', **variables):
        number = next(self.runs)
        path = self.home / f'script-{number}.sql'
        path.write_text(script + '\n', encoding='utf-8')
        self.gather(clients == 1)
        variables = FACTS | {'i': 0, 'run': number} | variables
        args = ['-n', '-r', '-M', 'prepared', '-c', clients, '-j', min(clients, 2), *how,
                *(f'-D{name}={value}' for name, value in variables.items()), '-f', path, db]
        return [str(arg) for arg in (self.bin / 'pgbench', *args)]

    def gather(self, together):
        """Let a lone client and its backend share one core: how far apart the scheduler
        puts the two decides their rate otherwise.  Both inherit the setting."""
        if hasattr(os, 'sched_setaffinity'):
            cores = {min(CORES)} if together else CORES
            for pid in 0, self.postmaster:
                os.sched_setaffinity(pid, cores)

    def rate(self, script, **options):
        """Transactions a second."""
        return float(re.search(r'tps = ([\d.]+)', self.pgbench(script, **options)).group(1))

    def last_statement(self, script, **options):
        """Mean milliseconds of the script's last statement."""
        table_of_them = self.pgbench(script, **options).partition('statement latencies')[2]
        return float(re.findall(r'^\s+([\d.]+)\s', table_of_them, flags=re.MULTILINE)[-1])

    def writes(self, side, script, count, clients=1, db='bench', **options):
        """Of `count` transactions a client: bytes of WAL a transaction, per cent of the updates
        of the side's table that were HOT, mean milliseconds of the last statement."""
        look = (f"SELECT pg_current_wal_insert_lsn() - '0/0', n_tup_upd, n_tup_hot_upd"
                f" FROM pg_stat_user_tables WHERE relid = '{side.table}'::regclass")
        before = self.sql(look, db)
        took = self.last_statement(script, count=count, clients=clients, db=db, **options)
        after = self.sql(look, db)
        wal, updates, hot = (int(b) - int(a) for a, b in zip(before.split('|'), after.split('|')))
        return wal / (count * clients), 100 * hot / updates if updates else 0, took

    def latencies(self, script, **options):
        """Milliseconds of every transaction, sorted."""
        self.pgbench(script, log=True, **options)
        return sorted(ms for _, ms in self.logged())

    def logged(self):
        """Of each transaction that pgbench logged: when it ended, and its milliseconds."""
        logs = list(self.home.glob('latency.*'))
        lines = [line.split() for log in logs for line in log.read_text().splitlines()]
        for log in logs:
            log.unlink()
        return [(int(at) + int(fraction) / 1e6, int(took) / 1000) for _, _, took, _, at, fraction, *_ in lines]

    @contextlib.contextmanager
    def running(self, script, clients, how, **variables):
        """A script goes on while the block runs, then to its end."""
        with subprocess.Popen(self.pgbench_command(script, clients, how, **variables), cwd=self.home, env=self.env,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **AS_OWNER) as load:
            try:
                yield
            except BaseException:
                load.kill()
                raise
            said, _ = load.communicate()
            if load.returncode != 0 and 'terminating connection due to administrator command' not in said:
                raise SystemExit(f'pgbench failed:\n{said[-2000:]}')

    @contextlib.contextmanager
    def beside(self, script, clients, rate, **variables):
        """A script goes on at so many transactions a second while the block runs; then the list
        has the milliseconds of those that ended meanwhile, each from when it was due."""
        found, theirs = [], "application_name = 'pgbench'"
        how = ['-T', 36000, '-R', rate, '-l', '--log-prefix', self.home / 'latency']
        with self.running(script, clients, how, **variables):
            self.wait_for(clients, theirs)
            began = time.time()
            yield found
            ended = time.time()
            self.wait_for(clients, theirs)
            # the way to end it that makes it write all of its log
            self.sql(f'SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {theirs}', 'postgres')
        found += sorted(ms for at, ms in self.logged() if began <= at <= ended)

    def wait_for(self, sessions, what):
        """Until so many sessions are as pg_stat_activity shows them."""
        for _ in range(600):
            if int(self.sql(f'SELECT count(*) FROM pg_stat_activity WHERE {what}', 'postgres')) == sessions:
                return
            time.sleep(0.05)
        raise SystemExit(f'not {sessions} sessions: {what}')

    def next_xid(self):
        return int(self.sql('SELECT pg_snapshot_xmax(pg_current_snapshot())'))

    @contextlib.contextmanager
    def holding(self, text, db='bench'):
        """A session that has run `text` in a transaction and keeps it open."""
        with subprocess.Popen(self.psql(db), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                              cwd=self.home, env=self.env, **AS_OWNER) as session:
            session.stdin.write(f'BEGIN; {text}; SELECT $$holding$$;\n')
            session.stdin.flush()
            for line in session.stdout:
                if line == 'holding\n':
                    break
            else:
                raise SystemExit(f'could not hold: {text}')
            yield


class Bench:
    """The temp folder: a build of this tree, and the clusters that use it."""

    def __init__(self):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit('stopped'))
        self.stack = contextlib.ExitStack()
        self.clusters = {}

    def __enter__(self):
        self.home = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix='idem.')))
        self.bin = pg_config('bindir')
        copy, root = self.home / 'tree', self.home / 'root'
        shutil.copytree(TREE, copy, ignore=shutil.ignore_patterns('.git', 'tmp_*', '*.o', '*.so', '*.bc'))
        for path in [self.home, copy, *copy.rglob('*')] if OWNER else []:
            os.chown(path, OWNER.pw_uid, OWNER.pw_gid, follow_symlinks=False)
        for target in [], ['install', f'DESTDIR={root}']:
            command('make', '-s', f'PG_CONFIG={PG_CONFIG}', 'with_llvm=no', *target, cwd=copy)
        share, lib = pg_config('sharedir'), pg_config('pkglibdir')
        knows = command(self.bin / 'postgres', '--describe-config', cwd=self.home)
        self.paths = {'dynamic_library_path': f"'{root}{lib}:$libdir'"}
        if re.search('^extension_control_path', knows, flags=re.MULTILINE):    # PostgreSQL 18 and later
            self.paths['extension_control_path'] = f"'{root}{share}:$system'"
        else:                                                                  # Debian's 15 to 17
            self.paths['extension_destdir'] = f"'{root}'"
        return self

    def __exit__(self, *failure):
        for server in self.clusters.values() if failure[0] else []:
            lines = (server.home / 'log').read_text(encoding='utf-8').splitlines()
            print(f'==== the end of {server.home.name}/log', *lines[-20:], sep='\n', file=sys.stderr)
        return self.stack.__exit__(*failure)

    def version(self):
        return command(self.bin / 'postgres', '--version', cwd=self.home).split()[2]

    def still(self, name, **settings):
        """A cluster in which nothing writes but the calls."""
        return self.cluster(name, autovacuum='off', **{'idem_action.worker': 'off'}, **settings)

    def quiet(self, **settings):
        return self.still('quiet', fsync='off', **settings)

    def cluster(self, name, **settings):
        """The cluster of that name, started when first asked for."""
        if name not in self.clusters:
            self.clusters[name] = server = Cluster(self, name, **settings)
            server.start()
            self.stack.callback(server.stop)
        return self.clusters[name]


class Row:
    """One line of the table.  Judged is the median of the ratios; without
    ratios, our figure itself."""

    def __init__(self, target, work, ours, raw, ratios, wanted, unit):
        judged = statistics.median(ratios) if ratios else ours
        noise = spread(ratios)
        sign, bound = wanted.split()
        short = (float(bound) - judged) * (1 if sign == '≥' else -1)
        self.missed = short > noise
        verdict = 'MISSED' if self.missed else 'ok, within noise' if short > 0 else 'ok'
        self.cells = [target, work, figure(ours, unit), figure(raw, unit),
                      f'{judged:.2f}' if ratios else '–', wanted if ratios else wanted + unit,
                      f'{noise:.2f}' if len(ratios) > 1 else '–', verdict]


def spread(values):
    """Half the distance between the quartiles."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method='inclusive')
    return (high - low) / 2


def figure(value, unit):
    if value is None:
        return '–'
    digits = 0 if isinstance(value, int) or abs(value) >= 1000 else 1 if abs(value) >= 100 else 2
    return f'{value:,.{digits}f}'.replace(',', ' ') + unit


def within(part, times):
    """In how long so many of 100 ended; `times` is sorted."""
    return times[len(times) * part // 100]


def pairs(target, work, ours, raw, wanted, unit, times, before=lambda: None):
    """Measure A B A B …, after one of each that does not count."""
    def pair():
        before()
        return ours(), raw()
    pair()
    return compare(target, work, [pair() for _ in range(times)], wanted, unit)


def compare(target, work, measured, wanted, unit):
    """The row of pairs that were measured."""
    a, b = zip(*measured)
    return Row(target, work, statistics.median(a), statistics.median(b), [x / y for x, y in measured], wanted, unit)


def table(heads, rows):
    """Print a table that is also Markdown."""
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    for row in [heads, ['-' * width for width in widths], *rows]:
        print('| ' + ' | '.join(cell.ljust(width) for cell, width in zip(row, widths)) + ' |', flush=True)
