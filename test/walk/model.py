"""The states of docs/states.md once more, in plain Python: what each call does to an
action.  Written from the page, not from src/state.c, so that a misreading of
one is found by the other.

A Model holds the actions that the walk knows.  Each method is a call; it moves
the action and returns what the call must answer, an Answer.  Times are seconds
since the epoch.  Where the page leaves a time open (the jitter of a delay) the
model holds a pair, and the walk puts the time that the server chose there.
"""

import copy

ANY = object()  # the page does not say, or leaves it open: not compared

FINAL = ("completed", "failed", "cancelled")


class Rule:
    def __init__(self, on_uncertain="review", window=None, settle=120, lease=300,
                 marks=False, max_attempts=3, max_failures=12, delay=30,
                 approval=False, keep_content=5 * 86400,
                 keep_key=10 * 86400):
        self.on_uncertain = on_uncertain
        self.window = window
        self.settle = settle
        self.lease = lease
        self.marks = marks
        self.max_attempts = max_attempts
        self.max_failures = max_failures
        self.delay = delay
        self.approval = approval
        self.keep_content = keep_content
        self.keep_key = keep_key


class Action:
    """What the ledger has to know.  The names are those of its columns."""

    def __init__(self, now):
        self.state = "pending"
        self.reason = None
        self.generation = 1
        self.attempt = self.lost = self.failures = 0
        self.uncertain = self.uncertain_before = False
        self.marked = self.begun = self.verifying = False
        self.approved = self.cancel_requested = self.purged = False
        self.claim_id = self.call_id = self.worker = None
        self.params = self.digest = self.draft = self.external_ref = None
        self.revision = 1
        self.lease_until = self.due_at = self.finished_at = None
        self.first_claimed_at = self.claimed_at = self.forget_after = None
        self.doubt_until = None

        self.issued = {}       # claim_id -> generation
        self.reports = {}      # (claim_id, kind, facts) -> accepted
        self.told = set()      # those that told nothing new: recorded or not
        self.decisions = []    # (call, facts, role, revision seen, revision made, accepted)
        self.heard = set()     # "report", "decision" since the last hand-out
        self.judged = False    # the last attempt has been counted as lost
        self.searching = False  # the last claim is or was out to search
        self.absent = False    # it said "not there"

        # the hand-outs: (generation, attempt, claimed or handed_out_to_verify,
        # worker), each with how it ended first: expired, failed, released,
        # searched, succeeded, interrupted, or None while it goes on
        self.past = []
        self.last = self.end = None

    def forgotten(self, now):
        return (self.forget_after is not None and self.forget_after <= now
                and self.reason != "double_result")

    def ended(self, how):
        """The last hand-out is over; what comes later is no end."""
        if self.state == "in_progress":
            self.end = how

    def overtaken(self):
        """The row tells another hand-out from now on, or none."""
        if self.last is not None:
            self.past = self.past + [(self.last, self.end)]
        self.last = self.end = None

    def forget_drafts(self):
        """The history does not know any more which draft it was."""
        self.decisions = [(call, facts if call == "resolve" else None, *rest)
                          for call, facts, *rest in self.decisions]

    def hand_outs(self):
        return self.past + ([(self.last, self.end)] if self.last else [])

    def to(self, state, reason=None, due_at=None):
        self.state, self.reason, self.due_at = state, reason, due_at
        self.lease_until = self.finished_at = self.forget_after = None
        self.verifying = False

    def finish(self, state, now, rule):
        self.to(state)
        self.uncertain = False
        self.finished_at = now
        self.forget_after = now + rule.keep_key

    def attention(self, reason):
        self.to("needs_attention", reason)


class Answer:
    def __init__(self, outcome=None, accepted=ANY, claim_id=None, error=None,
                 writes=ANY, granted=None, **more):
        self.outcome = outcome
        self.accepted = accepted
        self.claim_id = claim_id
        self.error = error      # the SQLSTATEs that may be raised instead
        self.writes = writes    # False: not a single row version
        self.granted = outcome == "claimed" if granted is None else granted
        self.__dict__.update(more)


class Model:
    def __init__(self, rules):
        self.rules = rules
        self.actions = {}
        self.paused = set()     # intents; None stands for all

    def rule(self, ident):
        return self.rules[ident[0]]

    def is_paused(self, ident):
        return None in self.paused or ident[0] in self.paused

    # ------------------------------------------------------------ the doubt list

    def judge(self, a, rule, now, cause, lease=None):
        """cause: lapsed, unknown (reported so), clean (an older doubt stands) or
        pending.  Returns grant, verify, wait, or ended (it went elsewhere)."""
        ended = cause in ("lapsed", "unknown")
        if cause == "lapsed":
            a.ended("expired")
        if ended and not a.judged:
            a.lost += 1
            a.judged = True
        did_nothing = ended and a.marked and not a.begun
        if did_nothing and not a.uncertain_before:                           # 1
            a.uncertain = False
            if a.cancel_requested:
                a.finish("cancelled", now, rule)
                return "ended"
            if a.lost >= rule.max_attempts:
                a.attention("attempts_exhausted")
                return "ended"
            a.to("pending", due_at=now)
            return "grant"
        if ended:
            if not did_nothing and not a.searching:
                a.doubt_until = a.lease_until if cause == "lapsed" else now
            a.uncertain = True
        if a.cancel_requested or rule.on_uncertain == "review":              # 2
            a.attention("lease_expired" if cause == "lapsed" else "outcome_unknown")
            return "ended"
        if a.lost >= rule.max_attempts:                                      # 3
            a.attention("attempts_exhausted")
            return "ended"
        due_at = now if ended or cause == "clean" else a.due_at
        if rule.on_uncertain == "repeat":                                    # 4
            a.to("pending", due_at=due_at)
            return "grant"
        if rule.on_uncertain == "retry":                                     # 5
            if now + (lease or rule.lease) > a.first_claimed_at + rule.window:
                a.attention("provider_window_over")
                return "ended"
            a.to("pending", due_at=due_at)
            return "grant"
        a.to("pending", due_at=max(due_at, a.doubt_until + rule.settle))     # 6
        return "verify" if a.due_at <= now else "wait"

    def unapproved(self, a, params):
        """What a claim brings has to be seen before anything is handed out."""
        a.params = a.digest = params
        a.purged = a.approved = False
        a.decisions.append(("params",) + 5 * (None,))
        return Answer("awaiting_approval", writes=True)

    def hand_out(self, a, rule, now, verifying, queued, lease, draft, params,
                 worker, call_id):
        if rule.approval and a.params is None and params is not None:
            return self.unapproved(a, params)
        a.overtaken()
        a.last = (a.generation, a.attempt + 1,
                  "handed_out_to_verify" if verifying else "claimed", worker)
        a.to("in_progress")
        a.lease_until = now + (lease or rule.lease)
        a.due_at = a.lease_until if queued else None
        a.verifying = a.searching = verifying
        a.attempt += 1
        a.claim_id = ANY
        a.call_id, a.worker = call_id, worker
        a.first_claimed_at = a.first_claimed_at or now
        a.claimed_at = now
        a.marked, a.begun = rule.marks, False
        a.uncertain_before = a.uncertain
        a.heard, a.judged, a.absent = set(), False, False
        if params is not None and a.params is None:
            a.params = a.digest = params
            a.purged = False
        # what was approved without a draft is not authorised with one
        if draft is not None and a.draft is None and not rule.approval:
            a.draft = draft
        return Answer("verify" if verifying else "claimed", claim_id=ANY, writes=True)

    def offer(self, a, ident, now, act=True, search=True, queued=False, lease=None,
              draft=None, params=None, worker=None, call_id=None):
        """Somebody asks for a known action.  Returns the answer."""
        rule = self.rule(ident)
        queued = queued or a.due_at is not None

        def give(b, verifying):
            if self.is_paused(ident):
                return Answer("paused", writes=False)
            a.__dict__.update(b.__dict__)
            return self.hand_out(a, rule, now, verifying, queued, lease, draft,
                                 params, worker, call_id)

        if a.state == "pending":
            if rule.approval and not a.approved:
                if a.params is None and params is not None:
                    return self.unapproved(a, params)
                return Answer("awaiting_approval", writes=False)
            if a.due_at > now:
                return Answer("not_due", writes=False)
            if not a.uncertain:
                if not act:
                    return Answer("not_due", writes=False)
                return give(a, False)
            cause = "pending"
        elif a.state == "in_progress":
            if a.lease_until > now:
                return Answer("in_progress", writes=False)
            cause = "lapsed"
        else:
            return Answer(a.state, writes=False)

        b = copy.copy(a)
        judged = self.judge(b, rule, now, cause, lease)
        if judged == "grant" and act:
            return give(b, False)
        if judged == "verify" and search:
            return give(b, True)
        if judged in ("grant", "verify") and cause == "pending":
            return Answer("not_due", writes=False)  # a take of the other kind
        a.__dict__.update(b.__dict__)
        return Answer("not_due" if judged != "ended" else a.state, writes=True)

    # ------------------------------------------------------------ arrivals

    def new(self, ident, now, params, draft):
        a = Action(now)
        a.params = a.digest = params
        a.draft = draft
        a.due_at = now
        self.actions[ident] = a
        return a

    def mismatch(self, a, params):
        return a.digest is not None and params is not None and a.digest != params

    def claim(self, ident, now, params=None, draft=None, lease=None, worker=None,
              call_id=None, batch=False):
        a = self.actions.get(ident)
        rule = self.rule(ident)
        if a is None or a.forgotten(now):
            if rule.approval:
                self.new(ident, now, params, draft)
                return Answer("awaiting_approval", writes=True, repeat=False)
            if self.is_paused(ident):
                return Answer("paused", writes=False)
            a = self.new(ident, now, params, draft)
            a.due_at = None
            answer = self.hand_out(a, rule, now, False, False, lease, draft, params,
                                   worker, call_id)
            answer.repeat = False
            return answer
        if self.mismatch(a, params):
            if batch:
                return Answer("mismatch", writes=False)
            return Answer(error=("IA001",), writes=False)
        if (call_id is not None and a.call_id == call_id and a.worker == worker
                and a.state == "in_progress" and a.lease_until > now):
            return Answer("verify" if a.verifying else "claimed", claim_id=a.claim_id,
                          writes=False)
        return self.offer(a, ident, now, lease=lease, draft=draft, params=params,
                          worker=worker, call_id=call_id)

    def enqueue(self, ident, now, params=None, draft=None, not_before=None,
                batch=False):
        a = self.actions.get(ident)
        if a is None or a.forgotten(now):
            a = self.new(ident, now, params, draft)
            a.due_at = max(now, not_before or now)
            return Answer(self.find(ident, now).outcome, writes=True, repeat=False)
        if self.mismatch(a, params):
            if batch:
                return Answer("mismatch", writes=False)
            return Answer(error=("IA001",), writes=False)
        return Answer(self.find(ident, now).outcome, writes=False)

    def find(self, ident, now):
        a = self.actions.get(ident)
        if a is None or a.forgotten(now):
            return Answer("unknown", writes=False)
        return self.stored(ident)

    def stored(self, ident):
        a = self.actions[ident]
        if a.state == "pending" and self.rule(ident).approval and not a.approved:
            return Answer("awaiting_approval", writes=False)
        return Answer(a.state, writes=False)

    def take(self, idents, now, limit, search, lease=None, worker=None, call_id=None,
             intents=(), scope=None):
        """idents: the due entries in the order of their hand-out.  Returns those
        handed out, as (ident, answer)."""
        if call_id is not None:
            # one whose contents are gone is not in the queue: only a claim has got it
            held = [i for i, a in self.actions.items()
                    if a.call_id == call_id and a.worker == worker
                    and i[0] in intents and scope in (None, i[2])
                    and a.state == "in_progress" and a.lease_until > now and not a.purged]
            if held:
                return [(i, Answer("verify" if self.actions[i].verifying else "claimed",
                                   claim_id=self.actions[i].claim_id, writes=False))
                        for i in held[:limit]]
        taken = []
        for ident in idents:
            if len(taken) == limit:
                break
            if self.is_paused(ident) or self.actions[ident].purged:
                continue
            answer = self.offer(self.actions[ident], ident, now, act=not search,
                                search=search, queued=True, lease=lease,
                                worker=worker, call_id=call_id)
            if answer.claim_id is ANY:
                taken.append((ident, answer))
        return taken

    # ------------------------------------------------------------ the holder

    def holds(self, a, ident, claim_id, now):
        """why the claim may not go on: the SQLSTATEs that say so"""
        if a.state != "in_progress" or a.claim_id != claim_id:
            return ("IA002",)
        if a.cancel_requested or self.is_paused(ident):
            return ("IA004",)
        return None

    def begin(self, ident, now, claim_id, draft=None, lease=None):
        a = self.actions[ident]
        rule = self.rule(ident)
        error = self.holds(a, ident, claim_id, now)
        lost = a.verifying or (a.state == "in_progress" and lease is None
                               and a.lease_until <= now)
        if error and lost:
            error = ("IA002", "IA004")
        elif lost:
            error = ("IA002",)
        if lease is not None and now >= self.window_end(a, rule):
            error = ("IA002", "IA004") if error else ("IA002",)
        if error is None and rule.approval and draft is not None and draft != a.draft:
            error = ("IA008",)
        if error:
            return Answer(error=error, writes=False)
        a.begun = True
        if draft is not None and draft != a.draft:
            a.draft, a.approved = draft, False
        if lease is not None:
            self.renew(a, now, lease, rule)
        return Answer()

    def window_end(self, a, rule):
        """under retry no lease is renewed past it, but of a claim that could be
        handed out after it, as the earlier ones did nothing"""
        if rule.on_uncertain != "retry" or a.first_claimed_at is None:
            return float("inf")
        end = a.first_claimed_at + rule.window
        return end if a.uncertain_before or a.claimed_at < end else float("inf")

    def renew(self, a, now, lease, rule):
        a.lease_until = max(a.lease_until, min(now + lease, self.window_end(a, rule)))
        if a.due_at is not None:
            a.due_at = a.lease_until

    def extend(self, ident, now, claim_id, lease=None):
        a = self.actions[ident]
        error = self.holds(a, ident, claim_id, now)
        if error is None and now >= self.window_end(a, self.rule(ident)):
            error = ("IA002",)
        if error:
            return Answer(error=error, writes=False)
        self.renew(a, now, lease or self.rule(ident).lease, self.rule(ident))
        return Answer(writes=True)

    # ------------------------------------------------------------ reports

    def report(self, a, claim_id, kind, facts, decide):
        """A report is recorded once; the same again answers as it did."""
        key = (claim_id, kind, facts)
        if key in a.reports or key in a.told:
            # a success without a reference may have been joined by its own later
            bare = kind == "success" and facts is None or key in a.told
            return Answer(accepted=ANY if bare else a.reports[key],
                          writes=ANY if bare else False)
        bygone = a.issued.get(claim_id, a.generation) < a.generation
        answer = self.evidence() if bygone else decide(a.claim_id == claim_id)
        if hasattr(answer, "told"):
            a.told.add(key)
        elif answer.writes is not False:
            a.reports[key] = answer.accepted
            if not bygone:
                a.heard.add("report")
        return answer

    def evidence(self):
        return Answer(accepted=False, evidence=True)

    def complete(self, ident, now, claim_id, ref=None):
        a = self.actions[ident]
        rule = self.rule(ident)

        def done():
            a.ended("succeeded")
            double = a.reason == "double_result"
            if ref is not None:
                a.external_ref = ref
            a.finish("completed", now, rule)
            if double:
                a.reason = "double_result"
            return Answer(accepted=True)

        def late():
            if a.reason in ("late_result", "double_result"):
                if ref is not None and ref == a.external_ref:
                    return self.evidence()
                return double()
            if ref is not None:
                a.external_ref = ref
            a.ended("interrupted")
            a.attention("late_result")
            a.uncertain = ANY   # not said: a success is known, a person decides
            return Answer(accepted=False)

        def double():
            if a.state == "completed":
                a.reason = "double_result"
            else:
                a.attention("double_result")
                a.uncertain = ANY
            return Answer(accepted=False)

        def decide(last):
            if a.state == "completed":
                if ref is not None and ref == a.external_ref:
                    return Answer(accepted=True, told=True)
                if last and ref is None:
                    return Answer(accepted=True)
                if last and a.external_ref is None:
                    a.external_ref = ref
                    return Answer(accepted=True)
                return double()
            if not last:
                return late()
            if a.state == "in_progress":
                return done()
            if a.state == "pending":
                return late() if a.heard else done()
            if a.state == "needs_attention":
                if a.reason in ("late_result", "double_result"):
                    if ref is None or ref != a.external_ref:
                        return double()
                if "decision" in a.heard:
                    return late()
                return done()
            return late()

        if a.state == "completed" and a.claim_id == claim_id and (
                ref is None or ref == a.external_ref):
            # same facts, same answer; once it was told "too late", that one
            a.told.add((claim_id, "success", ref))
            return Answer(accepted=ANY if (claim_id, "success", ref) in a.reports else True)
        if (a.state == "completed" and a.claim_id == claim_id and a.external_ref is None
                and (claim_id, "success", ref) in a.reports):
            # told before and not taken: the same again, or filled in now
            a.external_ref = ANY
            return Answer()
        return self.report(a, claim_id, "success", ref, decide)

    def delay(self, a, rule, now, retry_after):
        if retry_after is not None:
            return now + retry_after
        most = min(3600, rule.delay * 2 ** (a.failures + a.lost))
        return (now + 0.5 * min(rule.delay, most), now + most)

    def fail(self, ident, now, claim_id, effect, retry_after=None):
        a = self.actions[ident]
        rule = self.rule(ident)

        def decide(last):
            if not last or not (a.state == "in_progress" or a.reason == "lease_expired"):
                return self.evidence()
            a.ended("failed")
            a.uncertain = a.uncertain_before
            verifying = a.searching
            clean = verifying or effect == "none"
            if clean:
                a.failures += 1
            if clean and not a.uncertain and a.cancel_requested:
                a.finish("cancelled", now, rule)
            elif clean and a.failures >= rule.max_failures:
                a.attention("failures_exhausted")
                if a.cancel_requested:
                    a.reason = ANY
            elif clean and not a.uncertain:
                a.to("pending", due_at=self.delay(a, rule, now, retry_after))
            elif not clean and effect == "refused":
                if a.uncertain:
                    a.attention("outcome_unknown")
                else:
                    a.finish("failed", now, rule)
            else:
                # the list, from 2 where this attempt surely did nothing
                before_step1 = a.marked and not a.begun and not a.uncertain_before
                judged = self.judge(a, rule, now, "clean" if clean else "unknown")
                if judged != "ended" and not (before_step1 and not clean):
                    a.due_at = later(a.due_at, self.delay(a, rule, now, retry_after))
            return Answer(accepted=True)

        return self.report(a, claim_id, "failure", effect, decide)

    def release(self, ident, now, claim_id):
        a = self.actions[ident]
        rule = self.rule(ident)

        def decide(last):
            if not last or not (a.state == "in_progress" or a.reason == "lease_expired"):
                return self.evidence()
            if a.marked and a.begun:
                return Answer(accepted=False, writes=False)
            a.ended("released")
            a.uncertain = a.uncertain_before
            if not a.cancel_requested:
                a.to("pending", due_at=now)
            elif a.uncertain:
                a.attention("outcome_unknown")
            else:
                a.finish("cancelled", now, rule)
            return Answer(accepted=True)

        return self.report(a, claim_id, "release", None, decide)

    def verify(self, ident, now, claim_id, found, ref=None):
        a = self.actions[ident]
        rule = self.rule(ident)
        if found is True:
            answer = self.complete(ident, now, claim_id, ref)
            answer.outcome, answer.granted = self.stored(ident).outcome, False
            return answer

        if (found is False and a.absent and a.claim_id == claim_id
                and a.state == "in_progress" and a.lease_until > now):
            return Answer("claimed", claim_id=claim_id, writes=False)

        def decide(last):
            if not last or not a.verifying:
                return self.evidence()
            if found is None:
                a.ended("searched")
                a.attention("verify_inconclusive")
                return Answer(accepted=True)
            a.uncertain = a.uncertain_before = False
            a.absent = True
            if a.cancel_requested:
                a.ended("searched")
                a.finish("cancelled", now, rule)
            elif self.is_paused(ident):
                a.ended("searched")
                a.to("pending", due_at=now)
            else:
                a.verifying = a.searching = a.begun = False
                a.marked = rule.marks
                a.lease_until = now + rule.lease
                if a.due_at is not None:
                    a.due_at = a.lease_until
            return Answer(accepted=True)

        before = a.state
        was_verifying = a.verifying
        answer = self.report(a, claim_id, "search", found, decide)
        if answer.accepted is True and answer.writes is not False and was_verifying \
                and before == "in_progress" and found is False:
            if a.state == "in_progress":
                answer.outcome, answer.granted = "claimed", True
                answer.claim_id = claim_id
            elif a.state == "pending":
                answer.outcome = "paused"
            else:
                answer.outcome = "cancelled"
        else:
            answer.outcome, answer.granted = self.stored(ident).outcome, False
        return answer

    # ------------------------------------------------------------ people

    def decision(self, a, call, facts, role, revision, decide):
        for past in a.decisions:
            if past[:3] == (call, facts, role) and (
                    past[3] == revision if revision is not None else
                    past[4] == a.revision):
                if past is not a.decisions[-1]:     # it does not stand any more
                    return self.refused()
                return Answer(accepted=past[5], writes=False)
        if revision is not None and revision != a.revision:
            return Answer(accepted=False, writes=False, refused=True)
        answer = decide()
        if answer.writes is True:
            a.decisions.append((call, facts, role, revision, a.revision + 1,
                                answer.accepted))
            # the wish to cancel says nothing of what became of the attempt
            if not (call == "cancel" and a.state == "in_progress"):
                a.heard.add("decision")
        return answer

    @staticmethod
    def refused():
        return Answer(accepted=False, writes=False, refused=True)

    @staticmethod
    def decided():
        return Answer(accepted=True, writes=True)

    def revise(self, ident, now, draft, role, revision=None):
        a = self.actions[ident]

        def decide():
            if a.state != "pending":
                return self.refused()
            if a.draft == draft:    # no change of draft
                return Answer(accepted=True, writes=ANY)
            a.draft, a.approved = draft, False
            return self.decided()

        return self.decision(a, "revise", draft, role, revision, decide)

    def approve(self, ident, now, role, revision):
        a = self.actions[ident]

        def decide():
            if a.state != "pending":
                return self.refused()
            a.approved = True
            return self.decided()

        return self.decision(a, "approve", None, role, revision, decide)

    def cancel(self, ident, now, role, revision=None):
        a = self.actions[ident]
        rule = self.rule(ident)

        def decide():
            if a.state in ("completed", "needs_attention"):
                return self.refused()
            if a.state == "cancelled":
                return Answer(accepted=True, writes=False)
            if a.state == "in_progress":
                if a.cancel_requested:
                    return Answer(accepted=True, writes=ANY)
                a.cancel_requested = True
            elif a.state == "pending" and a.uncertain:
                a.cancel_requested = True
                a.attention("outcome_unknown")
            else:
                a.finish("cancelled", now, rule)
            return self.decided()

        return self.decision(a, "cancel", None, role, revision, decide)

    def resolve(self, ident, now, decision, role, revision, ref=None):
        a = self.actions[ident]
        rule = self.rule(ident)

        def decide():
            if a.state == "completed":
                if decision != "happened":
                    return self.refused()
                if a.reason != "double_result":
                    if ref is not None and ref != a.external_ref:
                        return Answer(accepted=ANY, writes=False)
                    return Answer(accepted=True, writes=False)
                a.reason = None
                if ref is not None:
                    a.external_ref = ref
                return self.decided()
            if (a.state == "in_progress" and a.lease_until > now
                    and decision == "not_happened"):
                return self.refused()
            if a.state == "cancelled" and decision == "cancel":
                return Answer(accepted=True, writes=False)
            a.ended("interrupted")
            if decision == "happened":
                if ref is not None:
                    a.external_ref = ref
                a.finish("completed", now, rule)
            elif decision == "cancel":
                a.finish("cancelled", now, rule)
            else:
                a.lost = a.failures = 0
                a.uncertain = False
                a.external_ref = None
                if a.cancel_requested and a.state != "cancelled":
                    a.finish("cancelled", now, rule)
                else:
                    a.cancel_requested = False
                    a.to("pending", due_at=now)
            return self.decided()

        return self.decision(a, "resolve", (decision, ref), role, revision, decide)

    def rerun(self, ident, now, role, revision, draft=None):
        a = self.actions[ident]

        def decide():
            if a.state in ("pending", "in_progress"):
                return self.refused()
            a.overtaken()
            a.to("pending", due_at=now)
            a.generation += 1
            a.attempt = a.lost = a.failures = 0
            a.uncertain = a.uncertain_before = a.marked = a.begun = False
            a.approved = a.cancel_requested = False
            a.claim_id = a.call_id = a.worker = a.external_ref = None
            a.first_claimed_at = a.doubt_until = None
            a.heard, a.judged, a.searching, a.absent = set(), False, False, False
            if draft is not None:
                a.draft = draft
            return self.decided()

        return self.decision(a, "rerun", draft, role, revision, decide)

    def erase(self, ident, now, role):
        a = self.actions[ident]

        def decide():
            if a.state in ("pending", "in_progress"):
                return self.refused()
            a.params = a.digest = a.draft = None
            a.purged = True
            a.forget_drafts()
            return self.decided()

        return self.decision(a, "erase", None, role, None, decide)

    # ------------------------------------------------------------ the worker

    def worker_pass(self, now):
        for ident, a in list(self.actions.items()):
            rule = self.rule(ident)
            if a.state == "in_progress" and a.lease_until <= now:
                self.judge(a, rule, now, "lapsed")
            elif a.reason == "double_result" or a.finished_at is None:
                continue
            elif a.forgotten(now):
                del self.actions[ident]
            elif a.finished_at + rule.keep_content <= now:
                a.params = a.draft = None
                a.purged = True
                a.forget_drafts()


def later(a, b):
    if isinstance(b, tuple):
        return tuple(max(a, x) for x in b)
    return max(a, b)
