"""A small ticket service, and the client that a worker calls it with.

The service knows no idempotency: it creates a ticket for every request that
reaches it.  It is also slow enough for two workers to meet in it.
"""

from __future__ import annotations

import json
import sqlite3
import time
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path

SECONDS_BEFORE = 0.005
SECONDS_AFTER = 0.010
TIMEOUT_SECONDS = 4

CREATE_TABLE = """
    CREATE TABLE IF NOT EXISTS tickets (
        number    integer PRIMARY KEY,
        request   text NOT NULL,
        reference text NOT NULL,
        document  text NOT NULL)
"""
INSERT = "INSERT INTO tickets (request, reference, document) VALUES (?, ?, ?)"


class TicketError(Exception):
    """No ticket id came back; ``effect`` says what that means.

    none     nothing was sent
    refused  the service said no
    unknown  there may be a ticket or not
    """

    def __init__(self, message: str, effect: str) -> None:
        super().__init__(message)
        self.effect = effect


class TicketClient:
    """Creates tickets, one HTTP request each."""

    def __init__(self, port: int) -> None:
        self.port = port

    def create(self, request: str, text: str, reference: str) -> str:
        """Create one ticket and return its id."""
        body = json.dumps(
            {"request": request, "text": text, "reference": reference})
        connection = HTTPConnection("127.0.0.1", self.port,
                                    timeout=TIMEOUT_SECONDS)
        try:
            status, answer = self.post(connection, body)
        finally:
            connection.close()
        if status == 201:
            return str(json.loads(answer)["id"])
        effect = "refused" if 400 <= status < 500 else "unknown"
        raise TicketError(f"ticket service: HTTP {status}", effect)

    @staticmethod
    def post(connection: HTTPConnection, body: str) -> tuple[int, bytes]:
        """Send the request; return the status and the body of the answer."""
        try:
            connection.connect()
        except OSError as error:
            raise TicketError(f"no connection: {error}", "none") from error
        try:
            connection.request("POST", "/tickets", body)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, HTTPException) as error:
            raise TicketError(f"no answer: {error}", "unknown") from error


class Handler(BaseHTTPRequestHandler):
    """POST /tickets creates a ticket, always."""

    database: Path

    def do_POST(self) -> None:
        """Store the ticket and answer with its id."""
        length = int(self.headers["Content-Length"])
        document = self.rfile.read(length).decode()
        ticket = json.loads(document)
        time.sleep(SECONDS_BEFORE)
        number = self.insert(ticket["request"], ticket["reference"], document)
        time.sleep(SECONDS_AFTER)
        answer = json.dumps({"id": f"T-{number}"}).encode()
        self.send_response(201)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def insert(self, *ticket: str) -> int | None:
        """Write one row and return its number."""
        connection = open_database(self.database)
        try:
            with connection:
                return connection.execute(INSERT, ticket).lastrowid
        finally:
            connection.close()

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent: the demo prints its own lines."""


def open_database(path: Path) -> sqlite3.Connection:
    """Open the file behind the service."""
    connection = sqlite3.connect(path, timeout=10)
    connection.execute("PRAGMA synchronous = off")
    return connection


def run_service(database: Path, started: Connection) -> None:
    """Serve for ever; tell the chosen port once the service is up."""
    connection = open_database(database)
    connection.execute(CREATE_TABLE)
    connection.close()
    Handler.database = database
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    started.send(server.server_address[1])
    server.serve_forever()
