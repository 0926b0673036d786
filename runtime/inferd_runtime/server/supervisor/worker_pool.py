"""Which worker runs what: a synchronous state machine. The fleet starts, stops and talks to processes as it says.

Rules: a worker belongs to the first tenant that uses it and to no other after that; a tenant's run goes to its least
loaded worker, or to an unassigned one while that leaves ``spare`` of them and one for each tenant that waits; when
nothing fits, a worker is started, or an idle worker of another tenant is retired to make room, or the run waits.

What one tenant can take is bounded twice. Its quotas say how many of its runs may run and wait. And half of the workers and
a quarter of the queue are kept for tenants that have none (:class:`ShareRule`): whatever up to ``PoolSettings.guarded`` tenants
do together, another one's first run gets a worker as soon as one can be started, and a place in the queue until then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from inferd.protocol import LimitExceeded
from inferd_runtime.server.tenancy.quotas import Quotas, QuotasOf, quota_exceeded, same_for_all
from inferd_runtime.server.tenancy.shares import ShareRule

RETRY_SECONDS = 1.0
"""When to try again after the queue was full."""


@dataclass(frozen=True)
class PoolSettings:
    """``workers`` are started at first; ``spare`` unassigned ones are kept warm; never more than ``max_workers``."""

    workers: int = 1
    max_workers: int = 4
    spare: int = 1
    runs_per_worker: int = 64
    max_waiting: int = 256

    @property
    def guarded(self) -> int:
        """How many tenants may use all that they can get without another tenant's first run having to wait."""
        return self.max_workers // 2

    @property
    def workers_rule(self) -> ShareRule:
        """The rule for taking one more worker."""
        return ShareRule(self.max_workers, self.guarded)

    @property
    def queue_rule(self) -> ShareRule:
        """The rule for taking one more place in the queue."""
        return ShareRule(self.max_waiting, self.max_waiting // 4)


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

    def __init__(self, settings: PoolSettings, quotas: QuotasOf | None = None) -> None:
        self.settings = settings
        self._quotas = quotas or same_for_all(Quotas())
        self._workers: dict[str, _Worker] = {}
        self._waiting: dict[str, str] = {}  # run -> tenant, in order of arrival
        self._count = 0

    @property
    def waiting(self) -> list[str]:
        """The runs that no worker has yet, oldest first."""
        return list(self._waiting)

    @property
    def running(self) -> list[str]:
        """The runs that a worker has."""
        return [run for worker in self._workers.values() for run in worker.runs]

    @property
    def waiting_by_tenant(self) -> Counter[str]:
        """How many runs of each tenant no worker has yet."""
        return Counter(self._waiting.values())

    @property
    def running_by_tenant(self) -> Counter[str]:
        """How many runs of each tenant workers have."""
        found: Counter[str] = Counter()
        for worker in self._workers.values():
            if worker.tenant is not None:
                found[worker.tenant] += len(worker.runs)
        return found

    @property
    def tenants(self) -> set[str]:
        """The tenants whose runs workers have."""
        return {worker.tenant for worker in self._workers.values() if worker.tenant is not None and worker.runs}

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
        """Queue a run that needs a worker. Raises LimitExceeded when too many wait already, of this tenant or of all."""
        held, most = self.waiting_by_tenant[tenant], self._quotas(tenant).waiting
        if most and held >= most:
            raise quota_exceeded("waiting", most, f"{held} runs of the tenant wait for a worker already", RETRY_SECONDS)
        if not self.settings.queue_rule.allows(held, len(self._waiting)):
            raise self._queue_full()
        self._waiting[run] = tenant

    def _queue_full(self) -> LimitExceeded:
        text = f"{len(self._waiting)} runs wait for a worker already"
        most = self.settings.max_waiting
        error = LimitExceeded(text, limit="max_waiting", value=most, raise_with="the server's --max-waiting")
        error.detail["retry_after_s"] = RETRY_SECONDS
        return error

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
        cannot: set[str] = set()
        for run, tenant in list(self._waiting.items()):
            worker = None if tenant in cannot else self._choose(tenant)
            if worker is None:
                cannot.add(tenant)
                continue
            del self._waiting[run]
            worker.tenant = tenant
            worker.runs.add(run)
            yield PlaceRun(run, worker.name)
        yield from self._make_room()
        while self._wants_more() and len(self._workers) < self.settings.max_workers:
            yield self._start()

    def _choose(self, tenant: str) -> _Worker | None:
        """Return the worker for a tenant's next run: an idle one of its own, a fresh one, or its least loaded one."""
        if not self._may_run(tenant):
            return None
        ready = [worker for worker in self._workers.values() if worker.ready and not worker.retiring]
        own = [w for w in ready if w.tenant == tenant and len(w.runs) < self.settings.runs_per_worker]
        least = min((worker for worker in own if worker.runs), key=lambda worker: len(worker.runs), default=None)
        if not self._may_use_another(tenant):
            return least
        idle = next((worker for worker in own if not worker.runs), None)
        fresh = [worker for worker in ready if worker.tenant is None]
        if idle is None and fresh and (least is None or len(fresh) > self._kept_fresh(tenant)):
            return fresh[0]
        return idle or least

    def _kept_fresh(self, tenant: str) -> int:
        return max(self.settings.spare, len(self._want_fresh() - {tenant}))

    def _may_run(self, tenant: str) -> bool:
        most = self._quotas(tenant).runs
        return not most or self.running_by_tenant[tenant] < most

    def _may_use_another(self, tenant: str) -> bool:
        """Return True if the tenant may keep one worker more busy."""
        busy = Counter(worker.tenant for worker in self._workers.values() if worker.runs)
        return self.settings.workers_rule.allows(busy[tenant], busy.total())

    def _want_fresh(self) -> set[str]:
        """Return the tenants whose waiting runs a fresh worker would help."""
        return {t for t in set(self._waiting.values()) if self._may_run(t) and self._may_use_another(t)}

    def _unassigned(self) -> int:
        return sum(worker.tenant is None for worker in self._workers.values())

    def _wants_more(self) -> bool:
        short = self._unassigned() < max(len(self._want_fresh()), self.settings.spare)
        return short or len(self._workers) < self.settings.workers

    def _make_room(self) -> Iterator[Action]:
        """Yield retirements of idle workers, for tenants that have to wait. What its own tenant could use has been used."""
        missing = len(self._want_fresh()) - self._unassigned() - (self.settings.max_workers - len(self._workers))
        leaving = sum(worker.retiring for worker in self._workers.values())
        idle = [w for w in self._workers.values() if w.tenant is not None and not w.runs and not w.retiring]
        for worker in [w for w in idle if w.ready][: max(missing - leaving, 0)]:
            worker.retiring = True
            yield Retire(worker.name)

    def _start(self) -> Start:
        self._count += 1
        worker = _Worker(f"worker-{self._count}")
        self._workers[worker.name] = worker
        return Start(worker.name)
