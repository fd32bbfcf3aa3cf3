"""A tiny queue in an SQLite file that delivers at least once.

A delivery belongs to the worker that received it until the worker
acknowledges it, asks to see it later, or dies: then it comes again.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CREATE_TABLE = """
    CREATE TABLE deliveries (
        number       integer PRIMARY KEY,
        event        text NOT NULL,
        due          real NOT NULL DEFAULT 0,
        receiver     text,
        acknowledged integer NOT NULL DEFAULT 0)
"""
RECEIVE = """
    UPDATE deliveries
       SET receiver = ?
     WHERE number = (SELECT number
                       FROM deliveries
                      WHERE NOT acknowledged AND receiver IS NULL AND due <= ?
                      ORDER BY number
                      LIMIT 1)
    RETURNING number, event
"""
ACKNOWLEDGE = "UPDATE deliveries SET acknowledged = 1 WHERE number = ?"
KEEP = "UPDATE deliveries SET receiver = NULL, due = ? WHERE number = ?"
GIVE_BACK = """
    UPDATE deliveries
       SET receiver = NULL
     WHERE NOT acknowledged AND receiver = ?
"""
IS_DONE = "SELECT NOT EXISTS (SELECT 1 FROM deliveries WHERE NOT acknowledged)"


@dataclass(frozen=True)
class Delivery:
    """One event on its way to a worker."""

    number: int
    event: dict[str, Any]


class DeliveryQueue:
    """A connection to the queue; every process opens its own."""

    def __init__(self, path: Path) -> None:
        self.database = sqlite3.connect(path, timeout=10, isolation_level=None)
        self.database.execute("PRAGMA synchronous = off")

    def close(self) -> None:
        """Leave the queue; it stays in its file."""
        self.database.close()

    def fill(self, events: Iterable[dict[str, Any]]) -> None:
        """Create the queue with these deliveries in this order."""
        self.database.execute("PRAGMA journal_mode = wal")
        self.database.execute(CREATE_TABLE)
        self.database.executemany(
            "INSERT INTO deliveries (event) VALUES (?)",
            [(json.dumps(event),) for event in events])

    def receive(self, worker: str) -> Delivery | None:
        """Hand the next due delivery to this worker."""
        rows = self.database.execute(RECEIVE, (worker, time.time())).fetchall()
        return Delivery(rows[0][0], json.loads(rows[0][1])) if rows else None

    def acknowledge(self, delivery: Delivery) -> None:
        """Done: never deliver it again."""
        self.database.execute(ACKNOWLEDGE, (delivery.number,))

    def keep(self, delivery: Delivery, seconds: float) -> None:
        """Not done: deliver it again after so many seconds."""
        self.database.execute(KEEP, (time.time() + seconds, delivery.number))

    def give_back(self, worker: str) -> int:
        """Take back what a dead worker held; return how many that were."""
        return self.database.execute(GIVE_BACK, (worker,)).rowcount

    def is_done(self) -> bool:
        """Say whether every delivery has been acknowledged."""
        return bool(self.database.execute(IS_DONE).fetchone()[0])
