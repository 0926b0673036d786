"""The fast driver on a device: Triton's kernels and CUDA graphs beside the reference driver and the host's sampler."""

from __future__ import annotations

import pytest
from cuda_bench import SAMPLERS, CudaBench, answered, requests_of, run
from families import FAMILIES

from inferd_runtime.engine.drivers.build import logit_difference
from inferd_runtime.kernels.suite import triton_kernels
from inferd_runtime.testing.speculation import Blind, BlindTree, Oracle, OracleTree, Wrong


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("record", [True, False], ids=["graphs", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_the_reference_drivers_with_any_draft(family: str, record: bool, name: str) -> None:
    bench = CudaBench(family, triton_kernels(), record=record, device="cuda")
    requests = answered(bench.reference, requests_of(name, 6))
    for drafters in ([None] * 6, [Oracle, OracleTree, Blind, BlindTree, Wrong, None]):
        run(bench.driver, requests, drafters)


@pytest.mark.parametrize("heads", [(6, 2), (7, 1), (4, 4)], ids=str)
def test_prompts_are_whole_with_any_group_of_heads(heads: tuple[int, int]) -> None:
    sizes = {"num_attention_heads": heads[0], "num_key_value_heads": heads[1], "hidden_size": 84}
    bench = CudaBench("llama", triton_kernels(), device="cuda", **sizes)
    assert logit_difference(bench.driver, bench.reference) <= 1e-3
