"""What top_p and min_p leave, and what a mask does, against the definitions written down plainly."""

from __future__ import annotations

import numpy as np
import pytest

from inferd.protocol import ConstraintError, Sampling
from inferd_grammar.tokens import bit_mask
from inferd_runtime.engine.sampling.host_sampling import RowSampler, allowed_tokens, candidates, draw


def plainly(logits: np.ndarray, temperature: float, top_p: float, min_p: float) -> list[int]:
    """Sort everything, add up until top_p is reached, keep ties; then min_p of the most likely one."""
    scores = (logits.astype(np.float64) - logits.max()) / temperature
    probabilities = np.exp(scores)
    ordered = np.sort(probabilities)[::-1]
    reached = int(np.searchsorted(np.cumsum(ordered), top_p * probabilities.sum()))
    bound = ordered[min(reached, ordered.size - 1)] if top_p < 1 else 0.0
    with np.errstate(divide="ignore"):
        return np.flatnonzero((probabilities >= bound) & (scores >= np.log(min_p))).tolist()


@pytest.mark.parametrize("spread", [0.0, 0.1, 2.0, 30.0])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999999, 1.0])
@pytest.mark.parametrize("min_p", [0.0, 0.02, 1.0])
def test_the_nucleus_is_that_of_a_full_sort(spread: float, top_p: float, min_p: float) -> None:
    generator = np.random.default_rng(7)
    for size in (1, 2, 50, 3000):
        logits = (generator.standard_normal(size) * spread).astype(np.float32)
        logits[: size // 3] = np.round(logits[: size // 3])  # ties
        for temperature in (0.3, 1.0, 1.5):
            sampler = RowSampler.resolve(Sampling(temperature, 0, top_p, min_p), seed=0, lineage=0)
            tokens, scores = candidates(logits, sampler)
            assert tokens.tolist() == plainly(logits, temperature, top_p, min_p)
            assert scores.max() == 0


@pytest.mark.parametrize("share", [0.001, 0.02, 0.5, 1.0])
@pytest.mark.parametrize("size", [31, 32, 3001])
def test_a_mask_means_minus_infinity_elsewhere(size: int, share: float) -> None:
    generator = np.random.default_rng(11)
    for position in range(8):
        logits = np.round(generator.standard_normal(size).astype(np.float32), 1)  # ties
        allowed = np.unique(np.append(np.flatnonzero(generator.random(size) < share), generator.integers(size)))
        mask = bit_mask(allowed.tolist(), size)
        assert allowed_tokens(mask, size).tolist() == allowed.tolist()
        plain = np.full(size, -np.inf, np.float32)
        plain[allowed] = logits[allowed]
        for sampling in (
            Sampling(0),
            Sampling(1.0),
            Sampling(0.7, 5),
            Sampling(1.2, 0, 0.8),
            Sampling(1.0, 0, 1.0, 0.1),
        ):
            sampler = RowSampler.resolve(sampling, seed=position, lineage=0)
            assert draw(logits, sampler, position, mask) == draw(plain, sampler, position)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_that_allows_nothing_is_an_error(temperature: float) -> None:
    """Bits behind the vocabulary are nothing, too."""
    sampler = RowSampler.resolve(Sampling(temperature), seed=0, lineage=0)
    for mask in (bit_mask([], 40), bit_mask([50], 64)):
        with pytest.raises(ConstraintError):
            draw(np.zeros(40, np.float32), sampler, 0, mask)
