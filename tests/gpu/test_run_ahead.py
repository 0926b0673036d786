"""Running ahead on a device: masks and penalties that arrive between two graphs are in time, carried tokens right."""

from __future__ import annotations

import pytest
from cuda_bench import CudaBench
from run_ahead_cases import BYTES, check_behind_drafts, check_the_same

from inferd_runtime.kernels.suite import triton_kernels


@pytest.mark.parametrize("record", [True, False], ids=["graphs", "eager"])
def test_texts_of_all_kinds_are_the_same_run_ahead_of_or_not(record: bool) -> None:
    bench = CudaBench("llama", triton_kernels(), vocab_size=BYTES, record=record, device="cuda")
    check_the_same(bench)
    check_behind_drafts(bench)
