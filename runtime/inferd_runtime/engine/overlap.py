"""Overlap: plan the next step while the device still runs one, before the tokens in between are known.

A row without a draft returns exactly one token, which the device can feed to the next step itself (``Batch.carried``), and the
chunks of a prompt do not depend on any token. So where a job certainly goes on, it does in the next step; where that is not known
before its tokens are, it sits that step out; and jobs that are not in flight join it as always. Masks and penalties depend on the
token before: the forward pass does not wait for them, they are filled in once that is committed, and the rows sampled then. Not
known is whether a carried token ends its job: then the row after it was computed for nothing, and its outcome is discarded.

Behind a draft the next step goes on as if all of it stood, with a draft of its own behind the token that comes then. If it does
not, what was computed on top of it is discarded, too: the table is not as long as the plan saw it (``InFlightStep.is_wanted``).
"""

from __future__ import annotations

from inferd_runtime.engine.in_flight import InFlightStep
from inferd_runtime.engine.job import Continuation, Job, NextWork, Planned
from inferd_runtime.engine.jobs.boundary import JobBoundary
from inferd_runtime.engine.jobs.generation import LIKELY
from inferd_runtime.engine.sampling.device_sampling import is_sampled
from inferd_runtime.engine.scheduling.scheduler import Scheduler
from inferd_runtime.engine.stages import Work
from inferd_runtime.speculation.drafts import Draft

CARRIED = (0,)
"""Placeholder for a token that the device carries over."""
NOTHING = Continuation(0, Work(()))
"""How a job goes on that ends, or pauses, with what it has in flight."""
SITTING_OUT = 4
"""At most one job in so many sits a step out, or is likely to go on for nothing. Where more would, all wait for the step in
flight: a device that runs it in little more time than the host plans it would give each of them half of its steps, and the
others little."""


class OverlapPlanner:
    """Plans the step behind one that is in flight."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def plan(self, step: InFlightStep) -> list[Planned]:
        """Plan what certainly comes behind a step in flight, and reserve its pages.

        Returns an empty plan where that is nothing, or too little: then the scheduler plans once the step is committed.
        """
        step.forget_reservations()
        if step.failed:
            return []
        in_flight = continuations(step)
        if sum(1.0 if one is None else 1.0 - one.chance for one in in_flight.values()) * SITTING_OUT > len(step.plan):
            return []
        plan = self._scheduler.plan_behind(in_flight)
        for item in plan:
            item.table.ahead = len(item.work.tokens)
        return plan


def continuations(step: InFlightStep) -> dict[Job, Continuation | None]:
    """Return how each job that still waits for the step goes on behind it; None where that depends on its outcome."""
    found: dict[Job, Continuation | None] = {}
    sampled = 0
    for index, item in enumerate(step.plan):
        if step.is_wanted(index):
            found[item.job] = continuation(item, sampled)
        sampled += bool(item.work.rows) and is_sampled(item.work)
    return found


def continuation(item: Planned, sampled: int) -> Continuation | None:
    """Return how a job goes on behind ``item``, sequence ``sampled`` of those that its step samples; None if that is not known.

    Rows under an adapter do not count as plain: a driver may compute them in another way, without carried tokens.
    """
    next_work = item.job.next_work(item.work)
    if next_work is NextWork.NOTHING:
        return NOTHING
    ahead = len(item.work.tokens)
    if next_work is NextWork.PENDING and item.table.private_from is None:
        return Continuation(ahead)
    if next_work in (NextWork.ROW, NextWork.LATE_ROW) and brings_tokens(item.work) and not item.adapter:
        late = next_work is NextWork.LATE_ROW
        row = Work(CARRIED, 1, sampler=item.work.sampler, logprobs=item.work.logprobs, late=late)
        return Continuation(ahead, row, sampled, item.work.draft.tokens, chance_of_all(item.work.draft))
    return None


def brings_tokens(work: Work) -> bool:
    """True if the work samples its rows on the device, at places of plain text, reads nothing else, and verifies a chain by
    agreement that is likely to stand, or nothing.
    """
    plain = work.rows == 1 + len(work.draft) and is_sampled(work) and not work.hidden and work.placement is None
    return plain and work.draft.probabilities is None and chance_of_all(work.draft) >= LIKELY


def chance_of_all(draft: Draft) -> float:
    """Return the chance that all of a chain stands."""
    return draft.survival[-1] if draft.tokens else 1.0


def complete(step: InFlightStep) -> None:
    """Fill in what was not known of the rows of a step in flight before the step before it was committed."""
    step.plan = [_completed(item) if step.is_wanted(index) else item for index, item in enumerate(step.plan)]


def _completed(item: Planned) -> Planned:
    """Return a planned job whose tokens ahead are committed. A job that raises ends alone, and its row is sampled for nothing."""
    with JobBoundary(item.job):
        return item._replace(work=item.job.completed(item.work) if item.work.late else item.work, ahead=0)
    return item
