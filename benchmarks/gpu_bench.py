"""What the sections of ``gpu.py`` share: the device or its stand-in, sizes, clocks, time budgets, and the report."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar

import torch
from measure import Figure, figure, interleaved

from inferd_runtime.engine.drivers.accelerator import Accelerator, CudaAccelerator
from inferd_runtime.kernels.suite import KernelSuite, reference_kernels, triton_kernels
from inferd_runtime.testing.recorded_host import RecordedHost

T = TypeVar("T")
Call = Callable[[], object]
MOST_REPEATS = 50
SAMPLE_SECONDS = 0.01
"""A sample repeats its call for about that long."""


@dataclass(frozen=True)
class ModelShape:
    """A Llama with random weights."""

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    vocab: int
    context: int

    @property
    def width(self) -> int:
        """Elements of a head."""
        return self.hidden // self.heads


@dataclass(frozen=True)
class Sizes:
    """What is measured. ``sampled``: batch and k. ``rejected``: the same, for the rejection verifier."""

    model: ModelShape
    dtype: torch.dtype
    pages: int
    most_rows: int
    batches: Sequence[int]
    prompt: int
    new_tokens: int
    prefills: Sequence[int]
    generate_batches: Sequence[int]
    generate_batch_batches: Sequence[int]
    vocabulary: int
    sampled: Sequence[tuple[int, int]]
    rejected: Sequence[tuple[int, int]]
    reject_vocabulary: int
    contexts: Sequence[int]
    attended: Sequence[int]
    verified: Sequence[int]
    verify_contexts: Sequence[int]
    copied: int
    equality: int
    step_batches: Sequence[int]
    profiled: int
    step_repeats: int
    copy_bytes: int
    product: int
    cold_bytes: int


FULL = Sizes(
    model=ModelShape(32, 4096, 14336, 32, 8, 128256, 131072), dtype=torch.bfloat16, pages=5120, most_rows=4096,
    batches=(1, 8, 32, 64, 128, 256), prompt=64, new_tokens=64, prefills=(512, 2048, 4096),
    generate_batches=(1, 8, 64), generate_batch_batches=(8, 64, 256),
    vocabulary=151_936, sampled=((1, 1), (8, 1), (8, 8), (64, 4)),
    rejected=((1, 4), (8, 4), (32, 4), (1, 8), (8, 8), (32, 8)), reject_vocabulary=32_000,
    contexts=(1024, 4096, 16384, 65536), attended=(1, 8), verified=(1, 2, 4, 8, 15, 16), verify_contexts=(4096, 16384),
    copied=96, equality=64, step_batches=(1, 64), profiled=16, step_repeats=10,
    copy_bytes=4 << 30, product=8192, cold_bytes=256 << 20,
)  # fmt: skip
SMOKE = Sizes(
    model=ModelShape(2, 64, 96, 4, 2, 320, 512), dtype=torch.bfloat16, pages=96, most_rows=1100,
    batches=(1, 2), prompt=12, new_tokens=6, prefills=(24,),
    generate_batches=(1,), generate_batch_batches=(2,),
    vocabulary=300, sampled=((1, 1), (2, 2)), rejected=((1, 2), (2, 2)), reject_vocabulary=64,
    contexts=(32, 48), attended=(1, 2), verified=(1, 8, 16), verify_contexts=(32,),
    copied=12, equality=8, step_batches=(1, 2), profiled=2, step_repeats=1,
    copy_bytes=1 << 16, product=64, cold_bytes=1 << 12,
)  # fmt: skip
"""The same program on the CPU within seconds. Its figures say nothing."""


@dataclass(frozen=True)
class Bench:
    """The device, its kernels, and how much is measured."""

    device: torch.device
    accelerator: Accelerator
    kernels: KernelSuite
    sizes: Sizes
    rounds: int

    @property
    def on_device(self) -> bool:
        """Whether there is a CUDA device, and no stand-in."""
        return self.device.type == "cuda"

    def synchronize(self) -> None:
        """Wait until everything queued is done."""
        if self.on_device:
            torch.cuda.synchronize(self.device)

    def timed(self, call: Call, repeats: int = 1) -> float:
        """Seconds of a call, by the device's clock around ``repeats`` of them in a row."""
        if not self.on_device:
            return wall(self, call, repeats)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(repeats):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / repeats

    def recorded(self, calls: Sequence[Call]) -> Callable[[], None]:
        """All calls as one CUDA graph, in a pool of memory of its own: what cannot be recorded spoils no other. Raises
        RuntimeError for that.
        """
        accelerator = CudaAccelerator(self.device) if self.on_device else RecordedHost()
        kept: list[object] = []

        def body() -> None:
            kept[:] = [call() for call in calls]

        with torch.inference_mode():
            replay, _ = accelerator.record(body)

        def again(held: object = kept) -> None:
            replay()

        return again

    def arm(self, call: Call, calls: int = 1) -> Callable[[], float]:
        """Seconds of one of the ``calls`` that ``call`` makes, a sample each time; repeated as often as a sample has time for."""
        with torch.inference_mode():
            call()
            self.synchronize()
            once = self.timed(call)
        repeats = max(1, min(MOST_REPEATS, int(SAMPLE_SECONDS / max(once, 1e-7))))

        def sample() -> float:
            with torch.inference_mode():
                return self.timed(call, repeats) / calls

        return sample

    def graph_arm(self, calls: Sequence[Call]) -> Callable[[], float]:
        """Replays of all calls in one graph."""
        return self.arm(self.recorded(calls), len(calls))

    def eager_arm(self, calls: Sequence[Call]) -> Callable[[], float]:
        """The calls in turn, launched one by one."""
        turn = cycle(calls)
        return self.arm(lambda: next(turn)())

    def copies(self, size: int, most: int = 32) -> int:
        """How many inputs of so many bytes it takes that none of them is still in the device's cache at its next turn; at most
        ``most``, so that very small ones are.
        """
        return max(2, min(most, -(-self.sizes.cold_bytes // max(1, size))))


def wall(bench: Bench, call: Call, repeats: int = 1) -> float:
    """Seconds of a call by the host's clock, until the device has done it."""
    bench.synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    bench.synchronize()
    return (time.perf_counter() - begin) / repeats


def cuda_bench() -> Bench:
    """The first CUDA device."""
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    return Bench(device, CudaAccelerator(device), triton_kernels(), FULL, 5)


def smoke_bench() -> Bench:
    """The CPU, the kernels' references, and a stand-in for what records."""
    host = RecordedHost()
    return Bench(host.device, host, reference_kernels(), SMOKE, 1)


@dataclass
class Report:
    """Figures by name (medians), their samples, what was ``left_out`` for lack of time, and what ``failed``."""

    folder: Path | None
    header: dict[str, Any]
    figures: dict[str, float] = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    tables: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, samples: Sequence[float], scale: float = 1.0) -> Figure:
        """Keep a figure and its samples, each times ``scale``."""
        kept = self.samples[name] = [value * scale for value in samples]
        found = figure(kept)
        self.figures[name] = float(f"{found.median:.5g}")
        return found

    def value(self, name: str, value: float) -> float:
        """Keep a figure that was not sampled."""
        self.figures[name] = float(f"{value:.5g}")
        return value

    def attempt(self, what: str, call: Callable[[], T]) -> T | None:
        """What a call brings; None where it fails, which costs no other figure."""
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - a library or a device may raise anything, and time on it is short
            self.failed[what] = f"{type(error).__name__}: {str(error)[:500]}"
            print(f"  FAILED {what}: {self.failed[what]}")
            self.tables.setdefault("tracebacks", {})[what] = traceback.format_exc()
            return None

    def save(self) -> None:
        """Write everything so far to the folder."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        every = {**self.header, "figures": self.figures, "samples": self.samples, "tables": self.tables}
        every |= {"left_out": self.left_out, "failed": self.failed}
        (self.folder / "gpu.json").write_text(json.dumps(every, indent=1))

    def line(self) -> str:
        """One line of JSON."""
        rest = {"left_out": self.left_out, "failed": sorted(self.failed)}
        return json.dumps({**self.header, **self.figures, **rest})


class Budget:
    """The time of one section."""

    def __init__(self, report: Report, section: str, seconds: float) -> None:
        self._report = report
        self._section = section
        self._end = time.perf_counter() + seconds

    def allows(self, what: str) -> bool:
        """Whether there is time for another point; names it in the report where there is not. What came before is saved."""
        self._report.save()
        if time.perf_counter() < self._end:
            return True
        self._report.left_out.append(f"{self._section}: {what}")
        print(f"  left out, the section's time is up: {what}")
        return False


def compare(
    bench: Bench, report: Report, arms: Mapping[str, Callable[[], float] | None], prefix: str, unit: str = "us"
) -> dict[str, list[float]]:
    """Seconds of the arms (None: there is none), interleaved; printed and reported as ``prefix_arm_unit``."""
    found = interleaved({name: arm for name, arm in arms.items() if arm is not None}, bench.rounds)
    scale = {"us": 1e6, "ms": 1e3}[unit]
    for name, samples in found.items():
        print(f"  {prefix} {name:<22}{report.add(f'{prefix}_{name}_{unit}', samples, scale)} {unit}")
    return found
