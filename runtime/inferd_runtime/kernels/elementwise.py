"""What a decoder layer does element by element between its products, where torch has no single kernel of its own.

The functions are the reference of :mod:`inferd_runtime.kernels.triton.elementwise`, one signature each, and never wait for
the device. Arithmetic is float32 from the product's output to the result, which is rounded to the product's dtype, and then
to the cache's. :class:`~inferd_runtime.models.passes.attention.GroupedLayout` also rounds the normed heads, the scaled
ones, what the cosine gives, and silu(gate): in float32 there is no difference.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from inferd_runtime.kernels.cache import check_written, write_kv


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
    """Norm and rotate q and k, write k and v to a layer's cache, and return q [T, H, D].

    ``qkv`` [T, (H + 2 Hkv) * D]: q, k and v of every row, head by head; ``heads`` (H, Hkv). ``head_norm`` [H + Hkv, D]: what
    the heads of q and k are scaled with after an RMS norm (with ``eps``) each; None: they are not normed. ``cos`` and ``sin``
    [T, D] of the rows' positions: x becomes x * cos + (x turned by D / 2 elements) * sin, so that the sign of the rotation is
    in sin (RoPE, Su et al. 2021, in the order of GPT-NeoX). ``keys``, ``values`` and ``slots`` int64[T] as
    :func:`inferd_runtime.kernels.cache.write_kv` takes them: -1 is padding, and nothing of that row is written.

    Raises ValueError for an odd D and for a cache that does not fit.
    """
    states = check_rotated(qkv, cos, sin, head_norm, heads, keys, values)
    turned = sum(heads)
    qk = states[:, :turned].float()
    if head_norm is not None:
        qk = rms_norm(qk, qk.shape[-1:], None, eps) * head_norm
    qk = qk * cos.float()[:, None] + qk.roll(qk.shape[-1] // 2, -1) * sin.float()[:, None]
    qk = qk.to(qkv.dtype)
    write_kv(qk[:, heads[0] :], states[:, turned:], keys, values, slots)
    return qk[:, : heads[0]].contiguous()


def check_rotated(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    head_norm: Tensor | None,
    heads: tuple[int, int],
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    """Return ``qkv`` as [T, H + 2 Hkv, D]. Raises ValueError where shapes do not go together."""
    query_heads, key_heads = heads
    every = query_heads + 2 * key_heads
    width = qkv.shape[1] // every
    if qkv.shape[1] != every * width or width % 2:
        raise ValueError(f"{qkv.shape[1]} elements for {every} heads, which have to be rotated by halves")
    states = qkv.view(len(qkv), every, width)
    if any(angle.shape != (len(qkv), width) for angle in (cos, sin)):
        raise ValueError(f"cos {list(cos.shape)} and sin {list(sin.shape)} for {len(qkv)} rows of width {width}")
    if head_norm is not None and head_norm.shape != (query_heads + key_heads, width):
        raise ValueError(f"head_norm {list(head_norm.shape)} for {query_heads + key_heads} heads of width {width}")
    for part, cache in zip(torch.split(states[:, query_heads:], key_heads, 1), (keys, values), strict=True):
        check_written(part, cache)
    return states


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up [T, F] of gate_up [T, 2 F], gate before up (SwiGLU, Shazeer 2020). Raises ValueError if odd."""
    check_gated(gate_up)
    gate, up = gate_up.float().chunk(2, dim=-1)
    return silu(gate).mul_(up).to(gate_up.dtype)


def check_gated(gate_up: Tensor) -> None:
    """Raise ValueError where there is no half for each of the two."""
    if gate_up.shape[1] % 2:
        raise ValueError(f"rows of {gate_up.shape[1]} elements are no gate and up")
