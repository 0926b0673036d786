"""Products of weights in 8 or 4 bits in Triton. Reference: :mod:`inferd_runtime.kernels.quantized`.

As :mod:`inferd_runtime.kernels.triton.product`: a program owns some outputs and walks along ``in``, its warps each take a slice
of a block, asynchronous copies run ahead. What differs:

- Numbers become bfloat16 in registers, by instructions on two at a time: bits are moved to where they are a bfloat16 of another
  exponent, and one multiply-add puts it right. That is exact, takes 1.25 to 2.5 instructions a number, and needs no cast that
  capability 8.0 does not have.
- A scale of an output is applied to its sum. Of groups, each unit of 32 inputs is a product of its own (the batch of a matrix
  instruction), whose sums get their scale before they are added up; a middle counts as often as the rows' own sum.
- More than 16 rows are more programs on the same outputs, side by side, so that the weight is read from memory once and then
  from the L2 cache. A row's bits are the same for any number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from inferd_runtime.kernels.quantized import FP8, LANES, UNIT, Grouped, QuantizedKernels, RowScaled, check_rows
from inferd_runtime.kernels.triton.cache import e4m3
from inferd_runtime.kernels.triton.elementwise import rows_of
from inferd_runtime.kernels.triton.interpreted import INTERPRETED, product
from inferd_runtime.kernels.triton.unpacking import decoded, halves
from inferd_runtime.kernels.triton.variant import Variant

TILE_ROWS = 16
"""As many rows as the narrowest matrix instruction takes."""
PROGRAMS = 128
SLICES = 4
DEPTH = 64
"""Inputs of a slice, in 8 bits."""
UNITS = 8
"""Units of 32 inputs that a block has, in 4 bits."""
MOST_REGISTERS = 255
"""Two programs fit on a multiprocessor by their shared memory. Not told, the assembler of 8.0 spills to make room for five."""
MOST_PARTS = 16
FEWEST_BLOCKS = 2
WIDE, NARROW = 64, 32
"""Outputs of a program: the former where they are enough programs."""
STAGES = {8: {WIDE: 5, NARROW: 7}, 4: {WIDE: 6, NARROW: 8}}
"""By the bits of a number and the outputs: about 96 KiB of shared memory, so that two programs share a multiprocessor."""
ADDED = 256
QUANTIZED_COLUMNS = 1024
UNPACKED_UNITS = 4


@triton.jit(do_not_specialize=["count"])
def _multiply_scaled(
    rows: tl.tensor, numbers: tl.tensor, scales: tl.tensor, bias: tl.tensor, residual: tl.tensor, out: tl.tensor,
    sums: tl.tensor, count: tl.tensor, size: tl.tensor, outs: tl.tensor, rows_stride: tl.tensor,
    out_stride: tl.tensor, outputs: tl.constexpr, depth: tl.constexpr, slices: tl.constexpr, blocks: tl.constexpr,
    parts: tl.constexpr, tile: tl.constexpr, even: tl.constexpr, fp8: tl.constexpr, packed: tl.constexpr,
    interpreted: tl.constexpr,
):  # fmt: skip
    """Compute some outputs of some rows, or one part of their sums. Grid (rows, outputs, parts)."""
    row = tl.program_id(0) * tile + tl.arange(0, tile)
    first = tl.program_id(1) * outputs
    part = tl.program_id(2)
    # What lies behind the last output is not stored: its weight may be the last one's.
    column = tl.minimum(tl.arange(0, outputs), outs - first - 1)
    k = tl.arange(0, slices)[:, None, None] * depth + tl.arange(0, depth)[None, None, :]
    rows_at = rows + row[None, :, None] * rows_stride
    numbers_at = numbers + first.to(tl.int64) * size + column[None, :, None] * size
    used = (row < count)[None, :, None]
    step: tl.constexpr = slices * depth
    begin = part * blocks * step
    kept = (row < count)[:, None] & (first + tl.arange(0, outputs) < outs)[None, :]
    target = first + column[None, :]
    total = tl.zeros([slices, tile, outputs], tl.float32)
    for at in range(begin, tl.minimum(begin + blocks * step, size), step):
        if even:
            w = tl.load(numbers_at + (at + k))
            x = tl.load(rows_at + (at + k), mask=used, other=0.0)
        else:
            w = tl.load(numbers_at + (at + k), mask=at + k < size, other=0)
            x = tl.load(rows_at + (at + k), mask=used & (at + k < size), other=0.0)
        total += product(x, tl.trans(decoded(w, x.dtype, fp8, packed), 0, 2, 1), interpreted)
    result = tl.sum(total, 0)
    if parts > 1:
        tl.store(sums + (part * count + row)[:, None] * outs + target, result, mask=kept)
    else:
        # Loaded behind the walk: registers are scarce during it.
        result *= tl.load(scales + first + column)[None, :]
        if bias is not None:
            result += tl.load(bias + first + column).to(tl.float32)[None, :]
        if residual is not None:
            result += tl.load(residual + row[:, None] * out_stride + target, mask=kept, other=0.0).to(tl.float32)
        tl.store(out + row[:, None] * out_stride + target, result.to(out.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["count"])
def _multiply_grouped(
    rows: tl.tensor, numbers: tl.tensor, scales: tl.tensor, middles: tl.tensor, bias: tl.tensor,
    residual: tl.tensor, out: tl.tensor, sums: tl.tensor, count: tl.tensor, units: tl.tensor, outs: tl.tensor,
    rows_stride: tl.tensor, out_stride: tl.tensor, outputs: tl.constexpr, batch: tl.constexpr,
    blocks: tl.constexpr, parts: tl.constexpr, tile: tl.constexpr, even: tl.constexpr, ratio: tl.constexpr,
    lanes: tl.constexpr, half: tl.constexpr, stages: tl.constexpr, packed: tl.constexpr,
    interpreted: tl.constexpr,
):  # fmt: skip
    """As the other, of groups: ``ratio`` units of two halves each have one scale. ``outputs`` divides ``outs``."""
    row = tl.program_id(0) * tile + tl.arange(0, tile)
    target = tl.program_id(1) * outputs + tl.arange(0, outputs)
    part = tl.program_id(2)
    byte = tl.arange(0, half)[None, None, :]
    lane = target % lanes
    upper = (target // lanes).to(tl.int64)
    numbers_at = numbers + (upper * units * (lanes * half) + lane * half)[None, :, None] + byte
    scale_at = (upper * (units // ratio) * lanes + lane)[None, :]
    rows_at = rows + row[None, :, None] * rows_stride + byte
    used = (row < count)[None, :, None]
    kept = (row < count)[:, None]
    total = tl.zeros([batch, tile, outputs], tl.float32)
    begin = part * blocks * batch
    # With its own number of stages, a loop copies ahead what no matrix instruction reads, too: the scales.
    for first in tl.range(begin, tl.minimum(begin + blocks * batch, units), batch, num_stages=stages):
        unit = first + tl.arange(0, batch)
        inside = unit[:, None, None] * (2 * half)
        scaled = scale_at + (unit // ratio * lanes)[:, None]
        if even:
            w = tl.load(numbers_at + unit[:, None, None] * (lanes * half))
            x = tl.load(rows_at + inside, mask=used, other=0.0)
            y = tl.load(rows_at + (inside + half), mask=used, other=0.0)
            scale = tl.load(scales + scaled)
        else:
            there = (unit < units)[:, None, None]
            w = tl.load(numbers_at + unit[:, None, None] * (lanes * half), mask=there, other=0)
            x = tl.load(rows_at + inside, mask=used & there, other=0.0)
            y = tl.load(rows_at + (inside + half), mask=used & there, other=0.0)
            scale = tl.load(scales + scaled, mask=(unit < units)[:, None], other=0.0)
        low, high = halves(w, x.dtype, packed)
        found = product(x, tl.trans(low, 0, 2, 1), interpreted)
        found += product(y, tl.trans(high, 0, 2, 1), interpreted)
        if middles is not None:
            # Behind the last unit the rows are zero.
            middle = tl.load(middles + scaled, mask=(unit < units)[:, None], other=0.0)
            sum_of_rows = tl.sum(x.to(tl.float32) + y.to(tl.float32), 2)
            found += sum_of_rows[:, :, None] * middle.to(tl.float32)[:, None, :]
        total += found * scale.to(tl.float32)[:, None, :]
    result = tl.sum(total, 0)
    if parts > 1:
        tl.store(sums + (part * count + row)[:, None] * outs + target[None, :], result, mask=kept)
    else:
        at = row[:, None] * out_stride + target[None, :]
        if bias is not None:
            result += tl.load(bias + target).to(tl.float32)[None, :]
        if residual is not None:
            result += tl.load(residual + at, mask=kept, other=0.0).to(tl.float32)
        tl.store(out + at, result.to(out.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["count"])
def _add(
    sums: tl.tensor, scales: tl.tensor, bias: tl.tensor, residual: tl.tensor, out: tl.tensor, count: tl.tensor,
    outs: tl.tensor, out_stride: tl.tensor, parts: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """Add one row's parts, first to last, and what comes on top. Grid (T, outputs). ``out`` may be ``residual``."""
    row = tl.program_id(0)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    inside = column < outs
    total = tl.zeros([columns], tl.float32)
    for part in tl.static_range(parts):
        total += tl.load(sums + (part * count + row) * outs + column, mask=inside, other=0.0)
    if scales is not None:
        total *= tl.load(scales + column, mask=inside, other=0.0)
    if bias is not None:
        total += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    at = row * out_stride + column
    if residual is not None:
        total += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _quantize_rows(
    rows: tl.tensor, numbers: tl.tensor, scales: tl.tensor, rows_stride: tl.tensor, size: tl.tensor,
    columns: tl.constexpr,
):  # fmt: skip
    """Round one row to float8; the second time it comes from a cache. Grid (T)."""
    row = tl.program_id(0).to(tl.int64)
    found = tl.zeros([columns], tl.float32)
    for first in range(0, size, columns):
        column = first + tl.arange(0, columns)
        x = tl.load(rows + row * rows_stride + column, mask=column < size, other=0.0)
        found = tl.maximum(found, tl.abs(x.to(tl.float32)))
    scale = tl.maximum(tl.div_rn(tl.max(found, 0), 448.0), 7.888609052210118e-31)  # 2 ** -100
    tl.store(scales + row, scale)
    for first in range(0, size, columns):
        column = first + tl.arange(0, columns)
        x = tl.load(rows + row * rows_stride + column, mask=column < size, other=0.0)
        code = e4m3(tl.div_rn(x.to(tl.float32), scale))
        tl.store(numbers + row * size + column, code, mask=column < size)


@triton.jit
def _unpack(
    numbers: tl.tensor, scales: tl.tensor, middles: tl.tensor, out: tl.tensor, units: tl.tensor,
    block: tl.constexpr, ratio: tl.constexpr, lanes: tl.constexpr, half: tl.constexpr,
):  # fmt: skip
    """Write a few units of a tile of outputs as [out, in]. Grid (units, tiles)."""
    unit = tl.program_id(0) * block + tl.arange(0, block)
    upper = tl.program_id(1).to(tl.int64)
    lane = tl.arange(0, lanes)
    there = unit < units
    at = upper * units * (lanes * half) + (unit[:, None] * lanes + lane[None, :]) * half
    byte = tl.arange(0, half)[None, None, :]
    w = tl.load(numbers + at[:, :, None] + byte, mask=there[:, None, None], other=0)
    scaled = (upper * (units // ratio) + unit // ratio)[:, None] * lanes + lane[None, :]
    scale = tl.load(scales + scaled, mask=there[:, None], other=0.0).to(tl.float32)[:, :, None]
    low, high = (w & 15).to(tl.float32) - 8.0, (w >> 4).to(tl.float32) - 8.0
    if middles is not None:
        middle = tl.load(middles + scaled, mask=there[:, None], other=0.0).to(tl.float32)[:, :, None]
        low, high = low + middle, high + middle
    row = (upper * lanes + lane)[None, :, None] * units * (2 * half)
    target = out + row + unit[:, None, None] * (2 * half) + byte
    dtype = out.dtype.element_ty
    tl.store(target, (low * scale).to(dtype), mask=there[:, None, None])
    tl.store(target + half, (high * scale).to(dtype), mask=there[:, None, None])


class Blocks(NamedTuple):
    """What one program takes: ``outputs``, in each of ``parts`` so many ``steps`` along ``in``."""

    outputs: int
    steps: int
    parts: int


def choose_blocks(out: int, steps: int, wide: bool) -> Blocks:
    """Return the blocks of ``out`` outputs over ``steps``. They depend on nothing else. ``wide``: WIDE outputs are possible."""
    outputs = WIDE if wide and triton.cdiv(out, WIDE) >= PROGRAMS else NARROW
    parts = 1
    while parts < MOST_PARTS and triton.cdiv(out, outputs) * parts < PROGRAMS and steps >= 2 * parts * FEWEST_BLOCKS:
        parts *= 2
    each = triton.cdiv(steps, parts)
    return Blocks(outputs, each, triton.cdiv(steps, each))


def scaled_blocks(out: int, size: int) -> Blocks:
    """Return the blocks for a weight [out, size] in 8 bits."""
    return choose_blocks(out, triton.cdiv(size, SLICES * DEPTH), wide=True)


def grouped_blocks(out: int, units: int) -> Blocks:
    """Return the blocks for a weight of so many outputs and units in 4 bits."""
    return choose_blocks(out, triton.cdiv(units, UNITS), wide=out % WIDE == 0)


class _Call(NamedTuple):
    """What both products have in common: the rows, the result, and float32 sums where there are parts."""

    rows: Tensor
    out: Tensor
    sums: Tensor | None
    bias: Tensor | None
    residual: Tensor | None
    grid: tuple[int, int, int]

    @classmethod
    def of(
        cls, rows: Tensor, shape: tuple[int, int], bias: Tensor | None, residual: Tensor | None, blocks: Blocks
    ) -> _Call:
        check_rows(rows, shape, bias, residual)
        if residual is not None and residual.stride(1) != 1:
            raise ValueError(f"a residual with strides {residual.stride()}")
        count, outs = len(rows), shape[0]
        rows = rows_of(rows)
        out = rows.new_empty(count, outs) if residual is None else residual
        sums = rows.new_empty(blocks.parts, count, outs, dtype=torch.float32) if blocks.parts > 1 else None
        grid = (triton.cdiv(count, TILE_ROWS), triton.cdiv(outs, blocks.outputs), blocks.parts)
        return cls(rows, out, sums, None if bias is None else bias.contiguous(), residual, grid)

    def finish(self, scales: Tensor | None) -> Tensor:
        """Add up the parts, if there are any, and return the result."""
        if self.sums is not None:
            parts, count, outs = self.sums.shape
            _add[(count, triton.cdiv(outs, ADDED))](
                self.sums, scales, self.bias, self.residual, self.out, count, outs, self.out.stride(0), parts=parts,
                columns=ADDED,
            )  # fmt: skip
        return self.out


def row_scaled_product(rows: Tensor, weight: RowScaled, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    """See :func:`inferd_runtime.kernels.quantized.row_scaled_product`."""
    outs, size = weight.shape
    blocks = scaled_blocks(outs, size)
    call = _Call.of(rows, weight.shape, bias, residual, blocks)
    if call.out.numel():
        fp8 = weight.numbers.dtype == FP8
        _multiply_scaled[call.grid](
            call.rows, weight.numbers.view(torch.uint8) if fp8 else weight.numbers, weight.scales, call.bias, residual,
            call.out, call.sums, len(rows), size, outs, call.rows.stride(0), call.out.stride(0),
            **_scaled_constants(blocks, size, fp8, rows.dtype), num_warps=SLICES, num_stages=STAGES[8][blocks.outputs],
        )  # fmt: skip
        call.finish(weight.scales)
    return call.out


def _scaled_constants(blocks: Blocks, size: int, fp8: bool, dtype: torch.dtype) -> dict[str, object]:
    return {
        "outputs": blocks.outputs, "depth": DEPTH, "slices": SLICES, "blocks": blocks.steps, "parts": blocks.parts,
        "tile": TILE_ROWS, "even": size % (SLICES * DEPTH) == 0, "fp8": fp8,
        "packed": dtype == torch.bfloat16 and not INTERPRETED, "interpreted": INTERPRETED,
    }  # fmt: skip


def grouped_product(rows: Tensor, weight: Grouped, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    """See :func:`inferd_runtime.kernels.quantized.grouped_product`."""
    outs, size = weight.shape
    units, groups = size // UNIT, weight.scales.shape[1]
    blocks = grouped_blocks(outs, units)
    call = _Call.of(rows, weight.shape, bias, residual, blocks)
    if call.out.numel():
        _multiply_grouped[call.grid](
            call.rows, weight.numbers, weight.scales, weight.middles, call.bias, residual, call.out, call.sums, len(rows),
            units, outs, call.rows.stride(0), call.out.stride(0),
            **_grouped_constants(blocks, units, units // groups, rows.dtype),
            num_warps=SLICES, num_stages=STAGES[4][blocks.outputs], maxnreg=MOST_REGISTERS,
        )  # fmt: skip
        call.finish(None)
    return call.out


def _grouped_constants(blocks: Blocks, units: int, ratio: int, dtype: torch.dtype) -> dict[str, object]:
    return {
        "outputs": blocks.outputs, "batch": UNITS, "blocks": blocks.steps, "parts": blocks.parts, "tile": TILE_ROWS,
        "even": units % UNITS == 0, "ratio": ratio, "lanes": LANES, "half": UNIT // 2,
        "stages": STAGES[4][blocks.outputs],
        "packed": dtype == torch.bfloat16 and not INTERPRETED, "interpreted": INTERPRETED,
    }  # fmt: skip


def float8_rows(rows: Tensor) -> RowScaled:
    """See :func:`inferd_runtime.kernels.quantized.float8_rows`."""
    rows = rows_of(rows)
    count, size = rows.shape
    numbers = rows.new_empty(count, size, dtype=torch.uint8)
    scales = rows.new_empty(count, dtype=torch.float32)
    if count:
        _quantize_rows[(count,)](rows, numbers, scales, rows.stride(0), size, columns=QUANTIZED_COLUMNS)
    return RowScaled(numbers.view(FP8), scales)


def many_rows_product(rows: Tensor, weight: RowScaled) -> Tensor:
    """See :func:`inferd_runtime.kernels.quantized.many_rows_product`. ``out`` and ``in`` are multiples of 16."""
    made = float8_rows(rows)
    found: Tensor = torch._scaled_mm(
        made.numbers, weight.numbers.t(), scale_a=made.scales[:, None], scale_b=weight.scales[None], use_fast_accum=True,
        out_dtype=torch.bfloat16,
    )  # fmt: skip
    return found.to(rows.dtype)


def unpacked(weight: Grouped, dtype: torch.dtype) -> Tensor:
    """See :func:`inferd_runtime.kernels.quantized.unpacked`."""
    tiles, units, *_ = weight.numbers.shape
    out = weight.scales.new_empty(weight.shape, dtype=dtype)
    _unpack[(triton.cdiv(units, UNPACKED_UNITS), tiles)](
        weight.numbers, weight.scales, weight.middles, out, units, block=UNPACKED_UNITS,
        ratio=units // weight.scales.shape[1], lanes=LANES, half=UNIT // 2,
    )  # fmt: skip
    return out


KERNELS = QuantizedKernels(row_scaled_product, grouped_product, many_rows_product, unpacked)

SERVED = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096), (1024, 2048), (896, 4864))
"""Weights [out, in] of models of 8 and 0.6 billion parameters; the last one's ``in`` is no multiple of a block."""
RATIOS = {32: 1, 128: 4}


def variants() -> Iterator[Variant]:
    """Yield what is compiled for these weights and rows in bfloat16, and for the ends of the list in float16."""
    for dtype, pointer in ((torch.bfloat16, "*bf16"), (torch.float16, "*fp16")):
        for outs, size in SERVED if dtype == torch.bfloat16 else (SERVED[0], SERVED[-1]):
            for added in ("", "bias", "residual"):
                shape = f"{pointer[1:]} {outs}x{size} {added}".strip()
                for kind, bits in (("u8", "fp8"), ("i8", "int8")):
                    yield _scaled_variant(f"{bits} {shape}", kind, outs, size, dtype, added)
                for group, middles in ((32, True), (128, True), (128, False)):
                    named = f"int4 of {group}{' with middles' if middles else ''} {shape}"
                    yield _grouped_variant(named, outs, size, dtype, added, RATIOS[group], middles)
                yield from _add_variants(shape, outs, size, pointer, added)
        yield Variant(
            f"quantize rows {pointer[1:]}", _quantize_rows,
            {"rows": pointer, "numbers": "*u8", "scales": "*fp32", "rows_stride": "i32:16", "size": "i32:16"},
            {"columns": QUANTIZED_COLUMNS},
        )  # fmt: skip
        yield Variant(
            f"unpack {pointer[1:]}", _unpack,
            {"numbers": "*u8", "scales": "*fp16", "middles": "*fp16", "out": pointer, "units": "i32"},
            {"block": UNPACKED_UNITS, "ratio": 1, "lanes": LANES, "half": UNIT // 2},
        )  # fmt: skip


def _pointers(dtype: torch.dtype, added: str, parts: int) -> tuple[dict[str, str], dict[str, object]]:
    """Return the signature of what both products take, and what of it is not there."""
    pointer = "*bf16" if dtype == torch.bfloat16 else "*fp16"
    there = {"rows": pointer, "out": pointer, "count": "i32", "outs": "i32:16"}
    there |= dict.fromkeys(("rows_stride", "out_stride"), "i32:16")
    there |= {name: pointer for name in ("bias", "residual") if name == added}
    there |= {"sums": "*fp32"} if parts > 1 else {}
    return there, {name: None for name in ("bias", "residual", "sums") if name not in there}


def _scaled_variant(name: str, kind: str, outs: int, size: int, dtype: torch.dtype, added: str) -> Variant:
    blocks = scaled_blocks(outs, size)
    there, absent = _pointers(dtype, added, blocks.parts)
    signature = there | {"numbers": f"*{kind}", "scales": "*fp32", "size": "i32:16"}
    constants = absent | _scaled_constants(blocks, size, kind == "u8", dtype)
    return Variant(f"multiply {name}", _multiply_scaled, signature, constants, SLICES, STAGES[8][blocks.outputs])


def _grouped_variant(
    name: str, outs: int, size: int, dtype: torch.dtype, added: str, ratio: int, middles: bool
) -> Variant:
    blocks = grouped_blocks(outs, size // UNIT)
    there, absent = _pointers(dtype, added, blocks.parts)
    signature = there | {"numbers": "*u8", "scales": "*fp16", "units": "i32"}
    signature |= {"middles": "*fp16"} if middles else {}
    constants = absent | _grouped_constants(blocks, size // UNIT, ratio, dtype) | ({} if middles else {"middles": None})
    return Variant(
        f"multiply {name}", _multiply_grouped, signature, constants, SLICES, STAGES[4][blocks.outputs], MOST_REGISTERS
    )


def _add_variants(name: str, outs: int, size: int, pointer: str, added: str) -> Iterator[Variant]:
    for bits, blocks in ((8, scaled_blocks(outs, size)), (4, grouped_blocks(outs, size // UNIT))):
        if blocks.parts > 1:
            signature = {"sums": "*fp32", "out": pointer, "count": "i32", "outs": "i32:16", "out_stride": "i32:16"}
            signature |= {part: pointer for part in ("bias", "residual") if part == added}
            signature |= {"scales": "*fp32"} if bits == 8 else {}
            constants: dict[str, object] = {"parts": blocks.parts, "columns": ADDED}
            absent: dict[str, object] = {part: None for part in ("bias", "residual", "scales") if part not in signature}
            yield Variant(f"add {bits} bits {name}", _add, signature, constants | absent)
