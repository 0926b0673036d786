"""A step by code of our own on the CPU: the same as PyTorch's, and to the bit the same in any company."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from inferd_runtime.kernels.attention_rule import AttentionRule
from inferd_runtime.kernels.native import steps
from inferd_runtime.kernels.native.compiler import compiled
from inferd_runtime.kernels.native.steps import LANES, SOURCE, WIDTHS, AttendedRows, StepKernels
from inferd_runtime.models.batch import Batch, Placement, Span
from inferd_runtime.models.passes.attention import GroupedLayout, lay_out
from inferd_runtime.models.passes.host_layout import HostLayout, host_kernels, proved_kernels
from inferd_runtime.models.passes.step_layout import ProjectedHeads

kernels = proved_kernels()
pytestmark = pytest.mark.skipif(kernels is None, reason="no compiler, or a processor without AVX2")
PAGE, PAGES, QUERIES, SHARED = 16, 64, 6, 2
RULES = {
    "all": AttentionRule(None, None, None),
    "scaled": AttentionRule(0.3, None, None),
    "window": AttentionRule(None, 9, None),
    "chunk": AttentionRule(None, None, None, 8),
}


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def heads_of(width: int, rule: AttentionRule, norm: bool = False) -> ProjectedHeads:
    scales = random(QUERIES + SHARED, width, seed=5) if norm else None
    return ProjectedHeads(rule, QUERIES, SHARED, width, scales, 1e-5)


class Cache:
    """The keys and values of one layer, what earlier steps wrote in place."""

    def __init__(self, width: int) -> None:
        self.keys = [random(PAGES, PAGE, SHARED, width, seed=1)]
        self.values = [random(PAGES, PAGE, SHARED, width, seed=2)]


def batch_of(
    sequences: Sequence[tuple[int, int, Sequence[int]]], placements: dict[int, Placement] | None = None
) -> Batch:
    """A batch of sequences: rows, tokens before them, pages."""
    spans, positions, slots, first = [], list[int](), list[int](), 0
    for count, start, pages in sequences:
        spans.append(Span(first, count, start, pages))
        at = range(start, start + count)
        placed = (placements or {}).get(first)
        positions += at if placed is None else placed.positions[start:].tolist()
        slots += [pages[index // PAGE] * PAGE + index % PAGE for index in at]
        first += count
    ids = np.array(positions)
    return Batch(ids, ids, np.array(slots), np.arange(first), spans, placements=placements or {})


def attended(
    layout: HostLayout | GroupedLayout, batch: Batch, heads: ProjectedHeads, states: torch.Tensor
) -> torch.Tensor:
    """What the rows attend to; each row's input depends on its position alone, so that companies can be compared."""
    at = torch.from_numpy(batch.positions)
    angles = at[:, None, None] * random(1, 1, heads.width, seed=3)
    return layout.attend_projected(0, states[at], (angles.cos(), angles.sin()), heads)


def states_of(width: int) -> torch.Tensor:
    return random(200, (QUERIES + 2 * SHARED) * width, seed=4)


def own(batch: Batch, cache: Cache, functions: StepKernels | None = kernels) -> HostLayout:
    assert functions is not None
    return HostLayout.of(functions, batch, cache.keys, cache.values, PAGE)


def without_avx512() -> StepKernels:
    library = compiled(SOURCE, defines=("-mno-avx512f",))
    assert library is not None
    return StepKernels(library)


MIXED = [
    (1, 5, [3]),
    (1, 40, [9, 4, 30]),
    (5, 30, [12, 1, 2]),
    (70, 10, [20, 21, 22, 23, 25]),
    (1, 0, [8]),
    (17, 0, [40, 41]),
]


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("width", WIDTHS)
def test_rows_attend_as_with_pytorch(width: int, rule: str, norm: bool) -> None:
    heads, batch, states = heads_of(width, RULES[rule], norm), batch_of(MIXED), states_of(width)
    caches = Cache(width), Cache(width)
    plain = attended(lay_out(batch, caches[0].keys, caches[0].values, PAGE), batch, heads, states)
    found = attended(own(batch, caches[1]), batch, heads, states)
    assert torch.allclose(plain, found, 1e-4, 1e-5)
    assert torch.allclose(caches[0].keys[0], caches[1].keys[0], 1e-5, 1e-5)
    assert torch.equal(caches[0].values[0], caches[1].values[0])


@pytest.mark.parametrize("rule", RULES)
def test_no_bit_of_a_row_depends_on_its_company(rule: str) -> None:
    heads, states = heads_of(64, RULES[rule]), states_of(64)
    batch = batch_of(MIXED)
    together = attended(own(batch, Cache(64)), batch, heads, states)
    for span in batch.spans:
        cache = Cache(64)
        for row in range(span.count):
            alone = batch_of([(1, span.start + row, span.pages)])
            found = attended(own(alone, cache), alone, heads, states)
            assert torch.equal(found[0], together[span.first + row])


def rows_from(start: int, count: int) -> AttendedRows:
    """Rows of one sequence, each of which attends to one key more than the row before it."""
    zeros, ends = torch.zeros(count, dtype=torch.int64), torch.arange(start + 1, start + count + 1)
    slots = torch.tensor([7, 3, 11, 2, 5, 1])[:, None] * PAGE + torch.arange(PAGE)
    return AttendedRows(slots.view(1, -1), zeros, zeros, ends, start + count)


@pytest.mark.parametrize(("queries", "shared"), [(6, 2), (80, 1)])
def test_no_bit_of_attention_depends_on_the_number_of_threads(
    queries: int, shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads divide the rows of a sequence into other blocks, and so do longer texts."""
    assert kernels is not None
    keys, values = random(12, PAGE, shared, 64, seed=1), random(12, PAGE, shared, 64, seed=2)
    query, rows, before = random(47, queries, 64, seed=3), rows_from(40, 47), torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(kernels.attend(query, keys, values, rows, 0.3))
    finally:
        torch.set_num_threads(before)
    monkeypatch.setattr(steps, "SCORES", 20 * LANES * 6)
    found.append(kernels.attend(query, keys, values, rows, 0.3))
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("queries", "shared"), [(2, 2), (6, 2), (14, 2), (16, 1)])
def test_a_head_attends_alone_as_beside_those_that_share_its_keys(queries: int, shared: int, width: int) -> None:
    """Keys and values are read once for several heads and rows; what a later row wrote is none of an earlier one's."""
    assert kernels is not None
    keys, values = random(12, PAGE, shared, width, seed=1), random(12, PAGE, shared, width, seed=2)
    for start, count in ((0, 1), (0, 13), (14, 5), (31, 3), (60, 14)):
        query, last = random(count, queries, width, seed=start), start + count - 1
        page = [7, 3, 11, 2, 5, 1][last // PAGE]
        keys[page, last % PAGE], values[page, last % PAGE] = float("nan"), float("nan")
        together = kernels.attend(query, keys, values, rows_from(start, count), 0.3)
        for row in range(count):
            for head in range(queries):
                one, own_keys = (
                    query[row : row + 1, head : head + 1].contiguous(),
                    slice(head // (queries // shared), None),
                )
                held = (keys[:, :, own_keys][:, :, :1].contiguous(), values[:, :, own_keys][:, :, :1].contiguous())
                alone = kernels.attend(one, *held, rows_from(start + row, 1), 0.3)
                assert torch.equal(alone[0, 0], together[row, head]) or (row == count - 1 and alone.isnan().all())
        assert together[: count - 1].isfinite().all()
        keys[page, last % PAGE], values[page, last % PAGE] = 0.5, 0.5


@pytest.mark.parametrize("width", WIDTHS)
def test_a_step_without_avx512_is_pytorch_s_too(width: int) -> None:
    heads, batch, states = heads_of(width, RULES["window"], norm=True), batch_of(MIXED), states_of(width)
    one, other = Cache(width), Cache(width)
    grouped, layout = lay_out(batch, one.keys, one.values, PAGE), own(batch, other, without_avx512())
    assert torch.allclose(attended(grouped, batch, heads, states), attended(layout, batch, heads, states), 1e-4, 1e-5)
    gates = torch.linspace(-200, 200, 64).repeat(2, 2)
    assert torch.allclose(layout.silu_mul(gates), grouped.silu_mul(gates), 1e-5, 1e-6)


def tree(start: int) -> Placement:
    """Two branches behind a chain: rows 0, 1, 3 and 0, 2."""
    positions = np.concatenate([np.arange(start), start + np.array([0, 1, 1, 2])])
    drafts = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]], bool)
    return Placement(positions, np.concatenate([np.ones((4, start), bool), drafts], 1))


@pytest.mark.parametrize("rule", RULES)
def test_the_path_of_a_tree_has_the_bits_of_a_chain(rule: str) -> None:
    heads, states, start = heads_of(64, RULES[rule]), states_of(64), 29
    batch = batch_of([(1, 40, [9, 4, 30]), (4, start, [12, 1, 2])], {1: tree(start)})
    drafted = attended(own(batch, Cache(64)), batch, heads, states)
    chain = batch_of([(3, start, [12, 1, 2])])
    plain = attended(own(chain, Cache(64)), chain, heads, states)
    assert torch.equal(drafted[[1, 2, 4]], plain)
    assert torch.equal(drafted[3], plain[1])


def test_a_tree_attends_as_with_pytorch() -> None:
    heads, states, batch = heads_of(32, RULES["window"]), states_of(32), batch_of([(4, 29, [12, 1, 3])], {0: tree(29)})
    one, other = Cache(32), Cache(32)
    plain = attended(lay_out(batch, one.keys, one.values, PAGE), batch, heads, states)
    assert torch.allclose(plain, attended(own(batch, other), batch, heads, states), 1e-4, 1e-5)


def test_what_an_adapter_makes_is_brought_within_bounds() -> None:
    heads, batch, states = heads_of(32, RULES["all"]), batch_of([(3, 0, [5])]), states_of(32)
    states[0, -1], states[1, -1], states[2, -1] = float("nan"), float("inf"), -1e30
    states[:3, QUERIES * 32] = 1e20
    caches = Cache(32), Cache(32)
    layouts = lay_out(batch, caches[0].keys, caches[0].values, PAGE), own(batch, caches[1])
    for layout in layouts:
        layout.bounded = True
        attended(layout, batch, heads, states)
    assert torch.equal(caches[0].values[0][5, :3], caches[1].values[0][5, :3])
    assert caches[1].keys[0].isfinite().all()
    assert caches[1].keys[0].abs().max() <= 3e4


def test_what_pages_held_before_is_not_seen() -> None:
    heads, batch, states = heads_of(32, RULES["all"]), batch_of([(2, 3, [5])]), states_of(32)
    clean, dirty = Cache(32), Cache(32)
    dirty.keys[0][5, 5:], dirty.values[0][5, 5:] = float("nan"), float("inf")
    assert torch.equal(
        attended(own(batch, dirty), batch, heads, states), attended(own(batch, clean), batch, heads, states)
    )


def test_far_scores_and_large_gates_stay_finite() -> None:
    heads, batch, states = heads_of(32, AttentionRule(100.0, None, None)), batch_of([(40, 0, [1, 2, 3])]), states_of(32)
    one, other = Cache(32), Cache(32)
    plain = attended(lay_out(batch, one.keys, one.values, PAGE), batch, heads, states)
    assert torch.allclose(plain, attended(own(batch, other), batch, heads, states), 1e-3, 1e-3)
    gates = torch.linspace(-200, 200, 64).repeat(2, 2)
    grouped = lay_out(batch, one.keys, one.values, PAGE)
    assert torch.allclose(own(batch, other).silu_mul(gates), grouped.silu_mul(gates), 1e-5, 1e-6)


@pytest.mark.parametrize("width", [64, 70])
def test_norms_and_activations_of_any_width(width: int) -> None:
    batch, cache = batch_of([(1, 0, [0])]), Cache(32)
    rows, weight = random(11, width), random(width, seed=9)
    layout, plain = own(batch, cache), lay_out(batch, cache.keys, cache.values, PAGE)
    assert torch.allclose(layout.rms_norm(rows, weight, 1e-5), plain.rms_norm(rows, weight, 1e-5), 1e-5, 1e-6)
    assert torch.allclose(layout.silu_mul(rows), plain.silu_mul(rows), 1e-5, 1e-6)


def test_pages_may_have_any_size() -> None:
    heads, states = heads_of(32, RULES["all"]), states_of(32)
    spans = [Span(0, 1, 30, [2, 0, 1]), Span(1, 5, 7, [4])]
    at = np.array([30, *range(7, 12)])
    batch = Batch(at, at, np.array([18, *range(55, 60)]), np.arange(6), spans)
    caches = [[random(5, 12, SHARED, 32, seed=seed) for seed in (1, 2)] for _ in range(2)]
    assert kernels is not None
    own_layout = HostLayout.of(kernels, batch, caches[0][:1], caches[0][1:], 12)
    plain = lay_out(batch, caches[1][:1], caches[1][1:], 12)
    found, wanted = (attended(layout, batch, heads, states) for layout in (own_layout, plain))
    assert torch.allclose(found, wanted, 1e-4, 1e-5)


def test_what_the_code_is_not_made_for_goes_through_pytorch() -> None:
    cache, usual = Cache(32), heads_of(32, RULES["all"])
    assert host_kernels([usual], cache.keys) is not None
    assert host_kernels([usual], [cache.keys[0].bfloat16()]) is None
    assert host_kernels([heads_of(32, AttentionRule(None, None, 30.0))], cache.keys) is None
    assert host_kernels([heads_of(48, RULES["all"])], [random(4, PAGE, SHARED, 48)]) is None
