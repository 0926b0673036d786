"""The rejection kernels against the reference: the same tokens for the same noise."""

from __future__ import annotations

import pytest
import torch
from rejection_cases import check_rejection, random_case

from inferd.protocol import InvalidRequest
from inferd_runtime.kernels.triton.rejection import rejection


@pytest.mark.parametrize(("batch", "width", "vocab"), [(8, 3, 9), (1, 0, 2), (3, 1, 33)])
def test_verdicts_are_the_references(batch: int, width: int, vocab: int) -> None:
    check_rejection(rejection, vocab, batch, width, vocab)


def test_several_splits() -> None:
    check_rejection(rejection, 1, 3, 2, 2500)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_many_random_verdicts(seed: int) -> None:
    check_rejection(rejection, seed, 30, 6, 50 + 400 * seed)


def test_trees_are_refused_by_name() -> None:
    target, drafts, noise = random_case(0, 2, 3, 5)
    with pytest.raises(InvalidRequest, match=r"rejection verifier takes chains.*agreement"):
        rejection(target, drafts._replace(parents=torch.zeros_like(drafts.tokens)), noise)


def test_no_sequences() -> None:
    target, drafts, noise = random_case(0, 1, 3, 5)
    done = rejection(target[:0], drafts._replace(tokens=drafts.tokens[:0], probabilities=None), noise)
    assert [each.shape for each in done] == [(0,), (0, 4), (0, 3)]
