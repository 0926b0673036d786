"""Simulated time for ``remote_draft.py``: a target, a draft engine and the way between them on one clock.

The target's clock has the processor time of its thread, except what stands in for models, and what a step is said to take. The
draft engine works beside it: it takes requests between two of its steps, as its thread does. So neither other programs on the
machine nor the number of its processors show, and the real drafter, controller, draft host and checks run.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from inferd_runtime.draft_models.draft_host import DraftHost
from inferd_runtime.draft_models.messages import AnswerCallback, AskDraft, DraftAnswer
from inferd_runtime.draft_models.remote.breaker import RoundTrip
from inferd_runtime.draft_models.remote.checks import check_answer
from inferd_runtime.draft_models.remote.frames import pack, unpack
from inferd_runtime.draft_models.remote.handshake import DraftTerms
from inferd_runtime.draft_models.remote.network_drafts import FEW_TOKENS


class SimulatedClock:
    """Seconds that the target's thread has computed, and those that it was told have passed."""

    def __init__(self) -> None:
        self._passed = 0.0
        self._excluded = 0.0

    def now(self) -> float:
        """Return the time."""
        return time.thread_time() - self._excluded + self._passed

    def pass_by(self, seconds: float) -> None:
        """Let time pass."""
        self._passed += max(0.0, seconds)

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """What is computed inside is not the target's."""
        started = time.thread_time()
        yield
        self._excluded += time.thread_time() - started


@dataclass(order=True)
class _Due:
    at: float
    order: int
    what: Callable[[], None] = field(compare=False)


class SimulatedWay:
    """A transport whose messages take half of ``trip`` seconds each way, to a draft engine whose steps take ``step`` seconds."""

    overlaps = True
    waits_on: Sequence[Any] = ()

    def __init__(self, clock: SimulatedClock, host: DraftHost, terms: DraftTerms, *, trip: float, step: float) -> None:
        self._clock, self._host, self._terms, self._trip, self._step = clock, host, terms, trip, step
        self._order = itertools.count()
        self._arriving: list[_Due] = []
        self._returning: list[_Due] = []
        self._then = 0.0
        self._busy = False
        self._travel = RoundTrip()

    @property
    def round_trip(self) -> float:
        return self._travel.usual

    def ask(self, request: AskDraft, done: AnswerCallback) -> None:
        payload, sent = pack(request), self._clock.now()

        def arrive() -> None:
            self._host.ask(None, unpack(payload, AskDraft), lambda answer: self._answer(answer, request, sent, done))

        self._send(arrive)

    def drop(self, sequence: int) -> None:
        self._send(lambda: self._host.drop(None, sequence))

    def poll(self) -> bool:
        with self._clock.elsewhere():
            self._work(self._clock.now())
        progressed = False
        while self._returning and self._returning[0].at <= self._clock.now():
            heapq.heappop(self._returning).what()
            progressed = True
        return progressed

    def rest(self, most: float) -> None:
        """Let time pass to the next answer, ``most`` seconds at most."""
        until = self._clock.now() + most
        while self._clock.now() < until and not self.poll():
            self._clock.pass_by(min(self._step, until - self._clock.now()))

    def close(self) -> None:
        self._host.close()

    def _send(self, what: Callable[[], None]) -> None:
        heapq.heappush(self._arriving, _Due(self._clock.now() + self._trip / 2, next(self._order), what))

    def _answer(self, answer: DraftAnswer, request: AskDraft, sent: float, done: AnswerCallback) -> None:
        payload = pack(replace(answer, seconds=answer.drawn * self._step))

        def arrive() -> None:
            received = unpack(payload, DraftAnswer)
            check_answer(received, request, self._terms)
            if len(request.tokens) <= FEW_TOKENS:
                self._travel.add(max(0.0, self._clock.now() - sent - received.seconds))
            done(received)

        heapq.heappush(self._returning, _Due(self._then + self._trip / 2, next(self._order), arrive))

    def _work(self, now: float) -> None:
        """Have the draft engine do what it does until then."""
        while True:
            while self._arriving and self._arriving[0].at <= self._then:
                heapq.heappop(self._arriving).what()
                self._busy = True
            if self._busy and self._then + self._step <= now:
                # A step's answers are sent when it has ended.
                self._then += self._step
                self._busy = self._host.step()
            elif not self._busy and self._arriving and self._arriving[0].at <= now:
                self._then = max(self._then, self._arriving[0].at)
            else:
                self._then = self._then if self._busy else max(self._then, now)
                return
