"""All layers of a decoder at once on the CPU, where each is made of what the native code has: no Python between its parts.

A step of SmolLM2-135M had 270 calls otherwise, each of which gives the interpreter up and waits for it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inferd_runtime.kernels.attention_rule import AttentionRule
from inferd_runtime.kernels.native.layers import NativeLayer, NativeLayers, NativeProduct
from inferd_runtime.kernels.native.steps import LANES, StepKernels
from inferd_runtime.models.passes.fused import FusedLayer
from inferd_runtime.models.passes.host_layout import HostLayout, scaling_of
from inferd_runtime.models.passes.products import Product
from inferd_runtime.models.passes.step_layout import Angles
from inferd_runtime.models.weights.block_products import BlockProduct

Kind = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class HostLayers:
    """See the head of this file. ``rules``: one of each kind of attention among the layers."""

    native: NativeLayers
    rules: Sequence[AttentionRule]

    def run(self, hidden: Tensor, angles: Angles, layout: HostLayout) -> Tensor:
        """hidden [T, E] -> [T, E], in its place."""
        kinds = [layout.attended(rule) for rule in self.rules]
        self.native.run(hidden, angles, layout.slots, kinds, bounded=layout.bounded)
        return hidden


def host_layers(
    kernels: StepKernels, layers: Sequence[FusedLayer], keys: Sequence[Tensor], values: Sequence[Tensor]
) -> HostLayers | None:
    """Return the layers of a pass over such a cache; None where a part of one is not for the native code."""
    rules = {_kind(layer): layer.heads.rule for layer in layers}
    kinds, made = list(rules), list[NativeLayer]()
    for layer, key, value in zip(layers, keys, values, strict=True):
        norms = layer.input_norm, layer.post_norm, layer.heads.norm
        products = _products(layer)
        if products is None or not all(norm is None or _is_native(norm) for norm in norms):
            return None
        made.append(NativeLayer(norms, products, key, value, kinds.index(_kind(layer)), scaling_of(layer.heads)))
    heads, eps = layers[0].heads, layers[0].eps
    if {(each.heads.queries, each.heads.keys, each.heads.width, each.eps, each.heads.eps) for each in layers} != {
        (heads.queries, heads.keys, heads.width, eps, eps)
    }:
        return None
    return HostLayers(NativeLayers(kernels, made, heads.queries, eps), list(rules.values()))


def _kind(layer: FusedLayer) -> Kind:
    return layer.heads.rule.window, layer.heads.rule.chunk


def _products(layer: FusedLayer) -> tuple[NativeProduct, NativeProduct, NativeProduct, NativeProduct] | None:
    """Return the layer's products; None where one is not of blocks, or has widths that the native code does not know."""
    heads, width = layer.heads, len(layer.input_norm)
    qkv, gate_up = _native(layer.qkv, width), _native(layer.gate_up, width)
    out = _native(layer.out, heads.queries * heads.width)
    if qkv is None or out is None or gate_up is None or width % LANES or gate_up.outputs % (2 * LANES):
        return None
    down = _native(layer.down, gate_up.outputs // 2)
    return None if down is None else (qkv, out, gate_up, down)


def _native(product: Product, inputs: int) -> NativeProduct | None:
    if not isinstance(product, BlockProduct) or not product.is_whole:
        return None
    bias = product.bias
    return NativeProduct(product.parts, inputs, bias) if bias is None or _is_native(bias) else None


def _is_native(numbers: Tensor) -> bool:
    return numbers.dtype == torch.float32 and numbers.is_contiguous()
