"""The pattern for messages: ask the ledger, act, record, acknowledge.

A delivery asks for two steps, and each step is an action of its own: a
model drafts a reply, then a review task is created in the ticket service.
Whoever finishes the task also decides that the reply is to be sent, and
leaves the sending to taker.py.

Copy this file, put your own steps in place of these, and keep two rules:

* act only where ``granted`` is true, and then on what the answer holds;
* keep the message exactly where the answer carries ``retry_after``.

Any error that is not caught here may end the process: its message comes
again, its lease runs out, and the rule of the step says what happens then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.synchronize import Event as StopSign
from typing import Any

from deliveries import DeliveryQueue
from ledger import ActionError, Claim, Ledger, Step
from model import Model
from tickets import TicketClient

BINDING_FACTS = ("request", "stage", "customer")

POLL_SECONDS = 0.02
ASK_AGAIN_SECONDS = 0.5

Event = dict[str, Any]


class NotNow(Exception):
    """This delivery ends here, unless ``retry_after`` says: ask again."""

    def __init__(self, retry_after: float | None) -> None:
        super().__init__(retry_after)
        self.retry_after = retry_after


class Worker:
    """Handles support events; any number of workers may run at once."""

    def __init__(self, ledger: Ledger, model: Model,
                 tickets: TicketClient) -> None:
        self.ledger = ledger
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

    def draft_reply(self, event: Event) -> str:
        """Return the one draft of this request."""
        claim = self.claim(step(event, "draft-reply"))
        if claim.granted:
            text = mended(self.model.draft_reply(event["data"]["text"]))
            self.ledger.complete(claim, result={"text": text})
            return text
        if claim.result is None:  # purged: all of this was done long ago
            raise NotNow(None)
        return str(claim.result["text"])

    def create_review_task(self, event: Event, text: str) -> None:
        """Make sure that one ticket asks a person to review the draft."""
        claim = self.claim(
            step(event, "create-review-task", draft={"text": text}))
        if claim.outcome == "verify":
            claim = self.search(claim)
        send_reply = step(event, "send-reply", draft=claim.draft)
        if not claim.granted:  # there is a ticket
            self.ledger.enqueue(send_reply)
            return
        ticket = self.create_ticket(claim)
        with self.ledger.transaction():
            if self.ledger.complete(claim, external_ref=ticket):
                self.ledger.enqueue(send_reply)

    def create_ticket(self, claim: Claim) -> str:
        """Act: this is what must not happen twice."""
        try:
            return self.tickets.create(
                request=claim.params["request"], text=claim.draft["text"],
                reference=claim.provider_key)
        except ActionError as error:
            self.ledger.fail(claim, error)
            raise NotNow(ASK_AGAIN_SECONDS) from error

    def search(self, claim: Claim) -> Claim:
        """Nobody knows whether there is a ticket: look, before acting."""
        try:
            ticket = self.tickets.find(claim.provider_key)
        except ActionError as error:
            self.ledger.release(claim, str(error))
            raise NotNow(ASK_AGAIN_SECONDS) from error
        return usable(self.ledger.verify(claim, external_ref=ticket))

    def claim(self, wanted: Step) -> Claim:
        """Ask the ledger for a step."""
        return usable(self.ledger.claim(wanted))


def step(event: Event, intent: str, draft: Any = None) -> Step:
    """Name one step of an event.

    The key comes from the request and its stage, neither from the event nor
    from the draft: two events about one request are one action, and so is a
    draft in other words.
    """
    data = event["data"]
    return Step(
        key=["request", data["request"], "stage", data["stage"]],
        intent=intent,
        params={name: data[name] for name in BINDING_FACTS},
        draft=draft, source=event["source"], event_id=event["id"])


def usable(claim: Claim) -> Claim:
    """Pass on what a worker can go on with; raise NotNow otherwise."""
    if claim.granted or claim.outcome in ("completed", "verify"):
        return claim
    raise NotNow(claim.retry_after)


def mended(text: str) -> str:
    """Drop what jsonb cannot hold: a zero byte, half of a character."""
    return text.replace("\0", "").encode(errors="ignore").decode()


def serve(queue: DeliveryQueue, name: str,
          handle: Callable[[Event], float | None], stop: StopSign) -> None:
    """Handle deliveries until told to stop."""
    while not stop.is_set():
        delivery = queue.receive(name)
        if delivery is None:
            time.sleep(POLL_SECONDS)
            continue
        seconds = handle(delivery.event)
        if seconds is None:
            queue.acknowledge(delivery)
        else:
            queue.keep(delivery, seconds)
