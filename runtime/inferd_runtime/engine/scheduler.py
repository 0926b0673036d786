"""Which jobs run in the next step, and how many tokens each may feed. A synchronous state machine without tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from inferd.protocol import LimitExceeded
from inferd_runtime.engine.boundary import JobBoundary
from inferd_runtime.engine.context import Context, ContextSet, quota_error
from inferd_runtime.engine.fairness import FairClock, Flow, FlowKey, StepCost
from inferd_runtime.engine.plan import Job, Planned
from inferd_runtime.engine.tenants import Accounts

PREFILL_SHARE = 8
"""Where decode rows alone would fill the budget, one part in so many is prefill's."""


class Ready(NamedTuple):
    """What wants to run of one flow: ``short`` work (decode rows, draft chains) and ``long`` (prefill)."""

    flow: Flow[Job]
    short: list[Job]
    long: list[Job]


class Scheduler:
    """Continuous batching under a token budget.

    Weighted fair queueing (:mod:`~inferd_runtime.engine.fairness`) says who may run. Among those, short work goes before
    prefill, so that a long prompt fills what is left of the budget and never stalls the streams that run; a part of the
    budget is prefill's, so that streams never stall it either.
    """

    def __init__(self, contexts: ContextSet, accounts: Accounts, *, token_budget: int, cost: StepCost) -> None:
        self._contexts = contexts
        self._budget = token_budget
        self._flows: dict[FlowKey, Flow[Job]] = {}
        self._clock: FairClock[Job] = FairClock(accounts.weight, cost)

    @property
    def jobs(self) -> int:
        """Jobs that are not finished."""
        return sum(len(flow.jobs) for flow in self._flows.values())

    def add(self, job: Job) -> None:
        """Let a job take part from the next step on."""
        key = FlowKey(job.context.tenant, job.priority)
        flow = self._flows.get(key)
        if flow is None:
            flow = self._flows[key] = Flow(key)
        flow.jobs.append(job)

    def plan(self) -> list[Planned]:
        """The next step's work with its pages reserved; empty when nobody wants anything."""
        while True:
            ready = self._ready()
            if not ready:
                return []
            flows = [entry.flow for entry in ready.values()]
            plan = self._fill([ready[flow.key] for flow in self._clock.eligible(flows)])
            if not plan and len(ready) > 1:
                plan = self._fill(list(ready.values()))
            if plan:
                self._charge(flows, plan)
                return plan
            self._make_room(ready)

    def _ready(self) -> dict[FlowKey, Ready]:
        """The flows that want something; what has finished leaves them."""
        found: dict[FlowKey, Ready] = {}
        for flow in self._flows.values():
            if not flow.jobs:
                continue
            flow.jobs = [job for job in flow.jobs if not job.finished()]
            short: list[Job] = []
            long: list[Job] = []
            for job in flow.in_turn():
                if job.ready():
                    (short if job.context.pending <= 1 else long).append(job)
            if short or long:
                found[flow.key] = Ready(flow, short, long)
        return found

    def _fill(self, ready: Sequence[Ready]) -> list[Planned]:
        """Short work first, then long work with what is left of the budget, of which a part is always kept for it."""
        kept = max(1, self._budget // PREFILL_SHARE) if any(entry.long for entry in ready) else 0
        plan = self._admit((job for entry in ready for job in entry.short), self._budget - kept)
        left = self._budget - sum(len(planned.work.tokens) for planned in plan) if kept else 0
        return plan + self._admit((job for entry in ready for job in entry.long), left)

    def _admit(self, jobs: Iterable[Job], budget: int) -> list[Planned]:
        """Work of the jobs in order, until so many tokens are planned."""
        plan: list[Planned] = []
        for job in jobs:
            if budget <= 0:
                break
            with JobBoundary(job):
                planned = self._reserve(job, budget)
                if planned is not None:
                    plan.append(planned)
                    budget -= len(planned.work.tokens)
        return plan

    def _reserve(self, job: Job, budget: int) -> Planned | None:
        """The job's work with pages under it, or None when they are short.

        A draft never competes for pages: it goes first. A job enters only when all of its pending tokens fit, so that two
        half-computed prompts cannot block each other. Raises LimitExceeded at the tenant's quota.
        """
        context, table = job.context, job.context.table
        if context.parked is not None and not self._bring_back(context):
            return None
        before = table.length
        reused = context.reuse_prefix() if context.pending > self._contexts.pool.page_size else 0
        if not table.has_room(context.pending) and not self._find_room(context):
            # What cannot run holds nothing, or it would be in the way of what can.
            context.uncompute(before)
            return None
        if reused:
            context.count_reused(reused)
        work = job.work(budget, True)
        if work.draft and not self._fits(context, len(work.tokens)):
            work = job.work(budget, False)
        if context.irregular_from is not None and work.placement is None:
            work = work._replace(placement=context.positions.placement(table.length, len(work.tokens)))
        return Planned(job, work, table, table.reserve(len(work.tokens)), context.adapter)

    def _bring_back(self, context: Context) -> bool:
        """Get a parked context back into the cache. False when there is no room for it and all that it has pending."""
        if context.computed and not self._find_room(context):
            return False
        context.unpark()
        return True

    def _find_room(self, context: Context) -> bool:
        """Whether all that is pending fits; contexts that nothing works on leave the cache for it."""
        pool, wanted = self._contexts.pool, context.pages_wanted(context.pending)
        if context.over_quota(wanted):
            raise quota_error(context.account, wanted)
        while wanted > pool.available:
            if not self._contexts.park_another(context, idle=True):
                return False
        return True

    def _fits(self, context: Context, tokens: int) -> bool:
        """Whether that many tokens fit without anybody leaving."""
        wanted = context.pages_wanted(tokens)
        return wanted <= self._contexts.pool.available and not context.over_quota(wanted)

    def _charge(self, flows: Sequence[Flow[Job]], plan: Sequence[Planned]) -> None:
        if len(flows) == 1:
            return
        served: dict[FlowKey, int] = {}
        for job, work, _, _, _ in plan:
            key = FlowKey(job.context.tenant, job.priority)
            served[key] = served.get(key, 0) + len(work.tokens)
        self._clock.charge(flows, served)

    def _make_room(self, ready: dict[FlowKey, Ready]) -> None:
        """Nobody fits. Another context leaves the cache, though something works on it; when there is none, one job fails."""
        stuck = [job for entry in ready.values() for job in (*entry.short, *entry.long) if not job.finished()]
        if not stuck or self._contexts.park_another(stuck[0].context, idle=False):
            return
        pool = self._contexts.pool
        stuck[0].fail(
            LimitExceeded(
                f"the KV cache is full: {pool.size} pages of {pool.page_size} tokens, {pool.available} free",
                limit="kv_pages", value=pool.size, raise_with="--pages",
            )
        )  # fmt: skip
