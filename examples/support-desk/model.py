"""A stand-in for a language model: never the same words, and never free."""

from __future__ import annotations

import random
import time
from multiprocessing.sharedctypes import Synchronized

GREETINGS = ("Hello", "Hi there", "Good day", "Dear customer")
THANKS = ("thank you for writing", "thanks for getting in touch",
          "we are glad that you told us")
PROMISES = ("We are looking into it", "A colleague takes care of it today",
            "We will come back to you shortly")

SECONDS_PER_CALL = 0.02
CUT_EVERY = 10
HALF_AN_EMOJI = "\ud83d"


class Model:
    """Counts its calls over all processes, since each one costs money."""

    def __init__(self, calls: Synchronized[int]) -> None:
        self.calls = calls
        self.random = random.Random()

    def draft_reply(self, question: str) -> str:
        """Word a reply.  Every tenth is cut in the middle of an emoji."""
        time.sleep(SECONDS_PER_CALL)
        with self.calls.get_lock():
            self.calls.value += 1
            number = self.calls.value
        greeting, thanks, promise = (
            self.random.choice(words)
            for words in (GREETINGS, THANKS, PROMISES))
        text = f'{greeting}, {thanks}. You wrote: "{question}" {promise}.'
        return text + HALF_AN_EMOJI if number % CUT_EVERY == 0 else text
