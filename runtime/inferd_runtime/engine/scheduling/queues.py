"""The queues of jobs, by tenant and priority, and the order in which their jobs may enter a step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

from inferd_runtime.engine.job import Job, Planned
from inferd_runtime.engine.scheduling.fairness import LINGER_LEADS, FairClock, StepCost, StepMeter, priority_weight
from inferd_runtime.engine.scheduling.job_times import is_quick
from inferd_runtime.engine.scheduling.tenants import Accounts

FREE_PART = 1 / 4
"""Of the fixed part of a step, what all decode rows may take together for nobody to be left out of it."""
LOOKED_AT = 512
"""Jobs of a tenant and priority that a round looks at, or as many as a step may have tokens."""
NOTHING_SPENT: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ReadyJobs:
    """Runnable jobs of one tenant and priority: ``short`` work (decode rows, draft chains) and ``long`` (prefill)."""

    short: list[Job]
    long: list[Job]

    @property
    def jobs(self) -> list[Job]:
        """All of them, short work first."""
        return self.short + self.long


class PriorityQueue:
    """The jobs of one tenant and priority. ``awake`` are those that could run when they were last looked at.

    Each round begins one place further, so that no job starves where not all fit into a step. Of many jobs it looks at ``most``
    of each kind, the next round at the next ones: what a step costs others does not grow with the jobs that a tenant has open.
    """

    def __init__(self) -> None:
        self.awake: deque[Job] = deque()
        self._asleep: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self.awake) + len(self._asleep)

    def wants(self, most: int) -> bool:
        """True if one of the jobs that it looks at could run now."""
        while self.awake and not _could_run(self.awake[0]):
            self._asleep.append(self.awake.popleft())
        if not self.awake:
            self.next_round(most)
        return bool(self.awake)

    def next_round(self, most: int) -> ReadyJobs:
        """Drop finished jobs, and return the runnable ones, of those that it looks at."""
        found = ReadyJobs([], [])
        if len(self.awake) <= most:
            self.awake.rotate(-1)
        for job in [*_taken(self.awake, most), *_taken(self._asleep, most)]:
            if job.finished():
                continue
            if not job.ready():
                self._asleep.append(job)
                continue
            self.awake.append(job)
            (found.short if job.context.pending <= 1 else found.long).append(job)
        return found


def _taken(jobs: deque[Job], most: int) -> list[Job]:
    if len(jobs) > most:
        return [jobs.popleft() for _ in range(most)]
    taken = list(jobs)
    jobs.clear()
    return taken


def _rows(entries: Sequence[ReadyJobs]) -> int:
    return sum(len(entry.short) for entry in entries)


def _could_run(job: Job) -> bool:
    return not job.finished() and job.ready()


class TenantQueue:
    """One tenant's queues, by priority."""

    def __init__(self, cost: StepCost) -> None:
        self._queues: dict[int, PriorityQueue] = {}
        self._clock: FairClock[int] = FairClock(priority_weight, cost.lead)
        self._cost = cost

    @property
    def jobs(self) -> int:
        """The number of jobs; one that has ended counts until it is looked at."""
        return sum(map(len, self._queues.values()))

    def wants(self, most: int) -> bool:
        """True if a job could run now; see :class:`PriorityQueue`."""
        return any(queue.wants(most) for queue in self._queues.values())

    @property
    def awake(self) -> Iterator[Job]:
        """The jobs that could run now, of those that could when they were last looked at."""
        return (job for queue in self._queues.values() for job in queue.awake if _could_run(job))

    def add(self, job: Job) -> None:
        """Put a job into the queue of its priority."""
        if job.priority not in self._queues:
            self._queues[job.priority] = PriorityQueue()
        self._queues[job.priority].awake.append(job)

    def next_round(self, most: int) -> dict[int, ReadyJobs]:
        """Return the runnable jobs of the next round, by priority; see :class:`PriorityQueue`."""
        found = {priority: queue.next_round(most) for priority, queue in self._queues.items() if queue}
        return {priority: ready for priority, ready in found.items() if ready.jobs}

    def eligible(self, ready: dict[int, ReadyJobs]) -> list[ReadyJobs]:
        """Advance the clock of priorities by a round, and return the runnable jobs of those that may take part."""
        return [ready[priority] for priority in self._clock.next_round(ready.keys())]

    def charge(self, plan: Sequence[Planned]) -> int:
        """Charge the tenant's priorities for the tokens that they feed in a step. Returns how many tokens that is."""
        served: dict[int, int] = {}
        for planned in plan:
            priority = planned.job.priority
            served[priority] = served.get(priority, 0) + len(planned.work.tokens)
        for priority, share in self._cost.shares(served).items():
            self._clock.charge(priority, share)
        return sum(served.values())


class Queues:
    """The queues of all tenants."""

    def __init__(
        self, accounts: Accounts, cost: StepCost, clock: FairClock[str] | None = None, *, token_budget: int
    ) -> None:
        """``clock``: of all that the process serves; without one, these queues have their own."""
        self._most = token_budget
        self._looked_at = max(LOOKED_AT, token_budget)
        self.wanting: list[str] = []
        """The tenants that wanted to take part in the last round."""
        self._found: dict[str, dict[int, ReadyJobs]] = {}
        self._cost = cost
        self._meter = StepMeter(cost)
        self._tenants: dict[str, TenantQueue] = {}
        self._clock = clock or FairClock(accounts.weight, linger=LINGER_LEADS)
        self._clock.allow(cost.lead)

    @property
    def jobs(self) -> int:
        """The number of jobs; one that has ended counts until it is looked at."""
        return sum(queue.jobs for queue in self._tenants.values())

    def add(self, job: Job) -> None:
        """Put a job into its tenant's queue."""
        tenant = job.context.tenant
        if tenant not in self._tenants:
            self._tenants[tenant] = TenantQueue(self._cost)
        self._tenants[tenant].add(job)

    def wants(self, tenant: str) -> bool:
        """True if a job of a tenant could run now."""
        return tenant in self._tenants and self._tenants[tenant].wants(self._looked_at)

    def joins_others(self, tenant: str) -> bool:
        """True if others run decode rows alone, which cost so little that a tenant's would be in the same steps."""
        others = self._awake_beside(tenant)
        return bool(others) and self._is_free(len(others)) and all(job.context.pending <= 1 for job in others)

    def next_round(self) -> list[ReadyJobs]:
        """Begin the round of a step. Returns the runnable jobs that may take part.

        Those whose turn it is may, furthest behind first. It may be the turn of none of them, where tenants wait for something
        else that are further behind. Where rows cost next to nothing, the decode rows of all others may take part as well.
        """
        self.wanting = self._wanting(self._looked_at) or self._wanting(self.jobs)
        turns = self._clock.next_round(self.wanting, self)
        self._found = {tenant: self._tenants[tenant].next_round(self._looked_at) for tenant in turns}
        fair = [entry for tenant, ready in self._found.items() for entry in self._tenants[tenant].eligible(ready)]
        nobody_else = len(turns) == len(self.wanting) and len(fair) == sum(map(len, self._found.values()))
        if not fair or nobody_else or not self._is_free(_rows(fair) + len(self._awake_beside(*turns))):
            return fair
        rest = self.others(fair)
        if not self._is_free(_rows(fair) + _rows(rest)):
            return fair
        return fair + [
            ReadyJobs(riders, []) for entry in rest if (riders := [job for job in entry.short if is_quick(job)])
        ]

    def others(self, fair: Sequence[ReadyJobs]) -> list[ReadyJobs]:
        """Return the runnable jobs of the round that are not among those whose turn it is."""
        for tenant, queue in self._tenants.items():
            if tenant not in self._found:
                self._found[tenant] = queue.next_round(self._looked_at)
        entries = [entry for ready in self._found.values() for entry in ready.values()]
        return [entry for entry in entries if not any(entry is one for one in fair)]

    def _wanting(self, most: int) -> list[str]:
        return [tenant for tenant, queue in self._tenants.items() if queue.wants(most)]

    def _awake_beside(self, *tenants: str) -> list[Job]:
        """Return the jobs of other tenants that could run, as far as they are awake, and as many as could be free."""
        awake = (job for name, queue in self._tenants.items() if name not in tenants for job in queue.awake)
        return list(islice(awake, 1 + int(FREE_PART * self._cost.fixed)))

    def _is_free(self, rows: int) -> bool:
        return rows <= FREE_PART * self._cost.fixed

    def stuck(self) -> None:
        """Note that no job whose turn it was can run now, so that nobody waits for them."""
        self._clock.next_round((), self)

    def charge(
        self, plan: Sequence[Planned], seconds: float | None = None, spent: Mapping[str, float] = NOTHING_SPENT
    ) -> None:
        """Charge the tenants for a step: for what it took, and for the tokens that they fed. A single tenant is not charged.

        ``spent``: seconds of it that went into single tenants' jobs, for which these alone are charged.
        """
        shares: dict[str, list[Planned]] = {}
        for planned in plan:
            shares.setdefault(planned.job.context.tenant, []).append(planned)
        tokens = {tenant: self._tenants[tenant].charge(share) for tenant, share in shares.items()}
        if seconds is None or not self._cost.timed:
            spent = NOTHING_SPENT
        common = None if seconds is None else max(0.0, seconds - sum(spent.values()))
        shared = self._meter.shares(tokens, common)
        for tenant in {**shared, **spent}:
            self._clock.charge(tenant, shared.get(tenant, 0.0) + spent.get(tenant, 0.0))
        if seconds is not None:
            self._meter.learn_budget(sum(tokens.values()), seconds, self._most)

    @property
    def contended(self) -> bool:
        """True if other tenants may wait for the end of a step, and what steps take counts."""
        return self._cost.timed and self._clock.contended

    def budget(self) -> int:
        """Return how many tokens the next step may have: fewer where other tenants may wait for its end."""
        return self._meter.budget(self._most) if self.contended else self._most
