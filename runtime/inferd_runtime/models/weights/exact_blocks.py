"""Weights that blocks of 4 or 8 bits hold exactly, because they were read from such blocks: those of GGUF files."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from inferd_runtime.kernels.native.block_forms import LANES, PART as GROUP, pack4, pack8

TOP4, TOP8 = 15, 127
TRIED = 64
"""Outputs that are looked at first: most weights fail there."""
AT_ONCE = 2048
"""Outputs that are looked at together: what is computed for them stays in the processor's cache."""
Packed = Tensor


@dataclass(frozen=True)
class Grid:
    """``numbers`` [out, groups, GROUP] times ``scales`` plus ``offsets`` [out, groups], the latter two as float16 holds them."""

    numbers: Tensor
    scales: Tensor
    offsets: Tensor

    def dense(self) -> Tensor:
        """Return float32[out, groups, GROUP]."""
        return torch.addcmul(self.offsets[..., None], self.numbers, self.scales[..., None])


def exact_blocks(weight: Tensor) -> Packed | None:
    """Return a weight [out, in] in tiles of the fewest bits that hold it exactly; None if none do."""
    if weight.dtype != torch.float32 or weight.shape[0] % LANES or weight.shape[1] % GROUP:
        return None
    fours = packed_exactly("blocks4", weight)
    return packed_exactly("blocks8", weight) if fours is None else fours


def packed_exactly(name: str, weight: Tensor) -> Packed | None:
    """Return a weight float32[out, in] in tiles of 4 ("blocks4") or 8 bits; None if those do not hold it exactly."""
    grid_of, pack = (_grid4, _pack4) if name == "blocks4" else (_grid8, _pack8)
    groups = weight.detach().view(weight.shape[0], -1, GROUP)
    if not _holds(grid_of(groups[:TRIED]), groups[:TRIED]):
        return None
    parts = []
    for part in torch.split(groups, AT_ONCE):
        grid = grid_of(part)
        if not _holds(grid, part):
            return None
        parts.append(pack(grid))
    return torch.cat(parts)


def packed8(weight: Tensor) -> Packed:
    """Return a weight float32[out, in] in tiles of 8 bits, rounded where it has to be."""
    groups = weight.detach().view(weight.shape[0], -1, GROUP)
    return torch.cat([_pack8(_grid8(part)) for part in torch.split(groups, AT_ONCE)])


def _holds(grid: Grid, groups: Tensor) -> bool:
    return torch.equal(grid.dense(), groups)


def _grid4(groups: Tensor) -> Grid:
    """Return the grid of Q4_1 (from the least to the greatest number), for groups that it does not hold that of Q4_0."""
    low, high = groups.amin(-1), groups.amax(-1)
    first = _grid(groups, (high - low) / TOP4, low)
    same = (first.dense() == groups).all(-1)
    if bool(same.all()):
        return first
    # Q4_0: the number farthest from zero is -8 of a grid without an offset.
    farthest = torch.where(-low > high, low, high)
    second = _grid(groups, farthest / -8, farthest)
    return Grid(
        torch.where(same[..., None], first.numbers, second.numbers),
        torch.where(same, first.scales, second.scales),
        torch.where(same, first.offsets, second.offsets),
    )


def _grid(groups: Tensor, scales: Tensor, offsets: Tensor) -> Grid:
    scales, offsets = scales.half().float(), offsets.half().float()
    numbers = ((groups - offsets[..., None]) / _divisor(scales)[..., None]).round_().clamp_(0, TOP4)
    return Grid(numbers, scales, offsets)


def _grid8(groups: Tensor) -> Grid:
    """Return the grid of Q8_0: the number farthest from zero is 127 or -127."""
    scales = (groups.abs().amax(-1) / TOP8).half().float()
    numbers = (groups / _divisor(scales)[..., None]).round_().clamp_(-TOP8, TOP8)
    return Grid(numbers, scales, torch.zeros_like(scales))


def _divisor(scales: Tensor) -> Tensor:
    """Return the scales, 1 for groups of equal numbers."""
    return torch.where(scales == 0, 1.0, scales)


def _pack4(grid: Grid) -> Packed:
    return pack4(grid.numbers.flatten(1), grid.scales, grid.offsets)


def _pack8(grid: Grid) -> Packed:
    return pack8(grid.numbers.flatten(1), grid.scales)
