"""Keep a claim alive while something slow is at work, such as a model call."""

import threading

import psycopg

EXTEND = "SELECT idem.extend_claim(%s, %s)"


class Heartbeat:
    """with Heartbeat(conninfo, claim) as heart: ...; ask heart.lost now and then.

    Has a connection of its own, as the work keeps the other one busy.  Beats
    three times in each lease, by the seconds that the ledger answers.
    """

    def __init__(self, conninfo, claim):
        self.conninfo = conninfo
        self.claim = claim
        self.lost = False  # overtaken, cancelled or paused: stop, and do not act
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()

    def _beat(self):
        with psycopg.connect(self.conninfo, autocommit=True) as ledger:
            while True:
                try:
                    left = ledger.execute(
                        EXTEND, [self.claim.action_id, self.claim.claim_id]).fetchone()[0]
                except psycopg.Error as error:
                    if error.sqlstate is None or error.sqlstate[:2] != "IA":
                        raise
                    self.lost = True  # IA002 lost, IA004 cancel requested or paused
                    return
                if self._done.wait(left / 3):
                    return
