"""The products of a quantized checkpoint's weights, as they were stored: on a device as they are, on the CPU in its blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from inferd_runtime.kernels.native.block_forms import LANES as BLOCK_LANES, PART as BLOCK, pack4
from inferd_runtime.kernels.native.blocks import block_kernels
from inferd_runtime.kernels.quantized import LANES, MIDDLE, UNIT, Grouped, RowScaled, StoredWeight
from inferd_runtime.models.passes.fused import PRODUCTS
from inferd_runtime.models.weights.block_products import PackedParts
from inferd_runtime.models.weights.exact_blocks import Packed

HEAD = "head"
HEAD_OWNER = "lm_head"


def stored_products(layers: int, stored: Mapping[str, StoredWeight]) -> dict[str, StoredWeight]:
    """Return by the names of :class:`~inferd_runtime.models.weights.held.HoldingPlan` what the whole product was stored as."""
    found = {}
    for name, owners in product_owners(layers):
        parts = [stored[owner] for owner in owners if owner in stored]
        whole = joined_weight(parts) if len(parts) == len(owners) else None
        if whole is not None:
            found[name] = whole
    return found


def product_owners(layers: int) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each product, and the modules whose outputs stand side by side in it."""
    for index in range(layers):
        yield from (
            (f"{index}.{name}", [f"model.layers.{index}.{end}" for end in ends]) for name, ends in PRODUCTS.items()
        )
    yield HEAD, [HEAD_OWNER]


def joined_weight(parts: Sequence[StoredWeight]) -> StoredWeight | None:
    """Return weights one below the other as one; None for those that differ in kind, or that tiles would not hold so."""
    if len(parts) == 1:
        return parts[0]
    scaled = [part for part in parts if isinstance(part, RowScaled)]
    if len(scaled) == len(parts):
        kinds = {part.numbers.dtype for part in scaled}
        # As bytes: there is no `cat` of float8 everywhere.
        numbers = torch.cat([part.numbers.view(torch.uint8) for part in scaled])
        return (
            RowScaled(numbers.view(kinds.pop()), torch.cat([part.scales for part in scaled]))
            if len(kinds) == 1
            else None
        )
    tiled = [part for part in parts if isinstance(part, Grouped)]
    return _joined_groups(tiled) if len(tiled) == len(parts) else None


def _joined_groups(parts: Sequence[Grouped]) -> Grouped | None:
    if len({(part.scales.shape[1], part.scales.dtype) for part in parts}) > 1:
        return None
    if any(part.outputs % LANES for part in parts[:-1]):
        return None
    middles = None
    if any(part.middles is not None for part in parts):
        each = [torch.zeros_like(part.scales).half() if part.middles is None else part.middles for part in parts]
        middles = torch.cat(each)
    numbers, scales = torch.cat([part.numbers for part in parts]), torch.cat([part.scales for part in parts])
    return Grouped(numbers, scales, middles, sum(part.outputs for part in parts))


def host_blocks(layers: int, stored: Mapping[str, StoredWeight]) -> dict[str, PackedParts]:
    """Return the CPU's tiles of those products whose weights were stored in 4 bits; none where it has no kernels for them.

    Scales and offsets are float16 there: an offset that is a multiple of the scale is rounded by a thousandth of it.
    """
    if block_kernels() is None:
        return {}
    found = stored_products(layers, stored)
    return {name: (_tiles(weight),) for name, weight in found.items() if isinstance(weight, Grouped)}


def _tiles(weight: Grouped) -> Packed:
    outputs = -(-weight.outputs // BLOCK_LANES) * BLOCK_LANES
    numbers = weight.plain_numbers()[:outputs]
    each = weight.shape[1] // weight.scales.shape[1] // BLOCK
    scales = _by_output(weight.scales, each)[:outputs]
    middles = 0.0 if weight.middles is None else _by_output(weight.middles, each)[:outputs]
    return pack4(numbers, scales, (middles - MIDDLE) * scales)


def _by_output(tiled: Tensor, each: int) -> Tensor:
    """Return numbers [tiles, groups, LANES] as float32[out, groups * each]."""
    return tiled.transpose(1, 2).reshape(-1, tiled.shape[1]).float().repeat_interleave(each, 1)


assert BLOCK == UNIT
