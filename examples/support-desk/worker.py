"""The pattern: ask the ledger, act, record, acknowledge.

A delivery asks for two steps, and each step is an action of its own: a
model drafts a reply, then a review task is created in the ticket service.
The worker claims a step before it acts and records the outcome afterwards.
A delivery that has come before meets the stored outcome instead of acting
again.

Copy this file, put your own steps in place of the two, and keep two rules:

* act only where ``granted`` is true, and then on what the answer holds;
* keep the message exactly where the answer carries ``retry_after``.

Nothing else is caught here.  Any other error may end the process: its
message comes again, its lease runs out, and the rule of the step says what
happens then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from deliveries import DeliveryQueue
from model import Model
from tickets import TicketClient, TicketError

CLAIM = """
    SELECT granted, outcome, retry_after, action_id, claim_id, provider_key,
           params, draft, result
      FROM idem.claim_action(
               key      => idem.action_key('request', %(request)s,
                                           'stage', %(stage)s),
               intent   => %(intent)s,
               params   => %(params)s,
               draft    => %(draft)s,
               wait     => '1 second',
               worker   => %(worker)s,
               source   => %(source)s,
               event_id => %(event_id)s)
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
    SELECT accepted
      FROM idem.fail_action(
               action_id => %(action_id)s,
               claim_id  => %(claim_id)s,
               error     => %(error)s,
               effect    => %(effect)s)
"""

BINDING_FACTS = ("request", "stage", "customer")
NO_DRAFT = "The model's draft could not be kept. Please write this reply."

POLL_SECONDS = 0.02
ASK_AGAIN_SECONDS = 0.5

Event = dict[str, Any]


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


class NotNow(Exception):
    """This delivery ends here, unless ``retry_after`` says: ask again."""

    def __init__(self, retry_after: float | None) -> None:
        super().__init__(retry_after)
        self.retry_after = retry_after


class Worker:
    """Handles support events; any number of workers may run at once."""

    def __init__(self, name: str, ledger: psycopg.Connection[Any],
                 model: Model, tickets: TicketClient) -> None:
        self.name = name
        self.ledger = ledger  # opened with autocommit=True
        self.model = model
        self.tickets = tickets

    def handle(self, event: Event) -> float | None:
        """Do both steps.  None: acknowledge.  Seconds: keep the message."""
        try:
            text = self.draft_reply(event)
            self.create_review_task(event, text)
        except NotNow as answer:
            return answer.retry_after
        return None

    def draft_reply(self, event: Event) -> str | None:
        """Return the one draft of this request, or None if it is lost."""
        claim = self.claim(event, "draft-reply")
        if claim.granted:
            text = self.model.draft_reply(event["data"]["text"])
            kept = self.complete(claim, result={"text": text})
            return text if kept else None
        return claim.result["text"] if claim.result else None

    def create_review_task(self, event: Event, text: str | None) -> None:
        """Make sure that one ticket asks a person to review the draft."""
        claim = self.claim(event, "create-review-task",
                           draft={"text": text or NO_DRAFT})
        if not claim.granted:
            return
        # A rule that marks effects wants idem.begin_effect here.
        try:
            ticket = self.tickets.create(
                request=claim.params["request"], text=claim.draft["text"],
                reference=claim.provider_key)
        except TicketError as error:
            self.fail(claim, error)
            raise NotNow(ASK_AGAIN_SECONDS) from error
        self.complete(claim, external_ref=ticket)

    def claim(self, event: Event, intent: str, draft: Any = None) -> Claim:
        """Return a grant or a completed action; raise NotNow otherwise.

        Where another worker is at it, the ledger waits a moment for its
        outcome: most steps are over by then.
        """
        data = event["data"]
        params = {name: data[name] for name in BINDING_FACTS}
        with self.ledger.cursor(row_factory=class_row(Claim)) as cursor:
            claim = cursor.execute(CLAIM, {
                "request": data["request"], "stage": data["stage"],
                "intent": intent,
                "params": Jsonb(params), "draft": as_jsonb(draft),
                "worker": self.name,
                "source": event["source"], "event_id": event["id"],
            }).fetchone()
        assert claim is not None, "the ledger always answers with one row"
        if claim.granted or claim.outcome == "completed":
            return claim
        raise NotNow(claim.retry_after)

    def complete(self, claim: Claim, external_ref: str | None = None,
                 result: Any = None) -> bool:
        """Record the success; say whether the result was kept with it.

        Model text is sometimes cut in the middle of a character, and then
        it cannot be stored.  The effect has happened all the same, so the
        success is recorded without it.
        """
        facts = {"action_id": claim.action_id, "claim_id": claim.claim_id,
                 "external_ref": external_ref, "result": as_jsonb(result)}
        try:
            self.ledger.execute(COMPLETE, facts)
        except psycopg.DataError:  # SQLSTATE class 22, or the driver itself
            self.ledger.execute(COMPLETE, facts | {"result": None})
            return False
        return True

    def fail(self, claim: Claim, error: TicketError) -> None:
        """Record what is known of the failure; the rule decides the rest."""
        self.ledger.execute(FAIL, {
            "action_id": claim.action_id, "claim_id": claim.claim_id,
            "error": str(error), "effect": error.effect})


def as_jsonb(value: Any) -> Jsonb | None:
    """Wrap a value for a jsonb argument; None stays SQL NULL."""
    return None if value is None else Jsonb(value)


def serve(queue: DeliveryQueue, name: str,
          handle: Callable[[Event], float | None]) -> None:
    """Handle deliveries until every one has been acknowledged."""
    while not queue.is_done():
        delivery = queue.receive(name)
        if delivery is None:
            time.sleep(POLL_SECONDS)
            continue
        seconds = handle(delivery.event)
        if seconds is None:
            queue.acknowledge(delivery)
        else:
            queue.keep(delivery, seconds)
