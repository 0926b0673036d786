"""A draw by code of our own: the same token as the plain way's, or none, so that the plain way says what is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from inferd.protocol import ConstraintError, Sampling
from inferd_runtime.engine.sampling.host_sampling import RowSampler, draw, plain_draw
from inferd_runtime.kernels.native.draws import draw_kernels

pytestmark = pytest.mark.skipif(draw_kernels() is None, reason="no compiler, or a processor without AVX2")


def sampler_of(temperature: float, seed: int = 0) -> RowSampler:
    return RowSampler.resolve(Sampling(temperature), seed=seed, lineage=0)


def mask_of(size: int, share: float, token: int, rng: np.random.Generator) -> np.ndarray:
    """A random mask that allows one token in any case; bits behind the vocabulary may be set, too."""
    allowed = rng.random(-(-size // 32) * 32) < share
    allowed[token] = True
    return np.packbits(allowed, bitorder="little").view(np.int32)


@given(
    st.integers(1, 700),
    st.floats(0.0, 40.0),
    st.sampled_from([0.0, 5e-324, 1e-3, 0.3, 0.8, 1.0, 2.0]),
    st.sampled_from([None, 0.0, 0.1, 0.9, 1.0]),
    st.integers(0, 2**32),
)
def test_it_draws_what_the_plain_way_draws(
    size: int, spread: float, temperature: float, share: float | None, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal(size) * spread).astype(np.float32)
    logits[: size // 3] = np.round(logits[: size // 3])  # ties
    logits[rng.random(size) < 0.1] = -np.inf
    token = int(rng.integers(size))
    logits[token] = 1.0
    mask = None if share is None else mask_of(size, share, token, rng)
    sampler = sampler_of(temperature, seed)
    for position in range(8):
        assert draw(logits, sampler, position, mask) == plain_draw(logits, sampler, position, mask)


def test_it_is_near_no_bound_of_a_whole_vocabulary() -> None:
    rng = np.random.default_rng(5)
    logits = (rng.standard_normal(50_000) * 2).astype(np.float32)
    for temperature in (0.5, 0.8, 1.0, 1.7):
        sampler = sampler_of(temperature)
        drawn = [draw(logits, sampler, position) for position in range(100)]
        assert drawn == [plain_draw(logits, sampler, position) for position in range(100)]
    assert len(set(drawn)) > 50


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_that_allows_nothing_is_the_constraints_error(temperature: float) -> None:
    with pytest.raises(ConstraintError):
        draw(np.zeros(70, np.float32), sampler_of(temperature), 0, np.zeros(3, np.int32))
