"""Which fused passes run over kernels on a device, and with which products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inferd.protocol import InvalidRequest
from inferd_runtime.models.passes.divided import GatheredProduct, SummedProduct
from inferd_runtime.models.passes.fused import FusedLayer, FusedPass
from inferd_runtime.models.passes.products import DenseProduct, Product
from inferd_runtime.models.passes.quantized_product import QuantizedProduct

FIXED_ROPE = frozenset({"default", "linear", "yarn", "llama3"})
"""Rotations whose frequencies never change. ``dynamic`` and ``longrope`` choose theirs by the positions of a step."""


DeviceProduct = DenseProduct | QuantizedProduct


def device_pass(fused: FusedPass, change: Callable[[Any], Product] | None = None) -> FusedPass:
    """Return the same decoder, its products those that ``change`` makes of them; of a divided model, of the rank's parts.

    Raises InvalidRequest, by name, for weights or a rotation that cannot run in a recorded step.
    """
    rotary: Any = fused.rotary
    if rotary.rope_type not in FIXED_ROPE:
        raise InvalidRequest(
            f"rope type {rotary.rope_type!r} is none of {', '.join(sorted(FIXED_ROPE))}, whose frequencies stay the same"
        )
    for index, layer in enumerate(fused.layers):
        if layer.heads.width % 2:
            raise InvalidRequest(f"layer {index}: heads of {layer.heads.width} elements cannot be rotated by halves")
    device_products(fused)
    if change is None:
        return fused
    return fused.with_layers([_changed(layer, change) for layer in fused.layers], _with(change, fused.head))


def _changed(layer: FusedLayer, change: Callable[[Any], Product]) -> FusedLayer:
    return layer.with_products({name: _with(change, product) for name, product in layer.products().items()})


def _with(change: Callable[[Any], Product], product: Product) -> Product:
    if isinstance(product, SummedProduct | GatheredProduct):
        return product.over(change(product.own))
    return change(product)


def _own(product: Product) -> Product:
    """Return the part of a product that this device computes."""
    return product.own if isinstance(product, SummedProduct | GatheredProduct) else product


def dense_products(fused: FusedPass) -> list[DenseProduct]:
    """Return all products of a decoder, the head's last. Raises InvalidRequest, by name, for weights that are not dense."""
    found: list[DenseProduct] = []
    for name, product in _named(fused):
        if not isinstance(product, DenseProduct):
            raise InvalidRequest(f"{name} is a {type(product).__name__}, which is not dense")
        found.append(product)
    return found


def device_products(fused: FusedPass) -> list[DeviceProduct]:
    """Return all products of a decoder, the head's last. Raises InvalidRequest, by name, for weights that no device holds so."""
    found: list[DeviceProduct] = []
    for name, product in _named(fused):
        if not isinstance(product, DenseProduct | QuantizedProduct):
            raise InvalidRequest(
                f"{name} is a {type(product).__name__}: on a device weights are dense, or in 8 or 4 bits"
            )
        found.append(product)
    return found


def _named(fused: FusedPass) -> list[tuple[str, Product]]:
    named = [
        (f"layer {index}: {name}", _own(product))
        for index, layer in enumerate(fused.layers)
        for name, product in layer.products().items()
    ]
    return [*named, ("the head", _own(fused.head))]
