"""Sampling, agreement and rejection, compiled: the checks of tests/cpu/kernels at the vocabularies of served models."""

from __future__ import annotations

import pytest
import torch
from agree_cases import check_agree
from logprob_cases import check_scores
from rejection_cases import check_rejection
from sampling_cases import Case, check_noise, check_row_words, every_pair, with_adjustments, with_masks

from inferd_runtime.kernels.triton import rejection, sampling, verify
from inferd_runtime.kernels.triton.sampling import Tiling

VOCABULARIES = [1, 33, 32_000, 151_936]
TILINGS = [None, Tiling(1024, 128), Tiling(4096, 128, rounds=0), Tiling(4096, 128, rounds=2), Tiling(2048, 64, 16)]


def check(case: Case, tiling: Tiling | None = None) -> None:
    case.device = "cuda"
    case.check(sampling.sample if tiling is None else lambda *given: sampling.sample_tiled(*given, tiling)[0])


def test_the_noise_is_the_engines() -> None:
    check_row_words("cuda")
    check_noise("cuda", 1 << 17)


@pytest.mark.parametrize("tiling", TILINGS, ids=str)
@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_every_sampler_draws_the_hosts_tokens(vocab: int, tiling: Tiling | None) -> None:
    check(every_pair(vocab, seed=vocab), tiling)


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_masks_and_adjustments(vocab: int) -> None:
    check(with_masks(every_pair(vocab, seed=1), seed=1))
    check(with_adjustments(every_pair(vocab, seed=2), seed=2))
    check(with_adjustments(with_masks(every_pair(vocab, seed=3), seed=3), seed=4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_sampled_as_its_float32(dtype: torch.dtype) -> None:
    case = every_pair(151_936, seed=9)
    case.logits = torch.from_numpy(case.logits).to(dtype).float().nan_to_num(posinf=6e4, neginf=-torch.inf).numpy()
    case.dtype = dtype
    check(with_masks(case, seed=5))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_do_not_hang_the_device(bad: float) -> None:
    case = every_pair(32_000, seed=3)
    case.logits[:, 30:5000] = bad
    case.device = "cuda"
    tokens = sampling.sample(*case.tensors())
    assert bool(((tokens >= -1) & (tokens < 32_000)).all())


def test_a_recorded_step_samples_what_its_buffers_hold_now() -> None:
    """Launches depend on shapes alone: other logits and other samplers, replayed, draw their own tokens."""
    case, other = (with_masks(every_pair(32_000, seed=seed).every(3), seed=seed) for seed in (1, 2))
    case.device = other.device = "cuda"
    other.samplers = [*other.samplers[1:], other.samplers[0]]
    logits, rows = case.tensors()
    sampling.sample(logits, rows)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens = sampling.sample(logits, rows)
    later, later_rows = other.tensors()
    logits.copy_(later)
    for name in ("temperature", "top_p", "min_p", "top_k", "keys", "positions", "mask_rows", "masks"):
        getattr(rows, name).copy_(getattr(later_rows, name))
    for _ in range(2):
        graph.replay()
        assert tokens.tolist() == other.expected()


@pytest.mark.parametrize("chain", [False, True], ids=["tree", "chain"])
@pytest.mark.parametrize(("batch", "width"), [(1, 0), (40, 3), (256, 8), (64, 60)])
def test_agree_is_the_padded_verifier(batch: int, width: int, chain: bool) -> None:
    check_agree(verify.agree, batch, width, chain, device="cuda")


@pytest.mark.parametrize(
    ("batch", "width", "vocab"), [(1, 0, 2), (40, 4, 9), (30, 6, 33), (6, 3, 32_000), (2, 2, 151_936)]
)
def test_rejection_emits_the_references_tokens(batch: int, width: int, vocab: int) -> None:
    for seed in range(3):
        check_rejection(rejection.rejection, seed, batch, width, vocab, device="cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("vocab", VOCABULARIES[1:])
def test_log_probabilities_are_the_hosts(vocab: int, dtype: torch.dtype) -> None:
    check_scores("cuda", dtype, vocab, 20)
