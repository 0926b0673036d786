"""Hold the weights of a fused pass on the CPU in the form in which they are multiplied; its modules then let go of theirs."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from inferd.protocol import InvalidRequest
from inferd_runtime.kernels.native.block_forms import form_of
from inferd_runtime.kernels.native.blocks import WHOLE, block_kernels
from inferd_runtime.models.host_memory import LARGE, forget_file_pages, huge_pages_later
from inferd_runtime.models.passes.device import dense_products
from inferd_runtime.models.passes.fused import PRODUCTS, FusedLayer, FusedPass
from inferd_runtime.models.passes.products import DenseProduct, Product
from inferd_runtime.models.weights.block_products import BlockProduct, PackedParts
from inferd_runtime.models.weights.choice import HALF_WAYS, PLAIN_WAYS, Shape, ways_of
from inferd_runtime.models.weights.exact_blocks import Packed, exact_blocks, packed_exactly
from inferd_runtime.models.weights.file_blocks import file_blocks
from inferd_runtime.models.weights.held_product import HeldProduct, filled
from inferd_runtime.models.weights.host_products import DENSE, Way, can_hold, held
from inferd_runtime.models.weights.packed_store import PackedStore
from inferd_runtime.models.weights.stored import HEAD

logger = logging.getLogger(__name__)
SMALLEST = 2.0**-25
"""Half of the step between float16's smallest numbers: what an exact weight may be off by there, far below its row's sums."""
FORMS = {"half": HALF_WAYS, "int8": ("int8", "w8a16"), "int4": ("int4", "w4a16")}
"""By the name of a setting the ways to hold weights so, of which the fastest is taken."""
FORMS_OF_ROWS8 = {"int8": ("w8a8",), "int4": ("w4a8",)}
"""The same, where 8 bits of a row are enough."""
HEAD_FORMS = {"half": "half", "int8": "int8", "int4": "int8"}
"""The head in 4 bits would cost more text than it saves time, but where it came so: other quantized models keep it in more."""
NARROW_EMBEDDING = torch.float16


@dataclass(frozen=True)
class HoldingPlan:
    """The way for each product by its name: "head", or a layer's number and a name of PRODUCTS, as in "3.qkv".

    ``packed``: weights that are in blocks already, and are held so; ``row_bits``: of which rows they are multiplied with.
    ``narrow``: the embedding is held in 16 bits.
    """

    ways: Mapping[str, Way]
    packed: Mapping[str, PackedParts] = field(default_factory=dict)
    narrow: bool = False
    row_bits: int = WHOLE

    @classmethod
    def uniform(cls, fused: FusedPass, way: Way, head: Way | None = None) -> HoldingPlan:
        """Return the plan by which all weights are held in one way; ``head``: another one for the head."""
        ways = dict.fromkeys(named_products(fused), way)
        return cls(ways | {HEAD: head or way})


def named_products(fused: FusedPass) -> dict[str, DenseProduct]:
    """Return all products of a dense pass by the names of :class:`HoldingPlan`."""
    names = [f"{index}.{name}" for index in range(len(fused.layers)) for name in PRODUCTS]
    return dict(zip([*names, HEAD], dense_products(fused), strict=True))


def plan_holding(
    fused: FusedPass, weights: str = "", kept: Mapping[str, PackedParts] | None = None, *, row_bits: int = WHOLE
) -> HoldingPlan:
    """Return how the weights of a dense pass are held: "half", "int8", "int4", or "" for what is fastest here and exact.

    ``kept``: which weights an earlier start held in blocks; None if there was none. ``row_bits``: so many bits of the rows that
    are multiplied with weights in blocks are enough. Raises InvalidRequest that names a shape which cannot be held so.
    """
    products = named_products(fused)
    packed = {**(kept or {}), **(_head_as_it_came(products[HEAD], weights) if kept is None else {})}
    open_ = {name: product for name, product in products.items() if name not in packed}
    if weights:
        forms = FORMS_OF_ROWS8 if row_bits == 8 else FORMS
        found = {name: _ways_that_hold(name, product, weights, forms) for name, product in open_.items()}
        row_bits = row_bits if weights == "half" else min(row_bits, 16)
        return HoldingPlan(_fastest(open_, found), packed, narrow=True, row_bits=row_bits)
    exact = _exact(open_) if kept is None else {}
    plain = PLAIN_WAYS + (HALF_WAYS if _all_half([each for name, each in open_.items() if name not in exact]) else ())
    beside = () if row_bits == 8 else PLAIN_WAYS
    found = {name: (*beside, form_of(exact[name])) if name in exact else plain for name in open_}
    ways = _fastest(open_, found)
    packed |= {name: (one,) for name, one in exact.items() if ways[name].name == form_of(one)}
    return HoldingPlan(ways, packed, row_bits=row_bits)


def _exact(products: Mapping[str, DenseProduct]) -> dict[str, Packed]:
    """Return the weights that blocks hold exactly."""
    if block_kernels() is None:
        return {}
    found = {name: exact_blocks(product.weight) for name, product in products.items()}
    return {name: packed for name, packed in found.items() if packed is not None}


def _head_as_it_came(head: DenseProduct, weights: str) -> dict[str, PackedParts]:
    """Return the head in blocks of 4 bits, if those are asked for and hold it exactly."""
    if weights != "int4" or not can_hold("w4a16", head.shape, head.dtype):
        return {}
    found = packed_exactly("blocks4", filled(head.weight).float())
    return {} if found is None else {HEAD: (found,)}


def _ways_that_hold(
    name: str, product: DenseProduct, weights: str, forms: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    form = HEAD_FORMS[weights] if name == HEAD else weights
    found = tuple(way for way in forms[form] if can_hold(way, product.shape, product.dtype))
    if not found:
        raise InvalidRequest(f"weights of {list(product.shape)} cannot be held as {form} here")
    return found


def _fastest(products: Mapping[str, DenseProduct], found: Mapping[str, tuple[str, ...]]) -> dict[str, Way]:
    """Return for each product the fastest of the ways that were found for it. What is measured is asked for together."""
    shapes: dict[tuple[str, ...], set[Shape]] = {}
    for name, product in products.items():
        shapes.setdefault(found[name], set()).add(product.shape)
    ways = {names: ways_of(each, products_dtype(products), names) for names, each in shapes.items()}
    return {name: ways[found[name]][product.shape] for name, product in products.items()}


def products_dtype(products: Mapping[str, DenseProduct]) -> torch.dtype:
    """Return the dtype of a decoder's weights."""
    return next(iter(products.values())).dtype


def hold(fused: FusedPass, module: nn.Module, plan: HoldingPlan) -> FusedPass:
    """Return the pass over weights that are held by a plan. The module cannot run by itself any more."""
    model: Any = module
    dense, fused.layers, layers = deque(fused.layers), (), []
    for index, own in enumerate(model.model.layers):  # a layer's dense weights go before the next one's are packed
        layers.append(_hold_layer(dense.popleft(), index, own, plan))
        forget_file_pages(".safetensors")
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    # A tied head is held twice, because the embedding is read row by row.
    result = fused.with_layers(layers, _held(fused.head, () if tied else (model.lm_head,), plan, HEAD))
    if plan.narrow:
        result.embedding = fused.embedding.to(NARROW_EMBEDDING)
        model.model.embed_tokens.weight.data = fused.embedding.new_empty(0)
    made = [product for layer in layers for product in layer.products().values() if isinstance(product, HeldProduct)]
    if sum(product.bytes for product in made) >= LARGE:
        huge_pages_later()
    return result


def hold_as(
    fused: FusedPass,
    module: nn.Module,
    weights: str,
    store: PackedStore,
    blocks: Mapping[str, PackedParts] | None = None,
    source: str = "",
    *,
    row_bits: int = WHOLE,
) -> FusedPass:
    """Return the pass over weights that are held as :func:`plan_holding` plans. What has to be packed for it is kept.

    ``blocks``: weights that were stored in blocks, if there are any; they are held so. So are those that a GGUF file had in
    blocks, which are in the folder ``source``, unless ``weights`` say otherwise.
    """
    kept = blocks or store.find()
    found = kept
    if kept is None and not weights and products_dtype(named_products(fused)) == torch.float32:
        found = file_blocks(source, len(fused.layers)) or None
    held_pass = hold(fused, module, plan_holding(fused, weights, found, row_bits=row_bits))
    if kept is None:
        products = {
            f"{at}.{name}": each for at, layer in enumerate(held_pass.layers) for name, each in layer.products().items()
        }
        made = {
            name: each.packed
            for name, each in (products | {HEAD: held_pass.head}).items()
            if isinstance(each, BlockProduct)
        }
        store.keep(made)
    return held_pass


def all_products(run: FusedPass) -> list[Product]:
    """Return the products of a pass, the head's last."""
    return [*(product for layer in run.layers for product in layer.products().values()), run.head]


def row_bits_of(run: FusedPass) -> int:
    """Return the fewest bits that rows are rounded to before weights in blocks; 0 if none are rounded there."""
    found = [product.row_bits for product in all_products(run) if isinstance(product, BlockProduct)]
    return min((bits for bits in found if bits < WHOLE), default=0)


def held_bytes(run: FusedPass) -> int:
    """Return the bytes of all matrices of a pass, of one that a head shares with the embedding once."""
    sizes = {id(run.embedding): run.embedding.nbytes}
    for product in all_products(run):
        if isinstance(product, HeldProduct):
            sizes[id(product)] = product.bytes
        elif isinstance(product, DenseProduct):
            sizes[id(product.weight)] = product.weight.nbytes
    return sum(sizes.values())


def _all_half(products: Sequence[DenseProduct]) -> bool:
    return all(product.dtype == torch.float32 and fits_half(product.weight) for product in products)


def fits_half(weight: Tensor) -> bool:
    """True if float16 holds every number of a weight, except the last bits of the smallest."""

    def fits(part: Tensor) -> bool:
        return bool(((part.half().float() - part).abs() <= SMALLEST).all())

    return fits(weight.view(-1)[:1024]) and fits(weight)


def _hold_layer(fused: FusedLayer, index: int, layer: Any, plan: HoldingPlan) -> FusedLayer:
    owners = {name: [layer.get_submodule(end) for end in ends] for name, ends in PRODUCTS.items()}
    products = fused.products().items()
    return fused.with_products({name: _held(each, owners[name], plan, f"{index}.{name}") for name, each in products})


def _held(product: Product, owners: Sequence[Any], plan: HoldingPlan, name: str) -> Product:
    """Return the product in its way. Its owners then let go of their weights, so that they are held once."""
    if not isinstance(product, DenseProduct):
        return product
    way = plan.ways.get(name, DENSE)
    if name in plan.packed:
        made: HeldProduct | None = BlockProduct(
            plan.packed[name], product.shape[0], product.bias, row_bits=plan.row_bits
        )
    elif way == DENSE:
        return product
    else:
        made = held(way, product.weight, product.bias)
    if made is None:
        logger.warning("a weight of %s stays dense: %s multiplies otherwise", list(product.shape), way.name)
        return product
    for owner in owners:
        owner.weight.data = owner.weight.data.new_empty(0)
    return made
