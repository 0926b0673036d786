"""The blocks of a GGUF file by their kind: their numbers, scales and offsets, and with these the CPU's tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from inferd_runtime.kernels.native.block_forms import FORMS, LANES, BlockNumbers, pack

Packed = Tensor
Factors = Callable[[Tensor], tuple[Tensor, ...]]
AT_ONCE = 1024
"""Outputs that are packed together: what is computed for them stays in the processor's cache."""


@dataclass(frozen=True)
class Plane:
    """A few bits of each number of a block. They begin at byte ``at``: ``count`` bytes in chunks of ``chunk``, which have the
    ``bits`` of as many numbers as they have bytes, then in the next higher bits those of as many more.
    """

    at: int
    count: int
    chunk: int
    bits: int

    def read(self, blocks: Tensor) -> Tensor:
        """Return the bits [..., numbers] of blocks uint8[..., bytes]."""
        part = blocks[..., self.at : self.at + self.count]
        if self.bits == 8:
            return part.contiguous().view(torch.int8)
        shifts = torch.arange(0, 8, self.bits, dtype=torch.uint8)[:, None]
        return (torch.unflatten(part, -1, (-1, 1, self.chunk)) >> shifts & (1 << self.bits) - 1).flatten(-3)


@dataclass(frozen=True)
class Kind:
    """A kind of block of ``size`` bytes. ``form``: the tiles that hold the same. ``low`` and ``high``: the planes of its numbers.
    ``scale`` and ``offset``: where those begin, as float16; without an offset, where the form has one, it is the scale times
    -``middle``. ``sign``: of the offset. ``factors``: reads what they are multiplied with for groups of inputs.
    """

    size: int
    form: str
    low: Plane
    high: Plane | None = None
    scale: int = 0
    offset: int | None = None
    sign: int = 1
    middle: int = 0
    factors: Factors = lambda blocks: ()

    def numbers(self, blocks: Tensor) -> BlockNumbers:
        """Return a weight [out, in] of blocks uint8[out, in / span, size]."""
        scale, form = _half(blocks, self.scale), FORMS[self.form]
        offset = scale * -self.middle if self.offset is None else _half(blocks, self.offset) * self.sign
        heads = (scale, offset) if form.offsets else (scale,)
        factors = tuple(one.flatten(1) for one in self.factors(blocks))
        return BlockNumbers(_joined(blocks, self.low, self.high).flatten(1), heads, factors)


def packed_rows(kind: str, rows: Tensor) -> Packed:
    """Return rows uint8[out, bytes] of blocks of this kind as tiles, filled up with outputs of zeros."""
    found = KINDS[kind]
    more = -len(rows) % LANES
    if more:
        rows = torch.cat([rows, rows.new_zeros(more, rows.shape[1])])
    parts = [torch.unflatten(part, -1, (-1, found.size)) for part in torch.split(rows, AT_ONCE)]
    return torch.cat([pack(found.form, found.numbers(part)) for part in parts])


def _half(blocks: Tensor, at: int) -> Tensor:
    return blocks[..., at : at + 2].contiguous().view(torch.float16)[..., 0].float()


def _joined(blocks: Tensor, low: Plane, high: Plane | None) -> Tensor:
    numbers = low.read(blocks)
    return numbers if high is None else numbers | high.read(blocks) << low.bits


def _signed(low: Plane, high: Plane) -> Factors:
    """Return the reader of scales' factors in 6 bits, from -32 on."""
    return lambda blocks: (_joined(blocks, low, high).view(torch.int8) - 32,)


def _of_sixteen(blocks: Tensor) -> tuple[Tensor, ...]:
    """Q2_K: 4 bits for each of a block's 16 scales, and as many for its offsets."""
    return Plane(0, 16, 16, 4).read(blocks).tensor_split(2, -1)


def _of_eight(blocks: Tensor) -> tuple[Tensor, ...]:
    """Q4_K and Q5_K: 6 bits for each of a block's 8 scales and offsets. The last four of both have four bits in the last four
    bytes, and their two highest above those of the first four.
    """
    scales, offsets, low = blocks[..., 4:16].tensor_split(3, -1)
    return (
        torch.cat([scales & 63, low & 15 | scales >> 6 << 4], -1),
        torch.cat([offsets & 63, low >> 4 | offsets >> 6 << 4], -1),
    )


KINDS = {
    "Q4_0": Kind(18, "blocks4", Plane(2, 16, 16, 4), middle=8),
    "Q4_1": Kind(20, "blocks4", Plane(4, 16, 16, 4), offset=2),
    "Q5_0": Kind(22, "q5_0", Plane(6, 16, 16, 4), Plane(2, 4, 1, 1)),
    "Q5_1": Kind(24, "q5_1", Plane(8, 16, 16, 4), Plane(4, 4, 1, 1), offset=2),
    "Q8_0": Kind(34, "blocks8", Plane(2, 32, 32, 8)),
    "Q2_K": Kind(84, "q2_k", Plane(16, 64, 32, 2), scale=80, offset=82, sign=-1, factors=_of_sixteen),
    "Q3_K": Kind(
        110, "q3_k", Plane(32, 64, 32, 2), Plane(0, 32, 32, 1), scale=108,
        factors=_signed(Plane(96, 8, 8, 4), Plane(104, 4, 4, 2)),
    ),
    "Q4_K": Kind(144, "q4_k", Plane(16, 128, 32, 4), offset=2, sign=-1, factors=_of_eight),
    "Q5_K": Kind(176, "q5_k", Plane(48, 128, 32, 4), Plane(16, 32, 32, 1), offset=2, sign=-1, factors=_of_eight),
    "Q6_K": Kind(
        210, "q6_k", Plane(0, 128, 64, 4), Plane(128, 64, 32, 2), scale=208,
        factors=lambda blocks: (Plane(192, 16, 16, 8).read(blocks),),
    ),
    "IQ4_NL": Kind(18, "iq4_nl", Plane(2, 16, 16, 4)),
    "IQ4_XS": Kind(136, "iq4_xs", Plane(8, 128, 16, 4), factors=_signed(Plane(4, 4, 1, 4), Plane(2, 2, 1, 2))),
}  # fmt: skip
"""By the names that gguf gives them; all others become plain numbers."""
