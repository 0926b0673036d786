"""Log-probabilities, ranks and the likeliest tokens of many rows, held to the host's of each."""

from __future__ import annotations

import pytest
import torch
from logprob_cases import check_scores

from inferd_runtime.kernels.logprobs import token_scores
from inferd_runtime.testing.recorded_host import RecordedHost


@pytest.mark.parametrize(("vocab", "top"), [(7, 0), (7, 7), (1000, 1), (1000, 20)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_they_are_the_hosts(dtype: torch.dtype, vocab: int, top: int) -> None:
    check_scores("cpu", dtype, vocab, top)


def test_no_rows_and_no_wait() -> None:
    none = torch.empty(0, dtype=torch.int64)
    assert token_scores(torch.zeros(3, 9), none, none, 4).shape == (0, 10)
    one = torch.tensor([1])
    RecordedHost().record(lambda: token_scores(torch.zeros(3, 9), one, one, 4))
