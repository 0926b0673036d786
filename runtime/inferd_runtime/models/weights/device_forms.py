"""Dense weights in 8 or 4 bits, as a device multiplies with them. The numbers of int8 and int4 are those of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from inferd_runtime.kernels.quantized import LANES, MIDDLE, Grouped, RowScaled, float8_rows, grouped
from inferd_runtime.models.weights.quantize import Blocks, channels_of

AT_ONCE = 2048
"""Outputs that are rounded together, a multiple of LANES: trying grids takes several times their memory."""
MULTIPLE = 16
"""What outputs and inputs have to be for the device's own float8 product."""
FAR = 30_000.0
"""Scales that a middle may be away from zero: float16 ends at 65,504."""


def in_float8(weight: Tensor) -> RowScaled:
    """Return a weight [out, in] in float8_e4m3fn with a scale for each output, filled up to MULTIPLE of them."""
    parts = [float8_rows(part) for part in _parts(weight, MULTIPLE)]
    # One at a time: there is no `cat` of float8 everywhere.
    numbers = torch.cat([part.numbers.view(torch.uint8) for part in parts]).view(parts[0].numbers.dtype)
    return RowScaled(numbers, torch.cat([part.scales for part in parts]))


def in_int8(weight: Tensor) -> RowScaled:
    """Return a weight [out, in] in int8 with a scale for each output."""
    parts = [channels_of(part) for part in _parts(weight, MULTIPLE)]
    return RowScaled(torch.cat([part.numbers for part in parts]), torch.cat([part.scales for part in parts]))


def in_int4(weight: Tensor) -> Grouped:
    """Return a weight [out, in] in 4 bits with a scale and a middle for each group of 32 inputs."""
    return joined([_grouped(Blocks.of(part)) for part in _parts(weight, LANES)])


FORMS: dict[str, Callable[[Tensor], RowScaled | Grouped]] = {"fp8": in_float8, "int8": in_int8, "int4": in_int4}


def joined(parts: list[Grouped]) -> Grouped:
    """Return weights one below the other; all but the last have full tiles."""
    middles = [part.middles for part in parts]
    found = [middle for middle in middles if middle is not None]
    return Grouped(
        torch.cat([part.numbers for part in parts]),
        torch.cat([part.scales for part in parts]),
        torch.cat(found) if len(found) == len(parts) else None,
        sum(part.outputs for part in parts),
    )


def _parts(weight: Tensor, multiple: int) -> Iterator[Tensor]:
    more = -len(weight) % multiple
    yield from torch.split(pad(weight.detach(), (0, 0, 0, more)) if more else weight.detach(), AT_ONCE)


def _grouped(blocks: Blocks) -> Grouped:
    """Return blocks with middles in multiples of their scales, which are rounded to float16 first."""
    numbers = blocks.numbers.view(*blocks.scales.shape, blocks.group)
    scales = blocks.scales.half().float()
    far = blocks.middles.abs() > FAR * scales.abs()
    # Of (nearly) equal numbers: the largest number of a grid around zero.
    scales = torch.where(far, blocks.middles / (MIDDLE - 1), scales).half()
    middles = torch.where(far, 0.0, blocks.middles / torch.where(scales == 0, 1.0, scales.float()))
    numbers = torch.where(far[..., None], 2 * MIDDLE - 1, numbers)
    return grouped(numbers.to(torch.uint8).flatten(1), scales, middles)
