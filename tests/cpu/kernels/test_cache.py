"""The cache's operations: the reference and the Triton kernels, in Triton's interpreter, against single bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cache_cases import (
    ODD,
    ODD_VALUES,
    CacheOps,
    check_copies,
    check_moves,
    check_pages,
    check_write,
    filled,
    ops,
    random_moves,
    tokens_of,
)
from hypothesis import example, given, strategies as st

from inferd_runtime.engine.drivers.torch_driver import TorchDriver
from inferd_runtime.kernels import cache as reference
from inferd_runtime.kernels.cache import FP8, CacheBlock, resolve_copies
from inferd_runtime.kernels.triton import cache as kernels
from inferd_runtime.models.shape import KvShape
from inferd_runtime.testing.recorded_host import RecordedHost

PAIRS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=12)


@pytest.fixture(params=[reference, kernels], ids=["reference", "triton"])
def run(request: pytest.FixtureRequest) -> CacheOps:
    if request.param is kernels and torch.cuda.is_available():
        pytest.skip("kernels are compiled here: tests/gpu")
    return ops(request.param)


def block(dtype: torch.dtype = torch.float32, pages: int = 12, page_size: int = 3) -> CacheBlock:
    """Widths that are no powers of two, tokens of an odd number of bytes in float8."""
    return CacheBlock(ODD, ODD_VALUES, dtype, pages, page_size, "cpu")


def test_views_lie_side_by_side_and_aligned() -> None:
    held = block(FP8)
    assert held.token_sizes == (5, 3, 24, 24, 6, 14)
    assert held.unit == 1
    assert held.page_bytes == 76 * 3
    assert held.page_starts.tolist() == [0, 15, 24, 96, 168, 186]
    ends = 0
    for cache, offset in zip(held.parts(), held.offsets.tolist(), strict=True):
        assert cache.data_ptr() == held.flat.data_ptr() + offset
        assert offset % 16 == 0
        assert offset >= ends
        ends = offset + cache.numel()
    assert [list(cache.shape) for cache in held.keys] == [[12, 3, *shape] for shape in ODD]
    assert [list(cache.shape) for cache in held.values] == [[12, 3, *shape] for shape in ODD_VALUES]
    assert not held.flat.any()
    assert CacheBlock([(2, 8)], [(2, 8)], torch.bfloat16, 4, 16, "cpu").unit == 8


def test_a_dtype_that_no_kernel_writes_is_refused() -> None:
    with pytest.raises(ValueError, match="float64"):
        block(torch.float64)


@pytest.mark.parametrize("slots", [[7], [-1], [-1, -1], [4, -1, 35, 0, -1, 17], [0, -1], [-1, 0]], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fp8", [False, True], ids=["", "fp8"])
def test_rows_are_written_and_padding_is_not(run: CacheOps, dtype: torch.dtype, fp8: bool, slots: list[int]) -> None:
    for layer in range(len(ODD) if len(slots) > 2 else 1):
        check_write(run, block(FP8 if fp8 else dtype), dtype, slots, layer)


def test_nothing_is_written_without_rows(run: CacheOps) -> None:
    check_write(run, block(), torch.float32, [])
    check_moves(run, block(), [])
    check_pages(run, block(), [])


def test_every_number_becomes_its_nearest_in_float8(run: CacheOps) -> None:
    """All bfloat16 numbers, and float32 around each border between two float8 numbers."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    codes = torch.arange(127, dtype=torch.uint8).view(FP8).float()
    borders = (codes[1:] + codes[:-1]) / 2
    near = torch.cat([torch.nextafter(borders, torch.tensor(end)) for end in (0.0, 1e9)])
    numbers = torch.cat([every, borders, near, -borders, -near, torch.tensor([448.0, 1e38, torch.inf, -torch.inf])])
    rows = numbers.view(1, 1, -1)
    held = CacheBlock([(1, len(numbers))], [(1, len(numbers))], FP8, 1, 1, "cpu")
    run.write_kv(rows, rows, held.keys[0], held.values[0], torch.zeros(1, dtype=torch.int64))
    got = held.keys[0].view(-1)
    assert torch.equal(got.float().isnan(), numbers.isnan())
    kept = ~numbers.isnan()
    assert torch.equal(got.view(torch.uint8)[kept], numbers[kept].clamp(-448, 448).to(FP8).view(torch.uint8))
    assert torch.equal(held.values[0].view(torch.uint8), held.keys[0].view(torch.uint8))


@pytest.mark.parametrize("keys", [torch.zeros(1, 1, 5).double(), torch.zeros(1, 1, 4), torch.zeros(1, 2, 5)], ids=str)
def test_rows_that_do_not_fit_the_cache_are_refused(run: CacheOps, keys: torch.Tensor) -> None:
    held = block()
    with pytest.raises(ValueError, match="for a cache"):
        run.write_kv(keys, torch.zeros(1, 1, 3), held.keys[0], held.values[0], torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="are not 1 pages"):
        run.scatter_pages(held, torch.zeros(1, dtype=torch.int64), torch.zeros(1, 3, dtype=torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, FP8], ids=str)
@pytest.mark.parametrize(
    "moves",
    [[(3, 4)], [(-1, 4)], [(4, -1), (5, -1)], [(1, 2), (2, 3), (3, 1)], [(5, 4), (6, 5), (-1, -1), (7, 6), (8, 7)]],
    ids=str,
)
def test_tokens_are_read_before_any_is_written(run: CacheOps, dtype: torch.dtype, moves: list[tuple[int, int]]) -> None:
    check_moves(run, block(dtype), moves)


@pytest.mark.parametrize("count", [17, 64, 65, 150])
def test_more_moves_than_fit_are_as_good(run: CacheOps, count: int) -> None:
    for seed in range(2):
        check_moves(run, block(torch.float16, pages=60), random_moves(count, 180, seed))


@pytest.mark.parametrize("count", [3, 11, 70])
def test_pages_are_read_before_any_is_written(run: CacheOps, count: int) -> None:
    check_moves(run, block(torch.float16, pages=80), random_moves(count, 80, count), pages=True)


@pytest.mark.parametrize(
    "copies", [[(0, 1), (1, 2), (2, 3)], [(0, 9), (1, 0), (9, 1)], [(4, 5), (5, 4)], [(3, 3)]], ids=str
)
def test_pages_are_copied_one_after_the_other(run: CacheOps, copies: list[tuple[int, int]]) -> None:
    check_copies(run, block(torch.bfloat16), copies)


@given(PAIRS)
@example([(0, 9), (1, 0), (9, 1)])
def test_resolved_copies_leave_what_ordered_ones_leave(copies: list[tuple[int, int]]) -> None:
    expected = list(range(10))
    for source, target in copies:
        expected[target] = expected[source]
    resolved = resolve_copies(copies)
    assert len({target for _, target in resolved}) == len(resolved)
    assert all(source != target for source, target in resolved)
    moved = {target: source for source, target in resolved}
    assert [moved.get(page, page) for page in range(10)] == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, FP8], ids=str)
def test_pages_come_out_and_go_back_bit_for_bit(run: CacheOps, dtype: torch.dtype) -> None:
    check_pages(run, block(dtype), [7, 2, 11])


def test_pages_wider_than_a_program(run: CacheOps) -> None:
    held = CacheBlock([(2, 40)], [(3, 24)], torch.float32, 5, 16, "cpu")
    check_pages(run, held, [1, 4])
    check_moves(run, held, [(0, 1), (1, 0)], pages=True)


def test_pages_are_those_of_the_reference_driver(run: CacheOps) -> None:
    """Snapshots and swapped pages are read by either."""
    driver = TorchDriver(
        lambda *_: torch.empty(0), torch.empty(0), KvShape(tuple(ODD), tuple(ODD_VALUES)),
        vocab_size=1, max_context=1, pages=12, page_size=3,
    )  # fmt: skip
    source, target = filled(block()), block()
    pages = torch.tensor([5, 0, 8])
    data = run.gather_pages(source, pages)
    driver.write_pages([1, 2, 3], data.numpy())
    back = driver.read_pages([1, 2, 3])
    assert np.array_equal(back, data.numpy())
    assert driver.page_bytes == source.page_bytes
    assert tuple(driver.token_bytes) == source.token_sizes
    run.scatter_pages(target, pages, torch.from_numpy(back))
    assert torch.equal(target.keys[1][pages].view(torch.uint8), source.keys[1][pages].view(torch.uint8))
    assert torch.equal(target.values[2][pages].view(torch.uint8), source.values[2][pages].view(torch.uint8))


def test_a_recorded_step_does_it_again_with_other_indices() -> None:
    """Nothing in the reference is decided on the host."""
    held, pages = block(), torch.tensor([0])
    rows, slots = torch.randn(3, 1, 5), torch.tensor([0, -1, 1])
    sources, targets = torch.tensor([0, -1]), torch.tensor([7, 8])

    def step() -> torch.Tensor:
        reference.write_kv(rows, rows[:, :, :3], held.keys[0], held.values[0], slots)
        reference.move_tokens(held, sources, targets)
        reference.copy_pages(held, pages, pages + 1)
        data = reference.gather_pages(held, pages)
        reference.scatter_pages(held, pages + 4, data)
        return data

    replay, data = RecordedHost().record(step)
    expected = tokens_of(filled(held))
    rows.normal_()
    for tensor, new in ((slots, [-1, 13, 12]), (sources, [13, 12]), (targets, [20, 19]), (pages, [4])):
        tensor.copy_(torch.tensor(new))
    replay()
    for cache, written in zip(expected[:2], (rows, rows[:, :, :3]), strict=True):
        cache[[13, 12]] = written[1:].contiguous().view(torch.uint8).view(2, -1)
    for cache in expected:
        cache[[20, 19]] = cache[[13, 12]]
        cache[15:18] = cache[24:27] = cache[12:15]
    assert all(torch.equal(one, other) for one, other in zip(tokens_of(held), expected, strict=True))
    assert torch.equal(data[0], torch.cat([cache[12:15].reshape(-1) for cache in expected]))
