"""The pattern for an outbox: take what was decided, deliver, record.

Takers send the replies.  Nothing here decides whether a reply is sent: that
stands in the ledger already, and so do its text and its recipient.
"""

from __future__ import annotations

from multiprocessing.synchronize import Event as StopSign

from ledger import ActionError, Claim, ClaimLost, Ledger
from mailer import Mailer, compose


class Taker:
    """Sends replies; any number of takers may run at once."""

    def __init__(self, ledger: Ledger, mailer: Mailer) -> None:
        self.ledger = ledger
        self.mailer = mailer

    def serve(self, stop: StopSign) -> None:
        """Deliver what is due until told to stop."""
        while not stop.is_set():
            for claim in self.ledger.take("send-reply"):
                self.deliver(claim)

    def deliver(self, claim: Claim) -> None:
        """Send one reply, named by the key that all its attempts share."""
        message = compose(claim.params["request"], claim.params["customer"],
                          claim.draft["text"], claim.provider_key)
        try:
            self.mailer.send(message,
                             last_look=lambda: self.ledger.begin(claim))
        except ClaimLost as error:
            self.ledger.release(claim, str(error))
        except ActionError as error:
            self.ledger.fail(claim, error)
        else:
            self.ledger.complete(claim, external_ref=message["Message-ID"])
