"""What a set of cache operations has to do, on any device: the reference and the Triton kernels run the same checks."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from inferd_runtime.kernels.cache import FP8, CacheBlock, resolve_copies

Shapes = Sequence[tuple[int, int]]
ODD: Shapes = ((1, 5), (3, 8), (2, 3))
ODD_VALUES: Shapes = ((1, 3), (3, 8), (2, 7))


class CacheOps(NamedTuple):
    """The functions of a module, on a device."""

    write_kv: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
    move_tokens: Callable[[CacheBlock, Tensor, Tensor], None]
    copy_pages: Callable[[CacheBlock, Tensor, Tensor], None]
    gather_pages: Callable[[CacheBlock, Tensor], Tensor]
    scatter_pages: Callable[[CacheBlock, Tensor, Tensor], None]
    device: str


def ops(module: object, device: str = "cpu") -> CacheOps:
    """The operations that a module has under these names."""
    return CacheOps(*(getattr(module, name) for name in CacheOps._fields[:-1]), device)  # type: ignore[arg-type]


def filled(block: CacheBlock, seed: int = 0) -> CacheBlock:
    """The block with other bytes everywhere, those between the caches included."""
    generator = torch.Generator(block.flat.device).manual_seed(seed)
    block.flat.random_(0, 256, generator=generator)
    return block


def tokens_of(block: CacheBlock) -> list[Tensor]:
    """A copy of each cache on the host, uint8[slots, token bytes], by the views alone."""
    caches = chain.from_iterable(zip(block.keys, block.values, strict=True))
    return [cache.cpu().view(torch.uint8).reshape(block.pages * block.page_size, -1).clone() for cache in caches]


def between(block: CacheBlock) -> Tensor:
    """The bytes that belong to no cache."""
    rest = torch.ones(len(block.flat), dtype=torch.bool)
    for offset, size in zip(block.offsets.tolist(), block.token_sizes, strict=True):
        rest[offset : offset + size * block.page_size * block.pages] = False
    return block.flat.cpu()[rest]


def check_moves(run: CacheOps, block: CacheBlock, moves: Sequence[tuple[int, int]], *, pages: bool = False) -> None:
    """Single tokens, or whole pages, from where the first was to where the second is; -1 in either: nothing."""
    filled(block)
    expected, rest = tokens_of(block), between(block)
    step = block.page_size if pages else 1
    for before, after in zip(tokens_of(block), expected, strict=True):
        for source, target in moves:
            if min(source, target) >= 0:
                after[target * step : (target + 1) * step] = before[source * step : (source + 1) * step]
    ends = [torch.tensor([move[end] for move in moves], dtype=torch.int64, device=run.device) for end in (0, 1)]
    (run.copy_pages if pages else run.move_tokens)(block, *ends)
    assert all(torch.equal(one, other) for one, other in zip(tokens_of(block), expected, strict=True))
    assert torch.equal(between(block), rest)


def check_copies(run: CacheOps, block: CacheBlock, copies: Sequence[tuple[int, int]]) -> None:
    """Whole pages one after the other, by :func:`resolve_copies`."""
    filled(block)
    expected = tokens_of(block)
    for after in expected:
        held = after.view(block.pages, block.page_size, -1)
        for source, target in copies:
            held[target] = held[source].clone()
    ends = torch.tensor(resolve_copies(copies), dtype=torch.int64, device=run.device).view(-1, 2)
    run.copy_pages(block, ends[:, 0].contiguous(), ends[:, 1].contiguous())
    assert all(torch.equal(one, other) for one, other in zip(tokens_of(block), expected, strict=True))


def check_pages(run: CacheOps, block: CacheBlock, pages: Sequence[int]) -> None:
    """What is read is laid out as the reference driver's pages, and what is written back elsewhere is that, bit for bit."""
    filled(block)
    before = tokens_of(block)
    expected = torch.cat([part.view(block.pages, -1)[list(pages)] for part in before], dim=1)
    data = run.gather_pages(block, torch.tensor(pages, dtype=torch.int64, device=run.device))
    assert data.dtype == torch.uint8
    assert torch.equal(data.cpu(), expected)
    elsewhere = [block.pages - 1 - page for page in pages]
    for part in before:
        part.view(block.pages, -1)[elsewhere] = part.view(block.pages, -1)[list(pages)]
    misaligned = torch.cat([data.new_zeros(1), data.view(-1)])[1:].view(data.shape)
    run.scatter_pages(block, torch.tensor(elsewhere, dtype=torch.int64, device=run.device), misaligned)
    assert all(torch.equal(one, other) for one, other in zip(tokens_of(block), before, strict=True))


def check_write(run: CacheOps, block: CacheBlock, dtype: torch.dtype, slots: Sequence[int], layer: int = 0) -> None:
    """Rows of one layer, given as views of something wider, arrive at their slots and nothing else changes."""
    filled(block)
    expected, rest = tokens_of(block), between(block)
    states = []
    for index, cache in enumerate((block.keys[layer], block.values[layer])):
        rows = torch.randn(
            len(slots), cache.shape[2] + 2, cache.shape[3] + 3, generator=torch.Generator().manual_seed(index)
        )
        rows = (rows * 10 ** torch.linspace(-5, 4, rows.numel()).view(rows.shape)).to(dtype)
        rows = rows[:, 1:-1, :-3]
        states.append(rows.to(run.device))
        for slot, row in zip(slots, rows, strict=True):
            if slot >= 0:
                expected[2 * layer + index][slot] = in_cache(row, block.dtype)
    run.write_kv(
        *states, block.keys[layer], block.values[layer], torch.tensor(slots, dtype=torch.int64, device=run.device)
    )
    assert all(torch.equal(one, other) for one, other in zip(tokens_of(block), expected, strict=True))
    assert torch.equal(between(block), rest)


def in_cache(row: Tensor, dtype: torch.dtype) -> Tensor:
    """A row's bytes in a cache."""
    if dtype == FP8:
        row = torch.where(row.float().abs() > 448, row.float().sign() * 448, row.float()).to(FP8)
    return row.contiguous().view(torch.uint8).reshape(-1)


def random_moves(count: int, places: int, seed: int) -> list[tuple[int, int]]:
    """Overlapping moves with cycles, about every fifth without a source or a target."""
    draw = random.Random(seed)
    targets = draw.sample(range(places), count)
    sources = draw.choices(targets, k=count) if seed % 2 else draw.sample(targets, count)
    hole = [draw.random() for _ in targets]
    return [(-1 if h < 0.1 else s, -1 if h > 0.9 else t) for s, t, h in zip(sources, targets, hole, strict=True)]
