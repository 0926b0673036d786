"""How much of the host's part of a step is hidden behind the device's: overlapped steps beside the plain loop.

``python benchmarks/overlap.py``. The device is a clock: a step takes a fixed time behind the one before. Time is what this thread
computes, and what it waits for the device, which is counted and not waited: so other programs on the machine do not show. What
is measured is the engine alone: planning, layout, commit, text. No model and no kernel launches are in it.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

import numpy as np
from measure import figure

from inferd.protocol import Sampling
from inferd_runtime.engine.driver import StepResult
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.jobs.generation import Generation, GenerationSpec
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.sampling.device_sampling import SampledRows, SampledTokens, SamplingInputs
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.models.batch import Batch, Outputs
from inferd_runtime.testing.null_driver import NullDriver

STREAMS = (1, 16, 64)
DEVICE_MS = (0.5, 1.0, 2.0, 5.0)
STEPS = 200
ROUNDS = 5
VOCAB = 1000
NO_LOGITS = Outputs(np.empty((0, VOCAB), np.float32), np.empty((0, 0), np.float32))


@dataclass(frozen=True, slots=True)
class Step:
    """Done at ``done`` by the device's clock."""

    device: BusyDevice
    done: float
    result: StepResult

    def wait(self) -> StepResult:
        """See :class:`~inferd_runtime.engine.driver.Launched`."""
        self.device.waited += max(0.0, self.done - self.device.now())
        return self.result


@dataclass(frozen=True, slots=True)
class Forward:
    """A forward pass whose rows are not sampled yet."""

    device: BusyDevice

    def sample(self, inputs: SamplingInputs) -> Step:
        """See :class:`~inferd_runtime.engine.driver.Begun`."""
        return self.device.draw(inputs)


class BusyDevice(NullDriver):
    """Takes ``seconds`` for every step, one after the other, and draws the tokens 0, 1, 2, ..."""

    def __init__(self, seconds: float) -> None:
        super().__init__(vocab_size=VOCAB, pages=8192, page_size=16, max_context=4096)
        self._seconds = seconds
        self._free = 0.0
        self.waited = 0.0

    def now(self) -> float:
        """Seconds that the host has computed and waited."""
        return time.thread_time() + self.waited

    def launch(self, batch: Batch, sampling: SamplingInputs) -> Step:
        """See :class:`~inferd_runtime.engine.driver.SamplingDriver`."""
        return self.begin(batch, SampledRows(sampling.rows, sampling.host_rows)).sample(sampling)

    def begin(self, batch: Batch, rows: SampledRows) -> Forward:
        """See :class:`~inferd_runtime.engine.driver.SamplingDriver`."""
        self._free = max(self._free, self.now()) + self._seconds
        return Forward(self)

    def draw(self, sampling: SamplingInputs) -> Step:
        """Sample, which takes no time, but not before now."""
        self._free = max(self._free, self.now())
        count = len(sampling.first)
        tokens = np.arange(count)[:, None] % VOCAB
        return Step(
            self,
            self._free,
            StepResult(NO_LOGITS, SampledTokens(np.zeros(count, int), tokens, np.empty((count, 0), int))),
        )


def step_ms(streams: int, device_ms: float, *, overlap: bool) -> float:
    """Milliseconds of a step in steady decoding."""
    device = BusyDevice(device_ms / 1000)
    engine = Engine(device, EngineOptions(overlap=overlap))
    sampler = RowSampler.resolve(Sampling(1.0), seed=0, lineage=0)
    generations = []
    for number in range(streams):
        context = engine.create_context()
        context.append([number] * 20)
        spec = GenerationSpec(sampler, 4000, [VOCAB])
        generations.append(Generation(context, spec, TextAssembler(chr, ("never",))))
        engine.submit(generations[-1])
    for _ in range(10):
        take_step(engine, generations)
    start = device.now()
    for _ in range(STEPS):
        take_step(engine, generations)
    seconds = device.now() - start
    engine.close()
    return 1000 * seconds / STEPS


def take_step(engine: Engine, generations: list[Generation]) -> None:
    """A step, and its tokens taken, as a session does."""
    engine.step()
    for generation in generations:
        generation.take()


def main() -> None:
    """Rounds of both loops in turn; shares within a round."""
    samples: dict[tuple[int, float], list[tuple[float, float]]] = {}
    for round_ in range(ROUNDS + 1):
        for streams in STREAMS:
            for device in DEVICE_MS:
                plain, overlapped = (step_ms(streams, device, overlap=overlap) for overlap in (False, True))
                if round_:
                    samples.setdefault((streams, device), []).append((plain, overlapped))
    print("ceiling: the slower of host and device. Milliseconds a step; hidden: of the faster one's time")
    for (streams, device), pairs in samples.items():
        report(streams, device, pairs)


def report(streams: int, device: float, pairs: list[tuple[float, float]]) -> None:
    """One row, and the same for machines to read."""
    in_turn, overlapped = figure([plain for plain, _ in pairs]), figure([each for _, each in pairs])
    host = in_turn.median - device
    hidden = figure([100 * (plain - each) / min(plain - device, device) for plain, each in pairs])
    print(
        f"{streams:3d} streams, device {device:4.1f}, host {host:5.2f}: ceiling {max(host, device):5.2f}"
        f"  in turn {in_turn}  overlapped {overlapped}  hidden % {hidden}"
    )
    row = {
        "streams": streams,
        "device_ms": device,
        "host_ms": host,
        "in_turn": in_turn.median,
        "overlapped": overlapped.median,
    }
    print(json.dumps({**row, "hidden_percent": hidden.median}))


if __name__ == "__main__":
    main()
