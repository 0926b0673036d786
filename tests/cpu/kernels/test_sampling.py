"""The sampling of rows on a device draws what the host draws: the torch reference, and the kernel in the interpreter."""

from __future__ import annotations

import pytest
import torch
from sampling_cases import Case, Sampler, every_pair, resolved, with_adjustments, with_masks

from inferd.protocol import Sampling
from inferd_runtime.kernels import sampling

SAMPLERS = {"torch": sampling.sample}


@pytest.fixture(params=SAMPLERS)
def sample(request: pytest.FixtureRequest) -> Sampler:
    chosen: Sampler = SAMPLERS[request.param]
    return chosen


@pytest.mark.parametrize("vocab", [1, 2, 33, 1000])
def test_every_sampler_draws_the_hosts_tokens(sample: Sampler, vocab: int) -> None:
    every_pair(vocab, seed=vocab).check(sample)


@pytest.mark.parametrize("vocab", [1, 33, 700])
def test_masks_and_adjustments(sample: Sampler, vocab: int) -> None:
    with_masks(every_pair(vocab, seed=vocab + 1), seed=1).check(sample)
    with_adjustments(every_pair(vocab, seed=vocab + 2), seed=2).check(sample)
    with_adjustments(with_masks(every_pair(vocab, seed=vocab + 3), seed=3), seed=4).check(sample)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_sampled_as_its_float32(sample: Sampler, dtype: torch.dtype) -> None:
    case = every_pair(300, seed=9)
    case.logits = torch.from_numpy(case.logits).to(dtype).float().nan_to_num(posinf=6e4, neginf=-torch.inf).numpy()
    case.dtype = dtype
    with_adjustments(with_masks(case, seed=5), seed=6).check(sample)


def test_a_step_without_rows(sample: Sampler) -> None:
    case = every_pair(40, seed=1)
    case = Case(case.logits[:0], [], [])
    assert sample(*case.tensors()).shape == (0,)


def test_rows_may_be_strided(sample: Sampler) -> None:
    """As the first columns of a padded matrix of logits are."""
    case = every_pair(100, seed=7)
    logits, rows = case.tensors()
    wide = torch.cat([logits, torch.full((len(logits), 28), 1e9)], dim=1)
    assert sample(wide[:, :100], rows).tolist() == case.expected()


def test_one_row_is_drawn_as_it_is_among_others(sample: Sampler) -> None:
    case = every_pair(200, seed=8)
    together = sample(*case.tensors()).tolist()
    for at in (0, 17, 101):
        alone = Case(case.logits[at : at + 1], [case.samplers[at]], [case.positions[at]])
        assert sample(*alone.tensors()).tolist() == [together[at]]


def test_the_draws_of_a_seed_are_not_all_the_same(sample: Sampler) -> None:
    """So that a constant could not pass for noise: 64 positions of one flat row."""
    case = every_pair(500, seed=1, samplings=[Sampling(1.0)])
    case.logits = case.logits[9:10].repeat(64, axis=0)
    case.samplers, case.positions = resolved([Sampling(1.0)], 1, seed=4) * 64, list(range(64))
    logits, rows = case.tensors()
    assert len(set(sample(logits, rows).tolist())) > 50
