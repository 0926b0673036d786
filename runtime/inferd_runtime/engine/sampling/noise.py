"""Counter-based noise: a pure function of (seed, absolute position, token id), so no order of work can change a draw."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(value: int) -> int:
    """Return the 64-bit finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) of a Python integer."""
    value = (value + GOLDEN) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def _mix_array(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    value = value + np.uint64(GOLDEN)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def stream(key: int, tag: int) -> int:
    """Return a key whose noise is independent of that of ``key`` and of other tags, for draws other than the sampler's."""
    return mix((mix(key) + tag) & MASK)


def uniform(key: int, position: int, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return one number in the open interval (0, 1) per token id, for this key and absolute position.

    52 random bits plus a half: the sum is exact in float64, so neither 0 nor 1 can occur.
    """
    row = mix((mix(key) ^ position) & MASK)
    bits = _mix_array(np.uint64(row) + tokens.astype(np.uint64) * np.uint64(GOLDEN)) >> np.uint64(12)
    return (bits.astype(np.float64) + 0.5) * 2.0**-52


def gumbel(key: int, position: int, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return standard Gumbel noise per token id: ``argmax(logits + gumbel)`` draws from softmax(logits)."""
    return -np.log(-np.log(uniform(key, position, tokens)))
