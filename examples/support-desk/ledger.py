"""The ledger's calls, one method each, as a worker and a taker need them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

CLAIM = """
    SELECT granted, outcome, retry_after, action_id, claim_id, provider_key,
           params, draft, result
      FROM idem.claim_action(
               key      => idem.action_key(VARIADIC %(key)s),
               intent   => %(intent)s,
               params   => %(params)s,
               draft    => %(draft)s,
               wait     => '1 second',
               worker   => %(worker)s,
               source   => %(source)s,
               event_id => %(event_id)s)
"""
TAKE = """
    SELECT granted, outcome, retry_after, action_id, claim_id, provider_key,
           params, draft, result
      FROM idem.take_actions(
               intents => ARRAY[%(intent)s],
               worker  => %(worker)s,
               wait    => '1 second')
"""
VERIFY = """
    SELECT granted, outcome, retry_after, action_id, claim_id, provider_key,
           params, draft, result
      FROM idem.verify_action(
               action_id    => %(action_id)s,
               claim_id     => %(claim_id)s,
               found        => %(found)s,
               external_ref => %(external_ref)s)
"""
ENQUEUE = """
    SELECT idem.enqueue_action(
               key      => idem.action_key(VARIADIC %(key)s),
               intent   => %(intent)s,
               params   => %(params)s,
               draft    => %(draft)s,
               source   => %(source)s,
               event_id => %(event_id)s)
"""
BEGIN = """
    SELECT idem.begin_effect(
               action_id => %(action_id)s,
               claim_id  => %(claim_id)s)
"""
COMPLETE = """
    SELECT accepted
      FROM idem.complete_action(
               action_id    => %(action_id)s,
               claim_id     => %(claim_id)s,
               external_ref => %(external_ref)s,
               result       => %(result)s)
"""
FAIL = """
    SELECT idem.fail_action(
               action_id => %(action_id)s,
               claim_id  => %(claim_id)s,
               error     => %(error)s,
               effect    => %(effect)s)
"""
RELEASE = """
    SELECT idem.release_action(
               action_id => %(action_id)s,
               claim_id  => %(claim_id)s,
               reason    => %(reason)s)
"""


@dataclass(frozen=True)
class Step:
    """What names an action, and what is kept with it when it is new."""

    key: list[str]
    intent: str
    params: Any
    draft: Any
    source: str
    event_id: str


@dataclass(frozen=True)
class Claim:
    """What the ledger answers: a grant, or how the action stands."""

    granted: bool
    outcome: str
    retry_after: float | None
    action_id: UUID
    claim_id: UUID | None
    provider_key: str
    params: Any
    draft: Any
    result: Any


class ActionError(Exception):
    """An outside service did not say yes; ``effect`` says what that means.

    none     it did nothing, and it may be tried again
    refused  it did nothing, and it never will
    unknown  it may have acted or not
    """

    def __init__(self, message: str, effect: str) -> None:
        super().__init__(message)
        self.effect = effect


class ClaimLost(Exception):
    """Do not act: a person stopped the action, or the lease is over."""


class Ledger:
    """A connection to the ledger on behalf of one worker or taker."""

    def __init__(self, worker: str) -> None:
        # autocommit: a claim that is not committed protects nothing.
        self.connection = psycopg.connect(user="support_worker",
                                          autocommit=True)
        self.worker = worker

    def transaction(self) -> AbstractContextManager[Any]:
        """Let the calls inside hold together or not at all."""
        return self.connection.transaction()

    def claim(self, step: Step) -> Claim:
        """Ask for the right to act.

        Where another worker is at it, the ledger waits a moment for its
        outcome: most steps are over by then.
        """
        return self.ask(CLAIM, worker=self.worker, **arguments(step))[0]

    def take(self, intent: str) -> list[Claim]:
        """Return what is due, granted; wait a moment for it."""
        return self.ask(TAKE, worker=self.worker, intent=intent)

    def verify(self, claim: Claim, external_ref: str | None) -> Claim:
        """Tell what the search has found; None turns it into a grant."""
        return self.ask(VERIFY, **of(claim), external_ref=external_ref,
                        found=external_ref is not None)[0]

    def enqueue(self, step: Step) -> None:
        """Decide on an action; what the ledger knows stays as it is."""
        self.connection.execute(ENQUEUE, arguments(step))

    def begin(self, claim: Claim) -> None:
        """Take the last look before acting; raise ClaimLost if it is not on.

        From here until a report, nobody can know whether it took effect.
        """
        try:
            self.connection.execute(BEGIN, of(claim))
        except psycopg.DatabaseError as error:
            if error.sqlstate not in ("IA002", "IA004"):
                raise
            raise ClaimLost(str(error)) from error

    def complete(self, claim: Claim, external_ref: str | None = None,
                 result: Any = None) -> bool:
        """Record the success.  False: a person has the last word now."""
        row = self.connection.execute(COMPLETE, {
            **of(claim), "external_ref": external_ref,
            "result": as_jsonb(result)}).fetchone()
        return row is not None and bool(row[0])

    def fail(self, claim: Claim, error: ActionError) -> None:
        """Record what is known of a failure; the rule decides the rest."""
        self.connection.execute(FAIL, {
            **of(claim), "error": str(error), "effect": error.effect})

    def release(self, claim: Claim, reason: str) -> None:
        """Give a claim back that did nothing."""
        self.connection.execute(RELEASE, {**of(claim), "reason": reason})

    def ask(self, query: str, **values: Any) -> list[Claim]:
        """Run a query that answers with claims."""
        with self.connection.cursor(row_factory=class_row(Claim)) as cursor:
            return cursor.execute(query, values).fetchall()


def arguments(step: Step) -> dict[str, Any]:
    """Return what names the action as query parameters."""
    return vars(step) | {"params": as_jsonb(step.params),
                         "draft": as_jsonb(step.draft)}


def of(claim: Claim) -> dict[str, Any]:
    """Return what proves the claim as query parameters."""
    return {"action_id": claim.action_id, "claim_id": claim.claim_id}


def as_jsonb(value: Any) -> Jsonb | None:
    """Wrap a value for a jsonb argument; None stays SQL NULL."""
    return None if value is None else Jsonb(value)
