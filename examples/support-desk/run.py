"""Deliver the same events without and with the ledger, and compare.

Connects as libpq's environment says (PGHOST, PGUSER, PGDATABASE) to a
database that rules.sql has prepared.  Exits with 1 if a figure is not what
the ledger promises.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from multiprocessing.synchronize import Semaphore
from pathlib import Path
from typing import Any, Iterator

import psycopg
from psycopg.rows import dict_row

from deliveries import DeliveryQueue
from model import CUT_EVERY, Model
from naive import NaiveWorker
from tickets import TicketClient, open_database, run_service
from worker import NO_DRAFT, Event, Worker, serve

EVENTS = Path(__file__).with_name("events.jsonl")
SEED = 17
WORKERS = [f"worker-{number}" for number in range(1, 5)]
FATAL_REQUEST = "17"  # whose first ticket costs its worker's life
PATIENCE_SECONDS = 45

WAITING = """
    SELECT intent, key, reason, worker, provider_key
      FROM idem.actions
     WHERE state = 'needs_attention'
"""

fork = multiprocessing.get_context("fork")
Handle = Callable[[Event], float | None]
MakeHandle = Callable[[str, Model, TicketClient], Handle]


@dataclass(frozen=True)
class Figures:
    """What one run cost and left behind."""

    deliveries: int
    model_calls: int
    tickets: list[dict[str, str]]
    killed: int

    @property
    def duplicates(self) -> int:
        """Tickets beyond the first of each request."""
        return len(self.tickets) - len(self.per_request)

    @property
    def per_request(self) -> Counter[str]:
        """How many tickets each request has."""
        return Counter(ticket["request"] for ticket in self.tickets)


class FatalTickets(TicketClient):
    """Kills its worker once, just after the fatal request got a ticket.

    Nobody has recorded that ticket then: neither the worker nor the ledger.
    """

    def __init__(self, port: int, lives: Semaphore) -> None:
        super().__init__(port)
        self.lives = lives

    def create(self, request: str, text: str, reference: str) -> str:
        ticket = super().create(request, text, reference)
        if request == FATAL_REQUEST and self.lives.acquire(block=False):
            os.kill(os.getpid(), signal.SIGKILL)
        return ticket


def naive_handle(name: str, model: Model, tickets: TicketClient) -> Handle:
    """A worker that asks nobody."""
    return NaiveWorker(model, tickets).handle


def ledger_handle(name: str, model: Model, tickets: TicketClient) -> Handle:
    """A worker that asks the ledger, with a worker's rights only."""
    ledger = psycopg.connect(user="support_worker", autocommit=True)
    return Worker(name, ledger, model, tickets).handle


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


def start(target: Callable[..., None], *args: Any,
          name: str | None = None) -> ForkProcess:
    """Start a process that ends with this one."""
    process = fork.Process(target=leave_signals_to_parent, name=name,
                           args=(target, *args), daemon=True)
    process.start()
    return process


def leave_signals_to_parent(target: Callable[..., None], *args: Any) -> None:
    """Call the target; on Ctrl-C the parent terminates this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    target(*args)


@contextmanager
def ticket_service(database: Path) -> Iterator[int]:
    """Run a ticket service in a process of its own; yield its port."""
    ours, theirs = fork.Pipe()
    service = start(run_service, database, theirs)
    theirs.close()
    try:
        yield ours.recv()
    finally:
        service.terminate()
        service.join()


def work(name: str, queue: Path, make_handle: MakeHandle,
         calls: Any, port: int, lives: Semaphore) -> None:
    """Be one of the worker processes."""
    handle = make_handle(name, Model(calls), FatalTickets(port, lives))
    serve(DeliveryQueue(queue), name, handle)


def rehearse(folder: Path, plan: list[Event], make_handle: MakeHandle
             ) -> Figures:
    """Deliver the plan to four workers, one of which dies on the way."""
    folder.mkdir()
    path = folder / "queue.db"
    with closing(DeliveryQueue(path)) as queue:
        queue.fill(plan)
    calls: Any = fork.Value("i", 0)
    lives = fork.Semaphore(1)
    with ticket_service(folder / "tickets.db") as port:
        workers = [
            start(work, name, path, make_handle, calls, port, lives, name=name)
            for name in WORKERS]
        try:
            with closing(DeliveryQueue(path)) as queue:
                redelivered = watch(workers, queue)
        finally:
            for worker in workers:
                worker.terminate()
    return Figures(
        deliveries=len(plan) + redelivered,
        model_calls=calls.value,
        tickets=read_tickets(folder / "tickets.db"),
        killed=sum(worker.exitcode == -signal.SIGKILL for worker in workers))


def watch(workers: list[ForkProcess], queue: DeliveryQueue) -> int:
    """Give back what a dead worker held; return how many deliveries."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    alive: dict[Any, ForkProcess] = {
        worker.sentinel: worker for worker in workers}
    redelivered = 0
    while alive:
        ended = wait(list(alive), timeout=deadline - time.monotonic())
        if not ended:
            sys.exit(f"run.py: not done after {PATIENCE_SECONDS} s")
        for worker in [alive.pop(sentinel) for sentinel in ended]:
            worker.join()
            if worker.exitcode == 0:
                continue
            redelivered += queue.give_back(worker.name)
            say(f"{worker.name} {cause_of_death(worker.exitcode)}; "
                "its message is delivered again")
    if not queue.is_done():
        sys.exit("run.py: all workers died before the queue was empty")
    return redelivered


def cause_of_death(exitcode: int | None) -> str:
    """Say in words how a worker ended."""
    if exitcode == -signal.SIGKILL:
        return "was killed after it created a ticket"
    return f"failed with exit code {exitcode}"


def read_tickets(database: Path) -> list[dict[str, str]]:
    """Return every ticket that the service has recorded."""
    connection = open_database(database)
    rows = connection.execute("SELECT number, document FROM tickets")
    tickets = [json.loads(document) | {"id": f"T-{number}"}
               for number, document in rows]
    connection.close()
    return tickets


def read_waiting() -> list[dict[str, Any]]:
    """Return the actions that wait for a person."""
    with psycopg.connect(autocommit=True, row_factory=dict_row) as ledger:
        return ledger.execute(WAITING).fetchall()


def print_table(requests: int, without: Figures, with_ledger: Figures,
                waiting: int) -> None:
    """Show both runs side by side."""
    rows: list[tuple[str, object, object]] = [
        ("", "without the ledger", "with the ledger"),
        ("deliveries", without.deliveries, with_ledger.deliveries),
        ("requests", requests, requests),
        ("model calls", without.model_calls, with_ledger.model_calls),
        ("tickets", len(without.tickets), len(with_ledger.tickets)),
        ("duplicate tickets", without.duplicates, with_ledger.duplicates),
        ("waiting for a person", "nobody knows", waiting),
    ]
    print()
    for name, left, right in rows:
        print(f"  {name:<22}{left:>20}{right:>20}")
    print()


def print_waiting(waiting: list[dict[str, Any]], figures: Figures) -> None:
    """Show what a person has to decide, and what they would find."""
    for row in waiting:
        found = with_reference(figures, row["provider_key"])
        print(f"  {row['intent']} {row['key']}: {row['reason']}, "
              f"last tried by {row['worker']}")
        print(f"  tickets with the reference {row['provider_key']}: "
              f"{', '.join(found) or 'none'}")
        print()


def with_reference(figures: Figures, reference: str) -> list[str]:
    """Return the ids of the tickets that bear this reference."""
    return [ticket["id"] for ticket in figures.tickets
            if ticket["reference"] == reference]


def problems(requests: int, without: Figures, with_ledger: Figures,
             waiting: list[dict[str, Any]]) -> Iterator[str]:
    """Name every figure that is not as promised."""
    for name, run in (("without", without), ("with", with_ledger)):
        if run.killed != 1:
            yield f"{name} the ledger: {run.killed} workers killed, not 1"
    if len(without.tickets) <= requests:
        yield "without the ledger: no duplicates, so nothing is shown"
    if with_ledger.model_calls != requests:
        yield (f"with the ledger: {with_ledger.model_calls} model calls "
               f"for {requests} requests")
    if len(with_ledger.per_request) != requests:
        yield (f"with the ledger: {len(with_ledger.per_request)} of "
               f"{requests} requests have a ticket")
    for request, count in with_ledger.per_request.items():
        if count != 1:
            yield f"with the ledger: request {request} has {count} tickets"
    lost = sum(ticket["text"] == NO_DRAFT for ticket in with_ledger.tickets)
    if lost != with_ledger.model_calls // CUT_EVERY:
        yield f"with the ledger: {lost} tickets say that the draft was lost"
    if len(waiting) != 1:
        yield f"with the ledger: {len(waiting)} actions wait for a person"
    for row in waiting:
        if row["reason"] != "lease_expired":
            yield f"the waiting action has the reason {row['reason']}"
        if len(with_reference(with_ledger, row["provider_key"])) != 1:
            yield "the waiting action's ticket does not exist exactly once"


def say(text: str) -> None:
    """Print a progress line at once."""
    print(f"demo: {text}", flush=True)


def main() -> int:
    """Run both rehearsals, print the table, check it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    events = [json.loads(line) for line in EVENTS.open(encoding="utf-8")]
    plan = delivery_plan(events)
    requests = len({event["data"]["request"] for event in events})
    say(f"{len(events)} events about {requests} requests, "
        f"delivered {len(plan)} times to {len(WORKERS)} workers")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        say("without the ledger")
        without = rehearse(folder / "without", plan, naive_handle)
        say("with the ledger")
        with_ledger = rehearse(folder / "with", plan, ledger_handle)
    waiting = read_waiting()
    print_table(requests, without, with_ledger, len(waiting))
    print_waiting(waiting, with_ledger)
    wrong = list(problems(requests, without, with_ledger, waiting))
    for problem in wrong:
        print(f"demo: WRONG: {problem}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
