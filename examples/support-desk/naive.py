"""The same three steps without the ledger, as most first versions look."""

from __future__ import annotations

from uuid import uuid4

from ledger import ActionError
from mailer import Mailer, compose
from model import Model
from tickets import TicketClient
from worker import Event, mended


class NaiveWorker:
    """Trusts that every event arrives once and every process lives."""

    def __init__(self, model: Model, tickets: TicketClient,
                 mailer: Mailer) -> None:
        self.model = model
        self.tickets = tickets
        self.mailer = mailer

    def handle(self, event: Event) -> None:
        """Draft a reply, create the review task, send the reply."""
        request, customer = event["data"]["request"], event["data"]["customer"]
        text = mended(self.model.draft_reply(event["data"]["text"]))
        try:
            self.tickets.create(request, text, reference=event["id"])
        except ActionError:
            # Once more, and there may be two tickets.  Give up, and the
            # customer gets no reply.
            return
        message = compose(request, customer, text, reference=str(uuid4()))
        self.mailer.send(message, last_look=lambda: None)
