"""Outgoing mail: the client that sends it, and a mail server to receive it.

The server is Debian's python3-aiosmtpd.  It speaks SMTP and files what it
accepts into a Maildir, where every mail is a file of its own.
"""

from __future__ import annotations

import asyncio
import smtplib
from collections.abc import Callable
from contextlib import closing, suppress
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import localtime
from multiprocessing.connection import Connection
from pathlib import Path

from aiosmtpd.handlers import Mailbox
from aiosmtpd.smtp import SMTP as SmtpServer

from ledger import ActionError

SENDER = "support@desk.example"
TIMEOUT_SECONDS = 6


def compose(request: str, customer: str, text: str, reference: str
            ) -> EmailMessage:
    """Write a mail that can be found by its reference later."""
    message = EmailMessage(policy=SMTP)
    message["From"] = SENDER
    message["To"] = f"{customer}@customers.example"
    message["Date"] = localtime()
    message["Message-ID"] = message_id(reference)
    message["Subject"] = f"Your request {request}"
    message["X-Request"] = request
    message.set_content(text)
    return message


def message_id(reference: str) -> str:
    """Return the Message-ID of the mail with this reference."""
    return f"<{reference}@desk.example>"


class Mailer:
    """Sends mails, one SMTP session each."""

    def __init__(self, port: int) -> None:
        self.port = port

    def send(self, message: EmailMessage, last_look: Callable[[], object]
             ) -> None:
        """Send one mail; call ``last_look`` just before it cannot be undone.

        Until then the server knows sender and recipient only, and nothing
        has happened.  Afterwards, a server that falls silent may have
        accepted the mail or not.
        """
        effect = "none"
        try:
            with closing(self.connect()) as server:
                expect_yes(server.ehlo())
                expect_yes(server.mail(message["From"]))
                expect_yes(server.rcpt(message["To"]))
                last_look()
                effect = "unknown"
                expect_yes(server.data(message.as_bytes()))
                with suppress(OSError):
                    server.quit()
        except smtplib.SMTPResponseException as error:
            raise ActionError(f"mail server: {error}",
                              effect_of(error.smtp_code, effect)) from error
        except OSError as error:  # all of smtplib's are, too
            raise ActionError(f"mail server: {error}", effect) from error

    def connect(self) -> smtplib.SMTP:
        """Reach the server."""
        return smtplib.SMTP("127.0.0.1", self.port, "localhost",
                            timeout=TIMEOUT_SECONDS)


def expect_yes(reply: tuple[int, bytes]) -> None:
    """Raise what is not a yes as smtplib's own error."""
    code, text = reply
    if not 200 <= code < 300:
        raise smtplib.SMTPResponseException(code, text)


def effect_of(code: int, otherwise: str) -> str:
    """Say what an SMTP reply means: 4xx not now, 5xx never."""
    if code >= 500:
        return "refused"
    return "none" if code >= 400 else otherwise


def run_mail_server(maildir: Path, started: Connection) -> None:
    """Serve for ever; tell the chosen port once the server is up."""
    asyncio.run(serve(maildir, started))


async def serve(maildir: Path, started: Connection) -> None:
    """Accept every mail into the Maildir."""
    mailbox = Mailbox(maildir)
    server = await asyncio.get_running_loop().create_server(
        lambda: SmtpServer(mailbox, hostname="localhost"), "127.0.0.1", 0)
    started.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()
