"""Logits to the distribution that is sampled: mask, temperature, top_k, top_p, min_p, for rows of many samplers at once."""

from __future__ import annotations

import torch
from torch import Tensor

NONE = float("-inf")


def process(
    logits: Tensor, *, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, masks: Tensor | None = None
) -> Tensor:
    """Return scores float64[N, V] of rows float[N, V]: -inf for what a row's sampler excludes, 0 for the most likely token.

    ``temperature``, ``top_p`` and ``min_p`` are float64[N], ``top_k`` is int64[N], with the meaning and the order of
    ``engine/sampling/host_sampling.py: candidates``, whose scores these are. Temperature 0 leaves the first of the
    largest. ``masks``
    int32[N, ceil(V / 32)]: bit i of word w allows token 32 w + i; a row whose mask allows nothing is -inf everywhere.
    """
    scores = logits.to(torch.float64)
    if masks is not None:
        scores = scores.masked_fill(~allowed(masks, scores.shape[1]), NONE)
    best = scores.max(dim=1, keepdim=True)
    greedy = (temperature == 0)[:, None]
    # Relative to the largest, so that no temperature can overflow the best token away.
    scaled = (scores - best.values) / torch.where(temperature > 0, temperature, 1.0)[:, None]
    scaled = scaled.masked_fill(scores == NONE, NONE)
    scaled = _top_k(scaled, top_k)
    scaled = _nucleus(scaled, top_p, min_p)
    first = torch.full_like(scaled, NONE).scatter_(1, best.indices, 0.0).masked_fill(best.values == NONE, NONE)
    return torch.where(greedy, first, scaled)


def allowed(masks: Tensor, vocab_size: int) -> Tensor:
    """Return bool[N, V] of packed masks int32[N, ceil(V / 32)]."""
    tokens = torch.arange(vocab_size, device=masks.device)
    return (masks[:, tokens >> 5] >> (tokens & 31) & 1).bool()


def _top_k(scores: Tensor, top_k: Tensor) -> Tensor:
    """Exclude all but the ``top_k`` largest. Ties at the bound stay in; 0 is off."""
    last = (torch.where(top_k > 0, top_k, scores.shape[1]).clamp(max=scores.shape[1]) - 1)[:, None]
    bound = scores.sort(dim=1, descending=True).values.gather(1, last)
    return scores.masked_fill(scores < bound, NONE)


def _nucleus(scores: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Exclude all but the likeliest tokens that reach ``top_p`` together and have ``min_p`` of the largest probability."""
    likely = scores.exp()
    ordered = likely.sort(dim=1, descending=True).values
    wanted = top_p[:, None] * likely.sum(dim=1, keepdim=True)
    reached = (ordered.cumsum(dim=1) < wanted).sum(dim=1, keepdim=True).clamp(max=scores.shape[1] - 1)
    outside = (likely < ordered.gather(1, reached)) & (top_p < 1)[:, None]
    return scores.masked_fill(outside | (scores < min_p.log()[:, None]), NONE)
