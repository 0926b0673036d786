"""A decoder layer's elementwise work in Triton, one launch each. Reference: :mod:`inferd_runtime.kernels.elementwise`."""

from __future__ import annotations

from collections.abc import Iterator

import triton
import triton.language as tl
from torch import Tensor

from inferd_runtime.kernels.cache import FP8
from inferd_runtime.kernels.elementwise import check_gated, check_rotated
from inferd_runtime.kernels.triton.cache import e4m3, stored
from inferd_runtime.kernels.triton.early import LEAST_CAPABILITY, early_from, launched, starts_early, wait
from inferd_runtime.kernels.triton.variant import Variant

TILE = 1024
"""Elements of a program, about: eight for each thread."""


@triton.jit
def _load_halves(rows: tl.tensor, index: tl.tensor, mask: tl.tensor, half: tl.constexpr):
    return (
        tl.load(rows + index, mask=mask, other=0.0).to(tl.float32),
        tl.load(rows + index + half, mask=mask, other=0.0).to(tl.float32),
    )


@triton.jit
def _write_halves(
    cache: tl.tensor, index: tl.tensor, first: tl.tensor, second: tl.tensor, mask: tl.tensor, half: tl.constexpr,
    fp8: tl.constexpr,
):  # fmt: skip
    if fp8:
        tl.store(cache + index, e4m3(first), mask=mask)
        tl.store(cache + index + half, e4m3(second), mask=mask)
    else:
        tl.store(cache + index, first, mask=mask)
        tl.store(cache + index + half, second, mask=mask)


@triton.jit
def _rotate_and_write(
    qkv: tl.tensor, cos: tl.tensor, sin: tl.tensor, head_norm: tl.tensor, query: tl.tensor, keys: tl.tensor,
    values: tl.tensor, slots: tl.tensor, qkv_row: tl.tensor, cos_row: tl.tensor, sin_row: tl.tensor, eps: tl.tensor,
    query_heads: tl.constexpr, key_heads: tl.constexpr, half: tl.constexpr, fp8: tl.constexpr,
    block_heads: tl.constexpr, block_half: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    """Rotate and write some heads of one row, q's, k's and v's as they come; the two halves of a head meet in one thread."""
    wait(early)
    row = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * block_heads + tl.arange(0, block_heads))[:, None]
    column = tl.arange(0, block_half)[None, :]
    width: tl.constexpr = 2 * half
    turned: tl.constexpr = query_heads + key_heads
    inside = (head < turned + key_heads) & (column < half)
    index = head * width + column
    first, second = _load_halves(qkv + row * qkv_row, index, inside, half)
    slot = tl.load(slots + row)
    # A row without a slot has no heads to write. (A mask that is joined with a scalar fails in the interpreter of Triton 3.9.)
    raw = inside & (head >= turned) & (head < tl.where(slot >= 0, turned + key_heads, 0))
    _write_halves(values + (slot * key_heads - turned) * width, index, first, second, raw, half, fp8)
    if head_norm is not None:
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        scale = 1.0 / tl.sqrt_rn(squares / width + eps)
        norm_first, norm_second = _load_halves(head_norm, index, inside & (head < turned), half)
        first, second = first * scale[:, None] * norm_first, second * scale[:, None] * norm_second
    cos_first, cos_second = _load_halves(cos + row * cos_row, column, column < half, half)
    sin_first, sin_second = _load_halves(sin + row * sin_row, column, column < half, half)
    up = first * cos_first + second * sin_first
    down = second * cos_second + first * sin_second
    dtype = qkv.dtype.element_ty
    up, down = up.to(dtype), down.to(dtype)
    _write_halves(query + row * query_heads * width, index, up, down, inside & (head < query_heads), half, False)
    mine = inside & (head >= query_heads) & (head < tl.where(slot >= 0, turned, 0))
    if fp8:
        up, down = up.to(tl.float32), down.to(tl.float32)
    _write_halves(keys + (slot * key_heads - query_heads) * width, index, up, down, mine, half, fp8)


def rotate_and_write(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    head_norm: Tensor | None,
    eps: float,
    heads: tuple[int, int],
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
) -> Tensor:
    """See :func:`inferd_runtime.kernels.elementwise.rotate_and_write`."""
    states = check_rotated(qkv, cos, sin, head_norm, heads, keys, values)
    count, every, width = states.shape
    query = qkv.new_empty(count, heads[0], width)
    block_half = triton.next_power_of_2(width // 2)
    block_heads = max(1, min(triton.next_power_of_2(every), TILE // (2 * block_half)))
    qkv, cos, sin = (rows_of(part) for part in (qkv, cos, sin))
    early = starts_early(qkv.device)
    if count:
        _rotate_and_write[(count, triton.cdiv(every, block_heads))](
            qkv, cos, sin, None if head_norm is None else head_norm.contiguous(), query, stored(keys), stored(values),
            slots, qkv.stride(0), cos.stride(0), sin.stride(0), eps,
            query_heads=heads[0], key_heads=heads[1], half=width // 2,
            fp8=keys.dtype == FP8, block_heads=block_heads, block_half=block_half, early=early, **launched(early),
        )  # fmt: skip
    return query


def rows_of(part: Tensor) -> Tensor:
    """Return the states with the elements of a row side by side; the rows may lie apart."""
    return part if part.stride(1) == 1 else part.contiguous()


@triton.jit
def opened(gate: tl.tensor, up: tl.tensor):
    """Return silu(gate) * up, of float32."""
    # The exponential of what is never positive cannot overflow.
    small = tl.exp(-tl.abs(gate))
    return gate * (tl.where(gate < 0, small, 1.0) / (1.0 + small)) * up


@triton.jit
def _silu_mul(gate_up: tl.tensor, out: tl.tensor, gate_row: tl.tensor, size: tl.tensor, columns: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    inside = column < size
    gate = tl.load(gate_up + row * gate_row + column, mask=inside).to(tl.float32)
    up = tl.load(gate_up + row * gate_row + size + column, mask=inside).to(tl.float32)
    tl.store(out + row * size + column, opened(gate, up), mask=inside)


def silu_mul(gate_up: Tensor) -> Tensor:
    """See :func:`inferd_runtime.kernels.elementwise.silu_mul`."""
    check_gated(gate_up)
    gate_up = rows_of(gate_up)
    rows, size = len(gate_up), gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, size)
    columns = min(TILE, triton.next_power_of_2(size))
    if out.numel():
        _silu_mul[(rows, triton.cdiv(size, columns))](gate_up, out, gate_up.stride(0), size, columns=columns)
    return out


def variants(capability: int = LEAST_CAPABILITY) -> Iterator[Variant]:
    """Yield what is compiled for 32 query and 8 key heads of width 128 or 64, on a device of that capability (times ten)."""
    strides = dict.fromkeys(("qkv_row", "cos_row", "sin_row"), "i32:16")
    for dtype in ("*bf16", "*fp16"):
        for cache in (dtype, "*u8"):
            for half in (64, 32):
                for normed in (False, True):
                    rows = dict.fromkeys(("qkv", "cos", "sin", "query"), dtype) | {"slots": "*i64", "eps": "fp32"}
                    signature = rows | strides | {"keys": cache, "values": cache}
                    signature |= {"head_norm": dtype} if normed else {}
                    constants: dict[str, object] = {} if normed else {"head_norm": None}
                    constants |= {"query_heads": 32, "key_heads": 8, "half": half, "fp8": cache == "*u8"}
                    constants |= {"block_heads": TILE // (2 * half), "block_half": half}
                    constants |= {"early": early_from(capability)}
                    name = f"rotate_and_write {dtype[1:]}->{cache[1:]} {2 * half}{' normed' if normed else ''}"
                    yield Variant(name, _rotate_and_write, signature, constants)
        signature = {"gate_up": dtype, "out": dtype, "gate_row": "i32:16", "size": "i32:16"}
        yield Variant(f"silu_mul {dtype[1:]}", _silu_mul, signature, {"columns": TILE})
