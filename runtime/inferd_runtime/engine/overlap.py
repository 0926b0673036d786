"""Overlap: plan the next step while the device still runs one, before the tokens in between are known.

A plain decode row returns exactly one token, which the device can feed to the next step itself (``Batch.carried``). So where it
is certain which jobs run next, the host works beside the device instead of in turn with it. Not known is whether that token
ends its job: then the row after it was computed for nothing, and its outcome is discarded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from inferd_runtime.engine.in_flight import InFlightStep
from inferd_runtime.engine.job import NextWork, Planned
from inferd_runtime.engine.scheduling.scheduler import Scheduler
from inferd_runtime.engine.stages import Work
from inferd_runtime.kv.pool import PagePool

CARRIED = (0,)
"""Placeholder for a token that the device carries over."""


class OverlapPlanner:
    """Plans the step behind one that is in flight."""

    def __init__(self, scheduler: Scheduler, pool: PagePool) -> None:
        self._scheduler = scheduler
        self._pool = pool

    def plan(self, step: InFlightStep) -> list[Planned]:
        """Plan the next token of every job in flight that certainly goes on, and reserve its page.

        Returns an empty plan where that is not certain, or where it would cost another job a page or its turn: then the
        scheduler plans once the step in flight is committed.
        """
        for item in step.plan:
            item.table.ahead = 0
        plan = [] if step.failed else self._next_rows(step)
        if not plan or not self._has_room(plan) or not self._scheduler.begin_round_of(step.plan):
            return []
        for item in plan:
            if item.job.speculates:
                item.job.skip_draft()
            item.job.context.reserve(item.ahead + 1)
            item.table.ahead = 1
        return plan

    def _next_rows(self, step: InFlightStep) -> list[Planned]:
        """Return one row for every job that goes on; empty unless all rows in flight are plain and all next work is known.

        Rows under an adapter do not count as plain: a driver may compute them in another way, without carried tokens.
        """
        plan: list[Planned] = []
        for index, (job, work, table, adapter, _, _) in enumerate(step.plan):
            next_work = job.next_work()
            if next_work is NextWork.UNKNOWN or not is_plain(work) or adapter:
                return []
            if next_work is NextWork.ROW and step.is_wanted(index):
                row = Work(CARRIED, 1, sampler=work.sampler)
                plan.append(Planned(job, row, table, "", len(work.tokens), index))
        return plan

    def _has_room(self, plan: Sequence[Planned]) -> bool:
        """True if the next tokens fit into the free pages and every tenant's quota."""
        wanted: Counter[str] = Counter()
        for item in plan:
            wanted[item.job.context.tenant] += item.table.wanted(item.ahead + 1)
        if not any(wanted.values()):
            return True
        if wanted.total() > self._pool.available:
            return False
        return not any(item.job.context.over_quota(wanted[item.job.context.tenant]) for item in plan)


def is_plain(work: Work) -> bool:
    """True if the work samples one row and depends on nothing but logits and sampler."""
    return (
        work.rows == 1
        and work.sampler is not None
        and not work.draft.tokens
        and not work.hidden
        and not work.scored
        and work.masks is None
        and work.adjustments is None
        and work.placement is None
    )
