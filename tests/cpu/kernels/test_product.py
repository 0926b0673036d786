"""A product for few rows: the reference and the Triton kernel, in Triton's interpreter, against float64."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import cast

import pytest
import torch
from elementwise_cases import poisoned
from hypothesis import given, settings, strategies as st
from product_cases import Case, Product, check_invariance
from tiers import examples

from inferd_runtime.kernels import product as reference
from inferd_runtime.kernels.product import RowNorm
from inferd_runtime.kernels.triton import product as kernel
from inferd_runtime.kernels.triton.product import PROGRAMS, SERVED, SLICES, choose_blocks

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
MODULES = [reference, kernel]
# With parts, the last of them short; a block that is not full; fewer outputs than a program has; whole blocks alone.
SHAPES = [(70, 1300), (33, 1), (1, 50), (64, 1024)]


@pytest.fixture(params=MODULES, ids=["reference", "triton"])
def run(request: pytest.FixtureRequest) -> Product:
    if request.param is kernel and torch.cuda.is_available():
        pytest.skip("kernels are compiled here: tests/gpu")
    return cast(Product, request.param.few_rows_product)


@pytest.fixture
def interpreted() -> Product:
    if torch.cuda.is_available():
        pytest.skip("kernels are compiled here: tests/gpu")
    return kernel.few_rows_product


@pytest.mark.parametrize(("bias", "residual"), [(False, False), (True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("out", "size"), SHAPES, ids=str)
def test_it_is_the_product(run: Product, out: int, size: int, dtype: torch.dtype, bias: bool, residual: bool) -> None:
    for count in (1, 5, 16):
        Case(out, size, dtype, bias, residual).check(run, count)


@pytest.mark.parametrize("gated", [False, True], ids=["", "gated"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("out", "size"), [*SHAPES[:1], (34, 130), (2, 1), (64, 1024)], ids=str)
def test_norm_and_gate_are_done_with_it(run: Product, out: int, size: int, dtype: torch.dtype, gated: bool) -> None:
    for count in (1, 16):
        Case(out, size, dtype, bias=not gated, normed=True, gated=gated).check(run, count)


@pytest.mark.parametrize("gated", [False, True], ids=["", "gated"])
def test_a_normed_row_does_not_depend_on_the_others(interpreted: Product, gated: bool) -> None:
    check_invariance(interpreted, Case(20, 250, torch.bfloat16, normed=True, gated=gated), range(1, 17, 5))


def test_large_numbers_of_float16_are_normed_before_they_are_multiplied(interpreted: Product) -> None:
    """Times the norm's weight, and not yet divided by their mean, they would not fit."""
    rows, weight = torch.full((2, 64), 3e4).half(), torch.full((4, 64), 1 / 64).half()
    norm = RowNorm(torch.full((64,), 8.0).half(), 1e-5)
    assert torch.allclose(interpreted(rows, weight, None, None, norm).float(), torch.full((2, 4), 8.0), rtol=1e-2)


@settings(max_examples=examples(15), deadline=None)
@given(
    st.integers(1, 16), st.integers(1, 130), st.integers(1, 1200), st.sampled_from(DTYPES), st.booleans(), st.booleans()
)
@pytest.mark.parametrize("module", MODULES, ids=["reference", "triton"])
def test_any_shape(
    module: object, count: int, out: int, size: int, dtype: torch.dtype, bias: bool, residual: bool
) -> None:
    if module is reference or not torch.cuda.is_available():
        Case(out, size, dtype, bias, residual).check(cast(Product, module.few_rows_product), count)  # type: ignore[attr-defined]


def test_wide_programs(interpreted: Product) -> None:
    """64 outputs each: as many as there are programs for."""
    out = 64 * (PROGRAMS - 1) + 3
    assert choose_blocks(out, 128, 2).outputs == 64
    Case(out, 128, torch.float16).check(interpreted, 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("parts", [1, 2], ids=["whole", "parts"])
def test_a_row_does_not_depend_on_the_others(interpreted: Product, parts: int, dtype: torch.dtype) -> None:
    step = SLICES * choose_blocks(20, 1, dtype.itemsize).depth
    case = Case(20, (4 if parts > 1 else 1) * step - 7, dtype, bias=True, residual=True)
    assert choose_blocks(case.out, case.size, dtype.itemsize).parts == parts
    check_invariance(interpreted, case)


@pytest.mark.parametrize("size", [300, 100], ids=["parts", "whole"])
def test_nothing_is_read_that_nobody_wrote_and_nothing_else_written(interpreted: Product, size: int) -> None:
    """Rows, weight and residual are parts of memory that holds NaN around them."""
    case = Case(40, size, torch.float32, residual=True)
    rows, weight, _, residual = case.tensors(3)
    assert residual is not None
    expected = interpreted(rows, weight, None, residual.clone())

    def inside(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        around = torch.full((len(part) + 2, part.shape[1] + 5), float("nan"))
        around[1:-1, 2:-3] = part
        return around, around[1:-1, 2:-3]

    with poisoned():
        around, held = inside(residual)
        got = interpreted(inside(rows)[1], inside(weight)[1], None, held)
        assert got.data_ptr() == held.data_ptr()
        assert torch.equal(held, expected)
        held.fill_(float("nan"))
        assert bool(around.isnan().all())
        assert torch.equal(interpreted(rows, weight, None, None), interpreted(rows, weight, None, torch.zeros(3, 40)))


def test_no_rows(run: Product) -> None:
    assert run(torch.zeros(0, 4), torch.zeros(3, 4), None, None).shape == (0, 3)


def test_what_does_not_fit_is_refused(run: Product) -> None:
    def attempt(rows: object, weight: object = (3, 4), bias: object = None, residual: object = None) -> None:
        given = (torch.zeros(part) if isinstance(part, tuple) else part for part in (rows, weight, bias, residual))
        run(*given)  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="17 rows"):
        attempt((17, 4))
    with pytest.raises(ValueError, match="rows"):
        attempt((2, 5))
    with pytest.raises(ValueError, match="bias"):
        attempt((2, 4), bias=(4,))
    with pytest.raises(ValueError, match="residual"):
        attempt((2, 4), residual=(1, 3))
    with pytest.raises(ValueError, match=r"float16, torch\.float32"):
        attempt((2, 4), torch.zeros(3, 4, dtype=torch.float16))
    with pytest.raises(ValueError, match="float64"):
        run(torch.zeros(1, 4).double(), torch.zeros(3, 4).double(), None, None)
    norm = RowNorm(torch.zeros(4), 1e-5)
    with pytest.raises(ValueError, match="norm"):
        run(torch.zeros(1, 5), torch.zeros(3, 5), None, None, norm)
    with pytest.raises(ValueError, match="gate and up of 3"):
        run(torch.zeros(1, 4), torch.zeros(3, 4), None, None, norm, True)
    with pytest.raises(ValueError, match="without bias"):
        run(torch.zeros(1, 4), torch.zeros(2, 4), torch.zeros(2), None, norm, True)
    same = torch.zeros(2, 4)
    with pytest.raises(ValueError, match="the rows are the residual"):
        attempt(same, (4, 4), residual=same)


def test_strides_that_the_kernel_cannot_walk(interpreted: Product) -> None:
    with pytest.raises(ValueError, match="strides"):
        interpreted(torch.zeros(2, 4), torch.zeros(4, 3).t(), None, None)
    with pytest.raises(ValueError, match="strides"):
        interpreted(torch.zeros(2, 4), torch.zeros(3, 4), None, torch.zeros(3, 2).t())


@pytest.mark.parametrize(("out", "size"), SERVED, ids=str)
def test_enough_is_under_way(out: int, size: int) -> None:
    """40 KB on each of 132 multiprocessors, or the whole weight: three blocks of a program are, at least."""
    blocks = choose_blocks(out, size, 2)
    programs = -(-out // blocks.outputs) * blocks.parts
    under_way = programs * min(3, blocks.steps) * blocks.outputs * SLICES * blocks.depth * 2
    assert under_way >= min(132 * 40_000, out * size * 2)
    assert blocks.parts * blocks.steps * SLICES * blocks.depth >= size
    assert (blocks.parts - 1) * blocks.steps * SLICES * blocks.depth < size


COPIES = """
import re
from inferd_runtime.kernels.triton.product import variants
from inferd_runtime.kernels.triton.resources import compiled, usage
for variant in variants():
    for arch in (80, 90):
        used, ptx = usage(variant, arch), compiled(variant, arch).asm["ptx"]
        assert used.spilled == 0 and used.shared <= 99 << 10, used
        if variant.name.startswith("multiply"):
            copies = re.findall(r"cp\\.async\\.c[ag]\\.shared[^;]*;", ptx)
            assert copies and all("0x10," in copy for copy in copies), (variant.name, copies)
            assert ("mma.sync" in ptx) == ("fp32" not in variant.name), variant.name
            print(variant.name, arch)
"""


@pytest.mark.long
def test_weights_are_copied_by_16_bytes_ahead_of_the_arithmetic() -> None:
    settings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", COPIES], capture_output=True, text=True, env=settings, timeout=240)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 40
