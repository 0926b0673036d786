"""What top_p and min_p leave, against the definition written down plainly."""

from __future__ import annotations

import numpy as np
import pytest

from inferd.protocol import Sampling
from inferd_runtime.engine.sampling import RowSampler, candidates


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
