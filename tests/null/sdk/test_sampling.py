from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from inferd import InvalidRequest, Sampler
from inferd.protocol import Sampling


def test_defaults() -> None:
    assert Sampler.argmax().sampling == Sampling()
    assert Sampler.multinomial().sampling == Sampling(1.0)
    assert Sampler.top_p().sampling == Sampling(0.6, top_p=0.95)
    assert Sampler.top_k().sampling == Sampling(0.6, top_k=40)
    assert Sampler.min_p().sampling == Sampling(0.6, min_p=0.1)
    assert Sampler.top_k_top_p().sampling == Sampling(0.6, top_k=40, top_p=0.95)


@pytest.mark.parametrize(
    "make", [Sampler.multinomial, Sampler.top_p, Sampler.top_k, Sampler.min_p, Sampler.top_k_top_p]
)
def test_every_drawing_sampler_takes_a_seed(make: Callable[..., Sampler]) -> None:
    assert make(seed=2**63 - 1).sampling.seed == 2**63 - 1
    for seed in (-1, 2**63, 1.0, True, "1"):
        with pytest.raises(InvalidRequest, match=r"^seed must"):
            make(seed=seed)


@pytest.mark.parametrize("temperature", [-0.1, math.inf, math.nan, True, "1", None])
def test_temperature_out_of_range(temperature: float) -> None:
    with pytest.raises(InvalidRequest, match=r"^temperature must"):
        Sampler.multinomial(temperature)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sampler.top_p(1.0, 0), "p must be above 0"),
        (lambda: Sampler.top_p(1.0, 1.01), "p must be a number from 0 to 1"),
        (lambda: Sampler.top_p(1.0, math.nan), "p must be"),
        (lambda: Sampler.min_p(1.0, -0.1), "p must be"),
        (lambda: Sampler.top_k(1.0, 0), "k must be"),
        (lambda: Sampler.top_k(1.0, 1.5), "k must be"),  # type: ignore[arg-type]
        (lambda: Sampler.top_k(1.0, True), "k must be"),
        (lambda: Sampler.top_k_top_p(1.0, 0, 0.5), "k must be"),
        (lambda: Sampler.top_k_top_p(1.0, 1, 2), "p must be"),
    ],
)
def test_values_out_of_range_are_refused_by_name(make: Callable[[], Sampler], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        make()


def test_whole_numbers_become_floats() -> None:
    assert type(Sampler.top_p(1, 1).sampling.top_p) is float
    assert type(Sampler.multinomial(0).sampling.temperature) is float
