"""LoRA on the fused pass: stand-ins for the products of its layers, made for one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from torch import Tensor, nn

from inferd_runtime.models.lora.rows import AdapterRows, LoraDelta, changes_of
from inferd_runtime.models.lora.tensors import NOT_EVERY_ROW, LinearModules, linear_modules
from inferd_runtime.models.passes.fused import PRODUCTS, FusedLayer, FusedPass
from inferd_runtime.models.passes.plain import ModelPass
from inferd_runtime.models.passes.products import Product


@dataclass(frozen=True, slots=True)
class OutputColumns:
    """Where a module's output stands: the product, and its first column."""

    module: str
    product: str
    first: int


class AdaptableFused:
    """See :class:`~inferd_runtime.models.lora.rows.Adaptable`."""

    def __init__(self, run: FusedPass, model: nn.Module) -> None:
        self._run = run
        linear = linear_modules(model)
        self._places = [_places(linear, f"model.layers.{index}.") for index in range(len(run.layers))]
        usable = {place.module: _widths(linear[place.module]) for layer in self._places for place in layer}
        self.modules = LinearModules(usable, {name: NOT_EVERY_ROW for name in linear if name not in usable})

    def with_adapters(self, parts: Sequence[AdapterRows]) -> ModelPass:
        """Return the pass for one batch with these adapters."""
        pairs = zip(self._run.layers, self._places, strict=True)
        return self._run.with_layers([_adapt(layer, places, parts) for layer, places in pairs])


def _widths(module: nn.Module) -> tuple[int, int]:
    """Return (inputs, outputs). Not from the weight, which a module whose product is packed has let go of."""
    assert isinstance(module, nn.Linear)
    return module.in_features, module.out_features


def _places(linear: dict[str, nn.Module], path: str) -> list[OutputColumns]:
    """Return where the output of every module of the layer at ``path`` stands."""
    places: list[OutputColumns] = []
    for product, ends in PRODUCTS.items():
        names = [path + end for end in ends]
        firsts = accumulate((_widths(linear[name])[1] for name in names), initial=0)
        places += [OutputColumns(name, product, first) for name, first in zip(names, firsts, strict=False)]
    return places


def _adapt(layer: FusedLayer, places: Sequence[OutputColumns], parts: Sequence[AdapterRows]) -> FusedLayer:
    changes: dict[str, list[LoraDelta]] = {}
    for place in places:
        for change in changes_of(parts, place.module, place.first):
            changes.setdefault(place.product, []).append(change)
    products = layer.products()
    adapted = {name: AdaptedProduct(products[name], added) for name, added in changes.items()}
    return layer.with_products(adapted) if adapted else layer


class AdaptedProduct:
    """A product with the adapters' parts on top."""

    def __init__(self, base: Product, changes: Sequence[LoraDelta]) -> None:
        self._base = base
        self._changes = changes

    def __call__(self, rows: Tensor) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.products.Product`."""
        return self._add(self._base(rows), rows)

    def onto(self, rows: Tensor, residual: Tensor) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.products.Product`."""
        return self._add(self._base.onto(rows, residual), rows)

    def _add(self, output: Tensor, rows: Tensor) -> Tensor:
        for change in self._changes:
            change.add(output, rows)
        return output
