"""Which worker runs what: a synchronous state machine. The fleet starts, stops and talks to processes as it says.

Rules: a worker belongs to the first tenant that uses it and to no other after that; a tenant's run goes to its least
loaded worker, or to an unassigned one while that leaves ``spare`` of them and one for each tenant that waits; when
nothing fits, a worker is started, or an idle worker of another tenant is retired to make room, or the run waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from inferd.protocol import Unavailable


@dataclass(frozen=True)
class PoolSettings:
    """``workers`` are started at first; ``spare`` unassigned ones are kept warm; never more than ``max_workers``."""

    workers: int = 1
    max_workers: int = 4
    spare: int = 1
    runs_per_worker: int = 64
    max_waiting: int = 256


@dataclass(frozen=True)
class Start:
    """Start a worker of this name."""

    worker: str


@dataclass(frozen=True)
class Retire:
    """Stop this worker: it holds no run."""

    worker: str


@dataclass(frozen=True)
class PlaceRun:
    """Launch this run on this worker."""

    run: str
    worker: str


Action = Start | Retire | PlaceRun


@dataclass
class _Worker:
    name: str
    tenant: str | None = None
    ready: bool = False
    retiring: bool = False
    runs: set[str] = field(default_factory=set)


class WorkerPool:
    """Feed it what happened (``submit``, ``ready``, ``finished``, ``lost``), then do what :meth:`decide` says."""

    def __init__(self, settings: PoolSettings) -> None:
        self.settings = settings
        self._workers: dict[str, _Worker] = {}
        self._waiting: dict[str, str] = {}  # run -> tenant, in order of arrival
        self._count = 0

    @property
    def waiting(self) -> list[str]:
        """The runs that no worker has yet, oldest first."""
        return list(self._waiting)

    @property
    def any_ready(self) -> bool:
        """True if some worker takes launches."""
        return any(worker.ready for worker in self._workers.values())

    def worker_of(self, run: str) -> str | None:
        """Return the worker that holds a run."""
        return next((worker.name for worker in self._workers.values() if run in worker.runs), None)

    def tenant_of(self, worker: str) -> str | None:
        """Return the tenant that a worker belongs to, if it has been used."""
        return self._workers[worker].tenant

    def is_retiring(self, worker: str) -> bool:
        """True if the worker was told to end."""
        return self._workers[worker].retiring

    def submit(self, run: str, tenant: str) -> None:
        """Queue a run that needs a worker. Raises Unavailable when too many wait already."""
        if len(self._waiting) >= self.settings.max_waiting:
            raise Unavailable(f"{len(self._waiting)} runs wait for a worker already", waiting=len(self._waiting))
        self._waiting[run] = tenant

    def finished(self, run: str) -> None:
        """Note that a run is over, wherever it was."""
        self._waiting.pop(run, None)
        for worker in self._workers.values():
            worker.runs.discard(run)

    def ready(self, name: str) -> None:
        """Note that a worker takes launches."""
        self._workers[name].ready = True

    def lost(self, name: str) -> list[str]:
        """Note that a worker's process ended. Returns the runs that it held."""
        return sorted(self._workers.pop(name).runs)

    def decide(self) -> Iterator[Action]:
        """Yield what to do now. Each action counts as done when it is yielded."""
        for run, tenant in list(self._waiting.items()):
            worker = self._choose(tenant)
            if worker is not None:
                del self._waiting[run]
                worker.tenant = tenant
                worker.runs.add(run)
                yield PlaceRun(run, worker.name)
        yield from self._make_room()
        while self._wants_more() and len(self._workers) < self.settings.max_workers:
            yield self._start()

    def _choose(self, tenant: str) -> _Worker | None:
        ready = [worker for worker in self._workers.values() if worker.ready and not worker.retiring]
        own = [w for w in ready if w.tenant == tenant and len(w.runs) < self.settings.runs_per_worker]
        least = min(own, key=lambda worker: len(worker.runs), default=None)
        fresh = [worker for worker in ready if worker.tenant is None]
        for_others = len(set(self._waiting.values()) - {tenant})
        if least is None or (least.runs and len(fresh) > max(self.settings.spare, for_others)):
            return fresh[0] if fresh else least
        return least

    def _unassigned(self) -> int:
        return sum(worker.tenant is None for worker in self._workers.values())

    def _needed(self) -> int:
        """Return how many fresh workers the waiting runs need: one for each tenant among them."""
        return len(set(self._waiting.values()))

    def _wants_more(self) -> bool:
        short = self._unassigned() < max(self._needed(), self.settings.spare)
        return short or len(self._workers) < self.settings.workers

    def _make_room(self) -> Iterator[Action]:
        """Yield retirements of idle workers whose tenants wait for nothing, for tenants that have to wait."""
        missing = self._needed() - self._unassigned() - (self.settings.max_workers - len(self._workers))
        leaving = sum(worker.retiring for worker in self._workers.values())
        wanted = set(self._waiting.values())
        idle = [w for w in self._workers.values() if w.tenant not in wanted and not w.runs and not w.retiring]
        for worker in [w for w in idle if w.tenant is not None and w.ready][: max(missing - leaving, 0)]:
            worker.retiring = True
            yield Retire(worker.name)

    def _start(self) -> Start:
        self._count += 1
        worker = _Worker(f"worker-{self._count}")
        self._workers[worker.name] = worker
        return Start(worker.name)
