"""What becomes of a row between the launches of the sampling kernels: proposals, their masses, lists, and the last resort.

A draw among all tokens is the draw among some, if it is one of those; if it is not, nothing that is as unlikely is. See
:mod:`inferd_runtime.kernels.triton.sampling`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from inferd_runtime.kernels.triton.noise import gumbel
from inferd_runtime.kernels.triton.rows import (
    CLOSE,
    LOWEST,
    draw,
    logit_of,
    lowest_likely,
    lowest_reaching,
    ordinal,
    scale_of,
    scaled,
    score,
    tile,
)

OPEN = tl.constexpr(0)
"""A proposal's mass is to be checked, or, without one, what has an ordinal of ``low`` or more is to be drawn from."""
SETTLED = tl.constexpr(1)
UNSURE = tl.constexpr(2)
"""The mass above the proposal is so close to the bound that float64 must decide."""
LISTED = tl.constexpr(3)
"""top_k: all that counts has an ordinal of ``low`` or more, and is being listed."""
UNLISTED = tl.constexpr(4)
"""top_k: too many for a list."""
MASS = tl.constexpr(2.0**-15)
"""How far a mass in float32 may be off, relatively: each term by 2^-22 of its scaled logit, which is 17 in the mean at most
(there are fewer than e^17 tokens), and by 2^-22 of itself: 5e-6; the sums of a split and of all by 1e-6.
"""


@triton.jit
def _contending(rough: tl.tensor):
    """Return a mask of the splits that can hold the best token, by their best scores."""
    return (rough >= tl.max(rough) - CLOSE) & (rough > float("-inf"))


@triton.jit
def _propose(token: tl.tensor, logit: tl.tensor, low: tl.tensor, top_p: tl.tensor, scale: tl.tensor):
    """Return what to do with the draw from all that has not been ruled out; ``low``: the least ordinal that min_p leaves."""
    key, top = ordinal(logit), ordinal(scale[0])
    fits = key >= low
    state = tl.where((token < 0) | (fits & ((top_p >= 1) | (key == top))), SETTLED, OPEN)
    return state, tl.where(fits, token, -1), tl.where(fits, key + 1, low)


@triton.jit
def _kth_group(
    groups: tl.tensor, n: tl.tensor, count: tl.tensor, wanted: tl.tensor, scale: tl.tensor, lanes: tl.constexpr,
):  # fmt: skip
    """Return an ordinal (int64) that ``wanted`` or hardly more of a row's groups reach, if so many have any token."""
    lane = tl.arange(0, lanes)
    key = ordinal(tl.load(groups + n * count + lane, mask=lane < count, other=float("-inf")))
    low, high = tl.full((), LOWEST, tl.int64), ordinal(scale[0]).to(tl.int64)
    while low < high:
        middle = (low + high + 1) >> 1
        reached = tl.sum((key >= middle).to(tl.int32)).to(tl.int64)
        low = tl.where(reached >= wanted, middle, low)
        high = tl.where(reached >= wanted, high, middle - 1)
        # A few groups more cost less than finding the very bound.
        high = tl.where((reached >= wanted) & (reached <= wanted + wanted // 8), low, high)
    return low


@triton.jit
def open_row(
    row: tl.tuple, peak: tl.tensor, temperature: tl.tensor, top_p: tl.tensor, min_p: tl.tensor, top_k: tl.tensor,
    scores: tl.tensor, masses: tl.tensor, groups: tl.tensor, n: tl.tensor, splits: tl.tensor, block: tl.constexpr,
    group: tl.constexpr, lanes: tl.constexpr, group_lanes: tl.constexpr,
):  # fmt: skip
    """Return state, token and ``low`` of a row behind the scan, and the mass of all its tokens (only where top_p needs it)."""
    lane = tl.arange(0, lanes)
    top = tl.max(peak)
    scale = scale_of(top, temperature)
    state, token = tl.full((), SETTLED, tl.int32), tl.full((), -1, tl.int32)
    low = tl.full((), LOWEST, tl.int32)
    total = tl.full((), 0.0, tl.float64)
    if top > float("-inf"):
        if temperature == 0:
            first = tl.min(tl.where(peak == top, lane, lanes))
            places = first * block + tl.arange(0, block)
            token = tl.min(tl.where(tile(row, places) == top, places, row[3]))
        elif (top_k > 0) & (top_k < row[3]):
            count = splits * (block // group)
            state = tl.where(top_k <= count, LISTED, UNLISTED).to(tl.int32)
            if top_k <= count:
                kth = _kth_group(groups, n, count, top_k, scale, group_lanes)
                # Logits that differ may have one score.
                low = lowest_reaching(score(logit_of(kth), scale), kth, scale).to(tl.int32)
        else:
            rough = tl.load(scores + n * splits + lane, mask=lane < splits, other=float("-inf"))
            rough = tl.where(peak > float("-inf"), rough + scaled(peak, scale), float("-inf"))
            token, logit = draw(row, scale, _contending(rough), low, block, lanes)
            low = lowest_likely(min_p, scale)
            state, token, low = _propose(token, logit, low, top_p, scale)
            if top_p < 1:
                mass = tl.load(masses + (n * splits + lane) * 2, mask=lane < splits, other=0.0)
                total = tl.sum(mass.to(tl.float64) * tl.exp(score(peak, scale)))
    return state, token, low, total


@triton.jit
def _verdict(certain: tl.tensor, possible: tl.tensor, top_p: tl.tensor, total: tl.tensor):
    """Return SETTLED, OPEN (it is out) or UNSURE for a proposal with that mass above it, in float32."""
    inside = possible * (1 + MASS) < top_p * total * (1 - MASS)
    outside = certain * (1 - MASS) >= top_p * total * (1 + MASS)
    return tl.where(inside, SETTLED, tl.where(outside, OPEN, UNSURE))


@triton.jit
def mass_above(logit: tl.tensor, scale: tl.tensor, low: tl.tensor):
    """Return float32 masses of what has an ordinal of ``low`` or more: of what is more likely in float64, too, than the logit
    below ``low``, and of all.
    """
    rough = scaled(logit, scale)
    mass = tl.where(ordinal(logit) >= low, tl.exp(rough), 0.0)
    bound = scaled(logit_of(low - 1), scale)
    return tl.sum(tl.where(rough > bound + 2.0**-18 * (1 - bound), mass, 0.0)), tl.sum(mass)


@triton.jit
def gather(
    row: tl.tuple, scale: tl.tensor, top_p: tl.tensor, token: tl.tensor, low: tl.tensor, total: tl.tensor,
    scores: tl.tensor, masses: tl.tensor, n: tl.tensor, splits: tl.tensor, block: tl.constexpr, lanes: tl.constexpr,
):  # fmt: skip
    """Return state, token and ``low`` of an open row behind a round."""
    lane = tl.arange(0, lanes)
    state = tl.full((), OPEN, tl.int32)
    if token >= 0:
        at = masses + (n * splits + lane) * 2
        certain = tl.load(at, mask=lane < splits, other=0.0).to(tl.float64)
        possible = tl.load(at + 1, mask=lane < splits, other=0.0).to(tl.float64)
        state = _verdict(tl.sum(certain), tl.sum(possible), top_p, total)
    if state == OPEN:
        rough = tl.load(scores + n * splits + lane, mask=lane < splits, other=float("-inf"))
        token, logit = draw(row, scale, _contending(rough), low, block, lanes)
        state, token, low = _propose(token, logit, low, top_p, scale)
    return state, token, low


@triton.jit
def draw_listed(
    word: tl.tensor, scale: tl.tensor, low: tl.tensor, count: tl.tensor, top_k: tl.tensor, top_p: tl.tensor,
    min_p: tl.tensor, listed_tokens: tl.tensor, listed_logits: tl.tensor, n: tl.tensor, vocab: tl.tensor,
    listed: tl.constexpr,
):  # fmt: skip
    """Return the token (int32) that a row draws from its list, all of it in float64, as on the host."""
    lane = tl.arange(0, listed)
    token = tl.load(listed_tokens + n * listed + lane, mask=lane < count, other=vocab)
    logit = tl.load(listed_logits + n * listed + lane, mask=lane < count, other=float("-inf"))
    key = ordinal(logit)
    lowest, highest = low.to(tl.int64), tl.where(count > top_k, ordinal(scale[0]), low).to(tl.int64)
    while lowest < highest:
        middle = (lowest + highest + 1) >> 1
        reached = tl.sum((key >= middle).to(tl.int32)).to(tl.int64)
        lowest = tl.where(reached >= top_k, middle, lowest)
        highest = tl.where(reached > top_k, highest, tl.where(reached == top_k, middle, middle - 1))
    exact = score(logit, scale)
    # Ties at the bound stay in, those that only the scores have included.
    keep = (lane < count) & (exact >= tl.min(tl.where((key >= lowest) & (lane < count), exact, 0.0)))
    share = tl.where(keep, tl.exp(exact), 0.0)
    total = tl.sum(share)
    if min_p > 0:
        keep = keep & (exact >= tl.log(min_p))
    drawn = tl.where(keep, exact + gumbel(word, token), float("-inf"))
    best = tl.full((), -1, tl.int32)
    while best < 0:
        best = tl.min(tl.where(keep & (drawn == tl.max(drawn)), token, vocab))
        own = tl.max(tl.where(token == best, share, 0.0))
        if (top_p < 1) & (tl.sum(tl.where(share > own, share, 0.0)) >= top_p * total):
            drawn = tl.where(share > own, drawn, float("-inf"))
            best = tl.full((), -1, tl.int32)
    return best


@triton.jit
def _kth(
    row: tl.tuple, peak: tl.tensor, wanted: tl.tensor, scale: tl.tensor, block: tl.constexpr, splits: tl.constexpr,
):  # fmt: skip
    """Return the ordinal (int64) of the ``wanted``-th largest logit, or LOWEST where there are fewer: one pass for each bit."""
    lane = tl.arange(0, splits)
    low, high = tl.full((), LOWEST, tl.int64), ordinal(scale[0]).to(tl.int64)
    while low < high:
        middle = (low + high + 1) >> 1
        active = ordinal(peak) >= middle
        reached = tl.full((), 0, tl.int64)
        split = tl.min(tl.where(active, lane, splits))
        while split < splits:
            logit = tile(row, split * block + tl.arange(0, block))
            reached += tl.sum((ordinal(logit) >= middle).to(tl.int32))
            split = tl.min(tl.where(active & (lane > split), lane, splits))
        low = tl.where(reached >= wanted, middle, low)
        high = tl.where(reached >= wanted, high, middle - 1)
    return low


@triton.jit
def _weigh(
    row: tl.tuple, peak: tl.tensor, scale: tl.tensor, low: tl.tensor, top_p: tl.tensor, total: tl.tensor,
    block: tl.constexpr, splits: tl.constexpr,
):  # fmt: skip
    """Do a round and :func:`_verdict` in one program."""
    lane = tl.arange(0, splits)
    active = ordinal(peak) >= low
    certain, possible = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    split = tl.min(tl.where(active, lane, splits))
    while split < splits:
        sure, all_of_it = mass_above(tile(row, split * block + tl.arange(0, block)), scale, low)
        certain += sure.to(tl.float64)
        possible += all_of_it.to(tl.float64)
        split = tl.min(tl.where(active & (lane > split), lane, splits))
    return _verdict(certain, possible, top_p, total)


@triton.jit
def _weigh_exactly(
    row: tl.tuple, peak: tl.tensor, scale: tl.tensor, low: tl.tensor, floor: tl.tensor, top_p: tl.tensor,
    block: tl.constexpr, splits: tl.constexpr,
):  # fmt: skip
    """Return SETTLED or OPEN, in float64: what is likelier than the logit below ``low``, of what ``floor`` leaves."""
    lane = tl.arange(0, splits)
    active = ordinal(peak) >= floor
    own = tl.exp(score(logit_of(low - 1), scale))
    above, total = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    split = tl.min(tl.where(active, lane, splits))
    while split < splits:
        logit = tile(row, split * block + tl.arange(0, block))
        share = tl.where(ordinal(logit) >= floor, tl.exp(score(logit, scale)), 0.0)
        total += tl.sum(share)
        above += tl.sum(tl.where(share > own, share, 0.0))
        split = tl.min(tl.where(active & (lane > split), lane, splits))
    return tl.where(above < top_p * total, SETTLED, OPEN)


@triton.jit
def search(
    row: tl.tuple, peak: tl.tensor, scale: tl.tensor, state: tl.tensor, token: tl.tensor, low: tl.tensor,
    total: tl.tensor, top_k: tl.tensor, top_p: tl.tensor, min_p: tl.tensor, block: tl.constexpr, lanes: tl.constexpr,
):  # fmt: skip
    """Return the token (int32) of an unsettled row: proposals until one stands. Each rules out one logit at least."""
    floor = tl.full((), LOWEST, tl.int32)
    ranked = state == UNLISTED
    if ranked:
        kth = _kth(row, peak, top_k, scale, block, lanes)
        floor = lowest_reaching(score(logit_of(kth), scale), kth, scale).to(tl.int32)
        low = tl.maximum(floor, lowest_likely(min_p, scale))
        state = tl.full((), OPEN, tl.int32)
    while state != SETTLED:
        if token >= 0:
            if (state == OPEN) & (ranked == 0):
                state = _weigh(row, peak, scale, low, top_p, total, block, lanes)
            else:
                state = tl.full((), UNSURE, tl.int32)
            if state == UNSURE:
                state = _weigh_exactly(row, peak, scale, low, floor, top_p, block, lanes)
        if state == OPEN:
            token, logit = draw(row, scale, ordinal(peak) >= low, low, block, lanes)
            state, token, low = _propose(token, logit, low, top_p, scale)
    return token
