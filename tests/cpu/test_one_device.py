"""What a step computes stands on its device alone: run over tensors without numbers, whose device is not the host's.

On the CPU, where the host's memory is the device's, a number that a step makes on the host goes unnoticed. On a GPU an operation
over both is refused, and a recorded copy reads memory that is another's by then.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from inferd_runtime.engine.drivers.buckets import StepShapes
from inferd_runtime.engine.drivers.build import DriverOptions, fast_driver
from inferd_runtime.engine.drivers.captured import ResultSlot
from inferd_runtime.engine.drivers.cuda_driver import CudaDriver
from inferd_runtime.engine.sampling.device_sampling import (
    Adjusted,
    Rejecting,
    SampledRows,
    SamplingInputs,
    ScoredSequences,
    greedy_inputs,
)
from inferd_runtime.engine.scheduling.costs import _batch
from inferd_runtime.kernels.suite import reference_kernels
from inferd_runtime.kv.table import PageCopy
from inferd_runtime.models.batch import Batch
from inferd_runtime.models.loading import load
from inferd_runtime.models.passes.fused import assembled

Value = TypeVar("Value")
META = torch.device("meta")
ROWS = 40
COPIES = ("aten.copy_", "aten._to_copy", "aten.to.")
STEPS = ([1], [3, 1], [20, 2, 1])


class DeviceWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes operations over tensors of both devices, and in recordings all that touch the host's. One number may be anybody's."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = False
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        leaves = tree_leaves((args, kwargs, results))
        devices = {one.device.type for one in leaves if isinstance(one, Tensor) and one.dim()}
        mixed = len(devices) > 1 and not str(func).startswith(COPIES)
        if mixed or (self.recording and "cpu" in devices):
            lines = [
                f"{at.filename}:{at.lineno}" for at in traceback.extract_stack() if "inferd_runtime" in at.filename
            ]
            self.found.append(f"{func} over {devices} at {lines[-1:]}")
        return results


class MetaAccelerator:
    """An :class:`~inferd_runtime.engine.drivers.accelerator.Accelerator` over tensors without numbers."""

    device, processors = META, 4

    def __init__(self, watch: DeviceWatch) -> None:
        self._watch = watch

    def active(self) -> AbstractContextManager[object]:
        return nullcontext()

    def staging(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.uint8)

    def mark(self) -> Callable[[], None]:
        return lambda: None

    def settle(self) -> None:
        pass

    def record(self, body: Callable[[], Value]) -> tuple[Callable[[], None], Value]:
        self._watch.recording = True
        try:
            return lambda: None, body()
        finally:
            self._watch.recording = False

    def footprint(self, body: Callable[[], object]) -> int:
        raise NotImplementedError

    def fetch(self, parts: Iterable[Tensor], size: int) -> Callable[[], Tensor]:
        assert {part.device for part in parts} == {META}
        return lambda: torch.zeros(size, dtype=torch.uint8)

    def bring(self, rows: Tensor) -> Tensor:
        return rows.to(META)


def test_a_number_made_on_the_host_is_noticed() -> None:
    there = torch.ones(3, device=META)
    with DeviceWatch() as watch:
        MetaAccelerator(watch).record(lambda: there * torch.tensor(2.0))
        assert watch.found == []
        MetaAccelerator(watch).record(lambda: torch.arange(3).to(META))
        assert len(watch.found) == 2
        there.index_select(0, torch.arange(3))
        assert len(watch.found) == 3


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.families)], ids=["fused", "plain"])
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaDriver]:
    monkeypatch.setattr(ResultSlot, "receive", lambda self, packed: packed)
    loaded = load("tiny")
    loaded = replace(loaded, module=deepcopy(loaded.module).to(META))
    fused = None if request.param else assembled(loaded.module, loaded.probe.rules)
    options = DriverOptions(pages=64, page_size=16, most_rows=ROWS, products="kernel")
    watch = DeviceWatch()
    made = fast_driver(loaded, fused, options, reference_kernels(), MetaAccelerator(watch))
    with watch:
        yield made
    assert watch.found == []


def test_what_is_recorded_touches_no_memory_of_the_host(driver: CudaDriver) -> None:
    assert driver.record_all() == len(StepShapes(ROWS, driver.max_context).recorded())
    driver.compile_all()


def sampled_in_all_ways(batch: Batch, vocab: int) -> Iterable[SamplingInputs]:
    """Inputs with masks, penalties, log-probabilities, how sure draws are, and drafts that were sampled."""
    plain, rows, sequences = greedy_inputs(batch, vocab), len(batch.tokens), len(batch.spans)
    every = np.ones(rows, np.float32)
    yield plain
    yield replace(plain, mask_rows=np.zeros(rows, np.int32), masks=np.ones((1, plain.masks.shape[1]), np.int32))
    yield replace(plain, adjusted=Adjusted(np.arange(rows + 1, dtype=np.int32), np.zeros(rows, np.int32), every, every))
    yield replace(plain, scored=ScoredSequences(np.arange(sequences, dtype=np.int32), plain.tokens.shape[1], 3))
    if rows == sequences:
        yield replace(plain, confident=True)
    counts = plain.lengths.astype(np.int64)
    if counts.min() > 0 or sequences == 1:
        tokens = np.zeros((sequences, max(1, counts.max())), np.int64)
        likely = np.full((*tokens.shape, vocab), 1 / vocab, np.float32)
        drawn = Rejecting(np.arange(sequences), counts + 1, counts, tokens, likely)
        yield replace(plain, lengths=np.zeros(sequences, np.int32), rejecting=drawn)


def test_steps_mix_no_devices(driver: CudaDriver) -> None:
    for counts, hidden in ([1], 0), ([1, 1], 1), ([20, 2, 1], 0), ([4, 3], 1):
        batch = replace(_batch(driver, counts, 7), hidden_rows=np.arange(hidden))
        for inputs in sampled_in_all_ways(batch, driver.vocab_size):
            driver.launch(batch, inputs).slot.taken = False
            rows = SampledRows(inputs.rows, inputs.host_rows, inputs.tokens.shape[1])
            driver.begin(batch, rows).sample(inputs).slot.taken = False


def test_the_reference_and_the_caches_operations_mix_no_devices(driver: CudaDriver) -> None:
    for counts in STEPS:
        logits, _ = driver.plain.compute(_batch(driver, counts, 7))
        assert logits.device == META
    for moved in (driver, driver.plain):
        moved.move_tokens([1, 2], [3, 4])
        moved.write_pages([1, 2], np.zeros((2, driver.page_bytes), np.uint8))
    driver.start_reading([1, 2, 3])


def test_moves_and_copies_of_the_cache_do_not_wait_for_the_device(
    driver: CudaDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From memory that a device does not know it copies once all that is queued is done, and the host waits for that."""
    monkeypatch.setattr(torch, "tensor", lambda *given, **named: pytest.fail("numbers from pageable memory"))
    driver.move_tokens([1, 2], [3, 4])
    driver.copy_pages([PageCopy(1, 2)])
    driver.start_reading(range(40))
    driver.write_pages([1, 2], np.zeros((2, driver.page_bytes), np.uint8))
