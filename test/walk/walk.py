#!/usr/bin/env python3
"""A random walk of three actors over a few actions, every step compared with
model.py, for test/t/walk.pl.

    PGHOST=... IDEM_WALK_STEPS=200000 IDEM_WALK_SEED=7 test/walk/walk.py

Needs an empty database with idem_action, a superuser, and nobody else there.
Time moves by shifting all times of a row into the past, so nothing waits.
After each step all rows are read: what the model did not expect to change must
not have changed, idem.violated_invariant finds nothing, and idem_queue agrees
with the rows.  The history of what the step was about has each hand-out of the
walk once and in order, with who was handed it, for what, and how it ended; so has
explain_action.  The first time that a kind of state is met, the action is led
from there to its end, by the calls that the page offers.

Prints TAP.  A difference ends the walk, with the last calls about the action.
"""

import collections
import json
import os
import random
import re
import subprocess
import sys
import time
import uuid

from model import ANY, FINAL, Model, Rule

STEPS = int(os.environ.get("IDEM_WALK_STEPS", 6000))
SEED = int(os.environ.get("IDEM_WALK_SEED", 0)) or random.SystemRandom().randrange(1, 10**9)
NEAR = 3      # seconds: closer to a limit than this, a step is not predictable

RULES = {
    "review": Rule("review", max_attempts=3, max_failures=3),
    "review-marked": Rule("review", marks=True, max_attempts=2),
    "verify": Rule("verify", max_attempts=3, max_failures=4),
    "verify-marked": Rule("verify", marks=True, settle=600, max_attempts=4),
    "retry": Rule("retry", window=3600, max_attempts=4),
    "retry-marked": Rule("retry", marks=True, window=1800, max_attempts=6, max_failures=5),
    "repeat": Rule("repeat", max_attempts=2, max_failures=2, delay=60),
    "approve": Rule("verify", marks=True, max_attempts=3, approval=True),
    "approve-retry": Rule("retry", window=86400, max_attempts=3, approval=True),
}
KEYS = [("k1", ""), ("k2", "eu")]
IDENTS = [(intent, key, scope) for intent in RULES for key, scope in KEYS]
DRAFTS = [None, "d1", "d2", "d3"]
REFS = [None, "ref-1", "ref-2", "ref-3"]

SETUP = """
CREATE SCHEMA walk;

-- an action as the walk compares it; times in seconds
CREATE FUNCTION walk.look(about uuid[]) RETURNS json LANGUAGE sql AS $$
	SELECT json_build_object(
		'rows', (SELECT json_object_agg(a.action_id, json_build_object(
			'version', a.xmin::text || a.ctid::text,
			'state', state, 'reason', reason, 'generation', generation,
			'attempt', attempt, 'lost', lost, 'failures', failures,
			'uncertain', uncertain, 'begun', begun, 'verifying', verifying,
			'approved', approved, 'cancel_requested', cancel_requested,
			'purged', purged, 'claim_id', claim_id, 'revision', revision,
			'params', params->>'to', 'draft', draft->>'text',
			'external_ref', external_ref, 'has_error', error IS NOT NULL,
			'lease_until', extract(epoch FROM lease_until),
			'due_at', extract(epoch FROM due_at),
			'first_claimed_at', extract(epoch FROM first_claimed_at),
			'finished_at', extract(epoch FROM finished_at),
			'forget_after', extract(epoch FROM forget_after)))
			FROM idem.idem_actions a),
		'violated', (SELECT json_agg(idem.violated_invariant(a)) FROM idem.idem_actions a
			WHERE idem.violated_invariant(a) IS NOT NULL),
		'queue', (SELECT json_agg(json_build_array(a.action_id, q.action_id, a.due_at, q.due_at))
			FROM idem.idem_queue q
			FULL JOIN (SELECT * FROM idem.idem_actions WHERE due_at IS NOT NULL AND NOT purged) a
				ON (q.action_id, q.intent, q.priority, q.due_at) = (a.action_id, a.intent, a.priority, a.due_at)
			WHERE a.action_id IS NULL OR q.action_id IS NULL),
		'attention', (SELECT coalesce(json_agg(action_id ORDER BY action_id), '[]') FROM idem.attention),
		'history', (SELECT coalesce(json_object_agg(action_id, lines), '{}') FROM (
			SELECT action_id, json_agg(json_build_array(generation, attempt, event, worker) ORDER BY at, id) AS lines
			FROM idem.history WHERE action_id = ANY (about) GROUP BY action_id) AS h),
		'events', (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM idem.idem_events_id_seq))
$$;

-- an action grows older by so much
CREATE FUNCTION walk.age(uuid, interval) RETURNS void LANGUAGE sql AS $$
	UPDATE idem.idem_queue SET due_at = due_at - $2 WHERE action_id = $1;
	UPDATE idem.idem_events SET at = at - $2, claimed_at = claimed_at - $2 WHERE action_id = $1;
	UPDATE idem.idem_actions SET
		created_at = created_at - $2, first_claimed_at = first_claimed_at - $2,
		claimed_at = claimed_at - $2, lease_until = lease_until - $2,
		due_at = due_at - $2, doubt_until = doubt_until - $2,
		finished_at = finished_at - $2, purge_after = purge_after - $2,
		forget_after = forget_after - $2
	WHERE action_id = $1;
$$;
"""


class Difference(Exception):
    pass


class Session:
    """A psql of its own."""

    def __init__(self):
        self.psql = subprocess.Popen(
            ["psql", "-XAtq", "-v", "VERBOSITY=terse"], bufsize=0,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.out = os.fdopen(os.dup(self.psql.stdout.fileno()), encoding="utf-8")

    def run(self, *statements):
        """For each statement its lines and its SQLSTATE, 00000 where it is good."""
        text = "".join(f"{s};\n\\echo ~ :SQLSTATE\n" for s in statements)
        self.psql.stdin.write(text.encode())
        answers, lines = [], []
        while len(answers) < len(statements):
            line = self.out.readline()
            if line == "":
                raise Difference("psql ended: " + "".join(lines))
            if line.startswith("~ "):
                answers.append((lines, line[2:].strip()))
                lines = []
            else:
                lines.append(line.rstrip("\n"))
        return answers


def literal(value):
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return "ARRAY[" + ", ".join(map(literal, value)) + "]"
    return "'" + value.replace("'", "''") + "'"


def call(function, **args):
    """The text of a call in named notation; what is not given is left out."""
    casts = {"action_ids": "::uuid[]", "claim_ids": "::uuid[]", "params_array": "::jsonb[]"}
    named = ", ".join(f"{name} => {literal(value)}{casts.get(name, '')}"
                      for name, value in args.items() if value is not ANY)
    return f"SELECT to_json(r) FROM idem.{function}({named}) r"


def jsonb(name, value):
    return None if value is None else json.dumps({name: value})


def seconds(value):
    return None if value is None else f"{value} seconds"


class Walk:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.model = Model(RULES)
        self.sessions = [Session() for _ in range(3)]
        self.log = collections.deque(maxlen=4000)
        self.counts = collections.Counter()
        self.kinds = set()          # of state that were reached
        self.grants = 0
        self.keys = {}              # provider key -> (ident, generation)

        def setup(*statements):
            for lines, state in self.sessions[0].run(*statements):
                if state != "00000":
                    raise Difference(f"setup: {state} {lines}")
            return lines

        setup(SETUP.rstrip().rstrip(";"))
        for intent, r in RULES.items():
            setup(call("define_rule", intent=intent, unique_by="the key", resolved_by="the walk",
                       on_uncertain=r.on_uncertain, provider_window=seconds(r.window),
                       settle=seconds(r.settle), lease=seconds(r.lease), marks_effect=r.marks,
                       max_attempts=r.max_attempts, max_failures=r.max_failures,
                       retry_delay=seconds(r.delay), keep_content=seconds(r.keep_content),
                       keep_key=seconds(r.keep_key), requires_approval=r.approval))
        self.ids = {}
        for intent, key, scope in IDENTS:
            self.ids[intent, key, scope] = setup(
                f"SELECT idem.action_id({literal(key)}, {literal(intent)}, {literal(scope)})")[0]
        self.ident_of = {v: k for k, v in self.ids.items()}
        self.db = json.loads(setup("SELECT walk.look('{}')")[0])
        self.db["rows"] = self.db["rows"] or {}

    # ---------------------------------------------------------------- a step

    def do(self, statement, about=()):
        """Runs a call by one of the actors and reads the ledger."""
        session = self.random.choice(self.sessions)
        self.log.append([set(about), statement, "?", []])
        (lines, state), (looked, look_state) = session.run(
            statement, f"SELECT walk.look({literal([self.ids[i] for i in about])}::uuid[])")
        self.log[-1][2:] = state, lines
        if look_state != "00000":
            raise Difference(f"look: {look_state} {looked}")
        self.before, self.db = self.db, json.loads(looked[0])
        self.db["rows"] = self.db["rows"] or {}
        answers = [json.loads(line) for line in lines if line] if state == "00000" else []
        return state, answers

    def differ(self, what, expected, found, ident=None):
        raise Difference(f"{ident}: {what}: the model says {expected!r}, the ledger {found!r}")

    def compare(self, now, touched, answer=None):
        """The rows, all of them, with the model."""
        if self.db["violated"]:
            self.differ("invariants", None, self.db["violated"])
        if self.db["queue"]:
            self.differ("queue", None, self.db["queue"])
        for ident, action_id in self.ids.items():
            row = self.db["rows"].get(action_id)
            a = self.model.actions.get(ident)
            if (row is None) != (a is None):
                self.differ("row", a and a.state, row and row["state"], ident)
            if row is None:
                continue
            older = self.before["rows"].get(action_id)
            if ident not in touched:
                if row != older:
                    self.differ("untouched row", older, row, ident)
                continue
            self.compare_row(ident, a, row, older, now)
            if action_id in self.db["history"]:
                self.compare_history(ident, a, self.db["history"][action_id])
        if answer is not None and answer.writes is False:
            if self.db["rows"] != self.before["rows"]:
                changed = [self.ident_of[i] for i, row in self.db["rows"].items()
                           if row != self.before["rows"].get(i)]
                self.differ("writes nothing", "no new version", changed, touched[0])
            if self.db["events"] != self.before["events"]:
                self.differ("writes nothing", "no event", "an event", touched[0])
        if answer is not None and getattr(answer, "evidence", False) and \
                self.db["events"] == self.before["events"]:
            self.differ("evidence", "an event", "none", touched[0])
        attention = sorted(self.ids[i] for i, a in self.model.actions.items()
                           if a.state == "needs_attention" or a.reason == "double_result")
        if self.db["attention"] != attention:
            self.differ("view attention", attention, self.db["attention"])

    def compare_row(self, ident, a, row, older, now):
        for name in ("state", "reason", "generation", "attempt", "lost", "failures",
                     "uncertain", "begun", "verifying", "approved", "cancel_requested",
                     "purged", "params", "draft", "external_ref", "claim_id"):
            expected = getattr(a, name)
            if expected is ANY:
                if name == "claim_id" and row[name] in a.issued:
                    self.differ("a fresh claim_id", "fresh", row[name], ident)
                setattr(a, name, row[name])
            elif name == "begun" and a.state != "in_progress":
                a.begun = row[name]     # of an ended attempt: nothing depends on it
            elif expected != row[name]:
                self.differ(name, expected, row[name], ident)
        if row["claim_id"] is not None:
            a.issued.setdefault(row["claim_id"], row["generation"])
        for name in ("lease_until", "due_at", "first_claimed_at", "finished_at", "forget_after"):
            expected, found = getattr(a, name), row[name]
            low, high = expected if isinstance(expected, tuple) else (expected, expected)
            if (low is None) != (found is None) or (
                    found is not None and not low - 2 <= found <= high + 2):
                self.differ(name, expected and (low - now, high - now),
                            found and found - now, ident)
            setattr(a, name, found)
        if a.params is None and not a.purged and a.digest is not None:
            self.differ("contents", "purged", "params without params", ident)

        # the revision grows with every change but of the lease
        if older is not None:
            same = all(row[n] == older[n] for n in row
                       if n not in ("version", "lease_until", "due_at", "purged", "params",
                                    "draft", "has_error", "revision"))
            if row["generation"] == older["generation"] and row["revision"] < older["revision"] \
                    and older["finished_at"] is None:
                self.differ("revision", "not smaller", row["revision"], ident)
            if not same and row["revision"] == older["revision"]:
                self.differ("revision", "grown", row["revision"], ident)
        a.revision = row["revision"]

    def compare_history(self, ident, a, lines):
        """Each hand-out once, in order, and its end between it and the next one."""
        lines = [tuple(line) for line in lines]
        starts = [n for n, line in enumerate(lines) if line[2] in ("claimed", "handed_out_to_verify")]
        if [lines[n] for n in starts] != [h for h, _ in a.hand_outs()]:
            self.differ("hand-outs in the history", [h for h, _ in a.hand_outs()], lines, ident)
        for (hand_out, end), start, after in zip(a.hand_outs(), starts, starts[1:] + [len(lines)]):
            ends = [n for n, line in enumerate(lines) if line[:2] == hand_out[:2] and
                    line[2] in (("succeeded", "completed") if end == "succeeded" else (end,))]
            if end is not None and not any(start < n < after for n in ends):
                self.differ(f"end of {hand_out}", end, lines, ident)
            if end in ("expired", "interrupted") and len(ends) > 1:
                self.differ(f"end of {hand_out}", "once", lines, ident)
            strange = {"expired", "interrupted"} - {end}
            if any(line[:2] == hand_out[:2] and line[2] in strange for line in lines):
                self.differ(f"end of {hand_out}", end, lines, ident)

    def compare_story(self, ident, a, story):
        told = [re.search(r"attempt (\d+)(?: of generation (\d+))? was handed out(?: \(worker (\w+)\))?(.*to search first)?", line)
                for line in story]
        told = [(int(t[2] or 1), int(t[1]), "handed_out_to_verify" if t[4] else "claimed", t[3]) for t in told if t]
        if told != [h for h, _ in a.hand_outs()]:
            self.differ("hand-outs in the story", [h for h, _ in a.hand_outs()], story, ident)

    def expect_claim(self, ident, want, state, found):
        """The answer of a claim, take, enqueue, find or verify."""
        if want.error:
            if state not in want.error:
                self.differ("error", want.error, state, ident)
            return
        if state != "00000":
            self.differ("error", None, state, ident)
        a = self.model.actions.get(ident)
        if found["outcome"] != want.outcome:
            self.differ("outcome", want.outcome, found["outcome"], ident)
        if found["granted"] != want.granted:
            self.differ("granted", want.granted, found["granted"], ident)
        if want.granted and want.outcome != "claimed":
            self.differ("granted", "claimed", want.outcome, ident)
        if want.claim_id is ANY and want.outcome in ("claimed", "verify"):
            if found["claim_id"] is None or found["claim_id"] != a.claim_id:
                self.differ("claim_id", a.claim_id, found["claim_id"], ident)
        elif want.claim_id is not ANY and found["claim_id"] != want.claim_id:
            self.differ("claim_id", want.claim_id, found["claim_id"], ident)
        if want.outcome in ("claimed", "in_progress", "not_due", "paused", "contended",
                            "completed", "pending", "awaiting_approval", "needs_attention",
                            "failed", "cancelled", "mismatch") and not hasattr(want, "finds"):
            keep = want.outcome in ("in_progress", "not_due", "paused", "contended")
            if (found["retry_after"] is not None) != keep:
                self.differ("retry_after", keep, found["retry_after"], ident)
        if hasattr(want, "repeat") and found["repeat"] != want.repeat:
            self.differ("repeat", want.repeat, found["repeat"], ident)
        if a is None or want.outcome in ("mismatch", "unknown") or (
                want.outcome == "paused" and a.forgotten(time.time())):
            return
        for name in ("state", "attempt", "generation", "uncertain", "revision", "external_ref"):
            if found[name] != getattr(a, name):
                self.differ("answer's " + name, getattr(a, name), found[name], ident)
        if want.granted or want.outcome == "verify":
            if found["draft"] != (a.draft and {"text": a.draft}):
                self.differ("answer's draft", a.draft, found["draft"], ident)
            if found["params"] != (a.params and {"to": a.params}):
                self.differ("answer's params", a.params, found["params"], ident)
            of = self.keys.setdefault(found["provider_key"], (ident, a.generation))
            if of != (ident, a.generation):
                self.differ("provider key of", (ident, a.generation), of, ident)

    def expect_report(self, ident, want, state, found):
        a = self.model.actions[ident]
        if state != "00000":
            self.differ("error", None, state, ident)
        if want.accepted is not ANY and found["accepted"] != want.accepted:
            self.differ("accepted", want.accepted, found["accepted"], ident)
        for name in ("state", "revision"):
            if found[name] != getattr(a, name):
                self.differ("answer's " + name, getattr(a, name), found[name], ident)
        if getattr(want, "refused", False) and not found["note"]:
            self.differ("note", "why, and what to do", found["note"], ident)

    # ---------------------------------------------------------------- time

    def age(self, ident, by):
        state, _ = self.do(f"SELECT walk.age('{self.ids[ident]}', '{by} seconds')", [ident])
        if state != "00000":
            raise Difference(f"age: {state} {self.log[-1]}")
        a = self.model.actions[ident]
        for name in ("lease_until", "due_at", "first_claimed_at", "claimed_at", "finished_at",
                     "forget_after", "doubt_until"):
            if getattr(a, name) is not None:
                setattr(a, name, getattr(a, name) - by)
        self.before = self.db   # the row has a new version
        self.compare(time.time(), [ident])

    def settle(self, idents, lease=None):
        """Moves away from limits, so that what the clock says is no accident."""
        while True:
            for ident in idents:
                a = self.model.actions.get(ident)
                if a is not None and self.too_near(a, RULES[ident[0]], lease):
                    self.age(ident, 2 * NEAR)
                    break
            else:
                return

    def untie(self, idents):
        """What became due in the same instant is handed out in an order not said."""
        seen = set()
        for ident in idents:
            a = self.model.actions.get(ident)
            while a is not None and a.due_at is not None and a.due_at in seen:
                self.age(ident, 2 * NEAR)
                self.settle(idents)
            if a is not None:
                seen.add(a.due_at)

    def too_near(self, a, rule, lease):
        now = time.time()
        limits = [a.lease_until, a.due_at, a.forget_after]
        if a.doubt_until is not None:
            limits.append(a.doubt_until + rule.settle)
        if a.first_claimed_at is not None and rule.window is not None:
            limits += [a.first_claimed_at + rule.window - l for l in (rule.lease, lease or 0, 0)]
        if a.finished_at is not None:
            limits.append(a.finished_at + rule.keep_content)
        return any(limit is not None and abs(limit - now) < NEAR for limit in limits)

    # ---------------------------------------------------------------- the calls

    def pick_claim(self, ident):
        """one that holds, an old one, or one that the ledger never issued"""
        a = self.model.actions[ident]
        kind = self.random.random()
        if kind < 0.7 and a.claim_id is not None:
            return a.claim_id
        if kind < 0.92 and a.issued:
            return self.random.choice(list(a.issued))
        return str(uuid.UUID(int=self.random.getrandbits(128), version=4))

    def pick_revision(self, ident, optional):
        a = self.model.actions[ident]
        kind = self.random.random()
        if optional and kind < 0.4:
            return None
        if kind < 0.85 or a.revision < 2:
            return a.revision
        return self.random.randrange(1, a.revision)

    def claim(self, ident, draft=ANY, worker=None, fresh=False):
        intent, key, scope = ident
        rnd = self.random.random
        draft = self.random.choice(DRAFTS) if draft is ANY else draft
        params = self.random.choice(["a", "a", "a", "a", "a", None, "b"])
        lease = self.random.choice([None, None, 60, 900])
        worker = worker or self.random.choice(["w1", "w2", "w3"])
        a = self.model.actions.get(ident)
        call_id = None
        if not fresh and rnd() < 0.15:
            if a is not None and a.call_id is not None and rnd() < 0.8:
                call_id = a.call_id
                worker = a.worker if rnd() < 0.8 else worker
            else:
                call_id = str(uuid.UUID(int=self.random.getrandbits(128), version=4))
        elif rnd() < 0.3:
            call_id = str(uuid.UUID(int=self.random.getrandbits(128), version=4))
        if a is None or a.forgotten(time.time()):
            params = "a"     # so that every action has contents to lose
        elif fresh:
            params = a.digest or "a"
        self.settle([ident], lease)
        batch = rnd() < 0.3
        if batch:
            text = call("claim_actions", intent=intent, keys=[key],
                        params=[jsonb("to", params)], drafts=[jsonb("text", draft)], scope=scope,
                        lease=seconds(lease), worker=worker, call_id=call_id)
            text = re.sub(r"(params|drafts) => (ARRAY\[[^]]*\])", r"\1 => \2::jsonb[]", text)
        else:
            text = call("claim_action", key=key, intent=intent, params=jsonb("to", params),
                        draft=jsonb("text", draft), scope=scope, lease=seconds(lease),
                        worker=worker, call_id=call_id)
        now = time.time()
        state, found = self.do(text, [ident])
        want = self.model.claim(ident, now, params, draft, lease, worker, call_id, batch)
        self.compare(now, [ident], want)
        self.expect_claim(ident, want, state, found and found[0])
        self.count_grant(want)

    def count_grant(self, want):
        if want.granted and want.writes is True:
            self.grants += 1

    def enqueue(self, ident):
        intent, key, scope = ident
        draft = self.random.choice(DRAFTS)
        a = self.model.actions.get(ident)
        if a is None or a.forgotten(time.time()):
            # params may come after the approval
            params = self.random.choice(["a", None]) if RULES[intent].approval else "a"
        else:
            params = self.random.choice(["a", "a", None, "b"])
        later = self.random.random() < 0.2
        self.settle([ident])
        now = time.time()
        text = call("enqueue_action", key=key, intent=intent, params=jsonb("to", params),
                    draft=jsonb("text", draft), scope=scope)
        if later:
            text = text.replace(") r", ", not_before => clock_timestamp() + '1000 s') r")
        state, found = self.do(text, [ident])
        want = self.model.enqueue(ident, now, params, draft, now + 1000 if later else None)
        self.compare(now, [ident], want)
        self.expect_claim(ident, want, state, found and found[0])

    def take(self, ident):
        intents = sorted({ident[0]} | set(self.random.sample(sorted(RULES), self.random.choice([0, 1, 3]))))
        scope = self.random.choice([None, None, None, "", "eu"])
        limit = self.random.choice([1, 2, 10])
        search = self.random.random() < 0.4
        lease = self.random.choice([None, None, 60, 900])
        worker = self.random.choice(["w1", "w2", "w3"])
        call_id = None
        if self.random.random() < 0.4:
            known = sorted({a.call_id for a in self.model.actions.values() if a.call_id})
            call_id = self.random.choice(known) if known and self.random.random() < 0.3 else \
                str(uuid.UUID(int=self.random.getrandbits(128), version=4))
        every = [i for i in IDENTS if i[0] in intents]
        if call_id is not None:
            held = [i for i, a in self.model.actions.items()
                    if a.call_id == call_id and a.state == "in_progress"]
            if any(self.model.actions[i].due_at is None for i in held) or len(held) > limit:
                call_id = None      # of a claim, not of a take; or an order not said
            else:
                every += held
        self.settle(every, lease)
        self.untie(every)
        now = time.time()
        due = sorted((a.due_at, self.ids[i], i) for i, a in self.model.actions.items()
                     if i[0] in intents and a.due_at is not None and a.due_at <= now
                     and (scope is None or i[2] == scope))
        text = call("take_to_verify" if search else "take_actions", intents=intents, max=limit,
                    lease=seconds(lease), worker=worker, scope=ANY if scope is None else scope,
                    call_id=call_id)
        state, found = self.do(text, every)
        wants = self.model.take([i for _, _, i in due], now, limit, search, lease, worker, call_id,
                                intents, scope)
        if state != "00000":
            self.differ("error of a take", None, state)
        got = [self.ident_of[f["action_id"]] for f in found]
        if sorted(got) != sorted(i for i, _ in wants):
            self.differ("taken", [i for i, _ in wants], got + [(t, i) for t, _, i in due],
                        wants and wants[0][0])
        if wants and wants[0][1].claim_id is ANY and got != [i for i, _ in wants]:
            self.differ("order of a take", [i for i, _ in wants], got, wants[0][0])
        self.compare(now, every)
        for f in found:
            want = dict(wants)[self.ident_of[f["action_id"]]]
            self.expect_claim(self.ident_of[f["action_id"]], want, state, f)
            self.count_grant(want)

    def begin(self, ident):
        claim_id = self.pick_claim(ident)
        draft = self.random.choice(DRAFTS + [None, None])
        lease = self.random.choice([None, None, None, 900])
        self.settle([ident])
        now = time.time()
        state, found = self.do(call("begin_effect", action_id=self.ids[ident], claim_id=claim_id,
                                    draft=jsonb("text", draft), lease=seconds(lease)), [ident])
        want = self.model.begin(ident, now, claim_id, draft, lease)
        self.compare(now, [ident], want)
        self.expect_left(ident, want, state, found)

    def extend(self, ident):
        claim_id = self.pick_claim(ident)
        lease = self.random.choice([None, 60, 900])
        batch = self.random.random() < 0.3
        self.settle([ident])
        now = time.time()
        if batch:
            text = call("extend_claims", action_ids=[self.ids[ident]], claim_ids=[claim_id],
                        lease=seconds(lease))
        else:
            text = call("extend_claim", action_id=self.ids[ident], claim_id=claim_id,
                        lease=seconds(lease))
        state, found = self.do(text, [ident])
        want = self.model.extend(ident, now, claim_id, lease)
        self.compare(now, [ident], want)
        if batch:
            if bool(found[0]["problem"]) != bool(want.error):
                self.differ("problem", want.error, found[0], ident)
            found = [found[0]["seconds_left"]]
            state = want.error[0] if want.error else state
        self.expect_left(ident, want, state, found)

    def expect_left(self, ident, want, state, found):
        if want.error:
            if state not in want.error:
                self.differ("error", want.error, state, ident)
        elif state != "00000":
            self.differ("error", None, state, ident)
        else:
            left = self.model.actions[ident].lease_until - time.time()
            if abs(found[0] - left) > 2:
                self.differ("seconds left", left, found[0], ident)

    def spelled(self, ref):
        """A blank reference says what none does."""
        return self.random.choice([None, "", " ", "\u00a0"]) if ref is None else ref

    def complete(self, ident, claim_id=None, ref=ANY):
        claim_id = claim_id or self.pick_claim(ident)
        ref = self.random.choice(REFS) if ref is ANY else ref
        batch = self.random.random() < 0.3
        self.settle([ident])
        now = time.time()
        if batch:
            text = call("complete_actions", action_ids=[self.ids[ident]], claim_ids=[claim_id],
                        external_refs=[self.spelled(ref)])
            text = text.replace("[NULL]", "[NULL]::text[]")
        else:
            text = call("complete_action", action_id=self.ids[ident], claim_id=claim_id,
                        external_ref=self.spelled(ref), result='{"ok": true}')
        state, found = self.do(text, [ident])
        want = self.model.complete(ident, now, claim_id, ref)
        self.compare(now, [ident], want)
        self.expect_report(ident, want, state, found and found[0])

    def fail(self, ident):
        claim_id = self.pick_claim(ident)
        effect = self.random.choice(["unknown", "none", "none", "refused"])
        again = self.random.choice([None, None, 0, 700])
        self.settle([ident])
        now = time.time()
        state, found = self.do(call("fail_action", action_id=self.ids[ident], claim_id=claim_id,
                                    error="it broke", effect=effect, retry_after=seconds(again)),
                               [ident])
        want = self.model.fail(ident, now, claim_id, effect, again)
        self.compare(now, [ident], want)
        self.expect_report(ident, want, state, found and found[0])

    def release(self, ident):
        claim_id = self.pick_claim(ident)
        self.settle([ident])
        now = time.time()
        state, found = self.do(call("release_action", action_id=self.ids[ident],
                                    claim_id=claim_id), [ident])
        want = self.model.release(ident, now, claim_id)
        self.compare(now, [ident], want)
        self.expect_report(ident, want, state, found and found[0])

    def verify(self, ident, claim_id=None, found=ANY):
        claim_id = claim_id or self.pick_claim(ident)
        found = self.random.choice([True, False, False, None]) if found is ANY else found
        ref = self.random.choice(REFS) if found else None
        self.settle([ident])
        now = time.time()
        state, answer = self.do(call("verify_action", action_id=self.ids[ident], claim_id=claim_id,
                                     found=found, external_ref=self.spelled(ref)), [ident])
        want = self.model.verify(ident, now, claim_id, found, ref)
        self.compare(now, [ident], want)
        want.finds = True
        self.expect_claim(ident, want, state, answer and answer[0])

    def revise(self, ident):
        draft = self.random.choice(DRAFTS[1:])
        revision = self.pick_revision(ident, True)
        self.decide(ident, call("revise_action", action_id=self.ids[ident],
                                draft=jsonb("text", draft), revision=revision),
                    lambda now: self.model.revise(ident, now, draft, "postgres", revision))

    def approve(self, ident, revision=None):
        revision = revision or self.pick_revision(ident, False)
        self.decide(ident, call("approve_action", action_id=self.ids[ident], revision=revision),
                    lambda now: self.model.approve(ident, now, "postgres", revision))

    def cancel(self, ident):
        revision = self.pick_revision(ident, True)
        self.decide(ident, call("cancel_action", action_id=self.ids[ident], reason="not wanted",
                                revision=revision),
                    lambda now: self.model.cancel(ident, now, "postgres", revision))

    def resolve(self, ident, decision=None, revision=None):
        decision = decision or self.random.choice(["happened", "not_happened", "not_happened", "cancel"])
        ref = self.random.choice(REFS) if decision == "happened" else None
        revision = revision or self.pick_revision(ident, False)
        self.decide(ident, call("resolve_action", action_id=self.ids[ident], decision=decision,
                                note="the walk looked", revision=revision, external_ref=self.spelled(ref)),
                    lambda now: self.model.resolve(ident, now, decision, "postgres", revision, ref))

    def rerun(self, ident):
        draft = self.random.choice([None, None, "d1", "d2"])
        revision = self.pick_revision(ident, False)
        self.decide(ident, call("rerun_action", action_id=self.ids[ident], reason="once more",
                                revision=revision, draft=jsonb("text", draft)),
                    lambda now: self.model.rerun(ident, now, "postgres", revision, draft))

    def erase(self, ident):
        self.decide(ident, call("erase_action", action_id=self.ids[ident], reason="asked for"),
                    lambda now: self.model.erase(ident, now, "postgres"))

    def decide(self, ident, text, decision):
        self.settle([ident])
        now = time.time()
        state, found = self.do(text, [ident])
        want = decision(now)
        self.compare(now, [ident], want)
        self.expect_report(ident, want, state, found and found[0])

    def find(self, ident):
        """What only reads, also the story and the search."""
        intent, key, scope = ident
        self.settle([ident])
        now = time.time()
        state, found = self.do(call("find_action", key=key, intent=intent, scope=scope), [ident])
        want = self.model.find(ident, now)
        self.compare(now, [ident], want)
        want.finds = True
        self.expect_claim(ident, want, state, found and found[0])
        if ident not in self.model.actions:
            return
        for text in (f"SELECT to_json(x) FROM idem.explain_action('{self.ids[ident]}') x",
                     call("show_action", action_id=self.ids[ident]),
                     f"SELECT to_json(x) FROM idem.search_actions('{self.ids[ident]}', '1000 years') x"):
            state, found = self.do(text, [ident])
            if state != "00000" or not found:
                self.differ(text, "an answer", state, ident)
            if "explain_action" in text:
                self.compare_story(ident, self.model.actions[ident], found)
            want.writes = False
            self.compare(now, [], want)

    def pause(self, ident):
        intent = self.random.choice([None, ident[0], ident[0], ident[0]])
        if intent in self.model.paused or len(self.model.paused) > 1:
            intent = self.random.choice(sorted(self.model.paused, key=str))
            self.resume(intent)
            return
        state, _ = self.do(call("pause_intent", intent=intent, reason="the walk"))
        self.model.paused.add(intent)
        self.compare(time.time(), [])
        if state != "00000":
            self.differ("pause", None, state)

    def resume(self, intent):
        state, _ = self.do(call("resume_intent", intent=intent))
        self.model.paused.discard(intent)
        self.compare(time.time(), [])
        if state != "00000":
            self.differ("resume", None, state)

    def time_passes(self, ident):
        a = self.model.actions[ident]
        now = time.time()
        jumps = [60, 600, 3600]
        for limit in (a.lease_until, a.due_at):
            if limit is not None and limit > now:
                jumps += [limit - now + 10] * 3
        if a.state in FINAL:
            jumps += [6 * 86400, 12 * 86400]
        self.age(ident, int(self.random.choice(jumps)) + 1)

    def worker(self, ident):
        self.settle(IDENTS)
        now = time.time()
        state, _ = self.do("CALL idem.run_maintenance()", IDENTS)
        self.model.worker_pass(now)
        self.compare(now, IDENTS)
        if state != "00000":
            self.differ("run_maintenance", None, state)

    # ---------------------------------------------------------------- the way out

    def kind(self, ident):
        a = self.model.actions[ident]
        now = time.time()
        return (a.state, a.reason, RULES[ident[0]].on_uncertain, RULES[ident[0]].marks,
                RULES[ident[0]].approval, bool(a.uncertain), a.begun, a.verifying, a.approved,
                a.cancel_requested, a.purged, a.attempt > 0, self.model.is_paused(ident),
                a.state == "in_progress" and a.lease_until <= now)

    def lead_out(self, ident):
        """To a final state, by what the page offers in each."""
        tries = 0
        while self.model.actions[ident].state not in FINAL:
            tries += 1
            if tries > 25:
                self.differ("a way out", "at most 25 calls", self.kind(ident), ident)
            a = self.model.actions[ident]
            now = time.time()
            if a.state == "needs_attention":
                self.resolve(ident, "happened", a.revision)
            elif a.state == "in_progress" and a.lease_until > now:
                if a.verifying:
                    self.verify(ident, a.claim_id, self.random.choice([True, False]))
                else:
                    self.complete(ident, a.claim_id, "ref-out")
            elif self.model.is_paused(ident):
                for intent in sorted(self.model.paused, key=str):
                    self.resume(intent)
            elif a.state == "pending" and RULES[ident[0]].approval and not a.approved:
                self.approve(ident, a.revision)
            elif a.state == "pending" and a.due_at > now:
                self.age(ident, int(a.due_at - now) + 10)
            else:
                self.claim(ident, fresh=True)

    # ---------------------------------------------------------------- the walk

    CALLS = [
        ("claim", 20), ("take", 10), ("enqueue", 5), ("begin", 8), ("extend", 3),
        ("complete", 9), ("fail", 12), ("release", 4), ("verify", 9), ("revise", 3),
        ("approve", 6), ("cancel", 3), ("resolve", 7), ("rerun", 3), ("erase", 1),
        ("find", 2), ("pause", 1), ("time_passes", 22), ("worker", 3),
    ]

    def step(self):
        names = [n for n, _ in self.CALLS]
        name = self.random.choices(names, [w for _, w in self.CALLS])[0]
        ident = self.random.choice(IDENTS)
        if name not in ("claim", "enqueue", "take", "find", "pause") and \
                ident not in self.model.actions:
            name = "claim"
        a = self.model.actions.get(ident)
        if a is not None and a.state in FINAL and self.random.random() < 0.4:
            name = self.random.choice(["rerun", "rerun", "resolve", "age"])
        self.counts[name] += 1
        if name == "age":   # until it is forgotten
            self.age(ident, 12 * 86400)
            name = "claim"
        getattr(self, name)(ident)
        for each in list(self.model.actions):
            kind = self.kind(each)
            if kind not in self.kinds:
                self.kinds.add(kind)
                if kind[0] not in FINAL:
                    self.lead_out(each)


def main():
    print(f"# seed {SEED}, {STEPS} steps; IDEM_WALK_SEED={SEED} repeats it", flush=True)
    started = time.time()
    walk = None
    done = 0
    try:
        walk = Walk(SEED)
        while done < STEPS:
            walk.step()
            done += 1
    except Difference as difference:
        print(f"not ok 1 - step {done}: {difference}")
        about = re.match(r"\('([^']*)', '([^']*)', '([^']*)'\)", str(difference))
        ident = about and about.groups()
        story = [entry for entry in (walk.log if walk else [])
                 if ident is None or ident in entry[0]]
        for _, statement, state, lines in story[-int(os.environ.get("IDEM_WALK_STORY", 14)):]:
            print(f"# {statement}")
            print(f"#   {state} {' '.join(lines)[:420]}")
        if ident in (walk.model.actions if walk else {}):
            print("# the model:", {k: v for k, v in walk.model.actions[ident].__dict__.items()
                                   if v is not ANY and k not in ("issued", "reports", "decisions")})
            print("# its claims:", walk.model.actions[ident].issued)
            print("# its reports:", walk.model.actions[ident].reports)
            print("# its decisions:", walk.model.actions[ident].decisions)
            print("# before:", walk.before["rows"].get(walk.ids[ident]))
            print("# after: ", walk.db["rows"].get(walk.ids[ident]))
            print("# now:   ", time.time())
        print("1..1")
        return 1
    open_kinds = sum(k[0] not in FINAL for k in walk.kinds)
    print(f"ok 1 - {done} steps: the ledger does what the page says")
    print(f"ok 2 - {open_kinds} kinds of open state, each was left for a final one")
    print(f"{'ok' if walk.grants > done / 100 else 'not ok'} 3 - {walk.grants} grants")
    print(f"# {dict(walk.counts)}, {time.time() - started:.0f} s")
    print("1..3")
    return 0


if __name__ == "__main__":
    sys.exit(main())
