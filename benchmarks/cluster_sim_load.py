"""What arrives at the simulated cluster: runs of Zipf-distributed programs and prefixes, sessions, bursts; and failures.

All is drawn before a rule is tried, so that every rule meets the very same runs and the very same failures.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

SegmentKey = tuple[object, ...]


@dataclass(frozen=True)
class Workload:
    """Sizes in tokens, times in seconds; the rate is of all replicas together."""

    replicas: int
    runs: int
    rate: float
    programs_per_replica: int = 20
    prefixes: int = 10
    zipf: float = 1.1
    program_tokens: int = 256
    prefix_tokens: int = 128
    own_tokens: int = 32
    answer_tokens: int = 32
    in_sessions: float = 0.3
    turns: int = 4
    think_s: float = 30.0
    burst: float = 3.0
    burst_part: float = 0.1
    period_s: float = 30.0
    """Every so often it is ``burst`` times as busy, for ``burst_part`` of that time."""
    failures: float = 0.02
    """Failures per replica over the whole time; at least one where there is more than one replica."""
    repair_s: float = 60.0

    @property
    def session_starts(self) -> float:
        """Of all that begins, the part that begins a session: of its ``turns`` runs, ``in_sessions`` of all runs are made."""
        return self.in_sessions / (self.turns - self.in_sessions * (self.turns - 1))


@dataclass(frozen=True)
class SimRun:
    """One run. ``segments``: pieces of its prompt that others may begin with, and their tokens; ``own`` more are its own."""

    number: int
    at: float
    session: int | None
    segments: tuple[tuple[SegmentKey, int], ...]
    own: int
    answer: int
    becomes: SegmentKey | None = None
    """The piece that its own text and its answer are in the next turn's prompt."""

    @property
    def prompt(self) -> int:
        """Tokens of its prompt."""
        return sum(tokens for _, tokens in self.segments) + self.own


@dataclass(frozen=True)
class Failure:
    """A replica that ends at a time, and is back with nothing cached ``repair_s`` later."""

    at: float
    replica: int
    repair_s: float


def arrivals(load: Workload, seed: int) -> list[SimRun]:
    """Return all runs in the order of their arrival. New sessions begin until the last of these runs has come."""
    rng = random.Random(seed)
    programs, prefixes = _zipf(load.programs_per_replica * load.replicas, load), _zipf(load.prefixes, load)
    drawn: list[SimRun] = []
    enough = load.runs
    for at in _times(load, rng):
        program = bisect(programs, rng.random())
        shared = ((("program", program), load.program_tokens),
                  (("prefix", program, bisect(prefixes, rng.random())), load.prefix_tokens))  # fmt: skip
        turns = load.turns if rng.random() < load.session_starts else 1
        drawn += _turns(load, rng, len(drawn), at, shared, turns)
        if len(drawn) >= enough:
            drawn.sort(key=lambda run: run.at)
            if drawn[load.runs - 1].at <= at:
                break
            enough = len(drawn) + load.runs // 20
    return drawn[: load.runs]


def _turns(
    load: Workload, rng: random.Random, number: int, at: float, shared: tuple[tuple[SegmentKey, int], ...], turns: int
) -> Iterator[SimRun]:
    """Yield the runs of a session, each of which begins with all that was said before; or one run without a session."""
    session = number if turns > 1 else None
    for turn in range(turns):
        own, answer = _about(rng, load.own_tokens), _about(rng, load.answer_tokens)
        key = ("session", session, turn)
        yield SimRun(number + turn, at, session, shared, own, answer, key if session is not None else None)
        shared = (*shared, (key, own + answer))
        at += rng.expovariate(1 / load.think_s)


def failures(load: Workload, seed: int, until: float) -> list[Failure]:
    """Return the failures in their order."""
    rng = random.Random(seed)
    count = max(1, round(load.failures * load.replicas)) if load.replicas > 1 and load.failures else 0
    drawn = [Failure(rng.uniform(0.1, 0.8) * until, rng.randrange(load.replicas), load.repair_s) for _ in range(count)]
    return sorted(drawn, key=lambda one: one.at)


def _times(load: Workload, rng: random.Random) -> Iterator[float]:
    """Yield when sessions and single runs begin: a Poisson process, ``burst`` times as fast at the end of each period."""
    runs_each = 1 + (load.turns - 1) * load.session_starts
    calm = load.rate / runs_each / (1 + load.burst_part * (load.burst - 1))
    at = 0.0
    while True:
        bursting = at % load.period_s >= (1 - load.burst_part) * load.period_s
        at += rng.expovariate(calm * load.burst if bursting else calm)
        yield at


def _zipf(count: int, load: Workload) -> Sequence[float]:
    weights = [1 / rank**load.zipf for rank in range(1, count + 1)]
    whole = sum(weights)
    return [part / whole for part in accumulate(weights)][:-1]


def _about(rng: random.Random, tokens: int) -> int:
    return max(1, round(rng.uniform(0.5, 1.5) * tokens))
