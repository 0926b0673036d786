"""Which jobs run in the next step, and how many tokens each may feed. A synchronous state machine without tensors."""

from __future__ import annotations

from inferd.protocol import LimitExceeded
from inferd_runtime.engine.boundary import job_boundary
from inferd_runtime.engine.context import ContextSet
from inferd_runtime.engine.plan import Job, Planned


class Scheduler:
    """Continuous batching under a token budget.

    Short work (decode rows, draft chains) goes before prefill, so that a long prompt fills what is left of the budget and
    never stalls the streams that run. Each step starts one place further in the queue, so that nobody starves.
    """

    def __init__(self, contexts: ContextSet, *, token_budget: int) -> None:
        self._contexts = contexts
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
        while True:
            self._jobs = [job for job in self._jobs if not job.finished()]
            ready = [job for job in self._in_turn() if job.ready()]
            ready.sort(key=lambda job: job.context.pending > 1)
            plan = self._fill(ready)
            stuck = [job for job in self._jobs if job in ready and not job.finished()]
            if plan or not stuck:
                return plan
            self._make_room(stuck[0])

    def _fill(self, ready: list[Job]) -> list[Planned]:
        plan: list[Planned] = []
        left = self._budget
        for job in ready:
            if left == 0:
                break
            planned = self._reserve(job, left)
            if planned is not None:
                plan.append(planned)
                left -= len(planned.work.tokens)
        return plan

    def _in_turn(self) -> list[Job]:
        if not self._jobs:
            return []
        self._turn = (self._turn + 1) % len(self._jobs)
        return self._jobs[self._turn :] + self._jobs[: self._turn]

    def _reserve(self, job: Job, budget: int) -> Planned | None:
        """The job's work with pages under it, or None when they are short.

        A draft never competes for pages: it goes first. A job enters only when all of its pending tokens fit, so that two
        half-computed prompts cannot block each other.
        """
        table = job.context.table
        with job_boundary(job):
            if table.shortage(job.context.pending):
                return None
            work = job.work(budget, True)
            if work.draft and table.shortage(len(work.tokens)):
                work = job.work(budget, False)
            return Planned(job, work, table, table.reserve(len(work.tokens)))
        return None

    def _make_room(self, stuck: Job) -> None:
        """Nobody fits. Another context gives its pages up and is recomputed later; when there is none, ``stuck`` fails."""
        if self._contexts.evict_for(stuck.context):
            return
        pool = self._contexts.pool
        stuck.fail(
            LimitExceeded(
                f"the KV cache is full: {pool.size} pages of {pool.page_size} tokens, {pool.available} free",
                limit="kv_pages", value=pool.size, raise_with="--pages",
            )
        )  # fmt: skip
