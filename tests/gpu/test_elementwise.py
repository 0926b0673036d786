"""The elementwise kernels, compiled: the checks of tests/cpu/kernels/test_elementwise.py at the sizes of served models."""

from __future__ import annotations

import pytest
import torch
from elementwise_cases import ElementwiseOps, Heads, check_gating, check_rotation, ops

from inferd_runtime.kernels.cache import FP8
from inferd_runtime.kernels.triton import elementwise as kernels

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SHAPES = [(1, 1, 2), (3, 1, 80), (14, 2, 64), (28, 4, 128), (32, 8, 128), (16, 8, 256)]


@pytest.fixture
def run() -> ElementwiseOps:
    return ops(kernels, "cuda")


@pytest.mark.parametrize("rows", [1, 7, 100])
@pytest.mark.parametrize("normed", [False, True], ids=["", "normed"])
@pytest.mark.parametrize("fp8", [False, True], ids=["", "fp8"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("query", "key", "width"), SHAPES, ids=str)
def test_rows_are_turned_and_written(
    run: ElementwiseOps, query: int, key: int, width: int, dtype: torch.dtype, fp8: bool, normed: bool, rows: int
) -> None:
    slots = [-1 if row % 5 == 2 else row * 13 % 144 for row in range(rows)]
    check_rotation(run, Heads(query, key, width, normed, dtype, FP8 if fp8 else dtype), slots)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 7), (17, 4864), (300, 14336)], ids=str)
def test_gates(run: ElementwiseOps, rows: int, size: int, dtype: torch.dtype) -> None:
    check_gating(run, rows, size, dtype)
