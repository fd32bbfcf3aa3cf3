"""The same two steps without the ledger, as most first versions look."""

from __future__ import annotations

from model import Model
from tickets import TicketClient
from worker import Event


class NaiveWorker:
    """Trusts that every event arrives once and every process lives."""

    def __init__(self, model: Model, tickets: TicketClient) -> None:
        self.model = model
        self.tickets = tickets

    def handle(self, event: Event) -> None:
        """Draft a reply and create the review task."""
        text = self.model.draft_reply(event["data"]["text"])
        self.tickets.create(request=event["data"]["request"], text=text,
                            reference=event["id"])
