"""`--weights fp8`, `int8` and `int4` on a device, on the CPU: what is held, what is refused, and the driver's kernels beside the
reference, with Triton's kernels in its interpreter.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from families import make
from torch import nn

from inferd.protocol import InvalidRequest
from inferd_runtime.engine.drivers.build import (
    ROUNDED,
    ROUNDED_FP8,
    DriverOptions,
    allowed_difference,
    fast_driver,
    fused_pass,
    logit_difference,
)
from inferd_runtime.kernels.suite import reference_kernels, triton_kernels
from inferd_runtime.models.checks.probe import attach
from inferd_runtime.models.fitting.inspection import matrix_sizes
from inferd_runtime.models.loaded import LoadedModel
from inferd_runtime.models.passes.fused import FusedPass, fuse
from inferd_runtime.models.passes.quantized_product import QuantizedProduct
from inferd_runtime.models.weights.device_forms import in_float8, in_int4, in_int8
from inferd_runtime.models.weights.on_device import DeviceHolding
from inferd_runtime.testing.recorded_host import RecordedHost

FORMS = ("fp8", "int8", "int4")
HERE = torch.device("cpu")
OPTIONS = DriverOptions(pages=8, page_size=16, most_rows=80)


def small(family: str = "llama", **changes: int | bool) -> nn.Module:
    shape = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "num_hidden_layers": 1}
    return make(family, **{**shape, **changes}).bfloat16()


def loaded_with(weights: str, module: nn.Module) -> LoadedModel:
    """A model as it is loaded for a device."""
    probed = attach(module, "small")
    held = DeviceHolding("small", weights, HERE, able=(9, 0)).hold(module, probed, {})
    vocabulary = module.get_input_embeddings().weight.shape[0]  # type: ignore[operator, union-attr]
    return LoadedModel("small", module, None, probed, vocabulary, probed.context, "", held=held)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("weights", "kernels"),
    [
        *((form, "reference") for form in FORMS),
        ("fp8", "triton"),
        pytest.param("int4", "triton", marks=pytest.mark.long),
    ],
)
def test_the_kernels_logits_are_the_references(weights: str, kernels: str) -> None:
    """Of few rows and of more than any kernel takes; with a bias, and an odd vocabulary."""
    if kernels == "triton" and torch.cuda.is_available():
        pytest.skip("kernels are compiled here: tests/gpu")
    loaded = loaded_with(weights, small("qwen2"))
    suite = reference_kernels() if kernels == "reference" else triton_kernels()
    fused = fused_pass(loaded, OPTIONS)
    assert fused is loaded.held
    # What the interpreter does is no operation that could be recorded.
    options = OPTIONS if kernels == "reference" else replace(OPTIONS, graphs=False, most_rows=40)
    driver = fast_driver(loaded, fused, options, suite, RecordedHost())  # type: ignore[arg-type]
    allowed = allowed_difference(loaded, options)
    assert allowed == (ROUNDED_FP8 if weights == "fp8" else ROUNDED)
    assert logit_difference(driver, driver.plain) <= allowed / 4


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("weights", FORMS)
def test_a_weight_is_held_once_and_as_large_as_estimated(weights: str, tied: bool) -> None:
    module = small(vocab_size=256, tie_word_embeddings=tied)
    sizes = matrix_sizes(module)
    assert sizes is not None
    held = loaded_with(weights, module).held
    assert held is not None
    large = {name for name, weight in module.named_parameters() if weight.ndim == 2 and weight.numel()}
    assert large == {"model.embed_tokens.weight"}
    products = [product for layer in held.layers for product in layer.products().values()] + [held.head]
    assert all(isinstance(product, QuantizedProduct) for product in products)
    taken = sum(product.bytes for product in products) + held.embedding.nbytes  # type: ignore[attr-defined]
    assert 0.9 < sizes.held(weights, "cuda:0") / taken <= 1.0
    assert taken < sizes.full(2) + (sizes.head * 2 if tied else 0)


def test_what_a_device_cannot_do_is_refused_with_what_to_do() -> None:
    module = small()
    probed = attach(module, "small")

    def attempt(weights: str, module: nn.Module = module, able: tuple[int, int] = (9, 0)) -> None:
        DeviceHolding("small", weights, HERE, able).hold(module, probed, {})

    with pytest.raises(
        InvalidRequest, match=r"capability 8\.9, this device has 8\.0: --weights int8 or --weights int4"
    ):
        attempt("fp8", able=(8, 0))
    with pytest.raises(InvalidRequest, match="not float32: --dtype bfloat16"):
        attempt("int4", small().float())
    odd = small(intermediate_size=48)
    with pytest.raises(InvalidRequest, match=r"weights of \[64, 48\] cannot be held as int4 on a GPU"):
        attempt("int4", odd)
    other = make("gpt2").bfloat16()
    with pytest.raises(InvalidRequest, match="only by the fused pass"):
        DeviceHolding("other", "int8", HERE, (9, 0)).hold(other, attach(other, "other"), {})


def test_without_weights_nothing_is_held_otherwise() -> None:
    module = small()
    probed = attach(module, "small")
    assert DeviceHolding("small", "", HERE, (9, 0)).hold(module, probed, {}) is None
    assert isinstance(fuse(module, probed.kv, probed.rules), FusedPass)


def test_rounding_is_as_fine_as_the_form_allows() -> None:
    weight = torch.randn(50, 256, generator=torch.Generator().manual_seed(0))
    for form, allowed in ((in_float8, 0.03), (in_int8, 0.012), (in_int4, 0.11)):
        off = form(weight).dense()[:50] - weight
        assert float(off.square().mean() / weight.square().mean()) ** 0.5 < allowed, form.__name__


def test_groups_of_equal_numbers_keep_them() -> None:
    weight = torch.tensor([0.0, 0.5, -0.25, 1e-4])[:, None].expand(4, 64).contiguous()
    weight[3, ::2] = 0.37
    held = in_int4(weight).dense()[:4]
    assert float((held - weight).abs().max()) < 1e-3
    assert torch.equal(held[0], weight[0])


def test_the_product_is_the_same_by_other_kernels() -> None:
    """Each object keeps its own; the weight is shared."""
    suite = reference_kernels().quantized
    product, rows = QuantizedProduct(in_int8(torch.randn(32, 32))), torch.randn(2, 32)
    other = product.with_kernels(suite._replace(row_scaled_product=lambda *given: suite.row_scaled_product(*given) + 1))
    assert torch.equal(product(rows) + 1, other(rows))
    assert other.weight is product.weight
