"""Rows of logits to tokens, for many samplers at once: the torch reference of the fused sampling kernel, and what both take.

A row's meaning is that of ``engine/sampling/host_sampling.py: draw``: adjustments, mask, temperature, top_k, top_p,
min_p, then the
Gumbel-argmax with the engine's noise. Nothing here waits for the device, so that a recorded step may hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inferd_runtime.kernels.noise import gumbel
from inferd_runtime.kernels.processing import NONE, allowed, process

PAD = -1
"""What a row draws whose mask allows nothing."""


@dataclass(frozen=True, slots=True)
class Adjustments:
    """Penalties and biases of N rows, sparse: row n owns the entries ``first[n]`` to ``first[n + 1] - 1`` of A.

    ``first`` int32[N + 1], ascending; entries from ``first[N]`` on are padding. ``tokens`` int32[A], below V and distinct within
    a row. ``repetition`` float32[A], positive (1: none), and ``shift`` float32[A]: a logit l becomes
    (l / repetition if l > 0 else l * repetition) + shift, computed in float64 and rounded to float32 once. The product of
    two float32 is exact there, so no device's fused multiply-add changes a bit.
    """

    first: Tensor
    tokens: Tensor
    repetition: Tensor
    shift: Tensor


@dataclass(frozen=True, slots=True)
class SampleRows:
    """The samplers of N rows, as ``engine/sampling/host_sampling.py: RowSampler`` has one.

    ``temperature``, ``top_p``, ``min_p`` float64[N]; ``top_k`` int64[N] (0: off); ``keys`` int64[N], the engine's in two's
    complement; ``positions`` int64[N], absolute. ``mask_rows`` int32[N]: which row of ``masks`` int32[M, ceil(V / 32)] a row
    obeys (bit i of word w allows token 32 w + i), -1: none.
    """

    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    top_k: Tensor
    keys: Tensor
    positions: Tensor
    mask_rows: Tensor
    masks: Tensor
    adjustments: Adjustments | None = None

    def select(self, chosen: Tensor) -> SampleRows:
        """Return the rows of the numbers int64[M], without adjustments: those are made before."""
        names = ("temperature", "top_p", "min_p", "top_k", "keys", "positions", "mask_rows")
        return SampleRows(**{name: getattr(self, name)[chosen] for name in names}, masks=self.masks)


def check_rows(logits: Tensor, rows: SampleRows) -> None:
    """Raise ValueError, which names it, for a tensor whose dtype, shape or layout the kernels cannot read."""
    count, vocab_size = logits.shape
    floats = dict.fromkeys(("temperature", "top_p", "min_p"), torch.float64)
    numbers = dict.fromkeys(("top_k", "keys", "positions"), torch.int64)
    for name, dtype in {**floats, **numbers, "mask_rows": torch.int32}.items():
        check_tensor(name, getattr(rows, name), dtype, (count,))
    check_tensor("masks", rows.masks, torch.int32, (rows.masks.shape[0], -(-vocab_size // 32)))
    if rows.adjustments is not None:
        entries = rows.adjustments.tokens.shape
        check_tensor("first", rows.adjustments.first, torch.int32, (count + 1,))
        for name, dtype in (("tokens", torch.int32), ("repetition", torch.float32), ("shift", torch.float32)):
            check_tensor(name, getattr(rows.adjustments, name), dtype, entries)


def check_tensor(name: str, given: Tensor, dtype: torch.dtype, shape: Sequence[int]) -> None:
    """Raise ValueError unless the tensor is that, and contiguous."""
    if given.dtype != dtype or given.shape != shape or not given.is_contiguous():
        raise ValueError(f"{name}: {given.dtype}{list(given.shape)}, not a contiguous {dtype}{list(shape)}")


def sample(logits: Tensor, rows: SampleRows) -> Tensor:
    """Return int64[N]: the token that each row of ``logits`` float[N, V] (finite or -inf; not changed) draws.

    PAD where nothing is left: the mask allows nothing, or -inf only. Raises ValueError where ``rows`` are not what they say.
    """
    check_rows(logits, rows)
    if rows.adjustments is not None:
        logits = adjusted(logits, rows.adjustments)
    scores = processed(logits, rows)
    tokens = torch.arange(logits.shape[1], device=logits.device)
    best = (scores + gumbel(rows.keys[:, None], rows.positions[:, None], tokens)).max(dim=1)
    return best.indices.masked_fill(best.values == NONE, PAD)


def processed(logits: Tensor, rows: SampleRows) -> Tensor:
    """Return float64[N, V]: the scores that the samplers draw from, of adjusted ``logits`` float[N, V]."""
    if rows.masks.shape[0]:
        free = (rows.mask_rows < 0)[:, None]
        logits = logits.masked_fill(~(free | allowed(rows.masks[rows.mask_rows.clamp(min=0)], logits.shape[1])), NONE)
    return process(logits, temperature=rows.temperature, top_k=rows.top_k, top_p=rows.top_p, min_p=rows.min_p)


def adjusted(logits: Tensor, adjustments: Adjustments) -> Tensor:
    """Return float32[N, V]: a copy of ``logits`` float[N, V] with the adjustments."""
    count, vocab_size = logits.shape
    # One place behind all rows, where the padding of the entries goes.
    flat = torch.cat([logits.to(torch.float32).reshape(-1), logits.new_zeros(1, dtype=torch.float32)])
    entries = torch.arange(adjustments.tokens.shape[0], dtype=torch.int32, device=logits.device)
    owner = torch.searchsorted(adjustments.first[1:].contiguous(), entries, right=True)
    places = torch.where(owner < count, owner * vocab_size + adjustments.tokens, count * vocab_size)
    before, repetition = flat[places].to(torch.float64), adjustments.repetition.to(torch.float64)
    after = torch.where(before > 0, before / repetition, before * repetition) + adjustments.shift.to(torch.float64)
    return flat.scatter(0, places, after.to(torch.float32))[:-1].view(count, vocab_size)
