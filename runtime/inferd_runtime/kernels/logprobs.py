"""What rows of logits say of tokens: log-probability, rank, and the likeliest ones. On any device, without waiting for it.

The host's twin is ``engine/sampling/probes.py: token_logprob``, one row at a time. In torch's own operations: few rows ask.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROWS = 32
"""Rows that are looked at together: each takes some 20 bytes for each token of the vocabulary meanwhile."""
LOW = 0xFFFFFFFF


def token_scores(logits: Tensor, rows: Tensor, tokens: Tensor, top: int) -> Tensor:
    """Return float64[N, 2 + 2 * top] of tokens int64[N], each by one of the rows, int64[N], of ``logits`` float[R, V].

    A line holds the token's log-probability, and 1 + how many tokens have a larger logit; then the ``top`` likeliest tokens, of
    equal ones the lower first, and then their log-probabilities. ``top`` is at most V.
    """
    parts = [slice(first, first + ROWS) for first in range(0, len(rows), ROWS)]
    found = [_scores(logits[rows[part]], tokens[part], top) for part in parts]
    return torch.cat(found) if found else logits.new_empty(0, 2 + 2 * top, dtype=torch.float64)


def _scores(logits: Tensor, tokens: Tensor, top: int) -> Tensor:
    logits = logits.float() + 0.0  # -0 is as large as 0
    best = logits.amax(1, keepdim=True)
    total = best.double() + (logits - best).exp().sum(1, keepdim=True, dtype=torch.float64).log()
    own = logits.gather(1, tokens.clamp(min=0)[:, None])
    rank = 1 + (logits > own).sum(1, keepdim=True)
    ids = _likeliest(logits, top)
    return torch.cat([own.double() - total, rank.double(), ids.double(), logits.gather(1, ids).double() - total], 1)


def _likeliest(logits: Tensor, top: int) -> Tensor:
    """Return int64[N, top]: by logit, then by token, as whole numbers that are all different: topk leaves open which of equal
    ones it takes.
    """
    if not top:
        return logits.new_empty(len(logits), 0, dtype=torch.int64)
    bits = logits.view(torch.int32)
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
    last = logits.shape[1] - 1
    ids = torch.arange(last, -1, -1, device=logits.device)
    return last - (((ordered << 32) + ids).topk(top, dim=1).values & LOW)
