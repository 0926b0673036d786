"""Hold the weights of a fused pass on the CPU in the form in which they are multiplied; its modules then let go of theirs."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from inferd.protocol import InvalidRequest
from inferd_runtime.models.host_memory import LARGE, forget_file_pages, huge_pages_later
from inferd_runtime.models.passes.device import dense_products
from inferd_runtime.models.passes.fused import PRODUCTS, FusedLayer, FusedPass
from inferd_runtime.models.passes.products import DenseProduct, Product
from inferd_runtime.models.weights.choice import Shape, ways_of
from inferd_runtime.models.weights.host_products import DENSE, HeldProduct, Way, can_hold, held

logger = logging.getLogger(__name__)
SMALLEST = 2.0**-25
"""Half of the step between float16's smallest numbers: what an exact weight may be off by there, far below its row's sums."""
HEAD_WAYS = {"half": "half", "int8": "int8", "int4": "int8"}
"""The head in 4 bits would cost more text than it saves time: the quantized models that people use keep it in more."""
NARROW_EMBEDDING = torch.float16


@dataclass(frozen=True)
class HoldingPlan:
    """The way for each shape of weights in the layers, and for the head. ``narrow``: the embedding is held in 16 bits."""

    layers: Mapping[Shape, Way]
    head: Way
    narrow: bool = False

    @classmethod
    def uniform(cls, fused: FusedPass, way: Way, head: Way | None = None, *, narrow: bool = False) -> HoldingPlan:
        """Return the plan by which all weights are held in one way; ``head``: another one for the head."""
        *layers, _ = dense_products(fused)
        return cls({_shape(product): way for product in layers}, head or way, narrow)


def plan_holding(fused: FusedPass, weights: str = "") -> HoldingPlan:
    """Return how the weights of a dense pass are held: "half", "int8", "int4", or "" for what is fastest here and exact.

    Raises InvalidRequest that names a shape which cannot be held so.
    """
    *layers, head = products = dense_products(fused)
    if not weights:
        ways = _measured_ways(products)
        return HoldingPlan(ways, ways[_shape(head)])
    for product, name in (*((one, weights) for one in layers), (head, HEAD_WAYS[weights])):
        if not can_hold(name, _shape(product), product.weight.dtype):
            raise InvalidRequest(f"weights of {list(product.weight.shape)} cannot be held as {name} here")
    return HoldingPlan.uniform(fused, Way(weights), Way(HEAD_WAYS[weights]), narrow=True)


def hold(fused: FusedPass, module: nn.Module, plan: HoldingPlan) -> FusedPass:
    """Return the pass over weights that are held by a plan. The module cannot run by itself any more."""
    model: Any = module
    dense, fused.layers, layers = deque(fused.layers), (), []
    for own in model.model.layers:  # a layer's dense weights go before the next one's are packed
        layers.append(_hold_layer(dense.popleft(), own, plan.layers))
        forget_file_pages(".safetensors")
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    # A tied head is held twice, because the embedding is read row by row.
    result = fused.with_layers(layers, _held(fused.head, () if tied else (model.lm_head,), plan.head))
    if plan.narrow:
        result.embedding = fused.embedding.to(NARROW_EMBEDDING)
        model.model.embed_tokens.weight.data = fused.embedding.new_empty(0)
    made = [product for layer in layers for product in layer.products().values() if isinstance(product, HeldProduct)]
    if sum(product.bytes for product in made) >= LARGE:
        huge_pages_later()
    return result


def held_bytes(run: FusedPass) -> int:
    """Return the bytes of all matrices of a pass, of one that a head shares with the embedding once."""
    products = [*(product for layer in run.layers for product in layer.products().values()), run.head]
    sizes = {id(run.embedding): run.embedding.nbytes}
    for product in products:
        if isinstance(product, HeldProduct):
            sizes[id(product)] = product.bytes
        elif isinstance(product, DenseProduct):
            sizes[id(product.weight)] = product.weight.nbytes
    return sum(sizes.values())


def _shape(product: Product) -> Shape:
    assert isinstance(product, DenseProduct)
    return product.weight.shape[0], product.weight.shape[1]


def _measured_ways(products: Sequence[DenseProduct]) -> Mapping[Shape, Way]:
    shapes = [_shape(product) for product in products]
    dtype = products[0].weight.dtype
    half = dtype == torch.float32 and all(fits_half(product.weight) for product in products)
    return ways_of(shapes, dtype, half)


def fits_half(weight: Tensor) -> bool:
    """True if float16 holds every number of a weight, but for the last bits of the smallest."""

    def fits(part: Tensor) -> bool:
        return bool(((part.half().float() - part).abs() <= SMALLEST).all())

    return fits(weight.view(-1)[:1024]) and fits(weight)


def _hold_layer(fused: FusedLayer, layer: Any, ways: Mapping[Shape, Way]) -> FusedLayer:
    owners = {name: [layer.get_submodule(end) for end in ends] for name, ends in PRODUCTS.items()}
    return fused.with_products(
        {name: _held(product, owners[name], ways[_shape(product)]) for name, product in fused.products().items()}
    )


def _held(product: Product, owners: Sequence[Any], way: Way) -> Product:
    """Return the product in its way. Its owners then let go of their weights, so that they are held once."""
    if way == DENSE or not isinstance(product, DenseProduct):
        return product
    made = held(way, product.weight, product.bias)
    if made is None:
        logger.warning("a weight of %s stays dense: %s multiplies otherwise", list(product.weight.shape), way.name)
        return product
    for owner in owners:
        owner.weight.data = owner.weight.data.new_empty(0)
    return made
