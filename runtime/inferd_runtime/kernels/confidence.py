"""How sure a draw was, in torch: the reference of :mod:`inferd_runtime.kernels.triton.confidence`.

A draft model's tokens come to the host with it instead of with their logits (``draft_models/draft_sampling.py``). Three places
are enough: it is float32 throughout, and no account is taken of what top_k, top_p and min_p leave out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inferd_runtime.kernels.noise import gumbel
from inferd_runtime.kernels.processing import NONE, allowed
from inferd_runtime.kernels.sampling import SampleRows, check_rows, check_tensor

COLDEST, HOTTEST = 1e-30, 1e30
"""Temperatures beyond are as these: float32 tells no more."""
LARGEST = 60.0
"""What is left out by a filter may score more than what was drawn, but no sum is to overflow."""


def confidence(logits: Tensor, rows: SampleRows, tokens: Tensor) -> Tensor:
    """Return float32[N]: the share of each drawn token, int32[N], in the softmax of its row's scores with their noise.

    Scores are ``logits`` float[N, V], adjusted already, of the tokens that the mask allows, over the temperature; at 0 the logits
    as they are, without noise. 0 where nothing was drawn (PAD). Raises ValueError where ``rows`` are not what they say.
    """
    check_rows(logits, rows)
    check_tensor("tokens", tokens, torch.int32, (len(logits),))
    at = tokens.clamp(min=0).to(torch.int64)[:, None]
    scores = logits.to(torch.float32)
    if rows.masks.shape[0]:
        free = (rows.mask_rows < 0)[:, None]
        scores = scores.masked_fill(~(free | allowed(rows.masks[rows.mask_rows.clamp(min=0)], logits.shape[1])), NONE)
    scores = scores - scores.gather(1, at)
    ids = torch.arange(logits.shape[1], device=logits.device)
    noise = gumbel(rows.keys[:, None], rows.positions[:, None], ids).to(torch.float32)
    warm = rows.temperature[:, None] > 0
    heat = rows.temperature.clamp(COLDEST, HOTTEST).to(torch.float32)[:, None]
    scores = torch.where(warm, scores / heat + (noise - noise.gather(1, at)), scores)
    return (1.0 / scores.clamp(max=LARGEST).exp().sum(1)).masked_fill(tokens < 0, 0.0)
