"""When the fused pass trusts itself."""

from __future__ import annotations

import pytest
import torch
from families import make
from torch import nn

from inferd_runtime.models.checks.probe import attach
from inferd_runtime.models.passes import fused
from inferd_runtime.models.passes.fused import fuse


def deep(dtype: torch.dtype) -> nn.Module:
    """Sixteen layers, as wide as it takes for rounding to add up."""
    return make("llama", hidden_size=256, intermediate_size=512, num_hidden_layers=16, head_dim=64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rounding_is_no_reason_to_refuse_a_deep_model(dtype: torch.dtype) -> None:
    model = deep(dtype)
    probed = attach(model, "deep")
    assert fuse(model, probed.kv, probed.rules) is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_pass_that_computes_something_else_is_refused(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """A residual that is left out in every layer."""
    model = deep(dtype)
    probed = attach(model, "deep")
    monkeypatch.setattr(fused.DenseProduct, "onto", lambda product, rows, residual: product(rows))
    assert fuse(model, probed.kv, probed.rules) is None
