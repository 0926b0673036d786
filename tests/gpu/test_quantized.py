"""Weights in 8 and 4 bits, compiled: the checks of tests/cpu/kernels/test_quantized.py at the sizes of served models, and a
model that is served with each.
"""

from __future__ import annotations

import gc

import pytest
import torch
from quantized_cases import FORMS, Case, check_invariance, random, weight_in

from inferd.protocol import InvalidRequest
from inferd_runtime.engine.drivers.build import DriverOptions, allowed_difference, build_driver, logit_difference
from inferd_runtime.engine.drivers.cuda_driver import CudaDriver
from inferd_runtime.kernels.quantized import FP8, REFERENCE, Grouped, RowScaled, float8_rows
from inferd_runtime.kernels.triton import quantized as kernel
from inferd_runtime.kernels.triton.quantized import KERNELS, SERVED
from inferd_runtime.models.loading import load
from inferd_runtime.models.passes.quantized_product import QuantizedProduct

DTYPES = [torch.bfloat16, torch.float16]
SHAPES = [*SERVED, (70, 1280), (33, 128)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("out", "size"), SHAPES, ids=str)
def test_it_is_the_product(form: str, out: int, size: int, dtype: torch.dtype) -> None:
    case = Case(form, out, size, dtype, "cuda")
    for count, added in ((1, ""), (7, "bias"), (16, "residual"), (33, "residual")):
        case.check(KERNELS, count, added)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("out", "size"), [(6144, 4096), (896, 4864), (70, 1280)], ids=str)
def test_a_row_does_not_depend_on_the_others(form: str, out: int, size: int) -> None:
    check_invariance(KERNELS, Case(form, out, size, torch.bfloat16, "cuda"))


def every_code(form: str) -> torch.Tensor:
    """A weight [256, 256] of all bytes, each output's turned by one."""
    codes = torch.arange(256, dtype=torch.uint8, device="cuda")
    turned = torch.stack([codes.roll(by) for by in range(256)])
    if form == "fp8":
        turned[(turned & 0x7F) == 0x7F] = 0  # no numbers
    return turned


def test_every_code_of_float8_is_its_number() -> None:
    weight = RowScaled(every_code("fp8").view(FP8), torch.ones(256, device="cuda"))
    ones = torch.eye(256, dtype=torch.bfloat16, device="cuda")
    for first in range(0, 256, 16):
        rows = ones[first : first + 16]
        assert torch.equal(
            KERNELS.row_scaled_product(rows, weight, None, None).float(), weight.dense().t()[first : first + 16]
        )


@pytest.mark.parametrize("form", FORMS[2:])
def test_a_weight_is_unpacked_as_it_is(form: str) -> None:
    weight = weight_in(form, 4096, 4096, "cuda")
    assert isinstance(weight, Grouped)
    for dtype in DTYPES:
        assert torch.equal(KERNELS.unpacked(weight, dtype), REFERENCE.unpacked(weight, dtype))


def test_rows_are_rounded_to_float8_alike() -> None:
    rows = random(300, 4096, device="cuda").bfloat16() * 7
    ours, wanted = kernel.float8_rows(rows), float8_rows(rows)
    assert torch.equal(ours.scales, wanted.scales)
    assert torch.equal(ours.numbers.view(torch.uint8), wanted.numbers.view(torch.uint8))


@pytest.mark.skipif("torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9)", reason="no float8")
@pytest.mark.parametrize("count", [17, 32, 100, 512])
@pytest.mark.parametrize(("out", "size"), [(6144, 4096), (4096, 14336), (144, 96)], ids=str)
def test_many_rows_are_multiplied_in_float8(out: int, size: int, count: int) -> None:
    """The device's own instruction adds up in less than float32."""
    weight, rows = weight_in("fp8", out, size, "cuda"), random(count, size, device="cuda").bfloat16()
    assert isinstance(weight, RowScaled)
    got, wanted = (each.many_rows_product(rows, weight).float() for each in (KERNELS, REFERENCE))
    assert float((got - wanted).abs().max()) <= 0.02 * float(wanted.abs().max())


@pytest.mark.parametrize("weights", ["fp8", "int8", "int4"])
def test_a_model_is_served_with_them(weights: str) -> None:
    """By the kernels, recorded, from weights that are rounded on their way to the device."""
    if weights == "fp8" and torch.cuda.get_device_capability() < (8, 9):
        with pytest.raises(InvalidRequest, match="capability"):
            load("tiny", device="cuda", dtype="bfloat16", weights=weights)
        return
    loaded = load("tiny", device="cuda", dtype="bfloat16", weights=weights)
    options = DriverOptions(pages=700, page_size=16, most_rows=300, weights=weights)
    driver = build_driver(loaded, options)
    assert isinstance(driver, CudaDriver), "the kernels were replaced by the reference: see the log"
    assert loaded.held is not None
    products = [product for layer in loaded.held.layers for product in layer.products().values()]
    assert all(isinstance(product, QuantizedProduct) for product in products)
    assert logit_difference(driver, driver.plain) <= allowed_difference(loaded, options)
    del driver, loaded, products
    gc.collect()
    torch.cuda.empty_cache()
