"""The jobs that wait and run, by tenant and priority, and in which order they may enter a step."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from inferd_runtime.engine.job import Job, Planned
from inferd_runtime.engine.scheduling.fairness import FairClock, StepCost, priority_weight
from inferd_runtime.engine.scheduling.tenants import Accounts


@dataclass(frozen=True, slots=True)
class ReadyJobs:
    """Jobs that want to run: ``short`` work (decode rows, draft chains) and ``long`` (prefill)."""

    short: list[Job]
    long: list[Job]

    @property
    def jobs(self) -> list[Job]:
        """All of them."""
        return self.short + self.long


class Line:
    """The jobs of one tenant and priority. Each step begins one place further, so that nobody starves where not all fit."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self._turn = 0

    def ready(self) -> ReadyJobs:
        """What wants something; what has finished leaves."""
        self.jobs = [job for job in self.jobs if not job.finished()]
        found = ReadyJobs([], [])
        for job in self._in_turn():
            if job.ready():
                (found.short if job.context.pending <= 1 else found.long).append(job)
        return found

    def _in_turn(self) -> list[Job]:
        if len(self.jobs) < 2:
            return self.jobs
        self._turn = (self._turn + 1) % len(self.jobs)
        return self.jobs[self._turn :] + self.jobs[: self._turn]


class TenantQueue:
    """One tenant's lines, by priority."""

    def __init__(self, cost: StepCost) -> None:
        self._lines: dict[int, Line] = {}
        self._clock: FairClock[int] = FairClock(priority_weight, cost)

    @property
    def jobs(self) -> int:
        """How many jobs are not finished."""
        return sum(len(line.jobs) for line in self._lines.values())

    def add(self, job: Job) -> None:
        """Put a job into its line."""
        if job.priority not in self._lines:
            self._lines[job.priority] = Line()
        self._lines[job.priority].jobs.append(job)

    def ready(self) -> dict[int, ReadyJobs]:
        """What wants something, by priority."""
        found = {priority: line.ready() for priority, line in self._lines.items() if line.jobs}
        return {priority: ready for priority, ready in found.items() if ready.jobs}

    def only(self, jobs: Set[Job]) -> bool:
        """Whether nobody else wants anything."""
        return not any(job.ready() for line in self._lines.values() for job in line.jobs if job not in jobs)

    def fair(self, ready: dict[int, ReadyJobs]) -> list[ReadyJobs]:
        """The priorities whose turn it is."""
        return [ready[priority] for priority in self._clock.eligible(ready.keys())]

    def charge(self, plan: Sequence[Planned]) -> int:
        """Count what the tenant feeds in a step; how many tokens that is."""
        served: dict[int, int] = {}
        for planned in plan:
            priority = planned.job.priority
            served[priority] = served.get(priority, 0) + len(planned.work.tokens)
        self._clock.charge(served)
        return sum(served.values())


class Queues:
    """All tenants' queues."""

    def __init__(self, accounts: Accounts, cost: StepCost) -> None:
        self._cost = cost
        self._tenants: dict[str, TenantQueue] = {}
        self._clock: FairClock[str] = FairClock(accounts.weight, cost)
        self._contended = False

    @property
    def jobs(self) -> int:
        """How many jobs are not finished."""
        return sum(queue.jobs for queue in self._tenants.values())

    def add(self, job: Job) -> None:
        """Put a job into its tenant's queue."""
        tenant = job.context.tenant
        if tenant not in self._tenants:
            self._tenants[tenant] = TenantQueue(self._cost)
        self._tenants[tenant].add(job)

    def ready(self) -> tuple[list[ReadyJobs], list[ReadyJobs]]:
        """What wants something: that whose turn it is, whoever is furthest behind first; then everything else."""
        wanting = {tenant: ready for tenant, queue in self._tenants.items() if (ready := queue.ready())}
        if not wanting:
            return [], []
        self._contended = len(wanting) > 1 or any(len(ready) > 1 for ready in wanting.values())
        fair = [
            entry
            for tenant in self._clock.eligible(wanting.keys())
            for entry in self._tenants[tenant].fair(wanting[tenant])
        ]
        rest = [
            entry for ready in wanting.values() for entry in ready.values() if not any(entry is one for one in fair)
        ]
        return fair, rest

    def turn_of(self, jobs: Set[Job]) -> bool:
        """Whether nobody but these wants anything, and it is the turn of all who do."""
        if not all(queue.only(jobs) for queue in self._tenants.values()):
            return False
        _, rest = self.ready()
        return not rest

    def charge(self, plan: Sequence[Planned]) -> None:
        """Count what everybody feeds in a step. Whoever is alone is not counted: there is nobody to be fair to."""
        if not self._contended:
            return
        shares: dict[str, list[Planned]] = {}
        for planned in plan:
            shares.setdefault(planned.job.context.tenant, []).append(planned)
        self._clock.charge({tenant: self._tenants[tenant].charge(share) for tenant, share in shares.items()})
