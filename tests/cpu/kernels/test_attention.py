"""Attention over pages: the reference and, in Triton's interpreter, the kernel against a loop over rows and keys."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import product

import pytest
import torch
from attention_cases import (
    PLAIN,
    Attention,
    Case,
    Sequenced,
    Shape,
    build,
    chain,
    check_attention,
    error,
    expected,
    on,
    one_split,
    tree,
)
from hypothesis import given, settings, strategies as st
from tiers import examples
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from inferd_runtime.kernels.attention import paged_attention
from inferd_runtime.kernels.attention_rule import AttentionRule
from inferd_runtime.kernels.rows import PagedRows
from inferd_runtime.kernels.triton import attention as triton_kernels
from inferd_runtime.kernels.triton.attention import (
    AttentionBlocks,
    Device,
    choose_blocks,
    fits_loop,
    launches,
    paged_attention as triton_attention,
)

BOTH = pytest.mark.parametrize("attend", [paged_attention, triton_attention], ids=["torch", "triton"])
MIXED = [chain(0, 1), tree(9, 6, [-1, 0, 0, 1, -1]), chain(0, 7), chain(21, 1)]
HALF = (torch.bfloat16, torch.float16)


def rules(heads: int, windows: tuple[int | None, ...] = (None, 6), scaling: float | None = None) -> list[AttentionRule]:
    """Every combination of what a rule can ask for."""
    sinks = torch.linspace(-1, 2, heads)
    everything = product(windows, (None, 3.0), (None, 8), (None, sinks))
    return [AttentionRule(scaling, window, softcap, chunk, sink) for window, softcap, chunk, sink in everything]


@pytest.mark.parametrize("sequences", [MIXED, [tree(30, 70, range(-1, 63)), chain(63, 2)]], ids=["mixed", "64 nodes"])
def test_the_reference_gives_what_the_words_say_under_every_rule(sequences: list[Sequenced]) -> None:
    for number, rule in enumerate(rules(6, scaling=0.3)):
        shape = Shape(heads=6, width=10, value_width=7, tile_rows=1 << number % 4, spare=number % 2)
        check_attention(paged_attention, build(shape, sequences, seed=number), rule)


def test_the_reference_gives_what_torch_gives_for_one_sequence() -> None:
    case = build(Shape(tile_rows=8, heads=4, shared=2, width=24, value_width=24), [chain(11, 8)])
    pages = case.rows.pages[0, :5].long()
    k, v = (cache[pages].flatten(0, 1)[:19].transpose(0, 1) for cache in (case.keys, case.values))
    mask = torch.ones(8, 19, dtype=torch.bool).tril(11)
    wanted = scaled_dot_product_attention(case.query.transpose(0, 1), k, v, mask, enable_gqa=True)
    out = paged_attention(case.query, case.keys, case.values, case.rows, PLAIN)
    torch.testing.assert_close(out, wanted.transpose(0, 1))


def test_the_reference_asks_nothing_of_a_value() -> None:
    """On the meta device there is none."""
    case = build(Shape(tile_rows=2, spare=1), MIXED)
    meta = on(case.rows, "meta")
    rule = AttentionRule(None, 5, 2.0, 4, torch.zeros(4, device="meta"))
    out = paged_attention(case.query.to("meta"), case.keys.to("meta"), case.values.to("meta"), meta, rule)
    assert out.shape == (len(case.query), 4, 16)


def test_the_kernel_under_every_rule() -> None:
    for number, rule in enumerate(rules(4)):
        shape = Shape(shared=1, tile_rows=4, split_keys=16 << number % 2, spare=number % 2, width=16 + 8 * (number % 2))
        check_attention(triton_attention, build(shape, [MIXED[1], chain(12, 2)], seed=number), rule)


@pytest.mark.parametrize("group", [1, 2, 4, 7])
@pytest.mark.parametrize("tile_rows", [1, 8])
def test_query_heads_of_a_key_head_share_a_program(group: int, tile_rows: int) -> None:
    shape = Shape(heads=2 * group, width=24, value_width=16, page_size=16, tile_rows=tile_rows)
    check_attention(triton_attention, build(shape, [chain(5, 2), tree(18, 5, [-1, 0, 0])]), PLAIN)


@pytest.mark.parametrize("split_keys", [16, 32, 48, 1024])
@pytest.mark.parametrize("rule", [PLAIN, AttentionRule(None, 20, None, None, torch.linspace(-1, 2, 2))])
def test_splits_are_combined(split_keys: int, rule: AttentionRule) -> None:
    shape = Shape(heads=2, shared=1, page_size=16, tile_rows=4, split_keys=split_keys, spare=1)
    check_attention(triton_attention, build(shape, [chain(70, 4), chain(0, 1), tree(33, 3, [-1, -1])]), rule)


@BOTH
def test_a_tree_of_64_nodes_uses_the_last_bit(attend: Attention) -> None:
    parents = [-1, *(node * 7 % (node + 1) - 1 for node in range(1, 64))]  # no two halves of the masks are alike
    case = build(Shape(heads=1, shared=1, tile_rows=32, page_size=16), [tree(3, 65, parents)])
    assert int(case.rows.seen.min()) < 0
    check_attention(attend, case, PLAIN)
    check_attention(attend, case, AttentionRule(None, 9, None))


@BOTH
def test_a_tree_may_stand_far_behind_the_keys_before_it(attend: Attention) -> None:
    """Positions are the program's to choose: the nodes see each other through a window that shows nothing else."""
    case = build(Shape(heads=2, shared=1, tile_rows=8), [tree(9, 6, [-1, 0, 0, 1, -1])])
    case = replace(case, rows=replace(case.rows, positions=case.rows.positions + 100))
    check_attention(attend, case, AttentionRule(None, 8, None))


@BOTH
@pytest.mark.parametrize("cache", [None, torch.float8_e4m3fn], ids=["same", "fp8"])
@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
def test_dtypes(attend: Attention, dtype: torch.dtype, cache: torch.dtype | None) -> None:
    shape = Shape(
        dtype=dtype, cache=cache or dtype, width=64, value_width=64, tile_rows=2, split_keys=64, heads=2, shared=1
    )
    sinks = torch.tensor([0.5, -1.0], dtype=dtype)
    check_attention(attend, build(shape, [chain(78, 3)]), AttentionRule(None, None, None, None, sinks))


def test_large_and_small_queries_meet_a_float8_cache_in_float16_without_loss() -> None:
    """bfloat16 reaches far beyond float16; a row of zeros too."""
    for scale, scaling in ((1e8, 1e-8), (1e-8, 1e8), (0.0, 1.0)):
        shape = Shape(dtype=torch.bfloat16, cache=torch.float8_e4m3fn, heads=2, shared=1)
        case = build(shape, [chain(9, 1)])
        case = replace(case, query=case.query * scale)
        check_attention(triton_attention, case, AttentionRule(scaling, None, None))


@BOTH
def test_a_cache_of_another_dtype_is_multiplied_in_float32(attend: Attention) -> None:
    for dtype, cache in ((torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32), HALF):
        case = build(Shape(dtype=dtype, cache=cache, heads=2, shared=1), [chain(5, 1)])
        check_attention(attend, case, PLAIN)


def test_every_float8_is_read_as_torch_reads_it() -> None:
    """One key each, so that the values come out as they are."""
    codes = torch.arange(256, dtype=torch.uint8).view(16, 1, 1, 16).view(torch.float8_e4m3fn)
    case = build(Shape(heads=1, shared=1, page_size=1, width=16), [chain(0, 1)] * 16)
    rows = replace(case.rows, pages=torch.arange(16, dtype=torch.int32)[:, None])
    keys = torch.zeros(16, 1, 1, 16).to(torch.float8_e4m3fn)
    out = triton_attention(case.query, keys, codes, rows, PLAIN)
    assert torch.equal(out.view(-1).isnan(), codes.float().view(-1).isnan())
    assert torch.equal(out.view(-1).nan_to_num(), codes.float().view(-1).nan_to_num())


@BOTH
def test_padding_is_written_and_what_is_not_seen_does_not_leak(
    attend: Attention, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that is given out begins as NaN; whatever no row sees is NaN or infinite in every case here."""
    empty = Tensor.new_empty

    def dirty(like: Tensor, *size: object, **options: object) -> Tensor:
        memory = empty(like, *size, **options)  # type: ignore[arg-type]
        return memory.fill_(float("nan")) if memory.is_floating_point() else memory

    monkeypatch.setattr(Tensor, "new_empty", dirty)
    for split_keys, rule in ((1024, PLAIN), (16, AttentionRule(None, 3, None, None, torch.ones(4)))):
        case = build(Shape(spare=20, split_keys=split_keys, tile_rows=2), [chain(17, 2), chain(2, 3)])
        check_attention(attend, case, rule)


@BOTH
def test_pages_before_a_window_or_a_chunk_are_not_read(attend: Attention) -> None:
    """They may have been given to somebody else."""
    for rule, kept in ((AttentionRule(None, 5, None), 40), (AttentionRule(None, None, None, 16), 32)):
        case = build(Shape(tile_rows=2, page_size=4, split_keys=16), [chain(44, 2)])
        exact = expected(case, rule)
        gone = case.rows.pages[0, : kept // 4].long()
        case.keys[gone], case.values[gone] = float("nan"), float("inf")
        check_attention(attend, case, rule, exact)


@BOTH
def test_a_row_that_sees_no_key_is_zero(attend: Attention) -> None:
    """Its position lies in another chunk than all keys."""
    case = build(Shape(heads=2, shared=1, split_keys=16, tile_rows=2), [chain(20, 2)])
    rows = replace(case.rows, positions=case.rows.positions + 100)
    for one, sinks in product((rows, one_split(rows)), (None, torch.ones(2))):
        rule = AttentionRule(None, None, None, 8, sinks)
        out = attend(case.query, case.keys, case.values, one, rule)
        assert not out.any()


def test_strided_queries_are_read_where_they_stand() -> None:
    """As they come out of a fused projection, or with heads before rows."""
    case = build(Shape(), MIXED)
    exact = expected(case, PLAIN)
    turned = case.query.transpose(0, 1).contiguous().transpose(0, 1)
    wide = torch.cat([case.query, case.query], dim=2)[:, :, :16]
    for query in (turned, wide):
        assert not query.is_contiguous()
        check_attention(triton_attention, replace(case, query=query), PLAIN, exact)


def test_a_row_alone_gives_the_bits_that_it_gives_beside_others() -> None:
    """Of a prompt's chunk and of a draft: the same blocks in the same order, whatever comes behind."""
    case = build(Shape(tile_rows=4, split_keys=32, page_size=16, heads=2, shared=1), [chain(100, 4)])
    whole = triton_attention(case.query, case.keys, case.values, case.rows, PLAIN)
    two = torch.tensor([2], dtype=torch.int32)
    slots = torch.where(torch.arange(4) < 2, case.rows.slots, -1)
    lengths = case.rows.lengths - 2
    assert int(case.rows.splits.counts[0]) == 4
    splits = case.rows.splits._replace(rows=torch.tensor([0, 1], dtype=torch.int32), live=two)
    fewer = replace(case.rows, slots=slots, counts=two, lengths=lengths, tails=lengths, splits=splits)
    part = triton_attention(case.query, case.keys, case.values, fewer, PLAIN)
    assert torch.equal(whole[:2], part[:2])


def test_what_else_is_in_a_step_changes_no_bit_of_a_row() -> None:
    """Alone and beside others, in another place, with other programs at work."""
    shape = Shape(split_keys=16, page_size=16, heads=2, shared=1)
    mine, others = chain(70, 1), [chain(5, 1), chain(40, 1), chain(0, 1), chain(90, 1)]
    alone = build(shape, [mine])
    query, k, v = alone.query, *(c[alone.rows.pages[0].long()].flatten(0, 1)[:71] for c in (alone.keys, alone.values))
    beside = build(replace(shape, spare=1), [*others, mine], seed=1)
    row = int(beside.rows.first[len(others)])
    beside.query[row] = query[0]
    pages = beside.rows.pages[len(others), :5].long()
    for cache, states in ((beside.keys, k), (beside.values, v)):
        cache[pages] = torch.nn.functional.pad(states, (0, 0, 0, 0, 0, 9)).view(5, 16, 1, -1)
    out = [triton_attention(one.query, one.keys, one.values, one.rows, PLAIN) for one in (alone, beside)]
    assert torch.equal(out[0][0], out[1][row])


def test_the_last_split_goes_on_to_the_last_key() -> None:
    """Where the host knows less than all of a length, no key is lost."""
    case = build(Shape(split_keys=16, page_size=16, heads=2, shared=1), [chain(60, 1)])
    splits, (tiles,) = case.rows.splits, case.rows.tiles
    kept = tiles.splits < 2
    fewer = tiles._replace(sequences=tiles.sequences[kept], starts=tiles.starts[kept], splits=tiles.splits[kept])
    live = torch.tensor([2], dtype=torch.int32)
    rows = replace(
        case.rows, tiles=(fewer._replace(live=live),), splits=splits._replace(counts=torch.full_like(splits.counts, 2))
    )
    check_attention(triton_attention, replace(case, rows=rows), PLAIN)


def test_rows_that_moved_back_before_their_last_splits_are_whole() -> None:
    """Of drafts that fell: the host has counted splits which begin behind the sequence's end."""
    case = build(Shape(tile_rows=4, split_keys=16, page_size=16, heads=2, shared=1), [chain(60, 3), chain(20, 2)])
    assert case.rows.splits.counts.tolist() == [4, 4, 4, 2, 2]
    lengths = case.rows.lengths - torch.tensor([20, 9], dtype=torch.int32)
    positions = case.rows.positions - torch.tensor([20, 20, 20, 9, 9])
    rows = replace(case.rows, lengths=lengths, tails=lengths, positions=positions)
    for rule in (PLAIN, AttentionRule(None, 20, None, None, torch.linspace(-1, 2, 2))):
        ours = triton_attention(case.query, case.keys, case.values, rows, rule)
        reference = paged_attention(case.query, case.keys, case.values, rows, rule)
        assert torch.allclose(ours, reference, atol=1e-5)


def test_many_queries_have_a_program_for_each_entry() -> None:
    """Where a loop over entries would not fit; entries that nobody has end at once."""
    half = torch.bfloat16
    shape = Shape(
        heads=8,
        shared=1,
        tile_rows=16,
        page_size=16,
        split_keys=64,
        spare=2,
        dtype=half,
        cache=half,
        width=32,
        value_width=32,
    )
    assert not fits_loop(8 * 16, 80)
    check_attention(triton_attention, build(shape, [chain(100, 16), chain(5, 3), chain(0, 1)]), PLAIN)


def test_decode_rows_and_prompts_are_launched_apart() -> None:
    shape = Shape(heads=2, shared=1, tile_rows=2, prompt_rows=8, spare=2, split_keys=32)
    sequences = [chain(3, 1), chain(30, 20), tree(9, 6, [-1, 0, 0, 1, -1]), chain(0, 17), chain(70, 2)]
    case = build(shape, sequences)
    assert [tiles.rows for tiles in case.rows.tiles] == [2, 8]
    for attend in (paged_attention, triton_attention):
        check_attention(attend, case, PLAIN)


sequence = st.builds(chain, st.integers(0, 40), st.integers(1, 9)) | st.builds(
    lambda before, extra, picks: tree(before, len(picks) + 1 + extra, [pick % (i + 1) - 1 for i, pick in enumerate(picks)]),
    st.integers(0, 40), st.integers(0, 3), st.lists(st.integers(0, 99), min_size=1, max_size=8),
)  # fmt: skip
shapes = st.builds(
    lambda shared, group, **others: Shape(heads=shared * group, shared=shared, **others),
    shared=st.integers(1, 2), group=st.sampled_from([1, 2, 3, 4, 7]), width=st.sampled_from([16, 24]),
    value_width=st.sampled_from([8, 16]), page_size=st.sampled_from([1, 4, 16]), tile_rows=st.sampled_from([1, 2, 4, 16]),
    split_keys=st.sampled_from([16, 32, 1024]), spare=st.integers(0, 2), prompt_rows=st.sampled_from([0, 8, 32]),
)  # fmt: skip
random_rules = st.builds(
    AttentionRule, st.none() | st.floats(0.1, 1), st.none() | st.integers(1, 30), st.none() | st.floats(1, 30),
    st.none() | st.integers(1, 30),
)  # fmt: skip


def check_random(shape: Shape, sequences: list[Sequenced], rule: AttentionRule, seed: int, sinks: bool) -> None:
    torch.manual_seed(seed)
    rule = replace(rule, sinks=torch.randn(shape.heads) if sinks else None)
    case = build(shape, sequences, seed)
    exact = expected(case, rule)
    for attend in (paged_attention, triton_attention):
        check_attention(attend, case, rule, exact)


@settings(max_examples=examples(6), deadline=None, derandomize=True)
@given(shapes, st.lists(sequence, min_size=1, max_size=3), random_rules, st.integers(0, 99), st.booleans())
def test_random_batches(shape: Shape, sequences: list[Sequenced], rule: AttentionRule, seed: int, sinks: bool) -> None:
    check_random(shape, sequences, rule, seed, sinks)


@pytest.mark.long
@settings(max_examples=examples(60), deadline=None)
@given(shapes, st.lists(sequence, min_size=1, max_size=5), random_rules, st.integers(0, 10**6), st.booleans())
def test_many_random_batches(
    shape: Shape, sequences: list[Sequenced], rule: AttentionRule, seed: int, sinks: bool
) -> None:
    check_random(shape, sequences, rule, seed, sinks)


def test_the_check_has_teeth() -> None:
    """Faults that such kernels are prone to, each found."""
    case = build(Shape(tile_rows=2, page_size=4, spare=1), MIXED)
    sinks = torch.linspace(-1, 2, 4)
    rule = AttentionRule(0.3, 6, 3.0, None, sinks)

    def broken(change: dict[str, object], rows: dict[str, Tensor]) -> Attention:
        def attend(query: Tensor, keys: Tensor, values: Tensor, given: PagedRows, rule: AttentionRule) -> Tensor:
            return paged_attention(query, keys, values, replace(given, **rows), replace(rule, **change))  # type: ignore[arg-type]

        return attend

    faults = [
        broken({"window": 5}, {}), broken({"window": 7}, {}), broken({"softcap": None}, {}), broken({"sinks": None}, {}),
        broken({"scaling": None}, {}), broken({}, {"seen": case.rows.seen | 2}), broken({}, {"tails": case.rows.lengths}),
        broken({}, {"lengths": case.rows.lengths + 1}), broken({}, {"positions": case.rows.positions + 1}),
        broken({}, {"pages": case.rows.pages.roll(1, 1)}), broken({}, {"first": case.rows.first + 1}),
    ]  # fmt: skip
    check_attention(broken({}, {}), case, rule)
    for number, fault in enumerate(faults):
        out = fault(case.query, case.keys, case.values, case.rows, rule)
        assert not error(out, expected(case, rule)) < 1e-3, number
    with pytest.raises(AssertionError):
        check_attention(lambda *given: paged_attention(*given) + 1e-3, case, rule)


@BOTH
def test_what_does_not_go_together_is_refused_by_name(attend: Attention) -> None:
    case: Case = build(Shape(), MIXED)

    def refused(query: Tensor, keys: Tensor, values: Tensor, rule: AttentionRule, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            attend(query, keys, values, case.rows, rule)

    q, k, v = case.query, case.keys, case.values
    refused(q[:, :3], k, v, PLAIN, "do not go with keys")
    refused(q[:, :, :8], k, v, PLAIN, "do not go with keys")
    refused(q, k, v.half(), PLAIN, "differ")
    refused(q, k[:-1], v, PLAIN, "differ")
    refused(q.long(), k, v, PLAIN, "int64")
    refused(q, k.int(), v.int(), PLAIN, "int32")
    refused(q, k, v, AttentionRule(None, None, None, None, torch.zeros(3)), "sinks")
    if attend is triton_attention:
        refused(q.double(), k, v, PLAIN, "float64")
        refused(torch.cat([q, q], 2)[:, :, ::2], k, v, PLAIN, "strides")


@BOTH
@pytest.mark.parametrize("tile_rows", [0, 3, 12, 24])
def test_no_row_of_a_tile_stays_unwritten_because_programs_do_not_divide_it(attend: Attention, tile_rows: int) -> None:
    """24 rows in programs of 16 are one program, and 8 rows that nobody computes."""
    case = build(Shape(heads=1, shared=1, tile_rows=8, dtype=torch.bfloat16, cache=torch.bfloat16), [chain(3, 24)])
    with pytest.raises(ValueError, match=f"tiles of {tile_rows} rows"):
        attend(case.query, case.keys, case.values, in_tiles_of(tile_rows, case), PLAIN)


def in_tiles_of(count: int, case: Case) -> PagedRows:
    return replace(case.rows, tiles=tuple(tiles._replace(rows=count) for tiles in case.rows.tiles))


def test_a_launch_checks_its_tiles_whoever_asked_for_it() -> None:
    """And block sizes that do not divide a tile of 8 rows, whatever chose them."""
    case = build(Shape(heads=1, shared=1, tile_rows=8), [chain(3, 8)])
    given = (case.query, case.keys, case.values)
    with pytest.raises(ValueError, match="tiles of 24 rows in programs of 16: some would stay unwritten"):
        launches(*given, in_tiles_of(24, case), PLAIN, case.query, Device(80, 2))
    odd = AttentionBlocks(rows=3, queries=16, keys=16, warps=4, stages=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_kernels, "choose_blocks", lambda *_: odd)
        with pytest.raises(ValueError, match="tiles of 8 rows in programs of 3: some would stay unwritten"):
            launches(*given, case.rows, PLAIN, case.query, Device(80, 2))


def test_blocks_cover_tiles() -> None:
    for dtype, width, group, rows, arch in product(
        (torch.float32, torch.bfloat16), (16, 64, 96, 128, 256), (1, 3, 4, 7, 12, 71), (1, 8, 16, 128), (80, 90)
    ):
        if (group, width) == (71, 256):
            with pytest.raises(ValueError, match="71 query heads of width 256"):
                choose_blocks(dtype, width, group, rows, arch)
            continue
        blocks = choose_blocks(dtype, width, group, rows, arch)
        assert rows % blocks.rows == 0
        assert blocks.rows * group <= blocks.queries


COMPILE = """
import sys
from inferd_runtime.kernels.triton.attention import variants
from inferd_runtime.kernels.triton.resources import usage
for variant in variants(int(sys.argv[1])):
    if variant.name in sys.argv[2:] or not sys.argv[2:]:
        used = usage(variant, int(sys.argv[1]))
        assert used.spilled == 0 and used.shared <= 99 << 10, used
        print(used.name)
"""


def compiled(arch: int, *names: str) -> list[str]:
    """The variants of these names, all without any, compiled where Triton does not interpret."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE, str(arch), *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_it_compiles_for_a_device_without_spilling() -> None:
    name = "attend bf16, 16 rows"
    assert compiled(90, name) == [name]


@pytest.mark.long
@pytest.mark.parametrize("arch", [80, 90])
def test_every_variant_compiles_without_spilling(arch: int) -> None:
    assert len(compiled(arch)) >= 12
