"""The cache's kernels, compiled: the checks of tests/cpu/kernels/test_cache.py at the sizes of a served model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cache_cases import (
    ODD,
    ODD_VALUES,
    CacheOps,
    Shapes,
    check_copies,
    check_moves,
    check_pages,
    check_write,
    ops,
    random_moves,
)

from inferd_runtime.kernels.cache import FP8, CacheBlock
from inferd_runtime.kernels.triton import cache as kernels

SERVED: Shapes = ((8, 128),) * 2
DTYPES = [torch.float32, torch.float16, torch.bfloat16, FP8]


@pytest.fixture
def run() -> CacheOps:
    return ops(kernels, "cuda")


Make = Callable[[], CacheBlock]


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(params=[(ODD, ODD_VALUES), (SERVED, SERVED)], ids=["odd", "served"])
def make(request: pytest.FixtureRequest, dtype: torch.dtype) -> Make:
    """A block of 300 pages, small and odd or as it is served."""
    return lambda: CacheBlock(*request.param, dtype, 300, 16, "cuda")


@pytest.mark.parametrize("rows", [1, 37, 1024])
def test_rows_are_written(run: CacheOps, make: Make, dtype: torch.dtype, rows: int) -> None:
    slots = [-1 if row % 7 == 3 else (row * 13) % 4800 for row in range(rows)]
    for states in (torch.float32, torch.float16, torch.bfloat16) if dtype == FP8 else (dtype,):
        check_write(run, make(), states, slots, layer=1)


@pytest.mark.parametrize("count", [1, 4, 16, 64, 65, 1000])
def test_tokens_are_moved(run: CacheOps, make: Make, count: int) -> None:
    for seed in range(2):
        check_moves(run, make(), random_moves(count, 4800, seed))


@pytest.mark.parametrize("count", [1, 4, 16, 64, 200])
def test_pages_are_moved(run: CacheOps, make: Make, count: int) -> None:
    for seed in range(2):
        check_moves(run, make(), random_moves(count, 300, seed), pages=True)


def test_pages_are_copied_in_order(run: CacheOps, make: Make) -> None:
    for seed in range(2):
        copies = [(source, target) for source, target in random_moves(100, 120, seed) if min(source, target) >= 0]
        check_copies(run, make(), copies)


def test_pages_come_and_go(run: CacheOps, make: Make) -> None:
    check_pages(run, make(), [0, 17, 298, 5, 123])


def test_dense_cycles_are_moved(run: CacheOps) -> None:
    """Every token of a few pages one further, round and round: whoever reads too late reads what another has written."""
    for count in (16, 64, 300):
        for _ in range(10):
            moves = [(token, (token + 1) % count) for token in range(count)]
            check_moves(run, CacheBlock(SERVED, SERVED, torch.bfloat16, 30, 16, "cuda"), moves)


def test_all_of_it_is_captured(run: CacheOps) -> None:
    """Nothing waits for the host: a graph holds every operation, and does it again on other indices."""
    held = CacheBlock(SERVED, SERVED, torch.bfloat16, 20, 16, "cuda")
    rows = torch.randn(5, 8, 128, dtype=torch.bfloat16, device="cuda")
    slots = torch.tensor([0, 1, -1, 2, 3], device="cuda")
    sources, targets = torch.tensor([0, 1], device="cuda"), torch.tensor([8, 9], device="cuda")
    pages = torch.tensor([0], device="cuda")

    def step() -> torch.Tensor:
        run.write_kv(rows, rows, held.keys[1], held.values[1], slots)
        run.move_tokens(held, sources, targets)
        run.copy_pages(held, pages, pages + 1)
        data = run.gather_pages(held, pages)
        run.scatter_pages(held, pages + 2, data)
        return data

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        data = step()
    held.flat.zero_()
    slots.copy_(torch.tensor([4, -1, 5, 6, 7]))
    sources.copy_(torch.tensor([4, 7]))
    graph.replay()
    flat = held.keys[1].view(-1, 8, 128)
    kept = [0, 2, 3, 4]
    assert torch.equal(flat[4:8], rows[kept])
    assert torch.equal(flat[8:10], rows[[0, 4]])
    for page in (1, 2):
        assert torch.equal(held.keys[1][page], held.keys[1][0])
    assert torch.equal(data.view(-1), torch.cat([part[0] for part in held.parts()]))
