"""A small ticket service, and the client that a worker calls it with.

The service knows no idempotency: it creates a ticket for every request that
reaches it.  But it can be asked which tickets bear a reference.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from ledger import ActionError

SECONDS_TO_CREATE = 0.010  # slow enough for two workers to meet here
TIMEOUT_SECONDS = 4

CREATE_TABLE = """
    CREATE TABLE tickets (
        number    integer PRIMARY KEY,
        request   text NOT NULL,
        reference text NOT NULL,
        text      text NOT NULL)
"""
INSERT = """
    INSERT INTO tickets (request, reference, text)
    VALUES (:request, :reference, :text)
"""
SEARCH = "SELECT number FROM tickets WHERE reference = ? ORDER BY number"


class TicketClient:
    """Creates and finds tickets, one HTTP request each."""

    def __init__(self, port: int) -> None:
        self.port = port

    def create(self, request: str, text: str, reference: str) -> str:
        """Create one ticket and return its id."""
        answer = self.call("POST", "/tickets", {
            "request": request, "text": text, "reference": reference})
        return str(answer["id"])

    def find(self, reference: str) -> str | None:
        """Return the id of the first ticket with this reference."""
        query = urlencode({"reference": reference})
        answer = self.call("GET", f"/tickets?{query}")
        return next(iter(answer["ids"]), None)

    def call(self, method: str, path: str, ticket: Any = None) -> Any:
        """Return the answer; raise what else can happen as ActionError."""
        body = None if ticket is None else json.dumps(ticket)
        effect = "none"
        connection = HTTPConnection("127.0.0.1", self.port,
                                    timeout=TIMEOUT_SECONDS)
        try:
            connection.connect()
            effect = "unknown"
            connection.request(method, path, body)
            response = connection.getresponse()
            answer = response.read()
        except (OSError, HTTPException) as error:
            raise ActionError(f"ticket service: {error}", effect) from error
        finally:
            connection.close()
        if response.status >= 300:
            raise ActionError(
                f"ticket service: HTTP {response.status}",
                "refused" if 400 <= response.status < 500 else "unknown")
        return json.loads(answer)


class Handler(BaseHTTPRequestHandler):
    """POST /tickets creates a ticket, always; GET /tickets?reference= finds.
    """

    database: Path

    def do_POST(self) -> None:
        """Create a ticket and answer with its id."""
        length = int(self.headers["Content-Length"])
        number = self.create(json.loads(self.rfile.read(length)))
        self.answer(201, {"id": f"T-{number}"})

    def do_GET(self) -> None:
        """Answer with the ids of the tickets that bear the reference."""
        query = parse_qs(urlsplit(self.path).query)
        with opened(self.database) as database:
            rows = database.execute(SEARCH, query["reference"]).fetchall()
        self.answer(200, {"ids": [f"T-{number}" for number, in rows]})

    def create(self, ticket: dict[str, str]) -> int | None:
        """Store a ticket and return its number."""
        time.sleep(SECONDS_TO_CREATE)
        with opened(self.database) as database:
            return database.execute(INSERT, ticket).lastrowid

    def answer(self, status: int, content: dict[str, object]) -> None:
        """Send a JSON answer."""
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent: the demo prints its own lines."""


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the file behind the service; commit at the end."""
    database = sqlite3.connect(path, timeout=10)
    try:
        database.execute("PRAGMA synchronous = off")
        with database:
            yield database
    finally:
        database.close()


def run_service(handler: type[Handler], path: Path, started: Connection
                ) -> None:
    """Serve for ever; tell the chosen port once the service is up."""
    with opened(path) as database:
        database.execute(CREATE_TABLE)
    handler.database = path
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    started.send(server.server_address[1])
    server.serve_forever()
