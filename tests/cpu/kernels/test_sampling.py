"""The sampling of rows on a device draws what the host draws: the torch reference, and the kernels in the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from sampling_cases import (
    SAMPLINGS,
    Case,
    Sampler,
    check_noise,
    check_row_words,
    every_pair,
    kinds_of_rows,
    resolved,
    with_adjustments,
    with_masks,
)
from tiers import examples

from inferd.protocol import Sampling
from inferd_runtime.kernels import sampling
from inferd_runtime.kernels.triton import sampling as kernels
from inferd_runtime.kernels.triton.proposals import OPEN, SETTLED, UNLISTED, UNSURE
from inferd_runtime.kernels.triton.sampling import Tiling


def interpreted(*tiling: int) -> Sampler:
    """The kernels, with the tiling that is served if none is given."""
    if not tiling:
        return kernels.sample
    return lambda logits, rows: kernels.sample_tiled(logits, rows, Tiling(*tiling))[0]


CHOICES = {
    "torch": (sampling.sample, 1),
    "triton": (interpreted(), 11),
    "triton, small splits": (interpreted(256, 2, 16), 37),
    "triton, all rows": (interpreted(256, 4, 64), 1),
}
"""With each how many rows apart: the interpreter needs some 0.1 s for a row. Of 180 rows, 12 of each sampler, each 11th is of
another one, so that every sampler gets a row.
"""
LONG = "triton, all rows"
PARAMS = [*(name for name in CHOICES if name != LONG), pytest.param(LONG, marks=pytest.mark.long)]


@pytest.fixture(params=PARAMS)
def check(request: pytest.FixtureRequest) -> Callable[[Case], None]:
    sample, step = CHOICES[request.param]
    return lambda case: case.every(step).check(sample)


@pytest.fixture(params=["torch", "triton"])
def sample(request: pytest.FixtureRequest) -> Sampler:
    return CHOICES[request.param][0]


Check = Callable[[Case], None]


def test_the_kernels_noise_is_the_engines_bit_for_bit() -> None:
    check_row_words("cpu")
    check_noise("cpu", 1280)


@pytest.mark.parametrize("vocab", [1, 33, 1000])
def test_every_sampler_draws_the_hosts_tokens(check: Check, vocab: int) -> None:
    check(every_pair(vocab, seed=vocab))


@pytest.mark.parametrize("vocab", [1, 33, 700])
def test_masks_and_adjustments(check: Check, vocab: int) -> None:
    check(with_adjustments(with_masks(every_pair(vocab, seed=vocab + 3), seed=3), seed=4))


@pytest.mark.long
def test_masks_or_adjustments(check: Check) -> None:
    check(with_masks(every_pair(700, seed=1), seed=1))
    check(with_adjustments(every_pair(700, seed=2), seed=2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_sampled_as_its_float32(check: Check, dtype: torch.dtype) -> None:
    case = every_pair(300, seed=9)
    case.logits = torch.from_numpy(case.logits).to(dtype).float().nan_to_num(posinf=6e4, neginf=-torch.inf).numpy()
    case.dtype = dtype
    check(with_masks(case, seed=5))


def test_a_step_without_rows(sample: Sampler) -> None:
    case = every_pair(40, seed=1)
    assert sample(*Case(case.logits[:0], [], []).tensors()).shape == (0,)


def test_rows_may_be_strided(sample: Sampler) -> None:
    """As the first columns of a padded matrix of logits are, and those of a transposed one."""
    case = every_pair(100, seed=7).every(29)
    logits, rows = case.tensors()
    wide = torch.cat([logits, torch.full((len(logits), 28), 1e9)], dim=1)
    with_zeros = with_adjustments(every_pair(100, seed=7).every(29), seed=1)
    assert sample(wide[:, :100], rows).tolist() == case.expected()
    assert sample(logits.T.contiguous().T, rows).tolist() == case.expected()
    assert sample(wide[:, :100], with_zeros.tensors()[1]).tolist() == with_zeros.expected()


def test_one_row_is_drawn_as_it_is_among_others(sample: Sampler) -> None:
    case = every_pair(200, seed=8).every(31)
    together = sample(*case.tensors()).tolist()
    for at in (0, 2, 4):
        alone = Case(case.logits[at : at + 1], [case.samplers[at]], [case.positions[at]])
        assert sample(*alone.tensors()).tolist() == [together[at]]


def test_the_draws_of_a_seed_are_not_all_the_same(sample: Sampler) -> None:
    """So that a constant could not pass for noise: 16 positions of one flat row."""
    samplers = resolved([Sampling(1.0)], 1, seed=4) * 16
    logits, rows = Case(np.zeros((16, 500), np.float32), samplers, range(16)).tensors()
    assert len(set(sample(logits, rows).tolist())) > 12


# -- What only the kernels do -----------------------------------------------------------------------------------------


def states_of(case: Case, tiling: Tiling) -> list[int]:
    """In which state the rows come to the last launch, whose tokens must be the host's."""
    tokens, states = kernels.sample_tiled(*case.tensors(), tiling)
    assert tokens.tolist() == case.expected()
    return states.tolist()


def rows_of_a_kind(kind: int, sampling: Sampling, count: int, vocab: int = 120) -> Case:
    generator = np.random.default_rng(kind)
    rows = [list(kinds_of_rows(generator, vocab))[kind] for _ in range(count)]
    return Case(np.stack(rows).astype(np.float32), resolved([sampling], count, seed=kind), range(count))


def test_what_the_round_leaves_open_is_finished() -> None:
    """Hot rows and a small nucleus: one proposal after the other falls. So they do without any round."""
    case = rows_of_a_kind(0, Sampling(30.0, top_p=0.02), 3)
    assert OPEN in states_of(case, Tiling(128, 1))
    assert OPEN in states_of(case, Tiling(128, 1, rounds=0))


def test_another_round_settles_more() -> None:
    case = rows_of_a_kind(0, Sampling(3.0, top_p=0.5), 8)
    one, two = (states_of(case, Tiling(128, 1, rounds=rounds)).count(OPEN.value) for rounds in (1, 2))
    assert one > two


def test_most_rows_with_a_nucleus_are_settled_by_one_round() -> None:
    case = rows_of_a_kind(1, Sampling(1.0, top_p=0.9), 8)
    assert states_of(case, Tiling(128, 1)).count(SETTLED.value) >= 7


def test_a_long_list_is_finished_without_it() -> None:
    """top_k beyond the list, beyond the groups, and without a round that lists."""
    for tiling in (Tiling(128, 1, 16), Tiling(128, 64, 64), Tiling(128, 1, rounds=0)):
        case = rows_of_a_kind(2, Sampling(20.0, top_k=40, top_p=0.9, min_p=0.01), 1)
        assert set(states_of(case, tiling)) == {UNLISTED.value}


def test_a_list_is_hardly_longer_than_top_k() -> None:
    """Of 120 tokens in groups of 2, 40 fit into a list of 64."""
    case = rows_of_a_kind(0, Sampling(20.0, top_k=40, top_p=0.9), 3)
    assert set(states_of(case, Tiling(128, 2, 64))) == {SETTLED.value}


def test_masses_that_float32_cannot_tell_apart_are_summed_in_float64() -> None:
    """Of logits near 1e-42 all have the probability of the largest, on the host, too: all of them stay in."""
    assert UNSURE in states_of(rows_of_a_kind(11, Sampling(1.0, top_p=0.3), 4), Tiling(128, 1))


def test_logits_with_one_score_are_ties() -> None:
    """Below a large logit those that differ by less than float64 holds of the difference; the first two by less, too."""
    row = np.full(100, -np.inf, np.float32)
    row[:6] = [3e38, 1e15, 2e15, 3e15, 4e15, -3e38]
    samplers = resolved([Sampling(1e39, top_k=2), Sampling(1e39, top_k=3, top_p=0.99)], 6, seed=1)
    case = Case(np.tile(row, (6, 1)), samplers, range(6))
    assert len(set(case.expected())) > 2
    states_of(case, Tiling(128, 1))
    states_of(case.every(2), Tiling(128, 1, rounds=0))


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-4, 1e9, 1e38, 1e300, float("inf")])
def test_no_temperature_is_too_cold_or_too_hot(temperature: float) -> None:
    generator = np.random.default_rng(0)
    rows = [row for at, row in enumerate(kinds_of_rows(generator, 90)) if at in (0, 6, 11)]
    samplers = [replace(one, temperature=temperature) for one in resolved([Sampling(1.0)], 3, seed=2)]
    case = Case(np.stack(rows).astype(np.float32), samplers, range(3))
    states_of(case, Tiling(64, 1))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_do_not_hang_the_device(bad: float) -> None:
    case = every_pair(70, seed=3).every(37)
    case.logits[:, 30:50] = bad
    tokens = kernels.sample(*case.tensors())
    assert bool(((tokens >= -1) & (tokens < 70)).all())


numbers = st.floats(-50, 50, width=32) | st.sampled_from([0.0, -0.0, 1.0, -np.inf, 3e38, -3e38, 1e-45])


@settings(deadline=None, max_examples=examples(8), derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    row=st.lists(numbers, min_size=1, max_size=70).filter(lambda row: max(row) > -np.inf),
    temperature=st.sampled_from([0.0, 1e-3, 0.7, 1.0, 5.0, 1e9]),
    top_k=st.integers(0, 80),
    top_p=st.floats(0.01, 1),
    min_p=st.just(0.0) | st.floats(0, 1),
    seed=st.integers(0, 2**32),
)
def test_any_row_is_drawn_as_on_the_host(
    row: list[float], temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    samplers = resolved([Sampling(temperature, top_k=top_k, top_p=top_p, min_p=min_p)], 1, seed)
    case = Case(np.array([row], np.float32), samplers, [seed])
    case.check(sampling.sample)
    case.check(interpreted(32, 1, 16))


def test_every_sampler_gets_a_row() -> None:
    case = every_pair(33, seed=0).every(CHOICES["triton"][1])
    assert {(each.temperature, each.top_k, each.top_p, each.min_p) for each in case.samplers} == {
        (each.temperature, each.top_k, each.top_p, each.min_p) for each in SAMPLINGS
    }
