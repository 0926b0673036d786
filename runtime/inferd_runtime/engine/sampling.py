"""Sampling on the host: the reference that every device kernel is compared with. NumPy, one row at a time.

A row is processed as mask, temperature, top_k, top_p, min_p; then the Gumbel-argmax with counter-based noise draws from
what is left. The draw depends on the row's logits, mask, sampler, key and position and on nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inferd.protocol import InvalidRequest, Sampling
from inferd_runtime.engine.noise import MASK, gumbel, mix

Logits = npt.NDArray[np.float32]
Masks = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class RowSampler:
    """A validated sampler with the key of its noise."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    key: int

    @classmethod
    def resolve(cls, sampling: Sampling, *, seed: int, lineage: int) -> RowSampler:
        """Check the request's sampler. Raises InvalidRequest that names the field out of range."""
        checks = {
            "temperature": sampling.temperature >= 0,
            "top_k": sampling.top_k >= 0,
            "top_p": 0 < sampling.top_p <= 1,
            "min_p": 0 <= sampling.min_p <= 1,
        }
        for name, fine in checks.items():
            if not fine:
                raise InvalidRequest(f"sampler: {name} = {getattr(sampling, name)} is out of range")
        key = mix((mix(seed & MASK) + lineage) & MASK) if lineage else mix(seed & MASK)
        return cls(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, key)


def allowed_tokens(mask: Masks, vocab_size: int) -> npt.NDArray[np.bool_]:
    """The bits of one mask row (int32[ceil(V / 32)], bit i of word w is token 32 w + i) as bool[V]."""
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little", count=vocab_size)
    return np.asarray(bits.view(np.bool_))


def draw(logits: Logits, sampler: RowSampler, position: int, mask: Masks | None = None) -> int:
    """Sample the token at absolute ``position`` from one row of logits (float32[V])."""
    if mask is not None:
        logits = np.where(allowed_tokens(mask, logits.shape[0]), logits, np.float32(-np.inf))
    if sampler.temperature == 0:
        return int(np.argmax(logits))
    tokens, scores = candidates(logits, sampler)
    return int(tokens[np.argmax(scores + gumbel(sampler.key, position, tokens))])


def candidates(logits: Logits, sampler: RowSampler) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The tokens that top_k, top_p and min_p leave, with their scaled logits (float64). Ties at a bound stay in."""
    scores = logits.astype(np.float64)
    # Relative to the largest, so that no temperature can overflow the best token away.
    with np.errstate(over="ignore"):
        scores = (scores - scores.max()) / sampler.temperature
    keep = scores > -np.inf
    if 0 < sampler.top_k < int(keep.sum()):
        keep &= scores >= np.partition(scores, -sampler.top_k)[-sampler.top_k]
    tokens = np.flatnonzero(keep)
    scores = scores[tokens]
    if sampler.top_p < 1 or sampler.min_p > 0:
        fine = _nucleus(scores, sampler.top_p) if sampler.top_p < 1 else scores <= 0
        if sampler.min_p > 0:
            # A share of the largest probability, which stands at 0 here.
            fine &= scores >= math.log(sampler.min_p)
        tokens, scores = tokens[fine], scores[fine]
    return tokens, scores


def _nucleus(scores: npt.NDArray[np.float64], top_p: float) -> npt.NDArray[np.bool_]:
    """Which scores (the largest is 0) belong to the most likely tokens that reach ``top_p`` together.

    What is less likely than the missing share divided by the number of tokens cannot be needed, as all of it together is
    less than that share: so only the rest, usually a few, is sorted.
    """
    probabilities = np.exp(scores)
    total = float(probabilities.sum())
    likely = probabilities[probabilities >= (1 - top_p) * total / probabilities.size]
    ordered = np.sort(likely)[::-1]
    reached = int(np.searchsorted(np.cumsum(ordered), top_p * total))
    return np.asarray(probabilities >= ordered[min(reached, ordered.size - 1)])


def log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    """Log-probabilities (float64[V]) of one row of raw logits."""
    scores = logits.astype(np.float64)
    scores -= scores.max()
    return np.asarray(scores - np.log(np.exp(scores).sum()))
