"""How sure a draw was: the reference and the Triton kernel, in Triton's interpreter, against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from confidence_cases import Confidence, check_confidence, sample_rows
from hypothesis import given, settings, strategies as st
from tiers import examples

from inferd.protocol import Sampling
from inferd_runtime.draft_models.draft_sampling import draw_guess, guess_of
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.kernels import confidence as reference
from inferd_runtime.kernels.triton import confidence as kernel

MODULES = [reference, kernel]


@pytest.fixture(params=MODULES, ids=["reference", "triton"])
def run(request: pytest.FixtureRequest) -> Confidence:
    if request.param is kernel and torch.cuda.is_available():
        pytest.skip("kernels are compiled here: tests/gpu")
    return request.param.confidence  # type: ignore[no-any-return]


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("vocab", [7, 2048, 2500])
def test_it_is_the_share_of_the_softmax(run: Confidence, vocab: int, dtype: torch.dtype, masked: bool) -> None:
    check_confidence(run, [0.0, 1.0, 0.7, 3.0, 0.0], vocab, dtype, masked)


@settings(max_examples=examples(10), deadline=None)
@given(st.lists(st.floats(0.0, 5.0), max_size=4), st.integers(1, 100), st.booleans())
@pytest.mark.parametrize("module", MODULES, ids=["reference", "triton"])
def test_any_temperature(module: object, temperatures: list[float], vocab: int, masked: bool) -> None:
    if module is reference or not torch.cuda.is_available():
        check_confidence(module.confidence, temperatures, vocab, torch.float32, masked)  # type: ignore[attr-defined]


@pytest.mark.parametrize("temperature", [1e-300, 1e-5, 1e300])
def test_no_temperature_gives_nonsense(run: Confidence, temperature: float) -> None:
    check_confidence(run, [temperature] * 3, 50, torch.float32, False)


def test_it_is_that_of_the_host(run: Confidence) -> None:
    """What a draft model on the host says of its draws (``draw_guess``), where no filter takes anything out."""
    logits = np.random.default_rng(3).normal(size=(6, 300)).astype(np.float32) * 3
    for temperature in (0.0, 0.8):
        sampler = RowSampler.resolve(Sampling(temperature), seed=5, lineage=0)
        expected = [draw_guess(row, sampler, 9) for row in logits]
        rows = sample_rows([temperature] * 6, 300, keys=[sampler.key] * 6, positions=[9] * 6)
        tokens = torch.tensor([guess.token for guess in expected], dtype=torch.int32)
        shares = run(torch.from_numpy(logits), rows, tokens).tolist()
        for guess, token, share in zip(expected, tokens.tolist(), shares, strict=True):
            assert guess_of(token, share, sampler).confidence == pytest.approx(guess.confidence, rel=1e-3)


def test_what_does_not_fit_is_refused(run: Confidence) -> None:
    with pytest.raises(ValueError, match="tokens"):
        run(torch.zeros(2, 5), sample_rows([0.0, 1.0], 5), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="temperature"):
        run(torch.zeros(3, 5), sample_rows([0.0, 1.0], 5), torch.zeros(3, dtype=torch.int32))
