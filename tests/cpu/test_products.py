"""Packed matrix products against dense ones, and who holds the weights afterwards."""

from __future__ import annotations

import pytest
import torch
from families import make

from inferd_runtime.models.checks.probe import attach
from inferd_runtime.models.passes import products
from inferd_runtime.models.passes.fused import FusedPass, fuse
from inferd_runtime.models.passes.products import DenseProduct, PackedProduct, can_pack, pack

ROWS = (1, 2, 3, 4, 5, 7, 17, 33, 200)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(shape[0]))


@pytest.mark.parametrize("bias", [None, random(1024)])
def test_a_packed_product_equals_the_dense_one(bias: torch.Tensor | None) -> None:
    weight = random(1024, 512)
    packed, dense = pack(weight, bias), DenseProduct(weight, bias)
    assert packed is not None
    with torch.inference_mode():
        for count in ROWS:
            rows = random(count, 512)
            assert packed(rows).shape == (count, 1024)
            assert (packed(rows) - dense(rows)).abs().max() < 1e-3


def test_a_residual_rides_on_either_product() -> None:
    weight = random(1024, 512)
    with torch.inference_mode():
        for count in ROWS:
            rows, residual = random(count, 512), random(count, 1024)
            expected = residual + rows @ weight.t()
            assert (DenseProduct(weight).onto(rows, residual.clone()) - expected).abs().max() < 1e-3
            assert (PackedProduct(weight).onto(rows, residual.clone()) - expected).abs().max() < 1e-3


def test_small_weights_and_other_types_stay_dense() -> None:
    assert can_pack(random(1024, 512))
    assert not can_pack(random(256, 512))
    assert not can_pack(random(1024, 512).bfloat16())


def test_a_packed_weight_is_held_once_but_for_a_tied_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "PACKED_FROM", 0)
    model = make("qwen3")
    probed = attach(model, "qwen3")
    assert isinstance(fuse(model, probed.kv, probed.rules), FusedPass)
    large = {name for name, weight in model.named_parameters() if weight.ndim == 2}
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    assert large == {"model.embed_tokens.weight"}
    assert tied or not model.lm_head.weight.numel()
