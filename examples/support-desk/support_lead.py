"""What a person does: read before it is sent, decide where nobody knows.

Here a script plays the support lead.  A real one would make the same calls
from psql or from a page of the back office.
"""

from __future__ import annotations

import mailbox
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from mailer import message_id

ACTOR = "Dana"
NEW_TEXT = "Sorry for the trouble! I have looked into it myself. Dana"

PAUSE = "SELECT idem.pause_intent('send-reply', %(reason)s, %(actor)s)"
RESUME = "SELECT idem.resume_intent('send-reply', %(actor)s)"
FIND = """
    SELECT outcome
      FROM idem.find_action(
               key    => idem.action_key('request', %(request)s, 'stage', '1'),
               intent => %(intent)s)
"""
SHOW = """
    SELECT action_id, revision
      FROM idem.show_action(idem.action_id(
               key    => idem.action_key('request', %(request)s, 'stage', '1'),
               intent => %(intent)s))
"""
REVISE = """
    SELECT accepted, note
      FROM idem.revise_action(
               action_id => %(action_id)s,
               draft     => %(draft)s,
               revision  => %(revision)s,
               actor     => %(actor)s)
"""
ATTENTION = """
    SELECT action_id, revision, intent, key, reason, provider_key, advice
      FROM idem.attention
     WHERE intent = 'send-reply'
"""
RESOLVE = """
    SELECT accepted, note
      FROM idem.resolve_action(
               action_id    => %(action_id)s,
               decision     => %(decision)s,
               note         => %(note)s,
               revision     => %(revision)s,
               external_ref => %(external_ref)s,
               actor        => %(actor)s)
"""
RERUN = """
    SELECT accepted, note
      FROM idem.rerun_action(
               action_id => %(action_id)s,
               reason    => %(reason)s,
               revision  => %(revision)s,
               actor     => %(actor)s)
"""
EXPLAIN = "SELECT idem.explain_action(%(action_id)s)"
UNFINISHED = """
    SELECT intent, state, n
      FROM idem.backlog
     WHERE state <> %(besides)s
"""


@dataclass(frozen=True)
class Seen:
    """An action as a person has seen it: a decision is about just that."""

    action_id: UUID
    revision: int


@dataclass(frozen=True)
class Doubt(Seen):
    """An action of which nobody knows whether it took effect."""

    intent: str
    key: str
    reason: str
    provider_key: str
    advice: str


class SupportLead:
    """Works with the level operator."""

    def __init__(self, maildir: Path) -> None:
        self.ledger = psycopg.connect(user="support_lead", autocommit=True)
        self.maildir = maildir

    def pause(self, reason: str) -> None:
        """Let no reply go out for now; decisions go on."""
        self.ledger.execute(PAUSE, {"reason": reason, "actor": ACTOR})

    def resume(self) -> None:
        """Let the replies go out."""
        self.ledger.execute(RESUME, {"actor": ACTOR})

    def has_draft(self, request: str) -> bool:
        """Say whether there is a reply to read that was not sent yet."""
        row = self.ledger.execute(
            FIND, {"request": request, "intent": "send-reply"}).fetchone()
        return row is not None and row[0] == "pending"

    def revise(self, request: str) -> None:
        """Put another text in place of a draft."""
        self.decide(REVISE, self.look_at("send-reply", request),
                    draft=Jsonb({"text": NEW_TEXT}))

    def doubts(self) -> list[Doubt]:
        """Return the mails that may have gone out or not."""
        with self.ledger.cursor(row_factory=class_row(Doubt)) as cursor:
            return cursor.execute(ATTENTION).fetchall()

    def resolve(self, doubt: Doubt) -> None:
        """Search for the mail, and decide by what is found."""
        mail = message_id(doubt.provider_key)
        if self.was_delivered(mail):
            self.decide(RESOLVE, doubt, decision="happened",
                        note="found it in the mailbox", external_ref=mail)
        else:
            self.decide(RESOLVE, doubt, decision="not_happened",
                        note="it is not in the mailbox", external_ref=None)

    def send_again(self, request: str) -> None:
        """Have a reply sent once more, because the customer asks for it."""
        self.decide(RERUN, self.look_at("send-reply", request),
                    reason="the customer has deleted it by mistake")

    def was_delivered(self, mail: str) -> bool:
        """Search the mailbox for a Message-ID."""
        return any(message["Message-ID"] == mail
                   for message in mailbox.Maildir(self.maildir))

    def look_at(self, intent: str, request: str) -> Seen:
        """Return how an action stands."""
        with self.ledger.cursor(row_factory=class_row(Seen)) as cursor:
            seen = cursor.execute(
                SHOW, {"request": request, "intent": intent}).fetchone()
        assert seen is not None, "the ledger always answers with one row"
        return seen

    def decide(self, query: str, seen: Seen, **values: object) -> None:
        """Make a decision that counts only if nothing has changed since."""
        answer = self.ledger.execute(query, {
            "action_id": seen.action_id, "revision": seen.revision,
            "actor": ACTOR, **values}).fetchone()
        accepted, note = answer or (False, "no answer")
        if not accepted:
            raise RuntimeError(f"the decision was not accepted: {note}")

    def explain(self, intent: str, request: str) -> list[str]:
        """Return the story of an action."""
        seen = self.look_at(intent, request)
        rows = self.ledger.execute(EXPLAIN, {"action_id": seen.action_id})
        return [line for line, in rows]

    def unfinished(self, besides: str = "") -> list[tuple[Any, ...]]:
        """Return which actions are not over, by intent and state."""
        return self.ledger.execute(UNFINISHED, {"besides": besides}).fetchall()

    def unattended(self) -> list[tuple[Any, ...]]:
        """Return which of them do not wait for a person."""
        return self.unfinished(besides="needs_attention")
