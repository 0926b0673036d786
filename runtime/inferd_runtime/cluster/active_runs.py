"""How many runs of each tenant go on in a cluster, as its front knows it. Pure."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class _Begun:
    """A launch that no report has in it yet, of so many bytes. ``at``: since when the replica has it (monotonic seconds)."""

    tenant: str
    size: int
    replica: str = ""
    at: float = math.inf


@dataclass
class ActiveRuns:
    """A launch counts from :meth:`begin` on, so that many at once are no more than one after the other. A run that is over
    counts until its replica has said so; what a lost replica left counts until an heir has it.
    """

    _reported: dict[str, Counter[str]] = field(default_factory=dict)
    _waiting: dict[str, Mapping[str, int]] = field(default_factory=dict)
    _held: dict[str, Mapping[str, int]] = field(default_factory=dict)
    _begun: dict[int, _Begun] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def count(self, tenant: str) -> int:
        """Return how many runs of a tenant go on, or begin."""
        begun = sum(one.tenant == tenant for one in self._begun.values())
        return begun + sum(runs[tenant] for runs in self._reported.values())

    def waiting(self, tenant: str) -> int:
        """Return how many of them wait for a worker, as far as replicas have said."""
        return sum(waiting.get(tenant, 0) for waiting in self._waiting.values())

    def held(self, tenant: str) -> int:
        """Return how many bytes they hold."""
        begun = sum(one.size for one in self._begun.values() if one.tenant == tenant)
        return begun + sum(held.get(tenant, 0) for held in self._held.values())

    def held_elsewhere(self, replica: str) -> dict[str, int]:
        """Return how many bytes they hold on other replicas, by tenant."""
        total = Counter[str]()
        for name, held in self._held.items():
            if name != replica:
                total.update(held)
        return dict(total)

    def begin(self, tenant: str, size: int = 0) -> int:
        """Count a launch of so many bytes. Returns a number for :meth:`placed` or :meth:`drop`."""
        number = next(self._numbers)
        self._begun[number] = _Begun(tenant, size)
        return number

    def placed(self, number: int, replica: str, at: float) -> None:
        """Note that a replica has the run from then on: its later reports tell how long. "": it is not known which."""
        self._begun[number].replica, self._begun[number].at = replica, at

    def drop(self, number: int) -> None:
        """Forget a launch that came to no run."""
        self._begun.pop(number, None)

    def heard(
        self, replica: str, runs: Mapping[str, str], waiting: Mapping[str, int], asked_at: float,
        held: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        """Take in the runs of a replica (by id their tenant), and what they hold, as it said when asked at that time."""
        self._reported[replica], self._waiting[replica] = Counter(runs.values()), waiting
        self._held[replica] = held or {}
        here = (replica, "")
        known = [number for number, one in self._begun.items() if one.replica in here and one.at < asked_at]
        for number in known:
            del self._begun[number]

    def ended(self, replica: str) -> None:
        """Forget a replica that has ended, and whose runs an heir has."""
        self._reported.pop(replica, None)
        self._waiting.pop(replica, None)
        self._held.pop(replica, None)
        for number in [number for number, one in self._begun.items() if one.replica == replica]:
            del self._begun[number]
