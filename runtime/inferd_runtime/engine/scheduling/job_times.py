"""Which part of the step loop's time goes into one job alone: masks, drawing, probes, what its commit does."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

from inferd_runtime.engine.job import Job


class JobTimes:
    """Seconds of single jobs since they were last taken. Rows of a batch cost much alike; what is done for each need not."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._since = 0.0
        self._spent: dict[Job, float] = {}

    def begin(self) -> None:
        """Begin with the first job of several."""
        self._since = self._clock()

    def spent_on(self, job: Job) -> None:
        """Note that all time since the job before was for this one."""
        now = self._clock()
        self._spent[job] = self._spent.get(job, 0.0) + now - self._since
        self._since = now

    def take(self) -> dict[str, float]:
        """Return the seconds by tenant, and begin anew. Each job's are noted as what its next part in a step will take."""
        taken: dict[str, float] = defaultdict(float)
        for job, seconds in self._spent.items():
            taken[job.context.tenant] += seconds
            job.context.row_seconds = seconds
        self._spent = {}
        return taken
