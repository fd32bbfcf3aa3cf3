"""Deliver the same events without and with the ledger, and compare.

Connects as libpq's environment says (PGHOST, PGUSER, PGDATABASE) to a
database that rules.sql has prepared.  Exits with 1 if a figure is not what
the ledger promises.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.synchronize import Event as StopSign
from pathlib import Path
from typing import Any

from accidents import (KILLED_AFTER_MAIL, KILLED_AFTER_TICKET,
                       KILLED_BEFORE_MAIL, KILLED_BEFORE_TICKET, NO_ANSWER,
                       REVISED, SENT_AGAIN, Accidents, FatalMailer,
                       FatalTickets, SilentHandler)
from crew import Crew, Job, fork, service
from deliveries import DeliveryQueue
from figures import (Figures, print_table, problems, read_mails, read_memory,
                     read_tickets)
from ledger import Ledger
from mailer import run_mail_server
from model import Model
from naive import NaiveWorker
from support_lead import SupportLead
from taker import Taker
from tickets import run_service
from worker import Event, Worker, serve

EVENTS = Path(__file__).with_name("events.jsonl")
SEED = 17
WORKERS = ("worker-1", "worker-2", "worker-3", "worker-4")
TAKERS = ("taker-1", "taker-2")

STORIES = (
    ("a worker was killed before the ticket", "create-review-task",
     KILLED_BEFORE_TICKET),
    ("a worker was killed after the ticket", "create-review-task",
     KILLED_AFTER_TICKET),
    ("the ticket service did not answer", "create-review-task", NO_ANSWER),
    ("a taker was killed before the mail", "send-reply", KILLED_BEFORE_MAIL),
    ("a taker was killed after the mail", "send-reply", KILLED_AFTER_MAIL),
    ("a reply was revised", "send-reply", REVISED),
    ("a reply was sent again on purpose", "send-reply", SENT_AGAIN),
)


@dataclass(frozen=True)
class Desk:
    """Everything outside the ledger that the processes of a run share."""

    queue: Path
    tickets: Path
    maildir: Path
    ticket_port: int
    mail_port: int
    model_calls: Any
    accidents: Accidents

    def open_queue(self) -> DeliveryQueue:
        """Connect to the queue; every process does so for itself."""
        return DeliveryQueue(self.queue)

    def has_deliveries(self) -> bool:
        """Say whether there are deliveries that nobody has acknowledged."""
        with closing(self.open_queue()) as queue:
            return not queue.is_done()

    def give_back(self, name: str) -> int:
        """Deliver again what this process held; return how many."""
        with closing(self.open_queue()) as queue:
            return queue.give_back(name)

    def model(self) -> Model:
        """Reach the model."""
        return Model(self.model_calls)

    def ticket_client(self) -> FatalTickets:
        """Reach the ticket service."""
        return FatalTickets(self.ticket_port, self.accidents)

    def mailer(self) -> FatalMailer:
        """Reach the mail server."""
        return FatalMailer(self.mail_port, self.accidents)


DeskJob = Callable[[Desk, str, StopSign], None]


def be_naive(desk: Desk, name: str, stop: StopSign) -> None:
    """Handle deliveries without asking anybody."""
    worker = NaiveWorker(desk.model(), desk.ticket_client(), desk.mailer())
    serve(desk.open_queue(), name, worker.handle, stop)


def be_worker(desk: Desk, name: str, stop: StopSign) -> None:
    """Handle deliveries by the ledger."""
    worker = Worker(Ledger(name), desk.model(), desk.ticket_client())
    serve(desk.open_queue(), name, worker.handle, stop)


def be_taker(desk: Desk, name: str, stop: StopSign) -> None:
    """Send replies by the ledger."""
    Taker(Ledger(name), desk.mailer()).serve(stop)


@contextmanager
def open_desk(folder: Path, plan: list[Event]) -> Iterator[Desk]:
    """Fill the queue and start the services."""
    queue, tickets = folder / "queue.db", folder / "tickets.db"
    maildir = folder / "Maildir"
    folder.mkdir()
    with closing(DeliveryQueue(queue)) as deliveries:
        deliveries.fill(plan)
    with (service(run_service, SilentHandler, tickets) as ticket_port,
          service(run_mail_server, maildir) as mail_port):
        yield Desk(queue, tickets, maildir, ticket_port, mail_port,
                   fork.Value("i", 0), Accidents())


def hire(desk: Desk, *teams: tuple[DeskJob, tuple[str, ...]]) -> Crew:
    """Start a process for each name of each team."""
    jobs: dict[str, Job] = {name: partial(job, desk)
                            for job, names in teams for name in names}
    return Crew(jobs, desk.give_back)


def run_without_ledger(folder: Path, plan: list[Event]) -> Figures:
    """Deliver the plan to workers that ask nobody."""
    with open_desk(folder, plan) as desk:
        with hire(desk, (be_naive, WORKERS)) as crew:
            crew.work_while(desk.has_deliveries)
        return count(desk, plan, crew)


def run_with_ledger(folder: Path, plan: list[Event]) -> Figures:
    """Deliver the plan to workers and takers; a person looks after both."""
    with open_desk(folder, plan) as desk:
        lead = SupportLead(desk.maildir)
        lead.pause("the first replies of the day are read before they go out")
        with hire(desk, (be_worker, WORKERS), (be_taker, TAKERS)) as crew:
            crew.work_while(lambda: not lead.has_draft(REVISED))
            lead.revise(REVISED)
            lead.resume()

            crew.work_while(desk.has_deliveries)
            crew.work_while(lead.unattended)

            for doubt in lead.doubts():
                print_story("the support lead is asked", [
                    f"{doubt.intent} {doubt.key}: {doubt.reason}",
                    doubt.advice])
                lead.resolve(doubt)
            lead.send_again(SENT_AGAIN)
            crew.work_while(lead.unfinished)

        for title, intent, request in STORIES:
            print_story(title, lead.explain(intent, request))
        return count(desk, plan, crew, sent_again=1)


def count(desk: Desk, plan: list[Event], crew: Crew, sent_again: int = 0
          ) -> Figures:
    """Collect the figures of a run that is over."""
    return Figures(
        requests={event["data"]["request"] for event in plan},
        deliveries=len(plan) + crew.redelivered,
        model_calls=desk.model_calls.value,
        killed=crew.killed, failed=crew.failed,
        tickets=read_tickets(desk.tickets), mails=read_mails(desk.maildir),
        sent_again=sent_again)


def delivery_plan(events: list[Event]) -> list[Event]:
    """Deliver each event 1 to 4 times, close together or long after.

    The seed is fixed: every run of the demo meets the same deliveries.
    """
    chance = random.Random(SEED)
    plan: list[tuple[int, int, Event]] = []
    for position, event in enumerate(events):
        for _ in range(chance.randint(1, 4)):
            delay = chance.choice((0, 0, 1, 5, 40))
            plan.append((position + delay, len(plan), event))
    return [event for _, _, event in sorted(plan, key=lambda item: item[:2])]


def print_story(title: str, lines: list[str]) -> None:
    """Show what a person reads about one action."""
    print(f"\n  {title}:", *lines, sep="\n    ", flush=True)


def say(text: str) -> None:
    """Print a progress line at once."""
    print(f"demo: {text}", flush=True)


def main() -> int:
    """Run both, print the table, check it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    events = [json.loads(line) for line in EVENTS.open(encoding="utf-8")]
    plan = delivery_plan(events)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        say(f"{len(events)} events, delivered {len(plan)} times: "
            "without the ledger")
        without = run_without_ledger(folder / "without", plan)
        say("the same deliveries with the ledger")
        with_ledger = run_with_ledger(folder / "with", plan)
    memory = read_memory()
    print_table(without, with_ledger, memory)
    wrong = list(problems(without, with_ledger, memory))
    for problem in wrong:
        print(f"demo: WRONG: {problem}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
