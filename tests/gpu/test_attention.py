"""Attention over pages on a device, at sizes that are served, against the reference in float64."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import pytest
import torch
from attention_cases import PLAIN, Case, Sequenced, Shape, build, chain, check_attention, expected, on, tree
from torch import Tensor
from torch.utils._pytree import tree_leaves

from inferd_runtime.kernels import attention
from inferd_runtime.kernels.attention_rule import AttentionRule
from inferd_runtime.kernels.triton.attention import paged_attention

LARGE = Shape(heads=32, shared=8, width=128, value_width=128, page_size=16, dtype=torch.bfloat16, cache=torch.bfloat16)
BRANCHES = [-1, 0, 1, -1, 3, 4, 0]
DECODE = [chain(1023, 1), chain(4095, 1), chain(8191, 1), chain(0, 1), chain(5000, 1)]
DRAFTS = [tree(8000, 8, BRANCHES), chain(1020, 8), tree(3001, 3, [-1, -1]), chain(12, 1)]
PROMPT = [chain(0, 300), chain(1900, 130), chain(700, 1)]
DTYPES = [
    (torch.bfloat16, torch.bfloat16), (torch.float16, torch.float16), (torch.float32, torch.float32),
    (torch.bfloat16, torch.float8_e4m3fn), (torch.float16, torch.float8_e4m3fn), (torch.float32, torch.bfloat16),
]  # fmt: skip


def exact(case: Case, rule: AttentionRule) -> Tensor:
    """The reference in float64, on the CPU; itself held against a loop over keys in ``tests/cpu``."""
    query, keys, values = (states.cpu().double() for states in (case.query, case.keys, case.values))
    sinks = None if rule.sinks is None else rule.sinks.cpu()
    return attention.paged_attention(query, keys, values, on(case.rows, "cpu"), replace(rule, sinks=sinks))


def check(shape: Shape, sequences: list[Sequenced], rule: AttentionRule = PLAIN, seed: int = 0) -> None:
    case = build(shape, sequences, seed, "cuda")
    check_attention(paged_attention, case, rule, exact(case, rule))


@pytest.mark.parametrize(("dtype", "cache"), DTYPES)
@pytest.mark.parametrize("split_keys", [128, 1024, 16384])
@pytest.mark.parametrize(("sequences", "tile_rows"), [(DECODE, 1), (DRAFTS, 8)], ids=["decode", "drafts"])
def test_decoding_and_drafts(
    sequences: list[Sequenced], tile_rows: int, split_keys: int, dtype: torch.dtype, cache: torch.dtype
) -> None:
    check(replace(LARGE, dtype=dtype, cache=cache, tile_rows=tile_rows, split_keys=split_keys, spare=2), sequences)


@pytest.mark.parametrize("tile_rows", [1, 16])
def test_decode_rows_beside_prompts(tile_rows: int) -> None:
    """Two launches, and splits of both in one scratch."""
    few = [chain(5000, 1), chain(12, 1)] if tile_rows == 1 else [tree(8000, 8, BRANCHES), chain(5000, 1)]
    check(replace(LARGE, tile_rows=tile_rows, prompt_rows=32, spare=2), [*few, chain(6000, 40), chain(0, 300)])


@pytest.mark.parametrize(("dtype", "cache"), DTYPES)
@pytest.mark.parametrize("tile_rows", [16, 64, 128])
def test_prompts(tile_rows: int, dtype: torch.dtype, cache: torch.dtype) -> None:
    check(replace(LARGE, dtype=dtype, cache=cache, tile_rows=tile_rows, spare=3), PROMPT)


@pytest.mark.parametrize("width", [64, 80, 96, 256])
@pytest.mark.parametrize("tile_rows", [1, 8, 64])
def test_widths(width: int, tile_rows: int) -> None:
    shape = replace(LARGE, heads=8, shared=4, width=width, value_width=width, tile_rows=tile_rows, split_keys=1024)
    check(shape, [chain(1500, 70), tree(900, 8, BRANCHES)])


@pytest.mark.parametrize("heads", [1, 5, 7, 12, 16])
@pytest.mark.parametrize("tile_rows", [1, 8, 64])
def test_groups(heads: int, tile_rows: int) -> None:
    check(replace(LARGE, heads=2 * heads, shared=2, tile_rows=tile_rows), [chain(1100, 67), chain(900, 1)])


@pytest.mark.parametrize("tile_rows", [1, 8, 32])
def test_rules(tile_rows: int) -> None:
    sinks = torch.linspace(-1, 3, 32, dtype=torch.bfloat16, device="cuda")
    for number, (window, softcap, chunk, sink) in enumerate(
        product((None, 700), (None, 30.0), (None, 512), (None, sinks))
    ):
        shape = replace(LARGE, tile_rows=tile_rows, split_keys=256 << 3 * (number % 2), spare=1)
        check(
            shape, [tree(2040, 20, BRANCHES), chain(1300, 40)], AttentionRule(0.1, window, softcap, chunk, sink), number
        )


def test_a_tree_of_64_nodes() -> None:
    check(replace(LARGE, tile_rows=64), [tree(2000, 65, [-1, *range(31), -1, *range(32, 63)])])


def test_what_the_interpreter_runs_gives_the_same_here() -> None:
    for split_keys, tile_rows in product((16, 1024), (1, 4)):
        shape = Shape(tile_rows=tile_rows, split_keys=split_keys, spare=1, width=24, heads=6)
        for rule in (PLAIN, AttentionRule(0.3, 6, 3.0, None, torch.linspace(-1, 2, 6, device="cuda"))):
            case = build(shape, [chain(0, 1), tree(9, 6, [-1, 0, 0, 1, -1]), chain(0, 7), chain(21, 1)], device="cuda")
            check_attention(paged_attention, case, rule, expected(case, rule))


def test_every_float8_is_read_as_torch_reads_it() -> None:
    codes = torch.arange(256, dtype=torch.uint8, device="cuda").view(16, 1, 1, 16).view(torch.float8_e4m3fn)
    case = build(Shape(heads=1, shared=1, page_size=1), [chain(0, 1)] * 16, device="cuda")
    rows = replace(case.rows, pages=torch.arange(16, dtype=torch.int32, device="cuda")[:, None])
    out = paged_attention(case.query, torch.zeros_like(codes), codes, rows, PLAIN).view(-1)
    wanted = codes.float().view(-1)
    assert torch.equal(out.isnan(), wanted.isnan())
    assert torch.equal(out.nan_to_num(), wanted.nan_to_num())


@pytest.mark.parametrize("split_keys", [512, 4096])
def test_a_row_gives_the_same_bits_whatever_stands_beside_it(split_keys: int) -> None:
    """A draft's row, as far as block sizes are the same: alone in its tile, and with seven others."""
    case = build(replace(LARGE, tile_rows=8, split_keys=split_keys), [chain(3000, 8)], device="cuda")
    whole = paged_attention(case.query, case.keys, case.values, case.rows, PLAIN)
    for count in range(1, 8):
        counts, lengths = torch.full_like(case.rows.counts, count), case.rows.lengths - 8 + count
        slots = torch.where(torch.arange(8, device="cuda") < count, case.rows.slots, -1)
        fewer = replace(case.rows, slots=slots, counts=counts, lengths=lengths, tails=lengths)
        part = paged_attention(case.query, case.keys, case.values, fewer, PLAIN)
        assert torch.equal(part[:count], whole[:count])


def test_a_captured_launch_serves_other_lengths() -> None:
    """Only values change: lengths, rows per sequence, pages, how keys are cut. What else is in a step changes no bit of a row."""
    shape = replace(LARGE, tile_rows=2)
    batches = [[chain(2000, 2), chain(10, 1)], [chain(7, 2), chain(4000, 1)], [chain(0, 1), chain(4001, 2)]]
    cases = [padded(build(shape, batch, number, "cuda")) for number, batch in enumerate(batches)]
    pages = max(case.keys.shape[0] for case in cases)
    width = max(case.rows.pages.shape[1] for case in cases)
    cases = [_widened(case, pages, width) for case in cases]
    held = _widened(padded(build(shape, batches[0], 9, "cuda")), pages, width)
    paged_attention(held.query, held.keys, held.values, held.rows, PLAIN)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = paged_attention(held.query, held.keys, held.values, held.rows, PLAIN)
    for case in cases:
        for mine, its in zip(tree_leaves(_parts(held)), tree_leaves(_parts(case)), strict=True):
            if isinstance(mine, Tensor):
                mine.copy_(its)
        graph.replay()
        check_attention(lambda *given: out, case, PLAIN, exact(case, PLAIN))
        assert torch.equal(out, paged_attention(case.query, case.keys, case.values, case.rows, PLAIN))


def padded(case: Case, entries: int = 24, lines: int = 40) -> Case:
    """In tables of one size."""

    def longer(one: Tensor, fill: int) -> Tensor:
        return torch.nn.functional.pad(one, (0, entries - len(one)), value=fill)

    splits = case.rows.splits
    tiles = tuple(
        each._replace(
            sequences=longer(each.sequences, -1), starts=longer(each.starts, 0), splits=longer(each.splits, 0)
        )
        for each in case.rows.tiles
    )
    longest = splits._replace(rows=longer(splits.rows, -1), lines=lines)
    return replace(case, rows=replace(case.rows, tiles=tiles, splits=longest))


def _parts(case: Case) -> list[object]:
    return [case.query, case.keys, case.values, *(getattr(case.rows, name) for name in case.rows.__slots__)]


def _widened(case: Case, pages: int, width: int) -> Case:
    """In a cache of that many pages, with page tables of that width."""
    caches = (torch.cat([c, c.new_zeros(pages - len(c), *c.shape[1:])]) for c in (case.keys, case.values))
    tables = case.rows.pages
    more = tables.new_zeros(len(tables), width - tables.shape[1])
    return Case(case.query, *caches, replace(case.rows, pages=torch.cat([tables, more], 1)), case.sequences)


def test_far_pages_are_addressed_in_64_bits() -> None:
    """A cache of more than 2 ** 31 numbers, of which one page is used."""
    pages = 2**31 // (16 * 8 * 128) + 8
    if torch.cuda.mem_get_info()[0] < 11 << 30:
        pytest.skip("needs 9 GiB of device memory")
    case = build(LARGE, [chain(3, 1)], device="cuda")
    rows = replace(case.rows, pages=torch.tensor([[pages - 1]], dtype=torch.int32, device="cuda"))
    caches = []
    for small in (case.keys, case.values):
        cache = torch.zeros(pages, *small.shape[1:], dtype=small.dtype, device="cuda")
        cache[-1] = small[int(case.rows.pages[0, 0])]
        caches.append(cache)
    out = paged_attention(case.query, *caches, rows, PLAIN)
    assert torch.equal(out, paged_attention(case.query, case.keys, case.values, case.rows, PLAIN))


def test_nothing_is_compiled_for_how_many_rows_or_keys_there_are() -> None:
    """Steps of every size and length share one binary, so that no step waits for a compiler."""
    from inferd_runtime.kernels.triton.attention_kernel import attend

    cache = attend.device_caches[torch.cuda.current_device()][0]
    check(replace(LARGE, tile_rows=8), [chain(40, 8)])
    before = len(cache)
    for first, second in pairwise((1, 2, 15, 16, 17, 33)):
        check(replace(LARGE, tile_rows=8), [chain(160 * second, first), *[chain(5, 1)] * second])
    assert len(cache) == before
