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
    that was still running then, and ``ahead`` is True. ``waited``: for so much of it the host waited for the device.
    ``times``: what of it goes into single jobs.
    """

    plan: list[Planned]
    launched: Launched | Begun | StepResult | InternalError
    since: float
    ahead: bool = False
    waited: float = 0.0
    times: JobTimes = field(default_factory=JobTimes)
    _starts: list[tuple[int, int]] = field(init=False)
    _refuted: set[Job] = field(default_factory=set)

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
        if item.job in self._refuted or item.job.finished():
            return False
        return (item.table.length, item.job.context.cuts) == self._starts[index]

    def refute(self, jobs: Iterable[Job]) -> None:
        """Want no result for these jobs: another token stands where theirs feeds the one that the device drew."""
        self._refuted.update(jobs)

    def move_back(self, before: Mapping[Job, tuple[bool, Verified]]) -> None:
        """Follow the device: of the drafts behind which jobs go on, so much stands. ``before``: what the step before brought to
        each, and whether its draft was stale there.
        """
        for index, item in enumerate(self.plan):
            if item.carried >= 0 and item.job in before:
                was_stale, done = before[item.job]
                stale = done.accepted != (0 if was_stale else len(done.work.draft))
                self.plan[index] = item._replace(ahead=item.ahead - done.fallen, stale=stale)
                start, cuts = self._starts[index]
                self._starts[index] = (start - done.fallen, cuts)

    def forget_reservations(self) -> None:
        """Take back what was reserved for these jobs beyond the step before this one: before the step behind it is planned."""
        for item in self.plan:
            item.table.ahead = 0

    def wait(self) -> StepResult | InternalError:
        """Block until the device is done, and return the result, or the error if the step failed."""
        if isinstance(self.launched, (StepResult, InternalError)):
            return self.launched
        assert not isinstance(self.launched, Begun), "its rows are not sampled"
        return attempt(self.launched.wait)
