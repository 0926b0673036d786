"""A cluster as a discrete-event simulation: replicas that run steps with prompts in chunks, caches, failures and restarts."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import simpy
from cluster_sim_load import Failure, SegmentKey, SimRun
from cluster_sim_rules import Rule

from inferd_runtime.speculation.times import StepShape, StepTimes

Process = Generator[simpy.Event, Any, None]
MOST_SEQUENCES = 64
TOKEN_BUDGET = 512
CACHE_TOKENS = 16_384
"""Tokens of prefixes that a replica keeps."""


@dataclass(eq=False)
class Attempt:
    """A run on a replica: how much of its prompt is still to be fed, and how many tokens of its answer are still to come."""

    run: SimRun
    pending: int = -1
    left: int = 0
    fed: int = 0


@dataclass
class SimResult:
    """What came out: seconds to the first token by run, tokens of prompts, those that were cached, busy seconds by replica."""

    first_token: dict[int, float] = field(default_factory=dict)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    busy: dict[str, float] = field(default_factory=dict)
    restarted: int = 0
    ended: int = 0
    seconds: float = 0.0


class SimReplica:
    """One engine: each step feeds a token of every running answer, and chunks of prompts up to a budget."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        self.name, self._cluster, self._env = name, cluster, cluster.env
        self._waiting: deque[Attempt] = deque()
        self._running: list[Attempt] = []
        self._cache: OrderedDict[SegmentKey, int] = OrderedDict()
        self._cached_tokens = 0
        self._wake = self._env.event()
        self._life = 0
        self._env.process(self._serve())

    def take(self, run: SimRun) -> None:
        """Start a run."""
        self._waiting.append(Attempt(run, left=run.answer))
        if not self._wake.triggered:
            self._wake.succeed()

    def fail(self) -> list[SimRun]:
        """Lose the cache and all runs; return those."""
        lost = [attempt.run for attempt in (*self._running, *self._waiting)]
        self._running, self._waiting = [], deque()
        self._cache.clear()
        self._cached_tokens = 0
        self._life += 1
        return lost

    def _serve(self) -> Process:
        while True:
            if not self._running and not self._waiting:
                self._wake = self._env.event()
                yield self._wake
                continue
            fed, shape = self._plan()
            seconds, life = self._cluster.times.time(shape), self._life
            yield self._env.timeout(seconds)
            self._cluster.result.busy[self.name] += seconds
            if life == self._life:
                self._commit(fed)

    def _plan(self) -> tuple[dict[Attempt, int], StepShape]:
        """Return the tokens that each run feeds in the next step, and the step's shape."""
        while self._waiting and len(self._running) < MOST_SEQUENCES:
            self._running.append(self._admitted(self._waiting.popleft()))
        fed = {attempt: 1 for attempt in self._running if not attempt.pending}
        budget = TOKEN_BUDGET - len(fed)
        for attempt in self._running:
            if attempt.pending and budget:
                fed[attempt] = min(attempt.pending, budget)
                budget -= fed[attempt]
        return fed, StepShape(len(fed), sum(fed.values()), sum(attempt.fed for attempt in fed))

    def _admitted(self, attempt: Attempt) -> Attempt:
        """Find what is cached of a prompt. At least its last token is computed."""
        run, found = attempt.run, 0
        for key, tokens in run.segments:
            if key not in self._cache:
                break
            self._cache.move_to_end(key)
            found += tokens
        attempt.fed, attempt.pending = found, run.prompt - found
        self._cluster.result.prompt_tokens += run.prompt
        self._cluster.result.cached_tokens += found
        return attempt

    def _commit(self, fed: dict[Attempt, int]) -> None:
        for attempt, tokens in fed.items():
            attempt.fed += tokens
            if attempt.pending:
                attempt.pending -= tokens
                if attempt.pending:
                    continue
                self._keep(reversed(attempt.run.segments))
                self._cluster.said_first(attempt.run)
            attempt.left -= 1
            if not attempt.left:
                self._running.remove(attempt)
                self._keep_answer(attempt.run)
                self._cluster.ended(attempt.run)

    def _keep(self, segments: Iterable[tuple[SegmentKey, int]]) -> None:
        """Keep a prompt's pieces, the last one first, and drop what was unused for longest."""
        for key, tokens in segments:
            if key not in self._cache:
                self._cached_tokens += tokens
            self._cache[key] = tokens
            self._cache.move_to_end(key)
        while self._cached_tokens > CACHE_TOKENS:
            self._cached_tokens -= self._cache.popitem(last=False)[1]

    def _keep_answer(self, run: SimRun) -> None:
        if run.becomes is not None:
            self._keep([(run.becomes, run.own + run.answer), *reversed(run.segments)])


class Cluster:
    """Replicas behind a rule. A run whose replica ends is started again; what it has said already is not said again."""

    def __init__(self, rule: Rule, replicas: int, times: StepTimes) -> None:
        self.env, self.rule, self.times, self.result = simpy.Environment(), rule, times, SimResult()
        self._stranded: list[SimRun] = []
        self._replicas = {f"r{at:04}": SimReplica(f"r{at:04}", self) for at in range(replicas)}
        self._up: set[str] = set()
        for name in self._replicas:
            self.result.busy[name] = 0.0
            self._back(name)

    def simulate(self, runs: Sequence[SimRun], failures: Sequence[Failure]) -> SimResult:
        """Serve all runs to their ends."""
        self.env.process(self._arrive(runs))
        for failure in failures:
            self.env.process(self._fail(failure))
        self.env.run()
        return self.result

    def said_first(self, run: SimRun) -> None:
        """Note when a run's first token came; a second attempt repeats nothing."""
        self.result.first_token.setdefault(run.number, self.env.now - run.at)

    def ended(self, run: SimRun) -> None:
        """Note that a run has ended."""
        self.result.ended += 1
        self.result.seconds = self.env.now
        self.rule.end(str(run.number))

    def _arrive(self, runs: Sequence[SimRun]) -> Process:
        for run in runs:
            yield self.env.timeout(max(0.0, run.at - self.env.now))
            self._start(run)

    def _start(self, run: SimRun) -> None:
        if self._up:
            self._replicas[self.rule.place(run)].take(run)
        else:
            self._stranded.append(run)

    def _fail(self, failure: Failure) -> Process:
        yield self.env.timeout(failure.at)
        name = f"r{failure.replica:04}"
        if name not in self._up:
            return
        self._up.remove(name)
        lost = self._replicas[name].fail()
        self.rule.leave(name)
        self.result.restarted += len(lost)
        for run in lost:
            self._start(run)
        yield self.env.timeout(failure.repair_s)
        self._back(name)

    def _back(self, name: str) -> None:
        self._up.add(name)
        self.rule.join(name)
        stranded, self._stranded = self._stranded, []
        for run in stranded:
            self._start(run)
