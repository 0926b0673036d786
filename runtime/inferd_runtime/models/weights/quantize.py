"""Weights as whole numbers of 8 or 4 bits with scales. Blocks of a GGUF file in 4 bits stay what they were."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from inferd_runtime.kernels.quantized import RowScaled

INT8_TOP = 127
INT4_STEPS = 15
MIDDLE = 8
SHRINKS = (1.0, 0.9)
"""How far the range of a group is tried narrower than its numbers: the ends are then cut off, the rest is finer."""
EXACT = 1e-12
"""The share of the squares that rounding of float32 is at most: nothing is to be gained then."""
LEAST_SCALE = 2.0**-60
"""Of a group of equal numbers: far below what any weight is, and no trouble for a processor."""


def channels_of(weight: Tensor) -> RowScaled:
    """Return a weight [out, in] in int8, with a scale for each output."""
    plain = weight.detach().float()
    scales = (plain.abs().amax(1) / INT8_TOP).clamp_min(LEAST_SCALE)
    scales = scales.bfloat16().float()
    numbers = (plain / scales[:, None]).round().clamp(-INT8_TOP, INT8_TOP)
    return RowScaled(numbers.to(torch.int8).contiguous(), scales)


@dataclass(frozen=True)
class Blocks:
    """4 bits in groups of ``group`` inputs: ``numbers`` uint8[out, in], 0 to 15; (number - 8) * scale + middle.

    ``scales`` and ``middles`` [out, in / group].
    """

    numbers: Tensor
    scales: Tensor
    middles: Tensor
    group: int

    LEAST_GROUP: ClassVar[int] = 32
    """Inputs have to be a multiple of it."""

    @classmethod
    def of(cls, weight: Tensor, group: int = LEAST_GROUP) -> Blocks:
        """Return a weight [out, in] in blocks: of several grids for each group, the one with the least squared error.

        Blocks of a GGUF file (Q4_1, Q4_0) are found again whole: one of the grids is theirs.
        """
        plain = weight.detach().float().reshape(len(weight), -1, group)
        best: Blocks | None = None
        error = plain.new_full(plain.shape[:2], float("inf"))
        for scales, middles in _grids(plain):
            numbers = ((plain - middles[..., None]) / scales[..., None] + MIDDLE).round().clamp(0, INT4_STEPS)
            off = ((numbers - MIDDLE) * scales[..., None] + middles[..., None] - plain).square().sum(-1)
            better = off < error
            error = torch.where(better, off, error)
            found = cls(numbers.to(torch.uint8), scales, middles, group)
            best = found if best is None else best._where(better, found)
            if error.sum() <= EXACT * plain.square().sum():
                break
        assert best is not None
        return cls(best.numbers.reshape(weight.shape), best.scales, best.middles, group)

    def _where(self, better: Tensor, other: Blocks) -> Blocks:
        return Blocks(
            torch.where(better[..., None], other.numbers, self.numbers),
            torch.where(better, other.scales, self.scales),
            torch.where(better, other.middles, self.middles),
            self.group,
        )

    def dense(self) -> Tensor:
        """Return float32[out, in], of scales and middles as a product holds them."""
        scales, middles = (part.bfloat16().float()[..., None] for part in (self.scales, self.middles))
        numbers = self.numbers.reshape(*self.scales.shape, self.group).float()
        return ((numbers - MIDDLE) * scales + middles).reshape(self.numbers.shape)


def _grids(plain: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield scales and middles of grids to try, of groups [out, groups, group]."""
    low, high = plain.amin(-1), plain.amax(-1)
    for shrink in SHRINKS:
        scales = ((high - low) * (shrink / INT4_STEPS)).clamp_min(LEAST_SCALE)
        yield scales, (low + high) / 2 + scales / 2
    # Q4_0: the number farthest from zero is -8 of a grid without an offset.
    scales = torch.where(-low > high, -low, -high) / MIDDLE
    yield torch.where(scales.abs() < LEAST_SCALE, LEAST_SCALE, scales), torch.zeros_like(scales)
