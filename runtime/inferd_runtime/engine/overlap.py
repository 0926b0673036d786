"""Running ahead: the step behind one that the device still computes, laid out before the tokens in between are known.

A plain decode row brings exactly one token, and the device can feed that to the next step itself (``Batch.carried``). So where
it is certain who runs next, the host does its work beside the device's and not in turn with it. What cannot be known before is
whether the token ends its job: then the row behind it was for nothing, and its outcome is thrown away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from inferd.protocol import InternalError
from inferd_runtime.engine.driver import Driver, Launched, StepResult
from inferd_runtime.engine.job import NextWork, Planned
from inferd_runtime.engine.scheduling.scheduler import Scheduler
from inferd_runtime.engine.stages import Work
from inferd_runtime.kv.pool import PagePool
from inferd_runtime.models.batch import Batch

T = TypeVar("T")
UNKNOWN = (0,)
"""Stands for a token that the device carries over."""


@dataclass(slots=True)
class InFlightStep:
    """A step on its way. ``since``: when its time began (``time.perf_counter``): where it was launched behind another, when
    that one had ended.
    """

    plan: Sequence[Planned]
    launched: Launched | InternalError
    since: float
    _starts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._starts = [item.start for item in self.plan]

    @property
    def failed(self) -> bool:
        """Whether it never took off."""
        return isinstance(self.launched, InternalError)

    def stands(self, at: int) -> bool:
        """Whether what it brings planned job number ``at`` is still wanted: the job goes on, and from the same place."""
        item = self.plan[at]
        return item.table.length == self._starts[at] and not item.job.finished()

    def wait(self) -> StepResult | InternalError:
        """What it brought, once it is there."""
        return self.launched if isinstance(self.launched, InternalError) else attempt(self.launched.wait)


class DeferredForward:
    """A step of a driver that cannot draw: computed when somebody waits for it."""

    def __init__(self, driver: Driver, batch: Batch) -> None:
        self._driver = driver
        self._batch = batch

    def wait(self) -> StepResult:
        """See :class:`~inferd_runtime.engine.driver.Launched`."""
        return StepResult(self._driver.forward(self._batch))


def attempt(call: Callable[[], T], name: str = "the forward pass") -> T | InternalError:
    """The device boundary, around what has that name: whatever goes wrong behind it is an answer, so that a step's jobs fail
    and the engine goes on.
    """
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - a device may raise anything
        return InternalError(f"{name} failed: {error!r}")


class OverlapPlanner:
    """Plans the step behind one that is on its way."""

    def __init__(self, scheduler: Scheduler, pool: PagePool) -> None:
        self._scheduler = scheduler
        self._pool = pool

    def plan(self, flight: InFlightStep) -> list[Planned]:
        """The next token of every job in flight that certainly goes on, with its page reserved.

        Empty where that is not certain, and where it would cost anybody a page or a turn: then all that is known after the step
        in flight decides.
        """
        for item in flight.plan:
            item.table.ahead = 0
        plan = [] if flight.failed else self._going_on(flight)
        if not plan or not self._has_room(plan) or not self._scheduler.has_turn(flight.plan):
            return []
        for item in plan:
            if item.job.speculates:
                item.job.guess()  # nothing: its sources rest, for a step less now
            item.job.context.reserve(item.ahead + 1)
            item.table.ahead = 1
        self._scheduler.charge(plan)
        return plan

    def _going_on(self, flight: InFlightStep) -> list[Planned]:
        """A row each; none at all where the step in flight is not of plain rows only, or one of its jobs must be asked first.

        Rows under an adapter are not plain: a driver may compute them in another way, which knows nothing of carried tokens.
        """
        plan: list[Planned] = []
        for at, (job, work, table, adapter, _, _) in enumerate(flight.plan):
            outlook = job.outlook()
            if outlook is NextWork.OPEN or not is_plain(work) or adapter:
                return []
            if outlook is NextWork.ROW and flight.stands(at):
                row = Work(UNKNOWN, 1, sampler=work.sampler)
                plan.append(Planned(job, row, table, "", len(work.tokens), at))
        return plan

    def _has_room(self, plan: Sequence[Planned]) -> bool:
        """Whether the further tokens fit without anybody leaving the cache, and within everybody's quota."""
        wanted: Counter[str] = Counter()
        for item in plan:
            wanted[item.job.context.tenant] += item.table.wanted(item.ahead + 1)
        if not any(wanted.values()):
            return True
        if wanted.total() > self._pool.available:
            return False
        return not any(item.job.context.over_quota(wanted[item.job.context.tenant]) for item in plan)


def is_plain(work: Work) -> bool:
    """Whether it brings its job one token, whatever that is, and nothing else."""
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
