"""Counter-based noise: a pure function of (seed, absolute position, token id), so no order of work can change a draw."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
RARE = 6.0
RARE_BITS = np.uint64(math.exp(-math.exp(-RARE)) * 2.0**52 * (1 - 2.0**-30))
"""Bits from which on noise may be above RARE: of one token in 400."""


def mix(value: int) -> int:
    """Return the 64-bit finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) of a Python integer."""
    value = (value + GOLDEN) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def _mix_array(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return what :func:`mix` does of each number, in its place: rows are as long as vocabularies."""
    value += np.uint64(GOLDEN)
    shifted = value >> np.uint64(30)
    value ^= shifted
    value *= np.uint64(0xBF58476D1CE4E5B9)
    value ^= np.right_shift(value, np.uint64(27), out=shifted)
    value *= np.uint64(0x94D049BB133111EB)
    value ^= np.right_shift(value, np.uint64(31), out=shifted)
    return value


def stream(key: int, tag: int) -> int:
    """Return a key whose noise is independent of that of ``key`` and of other tags, for draws other than the sampler's."""
    return mix((mix(key) + tag) & MASK)


def noise_base(key: int, position: int) -> int:
    """Return what the noise of all tokens is made from, for this key and absolute position."""
    return mix((mix(key) ^ position) & MASK)


def _bits(key: int, position: int, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return 52 random bits per token id, for this key and absolute position."""
    values = tokens.astype(np.uint64)
    values *= np.uint64(GOLDEN)
    values += np.uint64(noise_base(key, position))
    bits = _mix_array(values)
    bits >>= np.uint64(12)
    return bits


def _uniform_of(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    return (bits.astype(np.float64) + 0.5) * 2.0**-52


def _gumbel_of(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    return -np.log(-np.log(_uniform_of(bits)))


def uniform(key: int, position: int, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return one number in the open interval (0, 1) per token id, for this key and absolute position.

    52 random bits plus a half: the sum is exact in float64, so neither 0 nor 1 can occur.
    """
    return _uniform_of(_bits(key, position, tokens))


def gumbel(key: int, position: int, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return standard Gumbel noise per token id: ``argmax(logits + gumbel)`` draws from softmax(logits)."""
    return _gumbel_of(_bits(key, position, tokens))


def gumbel_of_token(key: int, position: int, token: int) -> float:
    """Return the noise of one token, to the last bits: those are the logarithm's."""
    bits = mix((noise_base(key, position) + token * GOLDEN) & MASK) >> 12
    return -math.log(-math.log((bits + 0.5) * 2.0**-52))


def gumbel_argmax(scores: npt.NDArray[np.float64], key: int, position: int, tokens: npt.NDArray[np.int64]) -> int:
    """Return ``argmax(scores + gumbel(key, position, tokens))`` without the logarithms of noise that cannot win.

    Noise above RARE is rare, and a score with less has to be near the sum that the largest score has already.
    """
    bits = _bits(key, position, tokens)
    best = int(np.argmax(scores))
    near = scores[best] + _gumbel_of(bits[best : best + 1])[0] - RARE
    places = np.flatnonzero((bits >= RARE_BITS) | (scores >= near))
    return int(places[np.argmax(scores[places] + _gumbel_of(bits[places]))])
