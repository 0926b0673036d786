"""Windows and chunks read off mask functions, without a prompt of their length."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from inferd_runtime.models.checks.reach import MaskFunction, Reach, UnsupportedAttention, read_reach

CPU = torch.device("cpu")


def causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return key <= query


def sliding(window: int) -> MaskFunction:
    return lambda batch, head, query, key: (key <= query) & (key > query - window)


def chunked(chunk: int) -> MaskFunction:
    return lambda batch, head, query, key: (key <= query) & (key // chunk == query // chunk)


@pytest.mark.parametrize("context", [1, 2, 7, 96, 100, 40_000])
@pytest.mark.parametrize("size", [1, 2, 3, 32, 96, 4096])
def test_a_bound_is_found_for_any_context_that_it_cuts(context: int, size: int) -> None:
    bound = size < context
    found = read_reach(sliding(size), context, CPU)
    assert found == (Reach(window=size) if bound else Reach())
    # A chunk of one token is a window of one.
    expected = Reach(window=1) if size == 1 else Reach(chunk=size)
    assert read_reach(chunked(size), context, CPU) == (expected if bound else Reach())


def test_full_attention_has_no_bound() -> None:
    assert read_reach(causal, 131_072, CPU) == Reach()


@pytest.mark.parametrize(
    "function",
    [
        lambda batch, head, query, key: query >= 0,
        lambda batch, head, query, key: key < query,
        lambda batch, head, query, key: (key <= query) & ((query - key) % 2 == 0),
        lambda batch, head, query, key: (key <= query) & ((key > query - 8) | (key < 4)),
        lambda batch, head, query, key: (key <= query) | (key < 16),
        lambda batch, head, query, key: abs(query - key) <= 8,
        lambda batch, head, query, key: (key <= query) & (key > query - 8) & (key // 32 == query // 32),
    ],
    ids=[
        "bidirectional",
        "strictly before",
        "dilated",
        "window and first tokens",
        "prefix",
        "both sides",
        "window in chunk",
    ],
)
def test_any_other_mask_is_refused(function: MaskFunction) -> None:
    with pytest.raises(UnsupportedAttention, match="neither causal, nor a sliding window, nor chunks"):
        read_reach(function, 96, CPU)
