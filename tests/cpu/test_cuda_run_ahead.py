"""Running ahead on the fast driver: forward pass and sampling are two recorded parts, and what lies between them is in time."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pytest
from cuda_bench import CudaBench
from run_ahead_cases import BYTES, check_behind_drafts, check_the_same

from inferd_runtime.engine.drivers.cuda_driver import CudaDriver
from inferd_runtime.engine.drivers.staging import EntryStaging
from inferd_runtime.kernels.suite import reference_kernels
from inferd_runtime.testing.recorded_host import RecordedHost


@pytest.mark.parametrize("record", [True, False], ids=["recorded", "eager"])
def test_texts_of_all_kinds_are_the_same_run_ahead_of_or_not(record: bool) -> None:
    bench = CudaBench("llama", reference_kernels(), vocab_size=BYTES, record=record)
    check_the_same(bench)
    check_behind_drafts(bench)


def test_rows_move_where_some_steps_take_the_reference_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those do that have a tenant's adapter among them."""
    turns = cycle([False, True, False, False, True, True])
    monkeypatch.setattr(CudaDriver, "_needs_reference", lambda driver, batch: next(turns))
    check_behind_drafts(CudaBench("llama", reference_kernels(), vocab_size=BYTES))


def test_penalties_of_any_size_arrive_as_they_are_and_aligned() -> None:
    """Kernels are compiled for columns that begin at multiples of 16 bytes: others would be compiled while somebody waits."""
    staging, chance = EntryStaging(RecordedHost()), np.random.default_rng(1)
    for size in (0, 1, 5, 4096, 100_000, 3):
        columns = [
            chance.integers(0, 1 << 20, size + 1).astype(np.int32),
            chance.integers(0, 1 << 20, size).astype(np.int32),
            chance.random(size).astype(np.float32),
        ]
        arrived = staging.upload(columns)
        for column, there in zip(columns, arrived, strict=True):
            assert np.array_equal(there.numpy(), column)
            assert there.storage_offset() * there.element_size() % 16 == 0
