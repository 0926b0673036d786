"""Overlap: plan and launch the next step while the device still runs one, before the tokens of that one are known.

A row without a draft returns exactly one token, which the device can feed to the next step itself (``Batch.carried``), and the
chunks of a prompt do not depend on any token. So a job whose next work is certain takes part in the next step, a job whose next
work depends on the outcome sits it out, and jobs that are not in flight join as always. Masks and penalties depend on the token
before: the forward pass does not wait for them, they are filled in once that token is committed, and the rows sampled then. If a
carried token ends its job, the row after it was computed for nothing, and its outcome is discarded.

A job with a draft in flight goes on, too. Its next row is planned, with room in the cache, as if all of the draft were accepted,
and with a draft of its own behind the token that comes then. Before the device begins that step it knows how many tokens were
rejected: each of them moves the job's rows one place to the front (``Batch.carried``), and the host follows once it knows
(``InFlightStep.move_back``). So the row is right either way; a draft behind it that follows rejected tokens is rejected itself.
"""

from __future__ import annotations

from inferd_runtime.engine.in_flight import InFlightStep
from inferd_runtime.engine.job import Continuation, Job, NextWork, Planned
from inferd_runtime.engine.jobs.boundary import JobBoundary
from inferd_runtime.engine.sampling.device_sampling import is_sampled
from inferd_runtime.engine.scheduling.scheduler import Scheduler
from inferd_runtime.engine.stages import Work
from inferd_runtime.speculation.drafts import Draft

CARRIED = (-1,)
"""Placeholder for a token that the device carries over."""
NOTHING = Continuation(0, Work(()))
"""Of a job that ends, or pauses, with what it has in flight."""
MOST_LOST = 0.25
"""The share of a step's tokens that overlapping may lose: of jobs that sit the step out, and of drafts that follow rejected
tokens. If it would lose more, all wait for the step in flight, unless the host is so slow that waiting loses more than that."""
DEVICE_BOUND = 0.05
"""If the host waits for the device for more than this share of a step, the device is the slower of the two."""
SMOOTHING = 1 / 8
"""The weight of the newest step in the moving averages."""


class OverlapPlanner:
    """Plans the step behind one that is in flight."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._host = self._device = 0.0

    def learn(self, step: InFlightStep, seconds: float, followed: bool) -> None:
        """Take in how long a step took. ``followed``: the next step was launched before this one was waited for."""
        if followed and not step.ahead:
            return  # neither the host nor the device had all of that time for it
        device = step.waited
        if step.ahead:
            device = seconds if step.waited > DEVICE_BOUND * seconds else min(self._device, seconds)
        self._host = _averaged(self._host, seconds - step.waited)
        self._device = _averaged(self._device, device)

    @property
    def _affordable(self) -> float:
        """The share of a step's tokens that may be lost: the share of its time that overlapping saves, at least MOST_LOST."""
        return max(MOST_LOST, min(self._host, self._device) / (self._host + self._device or 1.0))

    def plan(self, step: InFlightStep) -> list[Planned]:
        """Plan the work that certainly comes behind a step in flight, and reserve its pages.

        Returns an empty plan if there is none, or too little: then the scheduler plans once the step is committed.
        """
        step.forget_reservations()
        if step.failed:
            return []
        in_flight = continuations(step)
        lost = sum(1.0 if one is None else one.lost for one in in_flight.values())
        if lost > self._affordable * len(step.plan):
            return []
        plan = self._scheduler.plan_behind(in_flight)
        for item in plan:
            item.table.ahead = len(item.work.tokens)
        return plan


def _averaged(before: float, new: float) -> float:
    """Return a moving average with one more number. The first number is the first average."""
    return before + (new - before) * SMOOTHING if before else new


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
        draft, chance = item.work.draft, 1.0 if item.stale else chance_of_all(item.work.draft)
        return Continuation(ahead, row, sampled, draft.tokens, chance, share_lost(draft))
    return None


def share_lost(draft: Draft) -> float:
    """Return the expected share of a job's tokens that is lost if it never waits for the outcome of drafts like this one.

    If all of a draft is accepted with probability c, one in ``2 - c`` of the drafts follows accepted tokens: after a rejection
    the next draft is lost, and the one behind that follows known tokens again. The first token of each draft is lost as well:
    the carried token comes in its place.
    """
    worth = sum(draft.survival)
    return (worth - (worth - sum(draft.survival[:1])) / (2.0 - chance_of_all(draft))) / (1.0 + worth)


def brings_tokens(work: Work) -> bool:
    """True if the device samples all rows of the work, nothing else is read, positions are those of plain text, and its draft,
    if it has one, is a chain that is verified by agreement.
    """
    plain = work.rows == 1 + len(work.draft) and is_sampled(work) and not work.hidden and work.placement is None
    return plain and work.draft.probabilities is None


def chance_of_all(draft: Draft) -> float:
    """Return the probability that all of a chain is accepted."""
    return draft.survival[-1] if draft.tokens else 1.0


def complete(step: InFlightStep) -> None:
    """Fill in what the rows of a step in flight need of the step before it, which is committed now."""
    step.times.begin()
    for index, item in enumerate(step.plan):
        if step.is_wanted(index):
            step.plan[index] = _completed(item)
            step.times.spent_on(item.job)


def _completed(item: Planned) -> Planned:
    """Return a planned job whose tokens ahead are committed. A job that raises ends alone, and its row is sampled for nothing."""
    with JobBoundary(item.job):
        return item._replace(work=item.job.completed(item.work) if item.work.late else item.work, ahead=0)
    return item
