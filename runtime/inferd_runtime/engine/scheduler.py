"""Which jobs run in the next step, and how many tokens each may feed. A synchronous state machine without tensors."""

from __future__ import annotations

from inferd.protocol import InferdError, LimitExceeded

from inferd_runtime.engine.plan import Job, Planned
from inferd_runtime.kv.pool import PagePool, PoolExhausted


class Scheduler:
    """Continuous batching under a token budget.

    Short work (decode rows, draft chains) goes before prefill, so that a long prompt fills what is left of the budget and
    never stalls the streams that run. Each step starts one place further in the queue, so that nobody starves.
    """

    def __init__(self, pool: PagePool, *, token_budget: int) -> None:
        self._pool = pool
        self._budget = token_budget
        self._jobs: list[Job] = []
        self._turn = 0

    @property
    def jobs(self) -> int:
        """Jobs that are not finished."""
        return len(self._jobs)

    def add(self, job: Job) -> None:
        """Let a job take part from the next step on."""
        self._jobs.append(job)

    def plan(self) -> list[Planned]:
        """The next step's work with its pages reserved; empty when nobody wants anything."""
        self._jobs = [job for job in self._jobs if not job.finished()]
        ready = [job for job in self._in_turn() if job.ready()]
        ready.sort(key=lambda job: job.context.pending > 1)
        plan: list[Planned] = []
        left = self._budget
        for job in ready:
            if left == 0:
                break
            planned = self._reserve(job, left)
            if planned is not None:
                plan.append(planned)
                left -= len(planned.work.tokens)
        stuck = [job for job in ready if not job.finished()]
        if stuck and not plan:
            self._sacrifice(stuck[-1])
        return plan

    def _in_turn(self) -> list[Job]:
        if not self._jobs:
            return []
        self._turn = (self._turn + 1) % len(self._jobs)
        return self._jobs[self._turn :] + self._jobs[: self._turn]

    def _reserve(self, job: Job, budget: int) -> Planned | None:
        """The job's work with pages under it. A draft never competes for pages: when they are short it goes first."""
        table = job.context.table
        try:
            work = job.work(budget, True)
            if work.draft and table.shortage(len(work.tokens)):
                work = job.work(budget, False)
            return Planned(job, work, table, table.reserve(len(work.tokens)))
        except PoolExhausted:
            return None
        except InferdError as error:
            job.fail(error)
            return None

    def _sacrifice(self, job: Job) -> None:
        """Nobody fits: the youngest in turn ends with an error, and its pages let the others go on."""
        job.fail(
            LimitExceeded(
                f"the KV cache is full: all {self._pool.size} pages of {self._pool.page_size} tokens are held",
                limit="kv_pages", value=self._pool.size, raise_with="--pages",
            )
        )  # fmt: skip
