#!/usr/bin/env python3
"""Tries the recipes against the database that the PG* variables name, which
must have the extension and is not left as it was.  Exits non-zero on a fault."""

import time

from caller import NotSent, Refused, ask, connect, perform
from heartbeat import Heartbeat
from taker import deliver

RULES = """
SELECT idem.define_rule('try', 'one for each key', 'nobody', retry_delay => '0');
SELECT idem.define_rule('try-search', 'one for each key', 'nobody', on_uncertain => 'verify',
                        settle => '0', retry_delay => '0');
SELECT idem.define_rule('try-queue', 'one for each key', 'nobody', marks_effect => true);
SELECT idem.define_rule('try-model', 'one for each key', 'nobody', on_uncertain => 'repeat', lease => '1 second');
"""


class Outside:
    """Counts its effects, and fails as told."""

    def __init__(self):
        self.effects = []
        self.error = None
        self.result = {}

    def __call__(self, params, provider_key):
        if isinstance(self.error, (NotSent, Refused)):
            raise self.error
        self.effects.append(provider_key)
        if self.error:
            raise self.error
        return f"ref-{len(self.effects)}", self.result


def outcome(ledger, key, intent):
    return ledger.execute("SELECT outcome, external_ref, result FROM idem.find_action(%s, %s)",
                          [key, intent]).fetchone()


def check_caller(ledger):
    outside = Outside()

    def deliver_message(key, intent="try"):
        return perform(ledger, key, intent, {"n": 1}, outside, worker="check")

    assert deliver_message("plain") is None
    assert deliver_message("plain") is None
    assert len(outside.effects) == 1 and outcome(ledger, "plain", "try")[:2] == ("completed", "ref-1")

    outside.error = NotSent("connection refused")
    assert deliver_message("later") is not None
    outside.error = None
    assert deliver_message("later") is None
    assert len(outside.effects) == 2

    outside.error = Refused("422 no such customer")
    deliver_message("refused")
    assert deliver_message("refused") is None
    assert len(outside.effects) == 2 and outcome(ledger, "refused", "try").outcome == "failed"

    outside.error = TimeoutError("no answer in 30 s")
    assert deliver_message("timeout") is not None
    assert deliver_message("timeout") is None
    assert len(outside.effects) == 3
    assert outcome(ledger, "timeout", "try").outcome == "needs_attention"

    assert deliver_message("search", "try-search") is not None
    assert deliver_message("search", "try-search") is not None  # given back to somebody who can search
    assert len(outside.effects) == 4
    assert outcome(ledger, "search", "try-search").outcome == "pending"

    outside.error = None
    for n, result in enumerate(["half an emoji \ud83d", "a zero byte \x00"]):
        outside.result = {"text": result}
        assert deliver_message(f"broken-{n}") is None
        row = outcome(ledger, f"broken-{n}", "try")
        assert (row.outcome, row.result) == ("completed", None)


def check_taker(ledger):
    seen = []
    ledger.execute("SELECT idem.enqueue_actions('try-queue', %s)", [[f"k{n}" for n in range(50)]])
    while deliver(ledger, ["try-queue"], "check", lambda c: (seen.append(c.key), ("ref", {}))[1], wait="0"):
        pass
    assert sorted(seen) == sorted(f"k{n}" for n in range(50))


def check_heartbeat(ledger):
    claim = ask(ledger, "long", "try-model", {}, "check")
    with Heartbeat("", claim) as heart:
        time.sleep(2.5)
        assert not ask(ledger, "long", "try-model", {}, "another").granted
        assert not heart.lost
        ledger.execute("SELECT idem.cancel_action(%s, 'enough')", [claim.action_id])
        time.sleep(1.5)
        assert heart.lost


with connect() as connection:
    connection.execute(RULES)
    check_caller(connection)
    check_taker(connection)
    check_heartbeat(connection)
print("ok")
