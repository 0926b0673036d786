"""Sampling on the host: the reference that every device kernel is compared with. NumPy, one row at a time.

A row is processed as penalties and bias (``engine/sampling/penalties.py``), mask, temperature, top_k, top_p, min_p, typical_p,
xtc; then the Gumbel-argmax with counter-based noise draws from what is left. The draw depends on the row's logits, adjustments,
mask, sampler, key and position and on nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inferd.protocol import ConstraintError, Sampling, check_sampling
from inferd_runtime.engine.sampling.noise import (
    MASK,
    RARE,
    RARE_BITS,
    gumbel,
    gumbel_argmax,
    gumbel_of_token,
    mix,
    noise_base,
    stream,
    uniform,
)
from inferd_runtime.engine.sampling.penalties import Entries, Penalties, adjust
from inferd_runtime.kernels.native.draws import DrawKernels, draw_kernels

LogitRows = npt.NDArray[np.float32]
Masks = npt.NDArray[np.int32]
XTC = 0x87C0
"""Tag of the noise that decides at which positions XTC leaves out the top choices."""
SLACK = 1e-3
"""How far a sum may be below the best one and still be compared exactly: far more than rounding errors."""
SPARSE = 8
"""A mask is read word by word if fewer than one in so many of its words are in use."""


@dataclass(frozen=True, slots=True)
class RowSampler:
    """A validated sampler with the key of its noise. ``penalties`` None: neither penalties nor biases."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    key: int
    penalties: Penalties | None = None
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1

    @property
    def host_only(self) -> bool:
        """True if no device implements it: its rows come to the host."""
        return self.typical_p < 1 or self.xtc_probability > 0

    @property
    def leaves_all(self) -> bool:
        """True if every allowed token can be drawn."""
        return self.top_k <= 0 and self.top_p >= 1 and self.min_p <= 0 and not self.host_only

    @classmethod
    def resolve(cls, sampling: Sampling, *, seed: int, lineage: int) -> RowSampler:
        """Return the sampler of a request. Raises InvalidRequest or LimitExceeded that names the field out of range."""
        check_sampling(sampling)
        key = mix((mix(seed & MASK) + lineage) & MASK) if lineage else mix(seed & MASK)
        penalties = Penalties.of(sampling)
        return cls(
            sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, key, penalties,
            sampling.typical_p, sampling.xtc_probability, sampling.xtc_threshold,
        )  # fmt: skip


def allowed_tokens(mask: Masks, vocab_size: int) -> npt.NDArray[np.int64]:
    """Return the tokens of one mask row (int32[ceil(V / 32)], bit i of word w is token 32 w + i), ascending, below V."""
    words = np.flatnonzero(mask)
    if words.size * SPARSE > mask.size:
        return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little", count=vocab_size).view(np.bool_))
    bits = np.flatnonzero(np.unpackbits(mask[words].view(np.uint8), bitorder="little").view(np.bool_))
    tokens = (words[bits >> 5] << 5) + (bits & 31)
    return np.asarray(tokens[tokens < vocab_size])


def draw(
    logits: LogitRows, sampler: RowSampler, position: int, mask: Masks | None = None, entries: Entries | None = None
) -> int:
    """Return the token sampled at absolute ``position`` from one row of logits, float32[V], which is not changed.

    ``entries``: the penalties and biases of the row. Raises ConstraintError if ``mask`` allows no token.
    """
    if entries is not None:
        logits = adjust(logits, entries)
    kernels = draw_kernels() if sampler.leaves_all and (sampler.temperature > 0 or mask is not None) else None
    quick = None if kernels is None else _draw_quickly(kernels, logits, sampler, position, mask)
    return plain_draw(logits, sampler, position, mask) if quick is None else quick


def plain_draw(logits: LogitRows, sampler: RowSampler, position: int, mask: Masks | None = None) -> int:
    """Return what :func:`draw` does of adjusted logits, for every sampler and on every machine."""
    best = largest(logits)
    if mask is not None:
        return _draw_allowed(logits, sampler, position, mask, best)
    if sampler.temperature == 0:
        return best
    tokens, scores = candidates(logits, sampler, position)
    return int(tokens[gumbel_argmax(scores, sampler.key, position, tokens)])


def largest(logits: LogitRows) -> int:
    """Return the place of the largest logit. Raises FloatingPointError if that is infinite, or some are no numbers."""
    best = int(np.argmax(logits))
    if not logits.flat[best] < math.inf:  # NumPy takes the first NaN for the largest
        raise FloatingPointError("the logits are no finite numbers")
    return best


def _draw_quickly(
    kernels: DrawKernels, logits: LogitRows, sampler: RowSampler, position: int, mask: Masks | None
) -> int | None:
    """Return what :func:`plain_draw` does, for a sampler that leaves all tokens; None where that has to raise an error.

    The same tokens as in :func:`gumbel_argmax` could win, and at most a few more: the sum that decides is the same.
    """
    if logits.dtype != np.float32 or not logits.flags.c_contiguous:
        return None
    best = kernels.largest(logits, mask)
    if best < 0 or not np.isfinite(logits[best]):
        return None
    if sampler.temperature == 0:
        return best
    reach = sampler.temperature * (gumbel_of_token(sampler.key, position, best) - RARE - SLACK)
    base = noise_base(sampler.key, position)
    tokens = kernels.contenders(logits, mask, float(logits[best]) + reach, base, int(RARE_BITS))
    scores = logits[tokens].astype(np.float64)
    scores -= float(logits[best])
    with np.errstate(over="ignore"):
        scores /= sampler.temperature
    return int(tokens[np.argmax(scores + gumbel(sampler.key, position, tokens))])


def _draw_allowed(logits: LogitRows, sampler: RowSampler, position: int, mask: Masks, best: int) -> int:
    """Return what :func:`plain_draw` would with -inf for forbidden tokens, without touching the whole vocabulary."""
    if sampler.temperature == 0 and int(mask[best >> 5]) >> (best & 31) & 1:
        return best
    allowed = allowed_tokens(mask, logits.shape[0])
    if not allowed.size:
        raise ConstraintError("the constraint leaves no token to go on with")
    if sampler.temperature == 0:
        return int(allowed[np.argmax(logits[allowed])])
    places, scores = candidates(logits[allowed], sampler, position)
    tokens = allowed[places]
    return int(tokens[gumbel_argmax(scores, sampler.key, position, tokens)])


def candidates(
    logits: LogitRows, sampler: RowSampler, position: int = 0
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return the tokens that top_k, top_p, min_p, typical_p and xtc leave, with their scaled logits (float64).

    Ties at a bound stay in. ``position`` is for xtc, which draws whether it takes something out.
    """
    scores = logits.astype(np.float64)
    # Relative to the largest, so that no temperature can overflow the best token away.
    scores -= scores.max()
    with np.errstate(over="ignore"):
        scores /= sampler.temperature
    keep = scores > -np.inf
    if 0 < sampler.top_k < int(keep.sum()):
        keep &= scores >= np.partition(scores, -sampler.top_k)[-sampler.top_k]
    if keep.all():
        tokens = np.arange(scores.size)
    else:
        tokens = np.flatnonzero(keep)
        scores = scores[tokens]
    if sampler.top_p < 1 or sampler.min_p > 0:
        fine = _nucleus(scores, sampler.top_p) if sampler.top_p < 1 else scores <= 0
        if sampler.min_p > 0:
            # A share of the largest probability, whose score is 0.
            fine &= scores >= math.log(sampler.min_p)
        tokens, scores = tokens[fine], scores[fine]
    if sampler.host_only:
        fine = _typical(scores, sampler.typical_p)
        tokens, scores = tokens[fine], scores[fine]
        fine = _below_top(scores, sampler, position)
        tokens, scores = tokens[fine], scores[fine]
    return tokens, scores


def _typical(scores: npt.NDArray[np.float64], typical_p: float) -> npt.NDArray[np.bool_]:
    """Return which scores belong to the tokens nearest to the entropy in surprise, until they reach ``typical_p`` together."""
    if typical_p >= 1:
        return np.ones(scores.size, np.bool_)
    logprobs = scores - scores.max() - math.log(np.exp(scores - scores.max()).sum())
    likely = np.exp(logprobs)
    entropy = -float((likely * np.where(likely > 0, logprobs, 0.0)).sum())
    away = np.abs(-logprobs - entropy)
    order = np.argsort(away, kind="stable")
    reached = int(np.searchsorted(np.cumsum(likely[order]), typical_p))
    return np.asarray(away <= away[order[min(reached, order.size - 1)]])


def _below_top(scores: npt.NDArray[np.float64], sampler: RowSampler, position: int) -> npt.NDArray[np.bool_]:
    """Return which scores xtc leaves at a position: all, or all but the top choices other than the least likely of them."""
    everything = np.ones(scores.size, np.bool_)
    chance = float(uniform(stream(sampler.key, XTC), position, np.zeros(1, np.int64))[0])
    if chance >= sampler.xtc_probability:
        return everything
    likely = np.exp(scores - scores.max())
    top = np.flatnonzero(likely >= sampler.xtc_threshold * likely.sum())
    if top.size < 2:
        return everything
    everything[top] = scores[top] == scores[top].min()
    return everything


def _nucleus(scores: npt.NDArray[np.float64], top_p: float) -> npt.NDArray[np.bool_]:
    """Return which scores (the largest is 0) belong to the most likely tokens that reach ``top_p`` together.

    Tokens less likely than the missing share divided by the number of tokens cannot be needed, as all of them together are less
    than that share: so only the rest, usually a few, is sorted.
    """
    probabilities = np.exp(scores)
    total = float(probabilities.sum())
    likely = probabilities[probabilities >= (1 - top_p) * total / probabilities.size]
    ordered = np.sort(likely)[::-1]
    reached = int(np.searchsorted(np.cumsum(ordered), top_p * total))
    return np.asarray(probabilities >= ordered[min(reached, ordered.size - 1)])


def log_softmax(logits: LogitRows) -> npt.NDArray[np.float64]:
    """Return the log-probabilities, float64[V], of one row of raw logits."""
    scores = logits.astype(np.float64)
    scores -= scores.max()
    return np.asarray(scores - np.log(np.exp(scores).sum()))
