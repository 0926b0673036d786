"""A launched step whose result has not arrived, and the boundary around everything that runs on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from inferd.protocol import InternalError
from inferd_runtime.engine.driver import Begun, DeviceLost, Launched, StepResult
from inferd_runtime.engine.job import Job, Planned
from inferd_runtime.engine.scheduling.job_times import JobTimes
from inferd_runtime.engine.stages import Verified

T = TypeVar("T")


def attempt(call: Callable[[], T], name: str = "the forward pass") -> T | InternalError:
    """Return what ``call`` returns, or an InternalError that names it if it raises.

    This is the device's boundary: a failure there ends the jobs of one step, and the engine goes on. Raises DeviceLost where it
    cannot.
    """
    try:
        return call()
    except DeviceLost:
        raise
    except Exception as error:  # noqa: BLE001 - a device may raise anything
        return InternalError(f"{name} failed: {error!r}")


@dataclass(slots=True)
class InFlightStep:
    """A planned step after its launch. ``launched`` is the error if the launch failed, and Begun until its rows are sampled.

    ``since`` is where the step's time starts (``time.perf_counter``): at its planning, or at the end of the step before it if
    that was still running then, and ``ahead`` is True. ``waited``: the part of it that the host waited for the device.
    ``times``: the parts of it that single jobs took.
    """

    plan: list[Planned]
    launched: Launched | Begun | StepResult | InternalError
    since: float
    ahead: bool = False
    waited: float = 0.0
    times: JobTimes = field(default_factory=JobTimes)
    _starts: list[tuple[int, int]] = field(init=False)
    _discarded: set[Job] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._starts = [(item.start, item.job.context.cuts) for item in self.plan]

    @property
    def failed(self) -> bool:
        """True if the launch failed."""
        return isinstance(self.launched, InternalError)

    def is_wanted(self, index: int) -> bool:
        """True if planned job ``index`` still expects its result: it has not ended, and its table is where the plan saw it,
        with the same tokens.
        """
        item = self.plan[index]
        if item.job in self._discarded or item.job.finished():
            return False
        return (item.table.length, item.job.context.cuts) == self._starts[index]

    def discard(self, jobs: Iterable[Job]) -> None:
        """Discard the results of these jobs: the token that the device fed for them is not the one that was committed."""
        self._discarded.update(jobs)

    def move_back(self, before: Mapping[Job, tuple[bool, Verified]]) -> None:
        """Move the jobs' rows to the front by the rejected tokens of the drafts before them, as the device has done.

        ``before``: whether each job's draft in the step before was stale, and the outcome of that step.
        """
        for index, item in enumerate(self.plan):
            if item.carried >= 0 and item.job in before:
                was_stale, done = before[item.job]
                stale = done.accepted != (0 if was_stale else len(done.work.draft))
                self.plan[index] = item._replace(ahead=item.ahead - done.rejected, stale=stale)
                start, cuts = self._starts[index]
                self._starts[index] = (start - done.rejected, cuts)

    def forget_reservations(self) -> None:
        """Reset what these jobs' tables hold reserved for this step. Called before the step behind it is planned."""
        for item in self.plan:
            item.table.ahead = 0

    def wait(self) -> StepResult | InternalError:
        """Block until the device is done, and return the result, or the error if the step failed."""
        if isinstance(self.launched, (StepResult, InternalError)):
            return self.launched
        assert not isinstance(self.launched, Begun), "its rows are not sampled"
        return attempt(self.launched.wait)
