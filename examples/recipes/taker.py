"""Deliver what was enqueued: take, act, complete; one after the other.

Takes no more than its leases can hold, and renews those that have to wait.
"""

import uuid

import psycopg

from caller import NotSent, Refused, complete, fail

TAKE = """SELECT * FROM idem.take_actions(%s, max => %s, worker => %s,
                                         wait => %s::interval, call_id => %s)"""
BEGIN = "SELECT idem.begin_effect(%s, %s)"
EXTEND = "SELECT * FROM idem.extend_claims(%s, %s)"
RELEASE = "SELECT (idem.release_action(%s, %s, reason => %s)).accepted"

PORTION = 20
RENEW_EVERY = 5  # actions; each must be done in a fraction of the lease


def deliver(ledger, intents, worker, act, wait="20 seconds"):
    """Take one portion and act on it.  Returns how many were taken."""
    taken = ledger.execute(TAKE, [intents, PORTION, worker, wait, uuid.uuid4()]).fetchall()
    lost = set()
    for n, claim in enumerate(taken):
        if n % RENEW_EVERY == 0:
            lost |= renew(ledger, taken[n:])
        if claim.action_id not in lost and may_act(ledger, claim):
            act_on(ledger, claim, act)
    return len(taken)


def renew(ledger, claims):
    """Extend the leases of these claims; return the actions that are lost."""
    rows = ledger.execute(EXTEND, [[c.action_id for c in claims], [c.claim_id for c in claims]])
    return {row.action_id for row in rows if row.problem}


def may_act(ledger, claim):
    """The last look before acting.  From here on the attempt may have an effect."""
    try:
        ledger.execute(BEGIN, [claim.action_id, claim.claim_id])
    except psycopg.Error as error:
        if error.sqlstate == "IA004":  # cancelled or paused: give it back
            ledger.execute(RELEASE, [claim.action_id, claim.claim_id, "asked to stop"])
        elif error.sqlstate != "IA002":
            raise
        return False
    return True


def act_on(ledger, claim, act):
    try:
        external_ref, result = act(claim)
    except Refused as error:
        fail(ledger, claim, error, "refused")
    except NotSent as error:
        fail(ledger, claim, error, "none")
    except Exception as error:
        fail(ledger, claim, error, "unknown")
    else:
        complete(ledger, claim, external_ref, result)
