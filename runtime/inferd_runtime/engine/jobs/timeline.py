"""When generations are submitted, first planned, write, and end: sums for a model, and the newest ended ones for traces."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
SLOW = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 600.0)
"""Upper bounds in seconds: between tokens, and for whole phases."""
MAX_ENDED = 512


@dataclass
class Histogram:
    """Durations in seconds by upper bound; ``counts`` has one more place, for what is above all bounds."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds


@dataclass(frozen=True)
class EndedGeneration:
    """How long a generation that has ended took. Seconds from ``submitted`` (since the epoch), None for what did not come.

    ``finish``: stop | length | closed | error. ``compiling``: seconds before ``submitted`` in which its constraint was compiled.
    """

    index: int
    session: str
    submitted: float
    planned: float | None
    first_token: float | None
    ended: float
    prompt_tokens: int
    tokens: int
    finish: str
    compiling: float = 0.0


@dataclass
class GenerationFigures:
    """Figures of one model's generations since the start; see vLLM's metrics of the same names."""

    waiting: int = 0
    running: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    first_token: Histogram = field(default_factory=lambda: Histogram(FAST))
    inter_token: Histogram = field(default_factory=lambda: Histogram(FAST))
    queue: Histogram = field(default_factory=lambda: Histogram(SLOW))
    prefill: Histogram = field(default_factory=lambda: Histogram(SLOW))
    decode: Histogram = field(default_factory=lambda: Histogram(SLOW))
    whole: Histogram = field(default_factory=lambda: Histogram(SLOW))


class GenerationClock:
    """The figures of one model, and its ended generations, the newest MAX_ENDED of them."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.figures = GenerationFigures()
        self.ended: deque[EndedGeneration] = deque(maxlen=MAX_ENDED)
        self.clock = clock

    def begin(self, session: str, prompt_tokens: int, asked: float | None = None) -> Timeline:
        """Return the timeline of a generation that is submitted now. ``prompt_tokens``: those to compute, or to find. ``asked``:
        when it was asked for, by the clock, if its constraint was compiled since.
        """
        self.figures.waiting += 1
        self.figures.prompt_tokens += prompt_tokens
        return Timeline(self, session, prompt_tokens, asked)


class Timeline:
    """One generation's times, in seconds of its clock."""

    def __init__(self, clock: GenerationClock, session: str, prompt_tokens: int, asked: float | None = None) -> None:
        self._of = clock
        self._session = session
        self._prompt_tokens = prompt_tokens
        self._tokens = 0
        self._submitted = clock.clock()
        self._since_epoch = time.time()
        self._compiling = 0.0 if asked is None else self._submitted - asked
        self._planned: float | None = None
        self._first: float | None = None
        self._last = 0.0
        self._over = False

    def planned(self) -> None:
        """Note that a step takes it in; only the first counts."""
        if self._planned is None:
            self._planned = self._of.clock()
            self._of.figures.waiting -= 1
            self._of.figures.running += 1
            self._of.figures.queue.observe(self._planned - self._submitted)

    def wrote(self, tokens: int) -> None:
        """Note a step's tokens."""
        now, figures = self._of.clock(), self._of.figures
        self._tokens += tokens
        figures.tokens += tokens
        if self._first is None:
            self._first = now
            figures.first_token.observe(now - self._submitted)
            figures.prefill.observe(now - (self._planned or self._submitted))
        else:
            figures.inter_token.observe(now - self._last)
        self._last = now

    def end(self, finish: str) -> None:
        """Note the end; only the first counts."""
        if self._over:
            return
        self._over = True
        now, figures = self._of.clock(), self._of.figures
        if self._planned is None:
            figures.waiting -= 1
        else:
            figures.running -= 1
        figures.finished[finish] = figures.finished.get(finish, 0) + 1
        figures.whole.observe(now - self._submitted)
        if self._first is not None:
            figures.decode.observe(now - self._first)
        ended = self._of.ended
        ended.append(
            EndedGeneration(
                ended[-1].index + 1 if ended else 0, self._session, self._since_epoch,
                self._after(self._planned), self._after(self._first), now - self._submitted,
                self._prompt_tokens, self._tokens, finish, self._compiling,
            )
        )  # fmt: skip

    def _after(self, moment: float | None) -> float | None:
        return None if moment is None else moment - self._submitted
