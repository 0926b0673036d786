"""A layer's elementwise work: the reference and the Triton kernels, in Triton's interpreter, against float64."""

from __future__ import annotations

import pytest
import torch
from elementwise_cases import ElementwiseOps, Heads, check_gating, check_rotation, ops
from hypothesis import given, settings, strategies as st
from tiers import examples

from inferd_runtime.kernels import elementwise as reference
from inferd_runtime.kernels.cache import FP8, CacheBlock
from inferd_runtime.kernels.triton import elementwise as kernels

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
MODULES = [reference, kernels]


@pytest.fixture(params=MODULES, ids=["reference", "triton"])
def run(request: pytest.FixtureRequest) -> ElementwiseOps:
    if request.param is kernels and torch.cuda.is_available():
        pytest.skip("kernels are compiled here: tests/gpu")
    return ops(request.param)


@pytest.mark.parametrize("normed", [False, True], ids=["", "normed"])
@pytest.mark.parametrize("fp8", [False, True], ids=["", "fp8"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("query", "key", "width"), [(1, 1, 2), (4, 2, 6), (3, 1, 80)], ids=str)
def test_rows_are_turned_and_written(
    run: ElementwiseOps, query: int, key: int, width: int, dtype: torch.dtype, fp8: bool, normed: bool
) -> None:
    heads = Heads(query, key, width, normed, dtype, FP8 if fp8 else dtype)
    check_rotation(run, heads, [5, -1, 100, 0, -1])


@pytest.mark.parametrize("slots", [[3], [-1], [-1, -1, -1], []], ids=str)
def test_padding_alone_writes_nothing(run: ElementwiseOps, slots: list[int]) -> None:
    check_rotation(run, Heads(4, 2, 6, True, torch.float32, torch.float32), slots)


def test_one_row_has_more_heads_than_a_program(run: ElementwiseOps) -> None:
    check_rotation(run, Heads(28, 4, 128, True, torch.float32, FP8), [7, 1])


@settings(max_examples=examples(12), deadline=None)
@given(
    st.integers(1, 5), st.integers(1, 3), st.integers(1, 9), st.booleans(), st.sampled_from(DTYPES), st.booleans(),
    st.lists(st.integers(0, 143), max_size=5, unique=True), st.integers(0, 3),
)  # fmt: skip
@pytest.mark.parametrize("module", MODULES, ids=["reference", "triton"])
def test_any_shape(
    module: object,
    shared: int,
    key: int,
    half: int,
    normed: bool,
    dtype: torch.dtype,
    fp8: bool,
    slots: list[int],
    pad: int,
) -> None:
    heads = Heads(shared * key, key, 2 * half, normed, dtype, FP8 if fp8 else dtype)
    if module is reference or not torch.cuda.is_available():
        check_rotation(ops(module), heads, slots[:1] + [-1] * pad + slots[1:])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 7), (5, 48), (2, 1500), (0, 4)], ids=str)
def test_gates(run: ElementwiseOps, rows: int, size: int, dtype: torch.dtype) -> None:
    check_gating(run, rows, size, dtype)


def test_what_does_not_fit_is_refused(run: ElementwiseOps) -> None:
    def rotate(width: int, angle: int, norm: int, cache: int) -> None:
        shapes = [(1, cache)]
        block = CacheBlock(shapes, shapes, torch.float32, 1, 16, "cpu")
        run.rotate_and_write(
            torch.zeros(2, 4 * width), torch.zeros(2, angle), torch.zeros(2, angle), torch.zeros(3, norm), 1e-5, (2, 1),
            block.keys[0], block.values[0], torch.zeros(2, dtype=torch.int64),
        )  # fmt: skip

    with pytest.raises(ValueError, match="20 elements for 4 heads"):
        rotate(5, 5, 5, 5)
    with pytest.raises(ValueError, match="cos"):
        rotate(4, 6, 4, 4)
    with pytest.raises(ValueError, match="head_norm"):
        rotate(4, 4, 6, 4)
    with pytest.raises(ValueError, match="for a cache"):
        rotate(4, 4, 4, 6)
    with pytest.raises(ValueError, match="for 3 heads"):
        run.rotate_and_write(
            torch.zeros(1, 8), torch.zeros(1, 2), torch.zeros(1, 2), None, 1e-5, (1, 1), *torch.zeros(2, 1, 1, 1, 2),
            torch.zeros(1, dtype=torch.int64),
        )  # fmt: skip
    with pytest.raises(ValueError, match="no gate and up"):
        run.silu_mul(torch.zeros(1, 3))
