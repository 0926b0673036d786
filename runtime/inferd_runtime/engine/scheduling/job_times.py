"""Which part of the step loop's time goes into one job alone: masks, drawing, probes, what its commit does."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

from inferd_runtime.engine.job import Job
from inferd_runtime.engine.scheduling.fairness import QUANTUM_SECONDS

SLOW_SECONDS = 1e-3
"""A job that takes less in a step, beside its rows, is as good as free there."""
NEW_SECONDS = QUANTUM_SECONDS / 8
"""What a job is taken to take that had no part in a step yet, where nothing is known of its tenant's others."""
MOST_SECONDS = 0.05
"""What jobs of one tenant may take at a time, one behind the other, that were taken to be quick, before the rest waits for the
next step.
"""


def is_quick(job: Job) -> bool:
    """Return True if it is known that a job takes little beside its rows."""
    return job.context.row_seconds is not None and job.context.row_seconds <= SLOW_SECONDS


class JobTimes:
    """Seconds of single jobs since they were last taken. Rows of a batch cost much alike; what is done for each need not."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._since = 0.0
        self._spent: dict[Job, float] = {}
        self._at_a_time: dict[str, float] = {}
        self._slowest: dict[str, float] = {}

    def begin(self) -> None:
        """Begin with the first job of several."""
        self._since = self._clock()
        self._at_a_time = {}

    def spent_on(self, job: Job) -> None:
        """Note that all time since the job before was for this one."""
        now = self._clock()
        tenant = job.context.tenant
        self._spent[job] = self._spent.get(job, 0.0) + now - self._since
        self._at_a_time[tenant] = self._at_a_time.get(tenant, 0.0) + now - self._since
        self._since = now

    def must_wait(self, job: Job) -> bool:
        """Return True if its tenant's jobs before it have taken MOST_SECONDS since :meth:`begin`."""
        return self._at_a_time.get(job.context.tenant, 0.0) > MOST_SECONDS

    def take(self) -> dict[str, float]:
        """Return the seconds by tenant, and begin anew. Each job's are noted as what its next part in a step will take."""
        taken: dict[str, float] = defaultdict(float)
        slowest: dict[str, float] = defaultdict(float)
        for job, seconds in self._spent.items():
            tenant = job.context.tenant
            taken[tenant] += seconds
            slowest[tenant] = max(slowest[tenant], seconds)
            job.context.row_seconds = seconds
        self._slowest.update(slowest)
        self._spent = {}
        return taken

    def expected(self, job: Job) -> float:
        """Return what a job will take in a step. One that is new is like the slowest of its tenant in their last step."""
        seconds = job.context.row_seconds
        return max(NEW_SECONDS, self._slowest.get(job.context.tenant, 0.0)) if seconds is None else seconds
