"""The cache's operations in Triton, one launch each over all layers. Reference: :mod:`inferd_runtime.kernels.cache`.

Moves read everything before they write anything without waiting for each other: a program owns some byte columns of one cache,
for all moves, so that nobody else reads or writes there. Between its loads and its stores all its threads meet. As many moves
as fit are held in registers; more are staged by the same program through memory, which takes as much of it as is moved.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from inferd_runtime.kernels.cache import FP8, CacheBlock, check_pages, check_written
from inferd_runtime.kernels.triton.variant import Variant

UNITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
MOVES = (4, 16, 64)
"""For so many moves a kernel is compiled; more go through memory."""
TILE = 2048
PAGE_COLUMNS = 512
WRITE_COLUMNS = 1024


@triton.jit
def e4m3(x: tl.tensor):
    """Return float32 as the bits of float8_e4m3fn, to nearest even, saturated; NaN stays NaN.

    Not by a cast: compute capability 8.0 has none, and the interpreter rounds otherwise.
    """
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    # 0x43E00000 is 448.
    held = tl.minimum(size, 0x43E00000)
    # Three bits of the mantissa stay, and the exponent's bias becomes 7.
    normal = ((held + 0x7FFFF + ((held >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2 ** -6 numbers are multiples of 2 ** -9, which is the last place of 2 ** 14 = 0x46800000.
    small = (held.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    code = tl.where(held < 0x3C800000, small, normal)
    # 0x7F800000 is infinity.
    code = tl.where(size > 0x7F800000, 0x7F, code)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def _write_row(
    states: tl.tensor, cache: tl.tensor, column: tl.tensor, head_stride: tl.tensor, size: tl.constexpr,
    width: tl.constexpr, fp8: tl.constexpr,
):  # fmt: skip
    inside = column < size
    x = tl.load(states + column // width * head_stride + column % width, mask=inside)
    tl.store(cache + column, e4m3(x.to(tl.float32)) if fp8 else x, mask=inside)


@triton.jit
def _write_kv(
    key: tl.tensor, value: tl.tensor, keys: tl.tensor, values: tl.tensor, slots: tl.tensor, key_row: tl.tensor,
    key_head: tl.tensor, value_row: tl.tensor, value_head: tl.tensor, key_size: tl.constexpr, key_width: tl.constexpr,
    value_size: tl.constexpr, value_width: tl.constexpr, fp8: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    if slot >= 0:
        column = tl.program_id(1) * columns + tl.arange(0, columns)
        _write_row(key + row * key_row, keys + slot * key_size, column, key_head, key_size, key_width, fp8)
        _write_row(
            value + row * value_row, values + slot * value_size, column, value_head, value_size, value_width, fp8
        )


def write_kv(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """See :func:`inferd_runtime.kernels.cache.write_kv`."""
    for states, cache in ((key, keys), (value, values)):
        check_written(states, cache)
    key, value = (states if states.stride(2) == 1 else states.contiguous() for states in (key, value))
    sizes = [states.shape[1] * states.shape[2] for states in (key, value)]
    columns = min(WRITE_COLUMNS, triton.next_power_of_2(max(sizes)))
    if len(slots):
        _write_kv[(len(slots), triton.cdiv(max(sizes), columns))](
            key, value, stored(keys), stored(values), slots,
            key.stride(0), key.stride(1), value.stride(0), value.stride(1),
            key_size=sizes[0], key_width=key.shape[2], value_size=sizes[1], value_width=value.shape[2],
            fp8=keys.dtype == FP8, columns=columns,
        )  # fmt: skip


def stored(cache: Tensor) -> Tensor:
    """Return the cache as the kernels write it: float8 as bytes."""
    return cache.view(torch.uint8) if cache.dtype == FP8 else cache


@triton.jit(do_not_specialize=["count"])
def _move_rows(
    flat: tl.tensor, offsets: tl.tensor, token_bytes: tl.tensor, sources: tl.tensor, targets: tl.tensor,
    scratch: tl.tensor, count: tl.tensor, scratch_row: tl.tensor, tokens: tl.constexpr, unit: tl.constexpr,
    moves: tl.constexpr, columns: tl.constexpr, staged: tl.constexpr,
):  # fmt: skip
    """Move rows of ``tokens`` tokens; scratch [C, count, scratch_row] where ``staged``."""
    cache = tl.program_id(1)
    base = flat + tl.load(offsets + cache) // unit
    size = tl.load(token_bytes + cache) // unit * tokens
    column = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, columns)
    if staged:
        parked = scratch + cache.to(tl.int64) * count * scratch_row
        for first in range(0, count, moves):
            move = first + tl.arange(0, moves)
            source, _, used = _ends(sources, targets, move, count, column < size)
            data = tl.load(base + source[:, None] * size + column, mask=used)
            tl.store(parked + move.to(tl.int64)[:, None] * scratch_row + column, data, mask=used)
        tl.debug_barrier()
        for first in range(0, count, moves):
            move = first + tl.arange(0, moves)
            _, target, used = _ends(sources, targets, move, count, column < size)
            data = tl.load(parked + move.to(tl.int64)[:, None] * scratch_row + column, mask=used)
            tl.store(base + target[:, None] * size + column, data, mask=used)
    else:
        source, target, used = _ends(sources, targets, tl.arange(0, moves), count, column < size)
        data = tl.load(base + source[:, None] * size + column, mask=used)
        tl.debug_barrier()
        tl.store(base + target[:, None] * size + column, data, mask=used)


@triton.jit
def _ends(sources: tl.tensor, targets: tl.tensor, move: tl.tensor, count: tl.tensor, inside: tl.tensor):
    """Return sources and targets of moves, and a mask of the elements that there are."""
    source = tl.load(sources + move, mask=move < count, other=-1)
    target = tl.load(targets + move, mask=move < count, other=-1)
    return source, target, ((source >= 0) & (target >= 0))[:, None] & inside


def move_tokens(block: CacheBlock, sources: Tensor, targets: Tensor) -> None:
    """See :func:`inferd_runtime.kernels.cache.move_tokens`."""
    _move(block, sources, targets, 1)


def copy_pages(block: CacheBlock, sources: Tensor, targets: Tensor) -> None:
    """See :func:`inferd_runtime.kernels.cache.copy_pages`."""
    _move(block, sources, targets, block.page_size)


def _move(block: CacheBlock, sources: Tensor, targets: Tensor, tokens: int) -> None:
    count, widest = len(sources), max(block.token_sizes) // block.unit * tokens
    if not count:
        return
    staged = count > MOVES[-1]
    moves = next((size for size in MOVES if size >= count), MOVES[-1])
    columns = min(TILE // moves, triton.next_power_of_2(widest))
    flat = block.flat.view(UNITS[block.unit])
    caches = len(block.token_sizes)
    scratch = flat.new_empty(caches * count * widest) if staged else flat
    _move_rows[(triton.cdiv(widest, columns), caches)](
        flat, block.offsets, block.token_bytes, sources, targets, scratch, count, widest,
        tokens=tokens, unit=block.unit, moves=moves, columns=columns, staged=staged,
    )  # fmt: skip


@triton.jit
def _page_parts(
    flat: tl.tensor, offsets: tl.tensor, token_bytes: tl.tensor, page_starts: tl.tensor, pages: tl.tensor,
    data: tl.tensor, page_units: tl.tensor, page_size: tl.constexpr, unit: tl.constexpr, columns: tl.constexpr,
    scatter: tl.constexpr,
):  # fmt: skip
    """Copy one piece of one cache's part of one page, out of the cache or into it."""
    index, cache = tl.program_id(0).to(tl.int64), tl.program_id(1)
    size = tl.load(token_bytes + cache) // unit * page_size
    column = tl.program_id(2) * columns + tl.arange(0, columns)
    held = flat + tl.load(offsets + cache) // unit + tl.load(pages + index) * size + column
    outside = data + index * page_units + tl.load(page_starts + cache) // unit + column
    if scatter:
        tl.store(held, tl.load(outside, mask=column < size), mask=column < size)
    else:
        tl.store(outside, tl.load(held, mask=column < size), mask=column < size)


def gather_pages(block: CacheBlock, pages: Tensor) -> Tensor:
    """See :func:`inferd_runtime.kernels.cache.gather_pages`."""
    data = torch.empty(len(pages), block.page_bytes, dtype=torch.uint8, device=block.flat.device)
    _copy_parts(block, pages, data, scatter=False)
    return data


def scatter_pages(block: CacheBlock, pages: Tensor, data: Tensor) -> None:
    """See :func:`inferd_runtime.kernels.cache.scatter_pages`."""
    check_pages(block, pages, data)
    # A copy where the bytes cannot be read as wider units.
    usable = data.is_contiguous() and data.data_ptr() % block.unit == 0
    _copy_parts(block, pages, data if usable else data.clone(memory_format=torch.contiguous_format), scatter=True)


def _copy_parts(block: CacheBlock, pages: Tensor, data: Tensor, *, scatter: bool) -> None:
    widest = max(block.token_sizes) // block.unit * block.page_size
    columns = min(PAGE_COLUMNS, triton.next_power_of_2(widest))
    if len(pages):
        _page_parts[(len(pages), len(block.token_sizes), triton.cdiv(widest, columns))](
            block.flat.view(UNITS[block.unit]), block.offsets, block.token_bytes, block.page_starts, pages,
            data.view(-1).view(UNITS[block.unit]), block.page_bytes // block.unit,
            page_size=block.page_size, unit=block.unit, columns=columns, scatter=scatter,
        )  # fmt: skip


def variants() -> Iterator[Variant]:
    """Yield what is compiled for 8 key heads of width 128, and for pages of 16 tokens."""
    strides = dict.fromkeys(("key_row", "key_head", "value_row", "value_head"), "i32:16")
    sizes = {"key_size": 1024, "key_width": 128, "value_size": 1024, "value_width": 128}
    for name, rows, cache in (("bf16", "*bf16", "*bf16"), ("fp16", "*fp16", "*fp16"), ("fp8", "*bf16", "*u8")):
        types = {"key": rows, "value": rows, "keys": cache, "values": cache, "slots": "*i64"} | strides
        constants = {**sizes, "fp8": name == "fp8", "columns": WRITE_COLUMNS}
        yield Variant(f"write_kv {name}", _write_kv, types, constants)
    tables = dict.fromkeys(("flat", "offsets", "token_bytes", "sources", "targets", "scratch"), "*i64")
    for tokens, name in ((1, "move_tokens"), (16, "copy_pages")):
        for moves, staged in (*((moves, False) for moves in MOVES), (MOVES[-1], True)):
            constants = {"tokens": tokens, "unit": 8, "moves": moves, "columns": TILE // moves, "staged": staged}
            label = f"{name} {moves}{' staged' if staged else ''}"
            yield Variant(label, _move_rows, tables | {"count": "i32", "scratch_row": "i32:16"}, constants)
    tables = dict.fromkeys(("flat", "offsets", "token_bytes", "page_starts", "pages", "data"), "*i64")
    for scatter, name in ((False, "gather_pages"), (True, "scatter_pages")):
        constants = {"page_size": 16, "unit": 8, "columns": PAGE_COLUMNS, "scatter": scatter}
        yield Variant(name, _page_parts, tables | {"page_units": "i32:16"}, constants)
