"""Count what a run left behind, print it, and check it."""

from __future__ import annotations

import mailbox
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

from accidents import FATAL, REVISED, SENT_AGAIN
from support_lead import NEW_TEXT
from tickets import opened

COUNT = """
    SELECT (SELECT count(*) FROM idem.actions WHERE state = 'completed'),
           (SELECT coalesce(sum(n), 0) FROM idem.backlog),
           (SELECT count(*) FROM idem.history WHERE detail ? 'found'),
           (SELECT count(*) FROM idem.history WHERE event = 'resolved'),
           (SELECT array_agg(external_ref) FROM idem.actions
             WHERE intent = 'send-reply')
"""


@dataclass(frozen=True)
class Item:
    """A ticket or a mail: what it is about, its name outside, its text."""

    request: str
    reference: str
    text: str


@dataclass(frozen=True)
class Figures:
    """What one run cost and left behind."""

    requests: set[str]
    deliveries: int
    model_calls: int
    killed: int
    failed: int
    tickets: list[Item]
    mails: list[Item]
    sent_again: int = 0  # on purpose

    @property
    def duplicate_tickets(self) -> int:
        """Tickets beyond the first of each request."""
        return len(self.tickets) - len(per_request(self.tickets))

    @property
    def duplicate_mails(self) -> int:
        """Mails beyond the first of each request that nobody wanted."""
        return len(self.mails) - len(per_request(self.mails)) - self.sent_again

    @property
    def lost_replies(self) -> int:
        """Requests whose customer never got a reply."""
        return len(self.requests - per_request(self.mails).keys())

    def rows(self) -> dict[str, int]:
        """Return the figures by their names in the table."""
        return {
            "deliveries": self.deliveries,
            "requests": len(self.requests),
            "model calls": self.model_calls,
            "tickets": len(self.tickets),
            "duplicate tickets": self.duplicate_tickets,
            "mails": len(self.mails),
            "sent again on purpose": self.sent_again,
            "duplicate mails": self.duplicate_mails,
            "lost replies": self.lost_replies}


@dataclass(frozen=True)
class Memory:
    """What the ledger knows at the end."""

    completed: int
    left_over: int
    decided_by_search: int
    decided_by_person: int
    replies: list[str]  # the Message-IDs it has recorded


def per_request(items: list[Item]) -> Counter[str]:
    """Count the items of each request."""
    return Counter(item.request for item in items)


def read_tickets(path: Path) -> list[Item]:
    """Return every ticket of the service."""
    with opened(path) as database:
        rows = database.execute("SELECT request, reference, text FROM tickets")
        return [Item(*row) for row in rows]


def read_mails(path: Path) -> list[Item]:
    """Return every mail that the server has accepted."""
    return [Item(mail["X-Request"], mail["Message-ID"],
                 mail.get_payload(decode=True).decode().removesuffix("\n"))
            for mail in mailbox.Maildir(path)]


def read_memory() -> Memory:
    """Ask the ledger, as its owner."""
    with psycopg.connect(autocommit=True) as ledger:
        row = ledger.execute(COUNT).fetchone()
    assert row is not None, "it is one row"
    return Memory(*row)


def print_table(without: Figures, with_ledger: Figures, memory: Memory
                ) -> None:
    """Show both runs side by side."""
    left, right = without.rows(), with_ledger.rows()
    rows: list[tuple[str, object, object]] = [
        ("", "without the ledger", "with the ledger"),
        *((name, left[name], right[name]) for name in left),
        ("decided by a search", "-", memory.decided_by_search),
        ("decided by a person", "-", memory.decided_by_person),
        ("left over", "nobody knows", memory.left_over)]
    print()
    for row in rows:
        print("  {:<24}{:>20}{:>20}".format(*row))


def problems(without: Figures, with_ledger: Figures, memory: Memory
             ) -> Iterator[str]:
    """Name every figure that is not as promised."""
    for name, run in (("without", without), ("with", with_ledger)):
        if (run.killed, run.failed) != (len(FATAL), 0):
            yield (f"{name} the ledger: {run.killed} processes killed and "
                   f"{run.failed} failed, not {len(FATAL)} and 0")
    if not (without.duplicate_tickets and without.duplicate_mails
            and without.lost_replies):
        yield "without the ledger: nothing went wrong, so nothing is shown"

    run, requests = with_ledger, with_ledger.requests
    expected = {
        "model calls": (run.model_calls, len(requests)),
        "lost replies": (run.lost_replies, 0),
        "mails sent again on purpose": (run.sent_again, 1),
        "completed actions": (memory.completed, 3 * len(requests)),
        "actions left over": (memory.left_over, 0),
        "doubts decided by a search": (memory.decided_by_search, 3),
        "doubts decided by a person": (memory.decided_by_person, 1),
    }
    for name, (count, wanted) in expected.items():
        if count != wanted:
            yield f"with the ledger: {name}: {count}, not {wanted}"
    yield from wrong_items(run, memory)


def wrong_items(run: Figures, memory: Memory) -> Iterator[str]:
    """Name every ticket and mail that is not as the ledger says."""
    tickets, mails = per_request(run.tickets), per_request(run.mails)
    text = {ticket.request: ticket.text for ticket in run.tickets}
    text[REVISED] = NEW_TEXT
    for request in sorted(run.requests):
        if tickets[request] != 1:
            yield f"request {request} has {tickets[request]} tickets"
        if mails[request] != (2 if request == SENT_AGAIN else 1):
            yield f"request {request} has {mails[request]} mails"
    for mail in run.mails:
        if mail.text != text.get(mail.request):
            yield f"the mail for request {mail.request} has another text"
    names = [mail.reference for mail in run.mails]
    if len(set(names)) != len(names):
        yield "two mails have the same Message-ID"
    if not set(memory.replies) <= set(names):
        yield "the ledger has recorded a mail that does not exist"
