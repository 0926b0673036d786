"""Products of weights in blocks by code of our own: rows, unpacked weights and sums are float32.

So weights that came in such blocks are multiplied as exactly as in float32, at a fifth of the bytes. Where nobody has asked for
float32, rows may have 16 bits; and 8, where those are asked for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inferd_runtime.kernels.native.block_forms import pack4, pack16, unpack
from inferd_runtime.kernels.native.blocks import WHOLE, BlockWeight
from inferd_runtime.models.weights.exact_blocks import Packed, packed8, packed_exactly
from inferd_runtime.models.weights.held_product import HeldProduct, filled, finished
from inferd_runtime.models.weights.quantize import MIDDLE, Blocks

BLOCK_WAYS = {
    "blocks4": ("blocks4", WHOLE), "blocks8": ("blocks8", WHOLE), "blocks16": ("blocks16", WHOLE), "w4a16": ("blocks4", 16),
    "w8a16": ("blocks8", 16), "w4a8": ("blocks4", 8), "w8a8": ("blocks8", 8),
}  # fmt: skip
"""The ways to hold any weight in blocks: its form, and how many bits of a row are enough where that is faster."""
PackedParts = tuple[Packed, ...]
"""A weight in tiles, the parts of several forms one below the other."""


class BlockProduct(HeldProduct):
    """See the head of this file. ``outputs``: how many of the tiles' are the weight's, all if 0. ``row_bits``: BlockWeight's."""

    def __init__(
        self, packed: PackedParts, outputs: int = 0, bias: Tensor | None = None, *, row_bits: int = WHOLE
    ) -> None:
        self.packed, self.bytes = packed, sum(part.nbytes for part in packed)
        self.parts, self.bias = [BlockWeight(part, row_bits) for part in packed], bias
        self.row_bits = min(part.row_bits for part in self.parts)
        self._width = sum(part.outputs for part in self.parts)
        self._outputs = outputs or self._width

    @property
    def is_whole(self) -> bool:
        """True if all outputs of the tiles are the weight's."""
        return self._outputs == self._width

    def __call__(self, rows: Tensor) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.products.Product`."""
        wide = rows.float().contiguous()
        out = wide.new_empty(wide.shape[0], self._width)
        self._multiply(wide, out)
        return finished(out if self.is_whole else out[:, : self._outputs], rows, self.bias)

    def onto(self, rows: Tensor, residual: Tensor) -> Tensor:
        """See :class:`~inferd_runtime.models.passes.products.Product`."""
        plain = residual.dtype == torch.float32 and residual.is_contiguous() and self.is_whole
        if not plain:
            return super().onto(rows, residual)
        self._multiply(rows.float().contiguous(), residual, add=True)
        return residual

    def _multiply(self, rows: Tensor, onto: Tensor, *, add: bool = False) -> None:
        first = 0
        for part in self.parts:
            part.multiply(rows, onto, first, add=add)
            first += part.outputs


def rounded(name: str, weight: Tensor) -> Packed:
    """Return a weight in tiles: as it is where blocks hold it exactly, else rounded."""
    weight, (form, _) = filled(weight).float(), BLOCK_WAYS[name]
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
    return BlockProduct((rounded(name, weight),), len(weight), bias, row_bits=BLOCK_WAYS[name][1])


def kept_in_blocks(name: str, weight: Tensor) -> Tensor:
    """Return what is left of a weight that is held so, as plain numbers."""
    return unpack(rounded(name, weight))[: len(weight)].to(weight.dtype)
