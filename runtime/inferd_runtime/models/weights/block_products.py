"""Products of weights in blocks by code of our own: rows, unpacked weights and sums are float32.

So weights that came in such blocks are multiplied as exactly as in float32, at a fifth of the bytes. Where nobody has asked for
float32, rows may have 16 bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inferd_runtime.kernels.native.block_forms import pack4, pack16, unpack
from inferd_runtime.kernels.native.blocks import BlockWeight
from inferd_runtime.models.weights.exact_blocks import Packed, packed8, packed_exactly
from inferd_runtime.models.weights.held_product import HeldProduct, filled, finished
from inferd_runtime.models.weights.quantize import MIDDLE, Blocks

A16_WAYS = {"w4a16": "blocks4", "w8a16": "blocks8"}
"""The forms of weights that are multiplied with rows of 16 bits, where the processor is faster with those."""
BLOCK_WAYS = {"blocks4": "blocks4", "blocks8": "blocks8", "blocks16": "blocks16", **A16_WAYS}
"""The forms that any weight can be rounded to."""
PackedParts = tuple[Packed, ...]
"""A weight in tiles, the parts of several forms one below the other."""


class BlockProduct(HeldProduct):
    """See the head of this file. ``outputs``: how many of the tiles' are the weight's, all if 0. ``rows16``: see BlockWeight."""

    def __init__(
        self, packed: PackedParts, outputs: int = 0, bias: Tensor | None = None, *, rows16: bool = False
    ) -> None:
        self.packed, self.bytes = packed, sum(part.nbytes for part in packed)
        self._parts, self._bias = [BlockWeight(part, rows16=rows16) for part in packed], bias
        self.rows16 = any(part.rows16 for part in self._parts)
        self._width = sum(part.outputs for part in self._parts)
        self._outputs = outputs or self._width

    def __call__(self, rows: Tensor) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.products.Product`."""
        wide = rows.float().contiguous()
        out = wide.new_empty(wide.shape[0], self._width)
        self._multiply(wide, out)
        return finished(out if self._outputs == self._width else out[:, : self._outputs], rows, self._bias)

    def onto(self, rows: Tensor, residual: Tensor) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.products.Product`."""
        plain = residual.dtype == torch.float32 and residual.is_contiguous() and self._width == self._outputs
        if not plain:
            return super().onto(rows, residual)
        self._multiply(rows.float().contiguous(), residual, add=True)
        return residual

    def _multiply(self, rows: Tensor, onto: Tensor, *, add: bool = False) -> None:
        first = 0
        for part in self._parts:
            part.multiply(rows, onto, first, add=add)
            first += part.outputs


def rounded(name: str, weight: Tensor) -> Packed:
    """Return a weight in tiles: as it is where blocks hold it exactly, else rounded."""
    weight, form = filled(weight).float(), BLOCK_WAYS[name]
    if form == "blocks16":
        return pack16(weight)
    if form == "blocks8":
        return packed8(weight)
    exact = packed_exactly("blocks4", weight)
    if exact is not None:
        return exact
    made = Blocks.of(weight)
    return pack4(made.numbers, made.scales, made.middles - MIDDLE * made.scales)


def block_product(name: str, weight: Tensor, bias: Tensor | None) -> BlockProduct:
    """Return the product of a weight that is held in the way of this name."""
    return BlockProduct((rounded(name, weight),), len(weight), bias, rows16=name in A16_WAYS)


def kept_in_blocks(name: str, weight: Tensor) -> Tensor:
    """Return what is left of a weight that is held so, as plain numbers."""
    return unpack(rounded(name, weight))[: len(weight)].to(weight.dtype)
