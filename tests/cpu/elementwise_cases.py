"""What a set of elementwise operations has to do, on any device: the reference and the Triton kernels run the same checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from cache_cases import filled, tokens_of
from torch import Tensor

from inferd_runtime.kernels.cache import FP8, CacheBlock

EPS = 1e-5
LAYER = 1
# Of the last place: rounding to nearest is half of one, but the interpreter cuts bfloat16 off.
RELATIVE = {torch.float32: 2e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7, FP8: 2**-3}
SMALLEST = {torch.float32: 1e-7, torch.float16: 2**-24, torch.bfloat16: 1e-7, FP8: 2**-9}


class ElementwiseOps(NamedTuple):
    """The functions of a module, on a device."""

    rotate_and_write: Callable[..., Tensor]
    silu_mul: Callable[[Tensor], Tensor]
    device: str


def ops(module: object, device: str = "cpu") -> ElementwiseOps:
    """The operations that a module has under these names."""
    return ElementwiseOps(*(getattr(module, name) for name in ElementwiseOps._fields[:-1]), device)


@contextmanager
def poisoned() -> Iterator[None]:
    """Memory that torch hands out uninitialised holds NaN meanwhile, so that what nobody writes shows."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(1).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@dataclass(frozen=True)
class Heads:
    """A layer: H, Hkv, D, whether heads are normed, and the dtypes of the product and of the cache."""

    query: int
    key: int
    width: int
    normed: bool
    dtype: torch.dtype
    cache: torch.dtype


def check_rotation(run: ElementwiseOps, heads: Heads, slots: Sequence[int]) -> None:
    """q, k and v against float64; nothing else of the cache changes. Rows of the inputs lie apart."""
    generator = torch.Generator().manual_seed(len(slots) + heads.width)
    every, rows = heads.query + 2 * heads.key, len(slots)
    wide = torch.randn(rows, every * heads.width + 16, generator=generator).to(heads.dtype)
    qkv = wide[:, : every * heads.width]
    angles = torch.rand(rows, heads.width // 2, generator=generator).mul(7).repeat(1, 2)
    cos, sin = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
    sin[:, : heads.width // 2].neg_()
    norm = (
        torch.rand(heads.query + heads.key, heads.width, generator=generator).to(heads.dtype) if heads.normed else None
    )
    shapes = [(heads.key, heads.width)] * (LAYER + 1)
    block = filled(CacheBlock(shapes, shapes, heads.cache, 9, 16, run.device))
    before = tokens_of(block)
    given = [None if part is None else part.to(run.device) for part in (wide, cos, sin, norm)]
    where = torch.tensor(slots, dtype=torch.int64, device=run.device)
    with poisoned():
        query = run.rotate_and_write(
            given[0][:, : qkv.shape[1]], *given[1:], EPS, (heads.query, heads.key),
            block.keys[LAYER], block.values[LAYER], where,
        )  # fmt: skip
    q, k = turned(qkv, cos, sin, norm, heads)
    near(query.cpu(), q, heads.dtype)
    kept = [row for row, slot in enumerate(slots) if slot >= 0]
    target = [slots[row] for row in kept]
    written = block.keys[LAYER].cpu().view(-1, heads.key, heads.width)[target]
    near(written, k[kept].clamp(-448, 448) if heads.cache == FP8 else k[kept], heads.cache)
    v = qkv[kept, (heads.query + heads.key) * heads.width :]
    v = v.float().clamp(-448, 448).to(FP8) if heads.cache == FP8 else v
    cache = before[2 * LAYER + 1]
    cache[target] = v.contiguous().view(torch.uint8).view(len(kept), cache.shape[1])
    after = tokens_of(block)
    before[2 * LAYER][target] = after[2 * LAYER][target]
    assert all(torch.equal(one, other) for one, other in zip(after, before, strict=True))


def turned(qkv: Tensor, cos: Tensor, sin: Tensor, norm: Tensor | None, heads: Heads) -> tuple[Tensor, Tensor]:
    """q and k in float64, normed and turned pair by pair."""
    states = qkv.double().reshape(len(qkv), heads.query + 2 * heads.key, heads.width)[:, : heads.query + heads.key]
    if norm is not None:
        states = states / (states.square().mean(-1, keepdim=True) + EPS).sqrt() * norm.double()
    half = heads.width // 2
    out = torch.empty_like(states)
    for pair in range(half):
        one, other = states[..., pair], states[..., pair + half]
        out[..., pair] = one * cos[:, None, pair].double() + other * sin[:, None, pair].double()
        out[..., pair + half] = other * cos[:, None, pair + half].double() + one * sin[:, None, pair + half].double()
    return out[:, : heads.query], out[:, heads.query :]


def near(got: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Within the last place of the dtype, and of float32 where large numbers cancel."""
    assert got.dtype == dtype
    assert got.shape == expected.shape
    allowed = (
        expected.abs() * RELATIVE[dtype] + SMALLEST[dtype] + 1e-6 * float(expected.abs().max() if len(expected) else 0)
    )
    off = (got.double() - expected).abs() - allowed
    assert bool((off <= 0).all()), float(off.max())


def check_gating(run: ElementwiseOps, rows: int, size: int, dtype: torch.dtype) -> None:
    """silu(gate) * up against float64, large and small gates included, of rows that lie apart."""
    wide = torch.randn(rows, 2 * size + 8, generator=torch.Generator().manual_seed(size)).mul(2)
    wide[:, ::5] *= 10 if dtype == torch.float16 else 80
    wide = wide.to(dtype)
    with poisoned():
        got = run.silu_mul(wide.to(run.device)[:, : 2 * size])
    gate, up = wide[:, : 2 * size].double().chunk(2, 1)
    near(got.cpu(), gate * torch.sigmoid(gate) * up, dtype)
