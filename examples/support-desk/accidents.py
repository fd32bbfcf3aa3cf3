"""What goes wrong on purpose: in each run the same, each of it once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from email.message import EmailMessage

from mailer import Mailer
from tickets import Handler, TicketClient

# The requests that meet an accident, and those that the support lead touches.
KILLED_BEFORE_TICKET = "9"
KILLED_AFTER_TICKET = "17"
NO_ANSWER = "20"  # is delivered once only, so no other delivery helps
KILLED_BEFORE_MAIL = "12"
KILLED_AFTER_MAIL = "22"
REVISED = "2"
SENT_AGAIN = "3"

FATAL = {
    KILLED_BEFORE_TICKET: "before its ticket was created",
    KILLED_AFTER_TICKET: "after its ticket was created",
    KILLED_BEFORE_MAIL: "before its mail was sent",
    KILLED_AFTER_MAIL: "after its mail was accepted",
}


class Accidents:
    """Who has still to be killed, over all processes of a run."""

    def __init__(self) -> None:
        self.left = {request: multiprocessing.Semaphore(1)
                     for request in FATAL}

    def strike(self, request: str, here: str) -> None:
        """Kill this process if it is at the place that is fatal."""
        if request == here and self.left[request].acquire(block=False):
            name = multiprocessing.current_process().name
            print(f"demo: {name} is killed at request {request}, "
                  f"{FATAL[request]}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


class FatalTickets(TicketClient):
    """Kills its worker just before a ticket is created, or just after it."""

    def __init__(self, port: int, accidents: Accidents) -> None:
        super().__init__(port)
        self.accidents = accidents

    def create(self, request: str, text: str, reference: str) -> str:
        self.accidents.strike(request, KILLED_BEFORE_TICKET)
        ticket = super().create(request, text, reference)
        self.accidents.strike(request, KILLED_AFTER_TICKET)
        return ticket


class FatalMailer(Mailer):
    """Kills its sender just before a mail goes out, or just after it."""

    def __init__(self, port: int, accidents: Accidents) -> None:
        super().__init__(port)
        self.accidents = accidents

    def send(self, message: EmailMessage, last_look: Callable[[], object]
             ) -> None:
        request = message["X-Request"]

        def fatal_look() -> None:
            self.accidents.strike(request, KILLED_BEFORE_MAIL)
            last_look()

        super().send(message, fatal_look)
        self.accidents.strike(request, KILLED_AFTER_MAIL)


class SilentHandler(Handler):
    """A ticket service that once creates a ticket and never answers."""

    def create(self, ticket: dict[str, str]) -> int | None:
        number = super().create(ticket)
        if ticket["request"] == NO_ANSWER:
            threading.Event().wait()
        return number
