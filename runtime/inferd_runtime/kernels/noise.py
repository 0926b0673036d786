"""The counter-based noise of the engine as tensors: the same 64-bit words as ``engine/sampling/noise.py``, on any device.

Keys are the engine's unsigned 64-bit numbers in two's complement, as int64 is what every device computes with.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB


def signed(word: int) -> int:
    """Return an unsigned 64-bit number as the signed one with the same bits."""
    return word - (1 << 64) if word >> 63 else word


def key_tensor(keys: Sequence[int], device: torch.device | None = None) -> Tensor:
    """Return int64[len(keys)] of the engine's keys."""
    return torch.tensor([signed(key) for key in keys], dtype=torch.int64, device=device)


def _shifted(value: Tensor, bits: int) -> Tensor:
    """Return int64 shifted right logically, which torch does not do."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def mix(value: Tensor) -> Tensor:
    """Return the 64-bit finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), element by element."""
    value = value + signed(GOLDEN)
    value = (value ^ _shifted(value, 30)) * signed(FIRST)
    value = (value ^ _shifted(value, 27)) * signed(SECOND)
    return value ^ _shifted(value, 31)


def stream(keys: Tensor, tag: int) -> Tensor:
    """Return the keys of noise that is independent of the keys' own and of other tags': ``engine/sampling/noise.py: stream``."""
    return mix(mix(keys) + signed(tag))


def uniform(keys: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Return float64 in the open interval (0, 1) for keys, absolute positions and token ids (int64, broadcast together).

    Equal to the engine's, bit for bit.
    """
    rows = mix(mix(keys) ^ positions)
    bits = _shifted(mix(rows + tokens * signed(GOLDEN)), 12)
    return (bits.to(torch.float64) + 0.5) * 2.0**-52


def gumbel(keys: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Return standard Gumbel noise, float64: from the engine's bits, up to the rounding of the device's logarithm."""
    return -torch.log(-torch.log(uniform(keys, positions, tokens)))
