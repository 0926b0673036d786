"""Pieces of the sampling kernels: a row's logits in tiles, their order as integers, their scores, and the draw among them.

A row travels as ``(logits, words, masked, vocab, word)``: pointers to its logits and its mask, whether the mask counts, the
size of the vocabulary and the row's word of noise. Its scale is ``(top, temperature, down, up, inverse)``, ``top`` being the
largest logit allowed.
"""

from __future__ import annotations

import triton
import triton.language as tl

from inferd_runtime.kernels.triton.noise import gumbel, rough_gumbel

LOWEST = tl.constexpr(-2139095040)
"""The ordinal of the smallest finite float32: what is smaller belongs to no draw."""
CLOSE = tl.constexpr(2.0**-12)
"""Whatever scores less than the best in float32 by more than this, scores less in float64.

A token within reach of the best one has |l - top| / T < 41, the width of the noise: it is in (-3.61, 36.74). Its scaled
logit is off by four roundings, 41 * 2^-22 = 1e-5, its noise by 1.5e-5 (ROUGH), their sum by 41 * 2^-24 = 3e-6, and putting
splits together costs another 1e-5: twice 4e-5 between two tokens, less than half of CLOSE.
"""


@triton.jit
def ordinal(logit: tl.tensor):
    """Return an int32 in the order of the float32, both zeros the same."""
    bits = tl.where(logit == 0, 0.0, logit).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def logit_of(key: tl.tensor):
    """Return the float32 of an ordinal."""
    key = key.to(tl.int32)
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def tile(row: tl.tuple, token: tl.tensor):
    """Return float32: what a row's logits are at tokens, -inf where none is allowed."""
    logits, words, masked, vocab = row[0], row[1], row[2], row[3]
    inside = token < vocab
    logit = tl.load(logits + token, mask=inside, other=float("-inf")).to(tl.float32)
    if masked:
        allowed = tl.load(words + (token >> 5), mask=inside, other=0)
        logit = tl.where((allowed >> (token & 31)) & 1 != 0, logit, float("-inf"))
    # No logit is NaN or +inf; nothing shall loop for ever where one is.
    return tl.where(logit < float("inf"), logit, float("-inf"))


@triton.jit
def scale_of(top: tl.tensor, temperature: tl.tensor):
    """Return powers of two around the division by T in float32, so that neither denormal gaps nor huge ones are lost."""
    down = tl.where(temperature > 2.0**60, 2.0**-64, 1.0)
    up = tl.where(temperature < 1.0, 2.0**64, 1.0)
    bounded = tl.minimum(tl.maximum(temperature, 2.0**-180), 2.0**180)
    inverse = 1.0 / (bounded * down * up)
    return top, temperature, down.to(tl.float32), up.to(tl.float32), inverse.to(tl.float32)


@triton.jit
def scaled(logit: tl.tensor, scale: tl.tensor):
    """Return (l - top) / T in float32, within 2^-22 of itself."""
    top, down, up, inverse = scale[0], scale[2], scale[3], scale[4]
    return (logit * down - top * down) * up * inverse


@triton.jit
def score(logit: tl.tensor, scale: tl.tensor):
    """Return (l - top) / T in float64: the host's own arithmetic."""
    return (logit.to(tl.float64) - scale[0].to(tl.float64)) / scale[1]


@triton.jit
def rough_scores(row: tl.tuple, scale: tl.tensor, token: tl.tensor, logit: tl.tensor, low: tl.tensor):
    """Return float32: scaled logits plus noise, -inf below the ordinal ``low``."""
    return tl.where(ordinal(logit) >= low, scaled(logit, scale) + rough_gumbel(row[4], token), float("-inf"))


@triton.jit
def draw(row: tl.tuple, scale: tl.tensor, active: tl.tensor, low: tl.tensor, block: tl.constexpr, splits: tl.constexpr):
    """Return the first token (int32) of the largest float64 score among ordinals of ``low`` or more, in the ``active``
    splits, and its logit; -1 where there is none.

    In float32 first; then those that are CLOSE to the best, one by one, exactly as the host scores them.
    """
    lane = tl.arange(0, splits)
    best = tl.full((), float("-inf"), tl.float64)
    token = tl.full((), -1, tl.int32)
    logit = tl.full((), float("-inf"), tl.float32)
    split = tl.min(tl.where(active, lane, splits))
    while split < splits:
        places = split * block + tl.arange(0, block)
        rough = rough_scores(row, scale, places, tile(row, places), low)
        bound = tl.maximum(tl.max(rough), best.to(tl.float32)) - CLOSE
        close = (rough >= bound) & (rough > float("-inf"))
        at = tl.min(tl.where(close, places, row[3]))
        while at < row[3]:
            here = tl.load(row[0] + at).to(tl.float32)
            exact = score(here, scale) + gumbel(row[4], at)
            logit = tl.where(exact > best, here, logit)
            token = tl.where(exact > best, at, token)
            best = tl.maximum(best, exact)
            at = tl.min(tl.where(close & (places > at), places, row[3]))
        split = tl.min(tl.where(active & (lane > split), lane, splits))
    return token, logit


@triton.jit
def lowest_reaching(wanted: tl.tensor, guess: tl.tensor, scale: tl.tensor):
    """Return the smallest ordinal (int64) whose float64 score is ``wanted`` or more; ``wanted`` is no more than 0.

    Bisection, between the neighbours of a guess where those hold it.
    """
    low = tl.full((), LOWEST, tl.int64)
    high = ordinal(scale[0]).to(tl.int64)
    guess = tl.minimum(tl.maximum(guess, low), high)
    below, above = tl.maximum(guess - 2, low), tl.minimum(guess + 2, high)
    low = tl.where(score(logit_of(below), scale) < wanted, below, low)
    high = tl.where(score(logit_of(above), scale) >= wanted, above, high)
    while low < high:
        middle = (low + high) >> 1
        enough = score(logit_of(middle), scale) >= wanted
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle + 1)
    return low


@triton.jit
def lowest_likely(min_p: tl.tensor, scale: tl.tensor):
    """Return the smallest ordinal (int32) of a logit with ``min_p`` of the largest probability."""
    low = tl.full((), LOWEST, tl.int64)
    if min_p > 0:
        wanted = tl.log(min_p)
        guess = scale[0].to(tl.float64) + scale[1] * wanted
        guess = tl.maximum(guess, -3.4028234663852886e38)
        low = lowest_reaching(wanted, ordinal(guess.to(tl.float32)).to(tl.int64), scale)
    return low.to(tl.int32)
