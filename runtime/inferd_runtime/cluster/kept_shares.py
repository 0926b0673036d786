"""What replicas keep of a tenant's finished runs, and of its responses, together within its quotas: the oldest go first. Pure.

Each replica says how many it keeps, and how many it has forgotten since it started; the front tells it how many it should have.
Those are numbers that only grow, so that a message that comes late or twice changes nothing; and as what is forgotten is counted
from the oldest on, what a replica has got meanwhile stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil

from inferd_runtime.cluster.messages import ReplicaReport
from inferd_runtime.server.tenancy.kept_counts import Kept
from inferd_runtime.server.tenancy.quotas import Quotas


@dataclass(eq=False)
class _Batch:
    """What one replica has got between two of its reports. ``at``: when the newest of it came, by the front's clock."""

    replica: str
    count: int
    size: int
    at: float


@dataclass
class _Known:
    """What a replica has kept, ever, and how many of that it should have forgotten."""

    count: int
    size: int
    target: int


@dataclass
class KeptLedger:
    """One tenant's, over all replicas, oldest first. How old those are that a replica had at its first report, it does not know.

    ``count``: how many there are once all replicas have done as they are told; ``size``: their bytes, about.
    """

    count: int = 0
    size: int = 0
    _batches: deque[_Batch] = field(default_factory=deque)
    _known: dict[str, _Known] = field(default_factory=dict)

    def heard(self, replica: str, kept: Kept, at: float) -> None:
        """Take in what a replica says. ``at``: when its newest came, in seconds of the front's clock."""
        known = self._known.setdefault(replica, _Known(kept.forgotten, kept.forgotten_size, kept.forgotten))
        size = kept.size + kept.forgotten_size
        if kept.ever > known.count:
            self._add(_Batch(replica, kept.ever - known.count, max(size - known.size, 0), at))
            known.count, known.size = kept.ever, size
        if kept.forgotten > known.target:  # it was beyond what one replica may keep
            self._drop(replica, kept.forgotten - known.target)
            known.target = kept.forgotten
        if kept.forgotten == known.target:
            self._correct(replica, kept.size)

    def left(self, replica: str) -> None:
        """Forget a replica that has ended: its heir has what it kept."""
        self._drop(replica, self.count)
        self._known.pop(replica, None)

    def cut(self, most: int, most_size: int) -> None:
        """Have the oldest forgotten beyond ``most``, or beyond so many bytes (0: no limit), but never the newest one."""
        while (many := self._beyond(most, most_size)) > 0:
            oldest = self._batches[0]
            many = min(many, oldest.count)
            self._known[oldest.replica].target += many
            self._take(oldest, many)
        if not most and not most_size:
            self._merge()

    def target(self, replica: str) -> int:
        """Return how many a replica should have forgotten; 0 if it is not known."""
        known = self._known.get(replica)
        return known.target if known else 0

    def _beyond(self, most: int, most_size: int) -> int:
        """Return how many of the oldest batch are too many, at least."""
        many = self.count - most if most else 0
        if most_size and self.size > most_size:
            oldest = self._batches[0]
            many = max(many, ceil((self.size - most_size) * oldest.count / max(oldest.size, 1)))
        return min(many, self.count - 1)

    def _add(self, batch: _Batch) -> None:
        """Add a batch in its place, which is the end except for others of the same exchange."""
        place = len(self._batches)
        while place and self._batches[place - 1].at > batch.at:
            place -= 1
        if place and self._batches[place - 1].replica == batch.replica:
            before = self._batches[place - 1]
            before.count, before.size, before.at = before.count + batch.count, before.size + batch.size, batch.at
        else:
            self._batches.insert(place, batch)
        self.count, self.size = self.count + batch.count, self.size + batch.size

    def _drop(self, replica: str, count: int) -> None:
        for batch in [batch for batch in self._batches if batch.replica == replica]:
            many = min(count, batch.count)
            self._take(batch, many)
            count -= many

    def _take(self, batch: _Batch, count: int) -> None:
        """Remove so many from a batch, and an even part of its bytes."""
        size = batch.size * count // batch.count
        batch.count, batch.size = batch.count - count, batch.size - size
        self.count, self.size = self.count - count, self.size - size
        if not batch.count:
            self._batches.remove(batch)

    def _correct(self, replica: str, size: int) -> None:
        """Have a replica's batches have so many bytes: of parts of batches it was a guess."""
        own = [batch for batch in self._batches if batch.replica == replica]
        wrong = size - sum(batch.size for batch in own)
        for batch in own:
            change = max(wrong, -batch.size)
            batch.size, self.size, wrong = batch.size + change, self.size + change, wrong - change

    def _merge(self) -> None:
        """Have one batch for each replica: without limits, which is older does not matter."""
        if len(self._batches) > len(self._known):
            batches, self._batches, self.count, self.size = self._batches, deque(), 0, 0
            for batch in sorted(batches, key=lambda one: one.replica):
                self._add(replace(batch, at=0.0))


@dataclass
class KeptShares:
    """All tenants' ledgers, of each store that replicas have."""

    _ledgers: dict[tuple[str, str], KeptLedger] = field(default_factory=dict)
    """By store and tenant."""
    _told: dict[str, Mapping[str, Mapping[str, Kept]]] = field(default_factory=dict)

    def heard(self, report: ReplicaReport, now: float) -> None:
        """Take in what a replica keeps, at a time in monotonic seconds."""
        for name in report.heir_of:
            self.left(name)
        before = self._told.get(report.name, {})
        for store, tenants in report.kept.items():
            known = before.get(store, {})
            for tenant, kept in tenants.items():
                if kept != known.get(tenant):
                    self._ledgers.setdefault((store, tenant), KeptLedger()).heard(
                        report.name, kept, now - report.now + kept.at
                    )
        self._told[report.name] = report.kept

    def left(self, replica: str) -> None:
        """Forget a replica whose heir has what it kept."""
        if self._told.pop(replica, None) is not None:
            for ledger in self._ledgers.values():
                ledger.left(replica)

    def divide(self, quotas: Callable[[str], Quotas]) -> None:
        """Have all tenants' oldest forgotten beyond their quotas."""
        for (_, tenant), ledger in self._ledgers.items():
            most = quotas(tenant)
            ledger.cut(most.kept_runs, most.kept_bytes)

    def of(self, replica: str) -> dict[str, dict[str, int]]:
        """Return how many a replica should have forgotten, by store and tenant, where it has not."""
        told: dict[str, dict[str, int]] = {}
        for store, tenants in self._told.get(replica, {}).items():
            for tenant, kept in tenants.items():
                target = self._ledgers[store, tenant].target(replica)
                if target > kept.forgotten:
                    told.setdefault(store, {})[tenant] = target
        return told
