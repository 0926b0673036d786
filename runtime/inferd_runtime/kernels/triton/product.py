"""A matrix product for few rows in Triton. Reference: :mod:`inferd_runtime.kernels.product`.

A program owns some outputs and walks along ``in``: the weight is read once, in pieces of 16 bytes, by asynchronous copies that
run ahead of the arithmetic. All rows are the 16 rows of one matrix instruction, empty ones are zero. One compiled kernel
serves every number of rows and adds in one order, so that a row's result depends neither on how many others there are nor on
what they hold.

How much is under way. 4.3 TB/s and about a microsecond of latency under load want 4.3 MB in flight, 33 KB on each of 132
multiprocessors; 40 KB with some room. In half precision a block of the weight is 16 KiB, and three or four are under way: 48
to 64 KiB for each program. So at least 128 programs, of 64 outputs where they are that many, of 32 elsewhere; where these
are too few, ``in`` is cut into parts, which a second kernel adds in their order. Fewer outputs mean that the rows are read more
often, from the L2 cache: 16 rows are a quarter of the weight's bytes for 64 outputs, and half of them for 32.

A matrix instruction waits some 33 cycles for the sum that it adds to. So every warp takes a slice of a block for all outputs:
four or eight sums that do not wait for each other, where each warp's own outputs would be one. The slices are added last.
No hint says what the L2 cache should keep: Triton 3.7 drops those of asynchronous copies.

What stands before and behind a product in a layer is done by it: the norm of the rows before, whose scale is one number for each
row, so that it can be multiplied with the sums; and silu(gate) * up behind, of outputs of which every program has both. Launched
early, a program asks for its first blocks of the weight while the kernel in front still runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import rms_norm

from inferd_runtime.kernels.product import MOST_ROWS, RowNorm, check_product
from inferd_runtime.kernels.triton.early import LEAST_CAPABILITY, early_from, launched, starts_early, wait
from inferd_runtime.kernels.triton.elementwise import opened, rows_of, silu_mul
from inferd_runtime.kernels.triton.interpreted import INTERPRETED, product
from inferd_runtime.kernels.triton.variant import Variant

PROGRAMS = 128
"""At least so many, of which one or two share a multiprocessor; 132 would make 4,096 outputs need parts."""
SLICES = 4
"""Warps of a program: each adds up a slice of every block, so that none waits for another's sum."""
MOST_PARTS = 16
FEWEST_BLOCKS = 2
"""Blocks of ``in`` in a part: below, adding up the parts costs more than they save."""
STAGES = 5
"""Four blocks under way: the fifth stage is where they are used."""
ADDED = 256
"""Outputs that one program adds the parts of."""
AHEAD = tl.constexpr(4)
"""Blocks of the weight that are asked for before the kernel in front is done."""
LINE = tl.constexpr(128)
"""Bytes that come at a time."""


class ProductBlocks(NamedTuple):
    """What one program takes: ``outputs``, SLICES times ``depth`` elements of ``in`` at a time, ``steps`` times in each of
    ``parts``.
    """

    outputs: int
    depth: int
    steps: int
    parts: int


def choose_blocks(out: int, size: int, element: int) -> ProductBlocks:
    """Return block sizes for a weight [out, size] of ``element`` bytes a number. They depend on nothing else."""
    outputs, depth = (64, 32) if triton.cdiv(out, 64) >= PROGRAMS else (32, 64)
    if element == 4:
        # Exact products have no tensor cores: operands stand in registers, and larger blocks would not fit there.
        outputs, depth = 32, 16
    total, parts = triton.cdiv(size, SLICES * depth), 1
    while parts < MOST_PARTS and triton.cdiv(out, outputs) * parts < PROGRAMS and total >= 2 * parts * FEWEST_BLOCKS:
        parts *= 2
    steps = triton.cdiv(total, parts)
    return ProductBlocks(outputs, depth, steps, triton.cdiv(total, steps))


@triton.jit
def _fetch_ahead(weights: tl.tensor, begin: tl.tensor, size: tl.tensor, elements: tl.constexpr):
    """Bring the next ``elements`` of each row of the weight into the L2 cache. ``weights``: where the rows begin."""
    line: tl.constexpr = LINE // (weights.dtype.element_ty.primitive_bitwidth // 8)
    at = tl.minimum(begin + tl.arange(0, elements // line) * line, size - 1)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [(weights[:, None] + at[None, :]).to(tl.int64)],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit(do_not_specialize=["count"])
def _multiply(
    rows: tl.tensor, weight: tl.tensor, bias: tl.tensor, residual: tl.tensor, norm: tl.tensor, out: tl.tensor,
    sums: tl.tensor, count: tl.tensor, size: tl.tensor, outs: tl.tensor, rows_stride: tl.tensor,
    weight_stride: tl.tensor, out_stride: tl.tensor, eps: tl.tensor, outputs: tl.constexpr, depth: tl.constexpr,
    slices: tl.constexpr, blocks: tl.constexpr, parts: tl.constexpr, tile: tl.constexpr, even: tl.constexpr,
    gated: tl.constexpr, early: tl.constexpr, interpreted: tl.constexpr,
):  # fmt: skip
    """Compute some outputs, or one part of their sums. Grid (outputs, parts). ``out`` may be ``residual``.

    ``gated``: gate and up stand in turn, so that each thread has both.
    """
    first = tl.program_id(0) * outputs
    part = tl.program_id(1)
    row = tl.arange(0, tile)
    # What lies behind the last output is not stored: its weight may be the last one's.
    column = tl.minimum(tl.arange(0, outputs), outs - first - 1)
    k = tl.arange(0, slices)[:, None, None] * depth + tl.arange(0, depth)[None, None, :]
    rows_at = rows + row[None, :, None] * rows_stride
    own = first + column
    if gated:
        own = own // 2 + own % 2 * (outs // 2)
    weights = weight + own.to(tl.int64) * weight_stride
    weight_at = weights[None, :, None]
    used = (row < count)[None, :, None]
    step: tl.constexpr = slices * depth
    begin = part * blocks * step
    if early:
        _fetch_ahead(weights, begin, size, AHEAD * step)
    wait(early)
    kept = (row < count)[:, None] & (first + tl.arange(0, outputs) < outs)[None, :]
    target = first + column[None, :]
    # Asked for before the walk, so that nobody waits for it behind: a program's own part of what it will overwrite.
    added = tl.zeros([tile, outputs], tl.float32)
    if parts == 1:
        if bias is not None:
            added += tl.load(bias + first + column).to(tl.float32)[None, :]
        if residual is not None:
            added += tl.load(residual + row[:, None] * out_stride + target, mask=kept, other=0.0).to(tl.float32)
    total = tl.zeros([slices, tile, outputs], tl.float32)
    squares = tl.zeros([slices, tile], tl.float32)
    for at in range(begin, tl.minimum(begin + blocks * step, size), step):
        if even:
            w = tl.load(weight_at + (at + k))
            x = tl.load(rows_at + (at + k), mask=used, other=0.0)
        else:
            w = tl.load(weight_at + (at + k), mask=at + k < size, other=0.0)
            x = tl.load(rows_at + (at + k), mask=used & (at + k < size), other=0.0)
        if norm is not None:
            scale = tl.load(norm + (at + k)) if even else tl.load(norm + (at + k), mask=at + k < size, other=0.0)
            wide = x.to(tl.float32)
            squares += tl.sum(wide * wide, 2)
            x = (wide * scale.to(tl.float32)).to(x.dtype)
        total += product(x, tl.trans(w, 0, 2, 1), interpreted)
    result = tl.sum(total, 0)
    if norm is not None:
        result *= (1.0 / tl.sqrt_rn(tl.sum(squares, 0) / size + eps))[:, None]
    if gated:
        gate, up = tl.split(tl.reshape(result, [tile, outputs // 2, 2]))
        place = first // 2 + tl.arange(0, outputs // 2)
        kept = (row < count)[:, None] & (place < outs // 2)[None, :]
        at = row[:, None] * out_stride + place[None, :]
        tl.store(out + at, opened(gate, up).to(out.dtype.element_ty), mask=kept)
    elif parts > 1:
        tl.store(sums + (part * count + row)[:, None] * outs + target, result, mask=kept)
    else:
        result += added
        tl.store(out + row[:, None] * out_stride + target, result.to(out.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["count"])
def _add(
    sums: tl.tensor, bias: tl.tensor, residual: tl.tensor, out: tl.tensor, count: tl.tensor, outs: tl.tensor,
    out_stride: tl.tensor, parts: tl.constexpr, columns: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    """Add one row's parts, first to last. Grid (T, outputs). ``out`` may be ``residual``."""
    wait(early)
    row = tl.program_id(0)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    inside = column < outs
    total = tl.zeros([columns], tl.float32)
    for part in tl.static_range(parts):
        total += tl.load(sums + (part * count + row) * outs + column, mask=inside, other=0.0)
    if bias is not None:
        total += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    at = row * out_stride + column
    if residual is not None:
        total += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


def few_rows_product(
    rows: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, norm: RowNorm | None = None,
    gated: bool = False,
) -> Tensor:  # fmt: skip
    """See :func:`inferd_runtime.kernels.product.few_rows_product`. Allocates its result, and float32 sums where there are
    parts. Raises ValueError for a weight or a residual whose rows do not stand side by side, too.
    """
    check_product(rows, weight, bias, residual, norm, gated)
    for part in (weight, residual):
        if part is not None and part.stride(1) != 1:
            raise ValueError(f"a product with strides {part.stride()}")
    blocks = choose_blocks(len(weight), weight.shape[1], weight.element_size())
    if norm is not None and not _norms(blocks, rows.dtype):
        rows, norm = rms_norm(rows, norm.weight.shape, norm.weight, norm.eps), None
    if gated and blocks.parts > 1:
        return silu_mul(few_rows_product(rows, weight, None, None, norm))
    out = rows.new_empty(len(rows), len(weight) // (2 if gated else 1)) if residual is None else residual
    if out.numel():
        _launch(rows_of(rows), weight, None if bias is None else bias.contiguous(), residual, norm, out, blocks, gated)
    return out


def _norms(blocks: ProductBlocks, dtype: torch.dtype) -> bool:
    """True if a program can norm the rows: it walks along all of them, and a number times the norm's weight fits the dtype."""
    return blocks.parts == 1 and dtype != torch.float16


def _launch(
    rows: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, norm: RowNorm | None, out: Tensor,
    blocks: ProductBlocks, gated: bool,
) -> None:  # fmt: skip
    count, (outs, size) = len(rows), weight.shape
    early = starts_early(rows.device)
    sums = rows.new_empty(blocks.parts, count, outs, dtype=torch.float32) if blocks.parts > 1 else None
    scale, eps = (None, 0.0) if norm is None else (norm.weight.contiguous(), norm.eps)
    _multiply[(triton.cdiv(outs, blocks.outputs), blocks.parts)](
        rows, weight, bias, residual, scale, out, sums, count, size, outs, rows.stride(0), weight.stride(0), out.stride(0),
        eps, **_constants(blocks, size), gated=gated, early=early, num_warps=SLICES, num_stages=STAGES, **launched(early),
    )  # fmt: skip
    if sums is not None:
        _add[(count, triton.cdiv(outs, ADDED))](
            sums, bias, residual, out, count, outs, out.stride(0), parts=blocks.parts, columns=ADDED, early=early,
            **launched(early),
        )  # fmt: skip


def _constants(blocks: ProductBlocks, size: int) -> dict[str, object]:
    return {
        "outputs": blocks.outputs, "depth": blocks.depth, "slices": SLICES, "blocks": blocks.steps, "parts": blocks.parts,
        "tile": MOST_ROWS, "even": size % (SLICES * blocks.depth) == 0, "interpreted": INTERPRETED,
    }  # fmt: skip


SERVED = (
    (6144, 4096),
    (4096, 4096),
    (28672, 4096),
    (4096, 14336),
    (128256, 4096),
    (9728, 2560),
    (1024, 2048),
    (768, 4096),
    (3584, 4096),
    (896, 4864),
)
"""Weights [out, in] of models of 8, 4 and 0.6 billion parameters, and of a rank among eight of the first. The last one's ``in``
is no multiple of a block.
"""
CUT = ((4096, 512), (4096, 1792))
"""Such a rank's weights whose inputs are divided: no norm stands before them."""


def variants(capability: int = LEAST_CAPABILITY) -> Iterator[Variant]:
    """Yield what is compiled for these weights in bfloat16, and for the ends of the list in others, on a device of that
    capability (times ten).
    """
    early = early_from(capability)
    for dtype, pointer in ((torch.bfloat16, "*bf16"), (torch.float16, "*fp16"), (torch.float32, "*fp32")):
        for outs, size in SERVED if dtype == torch.bfloat16 else (SERVED[0], SERVED[-1]):
            blocks = choose_blocks(outs, size, dtype.itemsize)
            for added in ((), ("bias",), ("residual",), ("norm",), ("norm", "bias"), ("norm", "gated")):
                if not {"norm", "gated"} & {*added} or _norms(blocks, dtype):
                    yield from _variants(f"{pointer[1:]} {outs}x{size}", pointer, blocks, size, {*added}, early)
    for outs, size in CUT:
        blocks = choose_blocks(outs, size, torch.bfloat16.itemsize)
        for added in ((), ("residual",)):
            yield from _variants(f"bf16 {outs}x{size}", "*bf16", blocks, size, {*added}, early)


def _variants(
    name: str, pointer: str, blocks: ProductBlocks, size: int, added: set[str], early: bool
) -> Iterator[Variant]:
    name = " ".join((name, *sorted(added)))
    adds: dict[str, str] = {part: pointer for part in ("bias", "residual") if part in added}
    absent: dict[str, object] = {part: None for part in ("bias", "residual") if part not in added}
    shape = {"out": pointer, "count": "i32", "outs": "i32:16", "out_stride": "i32:16"}
    summed: dict[str, str] = {"sums": "*fp32"} if blocks.parts > 1 else {}
    normed: dict[str, str] = {"norm": pointer} if "norm" in added else {}
    signature = {"rows": pointer, "weight": pointer, **adds, **shape, **summed, **normed, "eps": "fp32"}
    signature |= dict.fromkeys(("size", "rows_stride", "weight_stride"), "i32:16")
    constants = {**absent, **({} if summed else {"sums": None}), **({} if normed else {"norm": None})}
    constants |= {**_constants(blocks, size), "gated": "gated" in added, "early": early}
    if blocks.parts == 1 or not added:
        yield Variant(f"multiply {name}", _multiply, signature, constants, SLICES, STAGES)
    if blocks.parts > 1:
        constants = {**absent, "parts": blocks.parts, "columns": ADDED, "early": early}
        yield Variant(f"add {name}", _add, {**adds, **shape, **summed}, constants)
