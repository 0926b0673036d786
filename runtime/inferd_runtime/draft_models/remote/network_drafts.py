"""The transport to a draft model on another machine."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from inferd.protocol import Unavailable
from inferd_runtime.draft_models.messages import AnswerCallback, AskDraft, DraftAnswer, DropDraft, Pollable
from inferd_runtime.draft_models.remote.breaker import RoundTrip
from inferd_runtime.draft_models.remote.checks import check_answer
from inferd_runtime.draft_models.remote.frames import Frame, Kind, MalformedFrame, pack, unpack
from inferd_runtime.draft_models.remote.handshake import DraftTerms
from inferd_runtime.draft_models.remote.link_thread import Arrived, Connected, LinkEvent, LinkTarget, LinkThread
from inferd_runtime.speculation.counters import DraftModelCounters
from inferd_runtime.waker import Waker

MOST_OPEN = 4096
"""Requests that may be open at a time."""
TICKETS = 1 << 32
FEW_TOKENS = 8
"""An answer behind more new tokens than these says nothing about how long messages travel: they had to be read first."""
NOT_THERE = "the draft engine is not there"


@dataclass(frozen=True)
class _OpenAsk:
    request: AskDraft
    done: AnswerCallback
    sent: float


class NetworkDrafts:
    """Belongs to the thread of the step loop, as all transports do; a thread beside it keeps the connection.

    While there is no connection, requests are answered with an error at once, and generations go on without drafts. What
    comes back is not trusted: an answer that was not asked for, or that no draft engine would give, ends the connection.
    """

    overlaps = True

    def __init__(self, target: LinkTarget) -> None:
        self.counters = DraftModelCounters()
        self.terms: DraftTerms | None = None
        self._waker = Waker()
        self._tickets = itertools.count(1)
        self._open: dict[int, _OpenAsk] = {}
        self._connection = 0
        self._refusal = ""
        self._failed = False
        self._travel = RoundTrip()
        self._link = LinkThread(target, self._waker.wake)

    def first_terms(self, seconds: float) -> DraftTerms | None:
        """Wait for the first hand-shake, and return its terms; None if nobody is there, and when the time is up.

        Raises Unavailable if the draft engine refuses this target, or is not the one that it should be.
        """
        until = time.monotonic() + seconds
        while self.terms is None and not self._failed and time.monotonic() < until:
            self.wait(max(0.0, until - time.monotonic()))
            self.poll()
            if self._refusal:
                raise Unavailable(f"the draft engine cannot be used: {self._refusal}", process="draft")
        return self.terms

    def ask(self, request: AskDraft, done: AnswerCallback) -> None:
        """See :class:`~inferd_runtime.draft_models.messages.DraftTransport`."""
        if not self._connection or self.terms is None or len(self._open) >= MOST_OPEN:
            return done(DraftAnswer(error=NOT_THERE))
        request = replace(request, count=min(request.count, self.terms.most_tokens))
        payload = pack(request)
        if len(payload) > self.terms.most_bytes:
            return done(DraftAnswer(error=f"a request of {len(payload)} bytes is too long for the draft engine"))
        ticket = next(self._tickets) % TICKETS
        self._open[ticket] = _OpenAsk(request, done, time.monotonic())
        self._link.send(self._connection, Kind.ASK, payload, ticket)

    def drop(self, sequence: int) -> None:
        """See :class:`~inferd_runtime.draft_models.messages.DraftTransport`."""
        self._link.send(self._connection, Kind.DROP, pack(DropDraft(sequence)))

    @property
    def waits_on(self) -> Sequence[Pollable]:
        """See :class:`~inferd_runtime.draft_models.messages.DraftTransport`."""
        return [self._waker]

    @property
    def round_trip(self) -> float:
        """See :class:`~inferd_runtime.draft_models.messages.DraftTransport`."""
        return self._travel.usual

    def wait(self, seconds: float) -> bool:
        """Wait until there may be something to do, for callers that poll nothing else. False when the time is up."""
        return self._waker.wait(seconds)

    def poll(self) -> bool:
        """See :class:`~inferd_runtime.draft_models.messages.DraftTransport`."""
        self._waker.drain()
        progressed = False
        while self._link.events:
            progressed = self._take(self._link.events.popleft()) or progressed
        return progressed

    def close(self) -> None:
        """See :class:`~inferd_runtime.draft_models.messages.DraftTransport`. The session is ended, and its pages come back."""
        self._open.clear()
        self._link.close()
        self._waker.close()

    def _take(self, event: LinkEvent) -> bool:
        """Take an event of the link. False if it is of a connection that is given up already."""
        if isinstance(event, Connected):
            self._connection, self.terms = event.number, self.terms or event.terms
            self._travel = RoundTrip()
            self.counters.connections += 1
            return True
        if isinstance(event, Arrived):
            self._link.taken += event.size
            return event.number == self._connection and self._answered(event)
        self._refusal, self._failed = event.reason if event.final else "", True
        if event.number and event.number == self._connection:
            self._disconnect()
        return True

    def _answered(self, event: Arrived) -> bool:
        try:
            asked, answer = self._checked(event.frame)
        except MalformedFrame:
            self._link.end(self._connection)
            self._disconnect()
            return True
        if len(asked.request.tokens) <= FEW_TOKENS and not answer.error:
            self._travel.add(max(0.0, event.at - asked.sent - answer.seconds))
            self.counters.round_trip = self._travel.usual
        asked.done(answer)
        return True

    def _checked(self, frame: Frame) -> tuple[_OpenAsk, DraftAnswer]:
        """Return an answer with its request, which is then open no more. Raises MalformedFrame."""
        assert self.terms is not None
        asked = self._open.get(frame.ticket)
        if asked is None:
            raise MalformedFrame("an answer that nobody waits for")
        answer = unpack(frame.payload, DraftAnswer)
        check_answer(answer, asked.request, self.terms)
        del self._open[frame.ticket]
        return asked, answer

    def _disconnect(self) -> None:
        """Answer all open requests with an error: their connection is gone."""
        self._connection = 0
        pending, self._open = self._open, {}
        for asked in pending.values():
            asked.done(DraftAnswer(error=NOT_THERE))
