"""The routing rules that are compared: random, least loaded, a consistent hash, and :class:`ClusterRouter` as it stands."""

from __future__ import annotations

import random
from bisect import bisect, insort
from collections.abc import Callable
from hashlib import blake2b
from typing import Protocol

from cluster_sim_load import SimRun

from inferd_runtime.cluster.routing import ClusterRouter, RoutingRule, RunStart

POINTS = 64
"""Points of each replica on the ring of the consistent hash."""


class Rule(Protocol):
    """Says where a run starts; hears of everything that changes that. There is a replica whenever a run starts."""

    def join(self, replica: str) -> None:
        """A replica takes runs."""

    def leave(self, replica: str) -> object:
        """A replica has ended, with its runs."""

    def place(self, run: SimRun) -> str:
        """Return the replica that a run starts on."""

    def end(self, run: str) -> None:
        """A run has ended."""


class AtRandom:
    """Any replica, with equal chances."""

    def __init__(self) -> None:
        self._rng, self._replicas = random.Random(1), list[str]()

    def join(self, replica: str) -> None:
        insort(self._replicas, replica)

    def leave(self, replica: str) -> None:
        self._replicas.remove(replica)

    def place(self, run: SimRun) -> str:
        return self._rng.choice(self._replicas)

    def end(self, run: str) -> None:
        """Nothing is counted."""


class ConsistentHash:
    """The next point on a ring behind the hash of the run's program and prefix, which all turns of a session share."""

    def __init__(self) -> None:
        self._ring: list[tuple[bytes, str]] = []

    def join(self, replica: str) -> None:
        for point in range(POINTS):
            insort(self._ring, (digest(f"{replica}/{point}"), replica))

    def leave(self, replica: str) -> None:
        self._ring = [point for point in self._ring if point[1] != replica]

    def place(self, run: SimRun) -> str:
        at = bisect(self._ring, (digest(run.segments[1][0]), ""))
        return self._ring[at % len(self._ring)][1]

    def end(self, run: str) -> None:
        """Nothing is counted."""


class Routed:
    """The runtime's own router. Without ``affinity`` it is told of no session and no prefix: the least loaded replica."""

    def __init__(self, *, affinity: bool, rule: RoutingRule | None = None) -> None:
        self._router, self._affinity = ClusterRouter(rule), affinity
        self.join, self.leave, self.end = self._router.join, self._router.leave, self._router.end

    def place(self, run: SimRun) -> str:
        if not self._affinity:
            return self._router.start(RunStart(str(run.number))).replica
        blocks = [digest(key) for key, _ in run.segments]
        session = None if run.session is None else str(run.session)
        return self._router.start(RunStart(str(run.number), "", session, blocks)).replica


def digest(key: object) -> bytes:
    """Return a hash that is the same in every process."""
    return blake2b(repr(key).encode(), digest_size=12).digest()


RULES: dict[str, Callable[[], Rule]] = {
    "random": AtRandom,
    "least loaded": lambda: Routed(affinity=False),
    "consistent hash": ConsistentHash,
    "ours": lambda: Routed(affinity=True),
}


def _with(slack: int, factor: float) -> Callable[[], Rule]:
    return lambda: Routed(affinity=True, rule=RoutingRule(slack=slack, factor=factor))


SWEEP: dict[str, Callable[[], Rule]] = {
    f"ours, slack {slack}, factor {factor}": _with(slack, factor) for slack in (1, 4, 16) for factor in (1.0, 1.25, 2.0)
}
"""The router with other bounds of its override."""
