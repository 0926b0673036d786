"""The product for few rows, compiled: the checks of tests/cpu/kernels/test_product.py at the sizes of served models."""

from __future__ import annotations

import pytest
import torch
from product_cases import Case, check_invariance

from inferd_runtime.kernels.triton.product import SERVED, few_rows_product

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ODD = [(70, 1300), (33, 1), (1, 50), (1003, 4099)]


@pytest.mark.parametrize(("bias", "residual"), [(False, False), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("out", "size"), [*SERVED, *ODD], ids=str)
def test_it_is_the_product(out: int, size: int, dtype: torch.dtype, bias: bool, residual: bool) -> None:
    case = Case(out, size, dtype, bias, residual, "cuda")
    for count in (1, 2, 7, 16):
        case.check(few_rows_product, count)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("out", "size"), [*SERVED, *ODD], ids=str)
def test_a_row_does_not_depend_on_the_others(out: int, size: int, dtype: torch.dtype) -> None:
    check_invariance(few_rows_product, Case(out, size, dtype, residual=True, device="cuda"))


@pytest.mark.parametrize("count", [1, 16])
def test_it_is_the_same_every_time(count: int) -> None:
    """Parts are added in their order, whichever is done first."""
    rows, weight, _, _ = Case(1024, 2048, torch.bfloat16, device="cuda").tensors(count)
    first = few_rows_product(rows, weight, None, None)
    assert all(torch.equal(few_rows_product(rows, weight, None, None), first) for _ in range(50))
