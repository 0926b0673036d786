"""What a server does on a device: `build_driver` of a loaded model, every shape recorded, and each recording against kernels
launched one by one.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from stub_soak import soak
from triton.runtime.jit import JITFunction

from inferd_runtime.engine.drivers.buckets import StepShapes
from inferd_runtime.engine.drivers.build import DriverOptions, build_driver, step_bytes
from inferd_runtime.engine.drivers.cuda_driver import CudaDriver
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.scheduling.costs import _batch
from inferd_runtime.kernels.rows import FEW_ROWS
from inferd_runtime.models.batch import Batch
from inferd_runtime.models.loading import load
from inferd_runtime.speculation.times import StepTimes

OPTIONS = DriverOptions(pages=700, page_size=16, most_rows=300)
CLOSE = {torch.float32: 1e-3, torch.bfloat16: 0.25}
COUNTS = (
    [1], [1] * 3, [1] * 40, [1] * 200, [2, 1], [5, 3, 1], [16], [9] * 8, [2] * 100, [100, *[1] * 20], [100, 17, 3, 1],
    [200, 1, 40],
)  # fmt: skip


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def drivers(request: pytest.FixtureRequest) -> Iterator[tuple[CudaDriver, CudaDriver]]:
    """One that has recorded everything, and one that launches kernel by kernel."""
    loaded = load("tiny", device="cuda", dtype=request.param)
    built = [
        build_driver(loaded, DriverOptions(OPTIONS.pages, OPTIONS.page_size, OPTIONS.most_rows, graphs=graphs))
        for graphs in (True, False)
    ]
    assert all(isinstance(driver, CudaDriver) for driver in built), (
        "the kernels were replaced by the reference: see the log"
    )
    yield built[0], built[1]  # type: ignore[misc]
    del built
    gc.collect()
    torch.cuda.empty_cache()


def test_every_shape_is_recorded(drivers: tuple[CudaDriver, CudaDriver]) -> None:
    assert drivers[0].record_all() == len(StepShapes(OPTIONS.most_rows, drivers[0].max_context).recorded())
    assert drivers[1].record_all() == 0


@pytest.mark.parametrize("counts", COUNTS, ids=lambda counts: f"{len(counts)}x{max(counts)}")
def test_a_recorded_step_gives_the_logits_of_its_kernels(
    drivers: tuple[CudaDriver, CudaDriver], counts: list[int]
) -> None:
    dtype = drivers[0].plain.compute(_batch(drivers[0], [1], 0))[0].dtype
    for context in (0, 7, 33):
        batch = last_rows(_batch(drivers[0], counts, context))
        assert drivers[0]._shapes.of(counts, len(batch.logit_rows)) is not None
        data = np.zeros((OPTIONS.pages, drivers[0].page_bytes), np.uint8)
        for driver in drivers:
            driver.write_pages(range(OPTIONS.pages), data)
        replayed, launched = (driver.forward(batch).logits for driver in drivers)
        assert np.isfinite(replayed).all()
        assert np.abs(replayed - launched).max() <= CLOSE.get(dtype, CLOSE[torch.bfloat16])


def last_rows(batch: Batch) -> Batch:
    """Of prompts only the last row is read, as the engine does; of a driver that samples none else comes to the host."""
    read = [
        row
        for span in batch.spans
        for row in range(span.first + (span.count - 1 if span.count > FEW_ROWS else 0), span.first + span.count)
    ]
    return replace(batch, logit_rows=np.asarray(read))


def compiled() -> int:
    """Kernels that Triton has compiled or loaded in this process."""
    device = torch.cuda.current_device()
    return sum(len(one.device_caches[device][0]) for one in gc.get_objects() if isinstance(one, JITFunction))


def test_a_mixed_soak_compiles_nothing_behind_the_load_and_recorded_steps_bring_the_same_tokens() -> None:
    """Prompts of many lengths, grammar, penalties, drafts, trees, sampled rows; nor does it take more memory the second time."""
    loaded, found = load("tiny", device="cuda", dtype="float32"), []
    for graphs in (True, False):
        driver = build_driver(loaded, replace(OPTIONS, graphs=graphs))
        assert isinstance(driver, CudaDriver)
        engine = Engine(driver, EngineOptions(token_budget=192, times=StepTimes.linear(1.0, 1e-6)))
        before = compiled()
        found.append(soak(engine, loaded))
        assert compiled() == before
        taken = torch.cuda.memory_reserved()
        assert soak(engine, loaded) == found[-1]
        assert torch.cuda.memory_reserved() <= taken + (32 << 20)
    assert found[0] == found[1]


@pytest.mark.skipif(
    "PYTEST_XDIST_WORKER" in os.environ, reason="others take and give back memory of the device beside it"
)
def test_memory_of_steps_is_measured_and_given_back() -> None:
    loaded = load("tiny", device="cuda")
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    assert step_bytes(loaded, OPTIONS) > 0
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before + (64 << 20)
