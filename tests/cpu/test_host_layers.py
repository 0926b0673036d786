"""All layers at once by native code: to the bit what the layers compute one after the other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from families import VOCAB, make
from torch import nn

from inferd_runtime.engine.drivers.torch_driver import TorchDriver
from inferd_runtime.engine.job import Planned
from inferd_runtime.engine.prepare import prepare
from inferd_runtime.engine.sequences.positions import tree_placement
from inferd_runtime.engine.stages import Work
from inferd_runtime.kv.pool import PagePool
from inferd_runtime.kv.table import PageTable
from inferd_runtime.models.checks.probe import attach
from inferd_runtime.models.passes.fused import FusedPass, fuse
from inferd_runtime.models.passes.host_layers import host_layers
from inferd_runtime.models.passes.host_layout import proved_kernels
from inferd_runtime.models.weights.held import HoldingPlan, hold
from inferd_runtime.models.weights.host_products import Way

kernels = proved_kernels()
pytestmark = pytest.mark.skipif(kernels is None, reason="no compiler, or a processor without AVX2")
WIDE = {"hidden_size": 96, "intermediate_size": 160, "head_dim": 32, "num_attention_heads": 6}
SEVERAL_KINDS = {
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "sliding_window": 12,
    "use_sliding_window": True,
}
CASES = {"llama": {}, "qwen2": {}, "qwen3": {}, "mistral": {}, "qwen3 of two kinds": SEVERAL_KINDS}  # fmt: skip


class Bench:
    """One model behind two drivers, whose layers run at once and one after the other."""

    def __init__(self, case: str, way: str = "blocks8") -> None:
        model = make(case.split()[0], **WIDE, **CASES[case])
        for name, bias in model.named_parameters():
            if name.endswith("bias"):
                nn.init.normal_(bias)
        probed = attach(model, case)
        fused = fuse(model, probed.kv, probed.rules)
        assert fused is not None
        self.fused = hold(fused, model, HoldingPlan.uniform(fused, Way(way)))
        self.at_once, self.in_turn = (
            TorchDriver(self.fused, torch.ones(1), probed.kv, vocab_size=VOCAB, max_context=256, pages=64, page_size=4)
            for _ in range(2)
        )
        self.in_turn.compute_by(self.fused)
        self.pool = PagePool(64, 4)

    def check(self, plan: list[Planned]) -> None:
        """Both drivers have the same logits and caches, to the bit."""
        batch = prepare(plan, 4)
        logits = [torch.from_numpy(driver.forward(batch).logits) for driver in (self.at_once, self.in_turn)]
        assert torch.equal(*logits)
        assert torch.isfinite(logits[0]).all()
        pages = [torch.from_numpy(driver.read_pages(range(64))) for driver in (self.at_once, self.in_turn)]
        assert torch.equal(*pages)


@pytest.fixture(scope="module", params=CASES)
def bench(request: pytest.FixtureRequest) -> Bench:
    bench = Bench(request.param)
    assert bench.at_once._at_once is not bench.fused
    return bench


def planned(bench: Bench, table: PageTable, work: Work) -> Planned:
    table.reserve(len(work.tokens))
    return Planned(None, work, table)  # type: ignore[arg-type]


@pytest.mark.parametrize("threads", [1, 2])
def test_layers_at_once_have_the_bits_of_layers_in_turn(bench: Bench, threads: int) -> None:
    """Prompts, single rows and trees of drafts, behind each other in one batch."""
    before, tables = torch.get_num_threads(), [PageTable(bench.pool) for _ in range(3)]
    try:
        torch.set_num_threads(threads)
        bench.check([planned(bench, table, Work([5 + at] * 13, 1)) for at, table in enumerate(tables)])
        for table in tables:
            table.advance(13)
        tree = Work([3, 4, 5, 6, 7], 5, placement=tree_placement(13, 1, [-1, 0, 0, 2]))
        one, prompt = Work([9], 1), Work([8] * 30, 30)
        works = zip(tables, (tree, one, prompt), strict=True)
        bench.check([planned(bench, table, work) for table, work in works])
        bench.check([planned(bench, tables[1], Work([11], 1))])
    finally:
        torch.set_num_threads(before)
        for table in tables:
            table.release()


def test_what_the_native_code_does_not_know_runs_in_turn() -> None:
    bench = Bench("llama", "packed")
    assert bench.at_once._at_once is bench.fused
    assert kernels is not None
    blocks = Bench("llama")
    caches = blocks.at_once._keys, blocks.at_once._values
    layers = blocks.fused.layers
    assert host_layers(kernels, layers, *caches) is not None
    assert host_layers(kernels, [replace(layers[0], eps=0.1), *layers[1:]], *caches) is None
    assert (
        host_layers(kernels, [replace(layers[0], input_norm=layers[0].input_norm.half()), *layers[1:]], *caches) is None
    )


def test_a_pass_over_other_layers_does_not_run_those_before(bench: Bench) -> None:
    """An adapter's layers are others than those that run at once."""
    run = bench.at_once._at_once
    assert isinstance(run, FusedPass)
    assert run._together is not None
    assert run.with_layers(run.layers)._together is None
