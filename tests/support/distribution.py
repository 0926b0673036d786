"""Tests of the distribution of sampled sequences: toy targets that can be enumerated, and a test on the joint.

A test of one token at a time does not see a wrong dependence between tokens, which is what broken verifiers bring.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inferd.protocol import Sampling

ProbabilityArray = npt.NDArray[np.float64]
TokenArray = npt.NDArray[np.int64]
FEWEST = 5.0
"""Cells that expect fewer samples are merged: the chi-square approximation does not hold for them."""


def plain_distribution(
    logits: npt.NDArray[np.float32], sampling: Sampling, allowed: npt.NDArray[np.bool_]
) -> ProbabilityArray:
    """Return float64[V], a sampler's distribution by its plain definition, to compare the real one with.

    Ties at a bound stay in; among equal logits, temperature 0 takes the first.
    """
    scores = np.where(allowed, logits.astype(np.float64), -np.inf)
    if sampling.temperature == 0:
        p = np.zeros(len(scores))
        p[np.argmax(scores)] = 1.0
        return p
    p = np.exp((scores - scores.max()) / sampling.temperature)
    if 0 < sampling.top_k < np.count_nonzero(p):
        p[p < np.sort(p)[-sampling.top_k]] = 0
    bound = sampling.min_p * p.max()
    if sampling.top_p < 1:
        ordered = np.sort(p)[::-1]
        needed = int(np.count_nonzero(np.cumsum(ordered) < sampling.top_p * p.sum()))
        bound = max(bound, ordered[min(needed, len(p) - 1)])
    p[p < bound] = 0
    return np.asarray(p / p.sum())


@dataclass(frozen=True)
class ToyTarget:
    """``table`` float64[L, V, V]: the probability of a token at each of L places behind each last token."""

    table: ProbabilityArray

    @classmethod
    def of(cls, logits: npt.NDArray[np.float32], sampling: Sampling, allowed: npt.NDArray[np.bool_]) -> ToyTarget:
        """Return the target of raw logits float32[V, V] (one row per last token) under masks bool[L, V, V]."""

        def place(masks: npt.NDArray[np.bool_]) -> list[ProbabilityArray]:
            return [plain_distribution(row, sampling, mask) for row, mask in zip(logits, masks, strict=True)]

        return cls(np.array([place(masks) for masks in allowed]))

    def joint(self, first: int) -> ProbabilityArray:
        """Return float64[V ** L], the probability of every sequence behind the token ``first``, in lexical order."""
        probabilities = self.table[0, first]
        for place in self.table[1:]:
            probabilities = probabilities[..., None] * place
        return np.asarray(probabilities.reshape(-1))


def sequence_counts(tokens: TokenArray, vocab_size: int) -> TokenArray:
    """Return int64[V ** L], how often each sequence occurs in ``tokens`` int64[N, L]."""
    length = tokens.shape[1]
    places = vocab_size ** np.arange(length - 1, -1, -1)
    return np.asarray(np.bincount(tokens @ places, minlength=vocab_size**length))


def p_value(counts: TokenArray, probabilities: ProbabilityArray) -> float:
    """Return the p-value of Pearson's chi-square test of counts against probabilities; 0 if something impossible was counted.

    The tail by Wilson and Hilferty's cube root (1931), good to a few per cent of itself from 3 degrees of freedom on.
    """
    if counts[probabilities == 0].any():
        return 0.0
    expected = probabilities * counts.sum()
    few = expected < FEWEST
    observed, expected = _pooled(counts, few), _pooled(expected, few)
    freedom = int(np.count_nonzero(expected)) - 1
    if freedom < 1:
        return 1.0
    real = expected > 0
    statistic = float((((observed - expected)[real]) ** 2 / expected[real]).sum())
    spread = 2 / (9 * freedom)
    return 0.5 * math.erfc(((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(2 * spread))


def _pooled(values: npt.NDArray[np.generic], few: npt.NDArray[np.bool_]) -> ProbabilityArray:
    floats = values.astype(np.float64)
    return np.append(floats[~few], floats[few].sum())


def total_variation(counts: TokenArray, probabilities: ProbabilityArray) -> float:
    """Return the total variation distance of the counted shares from the probabilities, 0 to 1."""
    return float(np.abs(counts / counts.sum() - probabilities).sum() / 2)
