"""Rank 0 of a divided model whose ranks run kernels: it stages each step once, samples alone, and waits for its device alone.

The others get the staged block as it is, copy it to their devices and begin the same forward pass. Tokens that rank 0 has drawn
and no host knows yet go from device to device at the beginning of that (:class:`~inferd_runtime.models.passes.divided.LedPass`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TypeVar

from inferd.protocol import Unavailable
from inferd_runtime.engine.driver import Begun, Launched, StepResult
from inferd_runtime.engine.drivers.cuda_driver import CudaDriver, StagedStep
from inferd_runtime.engine.drivers.parallel import EndProcess, LeadingDriver
from inferd_runtime.engine.drivers.parallel_commands import Command, CommandDone, ForwardCommand, StepCommand, encode
from inferd_runtime.engine.sampling.device_sampling import SampledRows, SamplingInputs, host_inputs
from inferd_runtime.models.batch import Batch, Outputs
from inferd_runtime.models.parallel import TIMEOUT_S, WatchedPass

T = TypeVar("T")


class LeadingSampler(LeadingDriver):
    """See :class:`~inferd_runtime.engine.driver.SamplingDriver` and :class:`LeadingDriver`.

    A step is answered once it has begun, and that is read when something is waited for: steps in flight wait for nobody. What
    fails before a step is announced fails in this rank alone, and is raised; what fails in it ends the process.
    """

    def __init__(
        self, own: CudaDriver, watched: WatchedPass, followers: Sequence[Connection], lost: EndProcess,
        timeout_s: float = TIMEOUT_S,
    ) -> None:  # fmt: skip
        super().__init__(own, watched, followers, lost, timeout_s)
        self._sampler = own
        self._due = 0
        own.announce = self._announced

    def forward(self, batch: Batch) -> Outputs:
        """See :class:`~inferd_runtime.engine.driver.Driver`."""
        return self.launch(batch, host_inputs(len(batch.logit_rows), self.vocab_size)).wait().outputs

    def launch(self, batch: Batch, inputs: SamplingInputs) -> LedStep:
        """See :class:`~inferd_runtime.engine.driver.SamplingDriver`. Raises ValueError for what cannot be divided."""
        return LedStep(self._sampler.launch(batch, inputs), self._settle)

    def begin(self, batch: Batch, rows: SampledRows) -> LedBegun:
        """See :class:`~inferd_runtime.engine.driver.SamplingDriver`. Raises ValueError for what cannot be divided."""
        return LedBegun(self._sampler.begin(batch, rows), self._settle)

    @contextmanager
    def _announced(self, step: StagedStep | Batch) -> Iterator[None]:
        """Have the other ranks begin a step, and this one meanwhile."""
        self._settle()
        payload = encode(ForwardCommand.of(step) if isinstance(step, Batch) else StepCommand.of(step))
        for follower in self._followers:
            self._send(follower, payload)
        with ExitStack() as stack:
            stack.push(self._end_broken)
            yield
        self._due += 1

    def _end_broken(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception):
            self._lost(Unavailable(f"a step failed in rank 0 of the model: {error!r}", process="engine"))

    def _settle(self) -> None:
        """Take the answers to all steps that were announced."""
        while self._due:
            self._due -= 1
            self.answers()

    def _each(self, commands: Sequence[Command], own: Callable[[], T]) -> tuple[T, list[CommandDone]]:
        self._settle()
        return super()._each(commands, own)


@dataclass(frozen=True, slots=True)
class LedStep:
    """See :class:`~inferd_runtime.engine.driver.Launched`. A rank that did not begin is noticed before the device is asked."""

    launched: Launched
    settle: Callable[[], None]

    def wait(self) -> StepResult:
        """See :class:`~inferd_runtime.engine.driver.Launched`."""
        self.settle()
        return self.launched.wait()


@dataclass(frozen=True, slots=True)
class LedBegun:
    """See :class:`~inferd_runtime.engine.driver.Begun`."""

    begun: Begun
    settle: Callable[[], None]

    def sample(self, inputs: SamplingInputs) -> LedStep:
        """See :class:`~inferd_runtime.engine.driver.Begun`."""
        return LedStep(self.begun.sample(inputs), self.settle)
