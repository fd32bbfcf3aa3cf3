"""Act once, from any service: the claim loop with psycopg 3.

Copy perform(); the rest of your service stays as it is.
"""

import uuid

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

CLAIM = """SELECT * FROM idem.claim_action(key => %s, intent => %s, params => %s,
                                      worker => %s, call_id => %s)"""
COMPLETE = "SELECT (idem.complete_action(%s, %s, external_ref => %s, result => %s)).accepted"
FAIL = "SELECT (idem.fail_action(%s, %s, error => %s, effect => %s)).state"
RELEASE = "SELECT (idem.release_action(%s, %s, reason => %s)).accepted"

ASK_AGAIN = 1.0  # seconds; the next answer says how long in truth


class Refused(Exception):
    """The outside said no for good: 4xx."""


class NotSent(Exception):
    """Nothing left this machine: no route, connection refused, no free connection."""


def connect(conninfo=""):
    # Not committed, a claim protects nothing: psycopg must not open transactions.
    return psycopg.connect(conninfo, autocommit=True, row_factory=namedtuple_row)


def perform(ledger, key, intent, params, act, worker=None):
    """Do the action unless it is done.  Returns None where the message may be
    acknowledged, or the seconds after which to deliver it again.

    Where the rule marks effects, call begin_effect before act: see taker.py.
    """
    claim = ask(ledger, key, intent, params, worker)
    if claim.outcome == "verify":  # no search here: let somebody have it who can
        ledger.execute(RELEASE, [claim.action_id, claim.claim_id, "cannot search"])
    if not claim.granted:
        return claim.retry_after  # None: done, or a person's
    try:
        external_ref, result = act(claim.params, claim.provider_key)
    except Refused as error:
        fail(ledger, claim, error, "refused")
    except NotSent as error:
        fail(ledger, claim, error, "none")
    except Exception as error:  # timeout, reset, 5xx, a bug after sending
        fail(ledger, claim, error, "unknown")
    else:
        complete(ledger, claim, external_ref, result)
        return None
    return ASK_AGAIN


def ask(ledger, key, intent, params, worker):
    """Claim.  Where the reply gets lost, call this again with the same call_id
    on a new connection: the same grant is answered."""
    return ledger.execute(CLAIM, [key, intent, Jsonb(params), worker, uuid.uuid4()]).fetchone()


def complete(ledger, claim, external_ref, result):
    try:
        ledger.execute(COMPLETE, [claim.action_id, claim.claim_id, external_ref, Jsonb(result)])
    except (psycopg.DataError, UnicodeError):  # half an emoji, a zero byte: the success must not be lost
        ledger.execute(COMPLETE, [claim.action_id, claim.claim_id, external_ref, None])


def fail(ledger, claim, error, effect):
    ledger.execute(FAIL, [claim.action_id, claim.claim_id, str(error), effect])
