"""The agreement scan over flat, ragged rows against the padded verifier, on random trees and chains."""

from __future__ import annotations

import pytest
import torch
from agree_cases import Agree, check_agree

from inferd_runtime.kernels import verify
from inferd_runtime.kernels.triton import verify as kernels
from inferd_runtime.kernels.verify import PAD, DraftRows, read_verdicts

AGREES: dict[str, Agree] = {"torch": verify.agree, "triton": kernels.agree}


@pytest.fixture(params=AGREES)
def agree(request: pytest.FixtureRequest) -> Agree:
    return AGREES[request.param]


@pytest.mark.parametrize("chain", [False, True], ids=["tree", "chain"])
@pytest.mark.parametrize(("batch", "width"), [(1, 0), (1, 1), (20, 3), (30, 8), (10, 20)])
def test_agree_is_the_padded_verifier(agree: Agree, batch: int, width: int, chain: bool) -> None:
    check_agree(agree, batch, width, chain)


def test_a_row_that_draws_nothing_ends_the_walk_with_pad(agree: Agree) -> None:
    """Even where the draft's padding looks like it."""
    drafts = DraftRows(*(torch.tensor(each, dtype=torch.int32) for each in ([0], [1], [[5, PAD, PAD]], [[-1, 0, 1]])))
    accepted, tokens, path = read_verdicts(agree(torch.tensor([5, PAD, 7, 7]), drafts).numpy())
    assert accepted.tolist() == [1]
    assert tokens.tolist() == [[5, PAD, PAD, PAD]]
    assert path.tolist() == [[0, PAD, PAD]]


def test_of_equal_siblings_the_first_is_taken(agree: Agree) -> None:
    drafts = DraftRows(*(torch.tensor(each, dtype=torch.int32) for each in ([1], [3], [[4, 6, 6]], [[-1, -1, -1]])))
    accepted, tokens, path = read_verdicts(agree(torch.tensor([9, 6, 0, 8, 3]), drafts).numpy())
    assert (accepted.tolist(), tokens.tolist(), path.tolist()) == ([1], [[6, 8, PAD, PAD]], [[1, PAD, PAD]])


def test_no_sequences(agree: Agree) -> None:
    empty = torch.zeros(0, dtype=torch.int32)
    none = torch.zeros(0, 4, dtype=torch.int32)
    assert agree(torch.zeros(3, dtype=torch.int64), DraftRows(empty, empty, none, none)).shape == (0, 10)
