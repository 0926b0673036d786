"""Sampling of a draft model's tokens, with a confidence for each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from inferd_runtime.engine.sampling.host_sampling import LogitRows, RowSampler, candidates
from inferd_runtime.engine.sampling.noise import MASK, gumbel, mix
from inferd_runtime.speculation.drafts import Probabilities

GREEDY = 0.4
"""Two models agree on the likeliest token more often than its probability says: about as often as this power of it (measured
on the embedded models).
"""
DRAFT_STREAM = 0xD6E8FEB86659FD93


class Guess(NamedTuple):
    """A drawn token. ``confidence`` 0 to 1; ``probabilities`` float32[V] for rejection sampling, else None."""

    token: int
    confidence: float
    probabilities: Probabilities | None = None


def draw_guess(logits: LogitRows, sampler: RowSampler, position: int) -> Guess:
    """Draw a token at absolute ``position`` from one row of logits, float32[V], with the target's noise.

    With the same key both models take the largest of their scores plus the same noise (shared Gumbel: Daliri et al. 2024,
    arXiv 2408.07978), so they agree nearly as often as any two samplers can. The confidence is the share of the winner in the
    softmax of the scores with their noise. It measures by how much the models may differ without another token winning; the
    token's own probability would be low for every draw at a high temperature.
    """
    if sampler.temperature == 0:
        token = int(np.argmax(logits))
        return guess_of(token, _share(logits, float(logits[token])), sampler)
    tokens, scores = candidates(logits, sampler, position)
    noisy = scores + gumbel(sampler.key, position, tokens)
    best = int(np.argmax(noisy))
    return Guess(int(tokens[best]), _share(noisy, float(noisy[best])))


def guess_of(token: int, share: float, sampler: RowSampler) -> Guess:
    """Return a token that was drawn with that share in the softmax, here or on the device (``kernels/confidence.py``)."""
    return Guess(token, share**GREEDY if sampler.temperature == 0 else share)


def _share(scores: npt.NDArray[np.floating], best: float) -> float:
    return float(1.0 / np.exp(scores - best).sum())


def draw_freely(logits: LogitRows, sampler: RowSampler, position: int) -> Guess:
    """Draw a token with noise of the draft's own, and keep the distribution, float32[V], for rejection sampling.

    Rejection sampling is biased if the noise that drew a token is used again to test it.
    """
    probabilities = np.zeros(logits.shape[0], np.float32)
    if sampler.temperature == 0:
        token = int(np.argmax(logits))
        probabilities[token] = 1.0
        return Guess(token, 1.0, probabilities)
    tokens, scores = candidates(logits, sampler, position)
    weights = np.exp(scores - scores.max())
    probabilities[tokens] = weights / weights.sum()
    noise = gumbel(mix((sampler.key ^ DRAFT_STREAM) & MASK), position, tokens)
    return Guess(int(tokens[np.argmax(scores + noise)]), 1.0, probabilities)
