from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from inferd import CustomSampler, InvalidRequest, LimitExceeded, Sampler
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


def test_penalties_and_a_bias_go_on_any_sampler_and_leave_the_rest() -> None:
    plain = Sampler.top_p(0.7, 0.95, seed=3)
    sampler = plain.penalized(repetition=1.1, presence=0.5, frequency=-0.25).biased({42: -5, 7: 1.5})
    assert sampler.sampling == Sampling(
        0.7, top_p=0.95, seed=3, repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=-0.25,
        bias_tokens=(42, 7), bias_values=(-5.0, 1.5),
    )  # fmt: skip
    assert sampler.adjusts
    assert not plain.adjusts
    assert sampler.penalized().biased({}) == plain
    assert len({plain, sampler}) == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"repetition": 0}, "repetition_penalty must be a number from 0.01 to 100"),
        ({"repetition": True}, "repetition_penalty must"),
        ({"presence": 2.1}, "presence_penalty must be a number from -2 to 2"),
        ({"frequency": math.nan}, "frequency_penalty must"),
    ],
)
def test_penalties_out_of_range_are_refused_by_name(fields: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Sampler.argmax().penalized(**fields)


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        ([1], "bias must map token ids to numbers"),
        ({-1: 1.0}, "bias.0. must be a whole number"),
        ({5: -math.inf}, r"bias\[5\] must be a number from -100 to 100"),
        ({5: "1"}, r"bias\[5\] must"),
    ],
)
def test_a_bias_out_of_range_is_refused_by_name(bias: dict[int, float], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Sampler.argmax().biased(bias)


@pytest.mark.parametrize("make", [Sampler.argmax, lambda: CustomSampler.of(lambda candidates: 0)])
def test_no_token_at_all_is_refused_and_not_read_as_any_token(make: Callable[[], Sampler | CustomSampler]) -> None:
    with pytest.raises(InvalidRequest, match="at least one token"):
        make().only(())


def test_too_many_biases_are_refused() -> None:
    with pytest.raises(
        LimitExceeded, match=r"bias names 1025 tokens; 1024 are allowed \(what helps: a sampler of your own"
    ):
        Sampler.argmax().biased(dict.fromkeys(range(1025), 1.0))


def test_whole_numbers_become_floats() -> None:
    assert type(Sampler.top_p(1, 1).sampling.top_p) is float
    assert type(Sampler.multinomial(0).sampling.temperature) is float
