"""Weights in blocks of 4, 8 or 16 bits for `blocks.c`: how they are laid out, and their products with rows in float32."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch
from torch import Tensor

from inferd_runtime.kernels.native.compiler import compiled, source_digest

SOURCE = Path(__file__).with_name("blocks.c")
LANES, GROUP = 16, 32
NIBBLES = 8
"""Numbers of 4 bits in a word."""
SCALES = 2 * LANES
"""Bytes of a block's scales, and as many of its offsets."""
BLOCK_BYTES = {4: 2 * SCALES + GROUP * LANES // 2, 8: SCALES + GROUP * LANES, 16: 2 * GROUP * LANES}
"""By the bits of a number."""


class BlockKernels:
    """The functions of the library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._products = {4: library.product4, 8: library.product8, 16: library.product16}
        for function in self._products.values():
            function.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 3 + [ctypes.c_int]
            function.restype = None

    def multiply(self, bits: int, weight: Tensor, rows: Tensor, onto: Tensor, *, add: bool = False) -> None:
        """Write the products of rows float32[T, in] with ``weight`` (see :func:`pack4` and those behind it) to ``onto`` [T, out].

        ``add``: on to what is there. Both are contiguous.
        """
        count, inputs = rows.shape
        self._products[bits](
            weight.data_ptr(), rows.data_ptr(), onto.data_ptr(), count, inputs, weight.shape[0] * LANES, add
        )


@functools.cache
def block_kernels() -> BlockKernels | None:
    """Return the functions, compiled if need be; None on a machine without a compiler or of another kind."""
    library = compiled(SOURCE)
    return None if library is None else BlockKernels(library)


def kernels_version() -> str:
    """Return what results of these products depend on; "" where there are none."""
    return "" if block_kernels() is None else source_digest(SOURCE)


def pack4(numbers: Tensor, scales: Tensor, offsets: Tensor) -> Tensor:
    """Return weights scale * number + offset in tiles: uint8[out / 16, in / 32, 320].

    ``numbers`` [out, in] from 0 to 15, ``scales`` and ``offsets`` [out, in / 32], which are rounded to float16.
    """
    tiles, groups = _tiled(numbers.to(torch.uint8))
    words = groups.view(*tiles, GROUP // NIBBLES, NIBBLES, LANES).transpose(-1, -2)
    packed = words[..., 0::2] | words[..., 1::2] << 4
    return torch.cat([_scales(scales), _scales(offsets), packed.reshape(*tiles, -1)], -1).contiguous()


def pack8(numbers: Tensor, scales: Tensor) -> Tensor:
    """Return weights scale * number in tiles: uint8[out / 16, in / 32, 544].

    ``numbers`` [out, in] from -127 to 127, ``scales`` [out, in / 32], which are rounded to float16.
    """
    tiles, groups = _tiled(numbers.to(torch.int8))
    return torch.cat([_scales(scales), groups.reshape(*tiles, -1).view(torch.uint8)], -1).contiguous()


def pack16(weight: Tensor) -> Tensor:
    """Return weights [out, in], rounded to float16, in tiles: uint8[out / 16, in / 32, 1024]."""
    tiles, groups = _tiled(weight.half())
    return groups.reshape(*tiles, -1).view(torch.uint8)


def unpack(packed: Tensor) -> Tensor:
    """Return the weight float32[out, in] of tiles: what the kernels multiply with, number by number."""
    tiles, groups, size = packed.shape
    if size == BLOCK_BYTES[16]:
        dense = packed.view(torch.float16).view(tiles, groups, GROUP, LANES).float()
        return dense.permute(0, 3, 1, 2).reshape(tiles * LANES, groups * GROUP)
    halves, rest = packed[..., :SCALES], packed[..., SCALES:]
    scales = _wide(halves)
    if size == BLOCK_BYTES[8]:
        dense = rest.view(torch.int8).view(tiles, groups, GROUP, LANES).float() * scales
    else:
        words = rest[..., SCALES:].reshape(tiles, groups, GROUP // NIBBLES, LANES, NIBBLES // 2)
        numbers = torch.stack([words & 15, words >> 4], -1).flatten(-2).transpose(-1, -2)
        dense = torch.addcmul(_wide(rest[..., :SCALES]), numbers.reshape(tiles, groups, GROUP, LANES).float(), scales)
    return dense.permute(0, 3, 1, 2).reshape(tiles * LANES, groups * GROUP)


def _wide(halves: Tensor) -> Tensor:
    """Return bytes of float16[tiles, groups, LANES] as float32[tiles, groups, 1, LANES]."""
    return halves.contiguous().view(torch.float16).float()[:, :, None]


def _tiled(numbers: Tensor) -> tuple[tuple[int, int], Tensor]:
    """Return (tiles, groups), and numbers [tiles, groups, GROUP, LANES] of [out, in]."""
    tiles, groups = numbers.shape[0] // LANES, numbers.shape[1] // GROUP
    return (tiles, groups), numbers.view(tiles, LANES, groups, GROUP).permute(0, 2, 3, 1).contiguous()


def _scales(scales: Tensor) -> Tensor:
    """Return numbers [out, groups] as the bytes of float16[tiles, groups, LANES]."""
    tiled = scales.half().view(scales.shape[0] // LANES, LANES, scales.shape[1]).transpose(1, 2)
    return tiled.contiguous().view(torch.uint8)
