"""The engine's counter-based noise in Triton, by token: 64-bit words of integers alone, equal to
``engine/sampling/noise.py`` bit for bit.

Gumbel noise comes twice. :func:`gumbel` is the engine's own arithmetic in float64. :func:`rough_gumbel` is float32, from the
same 52 bits, within :data:`ROUGH` of it: enough to find the few tokens that can win, which are then drawn by the exact one.
"""

from __future__ import annotations

import triton
import triton.language as tl

from inferd_runtime.kernels.triton.interpreted import INTERPRETED

BY_HAND = tl.constexpr(not INTERPRETED)
GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
FIRST = tl.constexpr(0xBF58476D1CE4E5B9)
SECOND = tl.constexpr(0x94D049BB133111EB)
LN2 = tl.constexpr(0.6931471805599453)
WORD = tl.constexpr(2.0**-32)
ROUGH = 2.0**-16
"""What float32 costs, at most. u near 1 is taken through 1 - u, whose leading bits float32 holds whatever they are:
-log(u) = v + v^2 / 2 + v^3 / 3 to 1e-5 of itself for v < 1 / 32, and below that u a logarithm that is off by 2^-22
(lg2.approx, PTX ISA) and a rounding of u by 2^-25 are 7e-6 of it at most. The outer logarithm is off by 2^-22 of at most 37.
"""


@triton.jit
def mix(word: tl.tensor):
    """Return the 64-bit finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) on uint64, behind the addition of GOLDEN."""
    word = (word ^ (word >> 30)) * FIRST
    word = (word ^ (word >> 27)) * SECOND
    return word ^ (word >> 31)


@triton.jit
def stream(key: tl.tensor, tag: tl.constexpr):
    """Return the keys of a stream, as ``engine/sampling/noise.py: stream``, of uint64 keys."""
    return mix(mix(key + GOLDEN) + tag + GOLDEN)


@triton.jit
def row_word(key: tl.tensor, position: tl.tensor):
    """Return uint64: what all tokens of one place share, for a key and a position of 64 bits."""
    return mix((mix(key.to(tl.uint64) + GOLDEN) ^ position.to(tl.uint64)) + GOLDEN) + GOLDEN


@triton.jit
def token_words(row: tl.tensor, tokens: tl.tensor):
    """Return uint64, of which the upper 52 bits count, for int32 tokens."""
    return mix(row + tokens.to(tl.uint64) * GOLDEN)


@triton.jit
def uniform(row: tl.tensor, tokens: tl.tensor):
    """Return the engine's float64 in (0, 1)."""
    return ((token_words(row, tokens) >> 12).to(tl.float64) + 0.5) * 2.0**-52


@triton.jit
def gumbel(row: tl.tensor, tokens: tl.tensor):
    """Return Gumbel noise in float64, up to the rounding of the device's logarithm."""
    return -tl.log(-tl.log(uniform(row, tokens)))


@triton.jit
def _log2(x: tl.tensor):
    """Return the device's approximation of log2, a quarter of the instructions of the exact logarithm; normal numbers only."""
    if BY_HAND:
        return tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    return tl.log2(x)


@triton.jit
def rough_gumbel(row: tl.tensor, tokens: tl.tensor):
    """Return Gumbel noise in float32, within ROUGH of :func:`gumbel`."""
    words = token_words(row, tokens)
    high = (words >> 32).to(tl.uint32)
    # The half that the engine adds to its 52 bits.
    low = (words.to(tl.uint32) & 0xFFFFF000) | 0x800
    late = high >= 0xF8000000
    # 1 - u is the two's complement of u; the carry never reaches the upper word, as the lower one is not 0.
    high = tl.where(late, high ^ 0xFFFFFFFF, high)
    low = tl.where(late, (low ^ 0xFFFFFFFF) + 1, low)
    part = high.to(tl.float32) * WORD + low.to(tl.float32) * (WORD * WORD)
    series = part * (1.0 + part * (0.5 + part * 0.33333334))
    return _log2(tl.where(late, series, _log2(part) * -LN2)) * -LN2
