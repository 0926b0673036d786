"""The fused sampling of rows in Triton: mask, temperature, top_k, top_p, min_p and Gumbel-argmax, without a sort.

Reference: :mod:`inferd_runtime.kernels.sampling`; the law: ``engine/sampling/host_sampling.py``. Four launches whose
grids depend on shapes
alone, so that a CUDA graph can hold them:

1. ``_scan``, rows x splits of the vocabulary: reads the logits, once. Of each split the largest logit and the largest score
   (scaled logit plus noise) in float32; for top_p its mass, for top_k the largest logits of small groups instead of scores.
2. ``_settle``, rows: the best split is looked at again and its best tokens are scored in float64, exactly as on the host:
   that is the draw of all rows without top_k, top_p and min_p. With them it is a proposal: the draw among all tokens is the
   draw among some, if it is one of those. With top_k: the k-th largest group is a bound below which nothing counts.
3. ``_round``, rows x splits that hold something above the proposal: the mass above it, which must be less than top_p of all,
   and the next proposal, from what is above, as all the rest is out if it fails. With top_k: the list of what is above the
   bound, little more than k tokens. All others leave at once.
4. ``_finish``, rows: settles what the round found. Lists are decided in registers. What is still open (top_p after a failed
   proposal, masses too close to their bound for float32, top_k beyond the lists) it decides by itself, in a loop.

Exactness. The token is the host's except where two float64 scores agree to the rounding of a logarithm (about 1e-14), or a
mass is top_p of the total to the rounding of a float64 sum. What float32 cannot decide is decided in float64: see CLOSE in
rows.py and MASS in proposals.py.

What is expected of an H200 (132 multiprocessors at 1.75 GHz, 4.8 TB/s; nothing here was measured), for 72 rows of 152k logits.
``_scan`` reads 22 MB of bfloat16: 5 us. The noise is 44 instructions a token (counted in the machine code: 20 of integer
logic, 12 multiplications and additions, 10 of float32, 2 of the special unit); with loading, scaling, the maxima and what a
program does once, about 80: 10.9 M tokens * 80 / (132 * 128 * 1.75e9 / s) = 30 us, which hides the reading. 36 of them go to
the unit that does 64 a cycle: 27 us. Rows with temperature 0 or top_k need no noise there. The other launches read from the
L2 cache what they need of it: 5, 2 and 3 us of latency. Together 40 us; 14 us for one row. Rows with adjustments are copied
to float32 first: 22 MB read, 44 MB written, then 44 MB read: 20 us more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from inferd_runtime.kernels.sampling import Adjustments, SampleRows, check_rows
from inferd_runtime.kernels.triton.noise import rough_gumbel, row_word
from inferd_runtime.kernels.triton.proposals import (
    LISTED,
    OPEN,
    SETTLED,
    UNLISTED,
    draw_listed,
    gather,
    mass_above,
    open_row,
    search,
)
from inferd_runtime.kernels.triton.rows import ordinal, rough_scores, scale_of, scaled, tile
from inferd_runtime.kernels.triton.variant import Variant

ENTRIES = 256
"""Adjustments of a program."""
MOST_REGISTERS = 255
"""Of a thread that settles a row or does a round. Not told, the assembler keeps to 128 or 96 of them and spills some: in settling
on 10.0, with Triton 3.6 in the round on 9.0 and 10.0.
"""


@dataclass(frozen=True, slots=True)
class Tiling:
    """``block``: tokens of a split; ``group``: those of which top_k sees the largest first; ``listed``: the longest list;
    ``rounds``: launches over rows x splits behind the scan. Powers of two, but the last.
    """

    block: int
    group: int
    listed: int = 1024
    rounds: int = 1

    @classmethod
    def of(cls, rows: int, vocab: int) -> Tiling:
        """Return splits enough to fill a device, and about 1,024 to 2,048 groups."""
        block = 1024 if rows <= 32 else 4096
        group = 1 << max(0, (vocab >> 10).bit_length() - 1)
        return cls(min(block, max(128, triton.next_power_of_2(vocab))), group)


@triton.jit
def _row(
    logits: tl.tensor, stride: tl.tensor, vocab: tl.tensor, keys: tl.tensor, positions: tl.tensor, mask_rows: tl.tensor,
    masks: tl.tensor, n: tl.tensor, masked: tl.constexpr,
):  # fmt: skip
    """See rows.py; without any mask there is nothing to be read of one."""
    at = tl.load(mask_rows + n)
    word = row_word(tl.load(keys + n), tl.load(positions + n))
    words = masks + tl.maximum(at, 0).to(tl.int64) * tl.cdiv(vocab, 32)
    return logits + n * stride, words, (at >= 0) & masked, vocab, word


@triton.jit
def _scan(
    logits: tl.tensor, stride: tl.tensor, vocab: tl.tensor, temperatures: tl.tensor, top_ps: tl.tensor,
    top_ks: tl.tensor, keys: tl.tensor, positions: tl.tensor, mask_rows: tl.tensor, masks: tl.tensor, peaks: tl.tensor,
    scores: tl.tensor, masses: tl.tensor, groups: tl.tensor, masked: tl.constexpr, block: tl.constexpr,
    group: tl.constexpr,
):  # fmt: skip
    split, splits, n = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    row = _row(logits, stride, vocab, keys, positions, mask_rows, masks, n, masked)
    token = split * block + tl.arange(0, block)
    logit = tile(row, token)
    peak = tl.max(logit)
    tl.store(peaks + n * splits + split, peak)
    temperature, top_k = tl.load(temperatures + n), tl.load(top_ks + n)
    if temperature > 0:
        if (top_k > 0) & (top_k < vocab):
            largest = tl.max(tl.reshape(logit, (block // group, group)), 1)
            place = split * (block // group) + tl.arange(0, block // group)
            tl.store(groups + n * splits * (block // group) + place, largest)
        else:
            scale = scale_of(tl.where(peak > float("-inf"), peak, 0.0), temperature)
            tl.store(scores + n * splits + split, tl.max(scaled(logit, scale) + rough_gumbel(row[4], token)))
            if tl.load(top_ps + n) < 1:
                tl.store(masses + (n * splits + split) * 2, tl.sum(tl.exp(scaled(logit, scale))))


@triton.jit
def _settle(
    logits: tl.tensor, stride: tl.tensor, vocab: tl.tensor, temperatures: tl.tensor, top_ps: tl.tensor,
    min_ps: tl.tensor, top_ks: tl.tensor, keys: tl.tensor, positions: tl.tensor, mask_rows: tl.tensor, masks: tl.tensor,
    peaks: tl.tensor, scores: tl.tensor, masses: tl.tensor, groups: tl.tensor, states: tl.tensor, lows: tl.tensor,
    totals: tl.tensor, counts: tl.tensor, drawn: tl.tensor, splits: tl.tensor, masked: tl.constexpr,
    first: tl.constexpr, block: tl.constexpr, group: tl.constexpr, lanes: tl.constexpr, group_lanes: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    row = _row(logits, stride, vocab, keys, positions, mask_rows, masks, n, masked)
    lane = tl.arange(0, lanes)
    peak = tl.load(peaks + n * splits + lane, mask=lane < splits, other=float("-inf"))
    temperature, top_p = tl.load(temperatures + n), tl.load(top_ps + n)
    if first:
        state, token, low, total = open_row(
            row, peak, temperature, top_p, tl.load(min_ps + n), tl.load(top_ks + n), scores, masses, groups, n, splits,
            block, group, lanes, group_lanes,
        )  # fmt: skip
        tl.store(totals + n, total)
        tl.store(counts + n, 0)
        _save(states, lows, drawn, n, state, token, low)
    elif tl.load(states + n) == OPEN:
        scale = scale_of(tl.max(peak), temperature)
        token, low, total = tl.load(drawn + n).to(tl.int32), tl.load(lows + n), tl.load(totals + n)
        state, token, low = gather(row, scale, top_p, token, low, total, scores, masses, n, splits, block, lanes)
        _save(states, lows, drawn, n, state, token, low)


@triton.jit
def _save(
    states: tl.tensor, lows: tl.tensor, drawn: tl.tensor, n: tl.tensor, state: tl.tensor, token: tl.tensor,
    low: tl.tensor,
):  # fmt: skip
    tl.store(states + n, state)
    tl.store(lows + n, low)
    tl.store(drawn + n, token.to(tl.int64))


@triton.jit
def _round(
    logits: tl.tensor, stride: tl.tensor, vocab: tl.tensor, temperatures: tl.tensor, keys: tl.tensor,
    positions: tl.tensor, mask_rows: tl.tensor, masks: tl.tensor, peaks: tl.tensor, scores: tl.tensor,
    masses: tl.tensor, states: tl.tensor, lows: tl.tensor, counts: tl.tensor, listed_tokens: tl.tensor,
    listed_logits: tl.tensor, masked: tl.constexpr, first: tl.constexpr, block: tl.constexpr, listed: tl.constexpr,
    lanes: tl.constexpr,
):  # fmt: skip
    split, splits, n = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    state, low, at = tl.load(states + n), tl.load(lows + n), n * splits + split
    holds = ordinal(tl.load(peaks + at)) >= low
    if state == OPEN:
        if holds:
            row = _row(logits, stride, vocab, keys, positions, mask_rows, masks, n, masked)
            lane = tl.arange(0, lanes)
            top = tl.max(tl.load(peaks + n * splits + lane, mask=lane < splits, other=float("-inf")))
            scale = scale_of(top, tl.load(temperatures + n))
            token = split * block + tl.arange(0, block)
            logit = tile(row, token)
            tl.store(scores + at, tl.max(rough_scores(row, scale, token, logit, low)))
            certain, possible = mass_above(logit, scale, low)
            tl.store(masses + at * 2, certain)
            tl.store(masses + at * 2 + 1, possible)
        else:
            tl.store(scores + at, float("-inf"))
            tl.store(masses + at * 2, 0.0)
            tl.store(masses + at * 2 + 1, 0.0)
    elif (state == LISTED) & holds & first:
        row = _row(logits, stride, vocab, keys, positions, mask_rows, masks, n, masked)
        token = split * block + tl.arange(0, block)
        logit = tile(row, token)
        chosen = (ordinal(logit) >= low).to(tl.int32)
        place = tl.atomic_add(counts + n, tl.sum(chosen), sem="relaxed") + tl.cumsum(chosen) - 1
        kept = (chosen > 0) & (place < listed)
        tl.store(listed_tokens + n * listed + place, token, mask=kept)
        tl.store(listed_logits + n * listed + place, logit, mask=kept)


@triton.jit
def _finish(
    logits: tl.tensor, stride: tl.tensor, vocab: tl.tensor, temperatures: tl.tensor, top_ps: tl.tensor,
    min_ps: tl.tensor, top_ks: tl.tensor, keys: tl.tensor, positions: tl.tensor, mask_rows: tl.tensor, masks: tl.tensor,
    peaks: tl.tensor, scores: tl.tensor, masses: tl.tensor, groups: tl.tensor, states: tl.tensor, lows: tl.tensor,
    totals: tl.tensor, counts: tl.tensor, drawn: tl.tensor, listed_tokens: tl.tensor, listed_logits: tl.tensor,
    splits: tl.tensor, masked: tl.constexpr, first: tl.constexpr, block: tl.constexpr, group: tl.constexpr,
    listed: tl.constexpr, lanes: tl.constexpr, group_lanes: tl.constexpr,
):  # fmt: skip
    """Draw the token of each row. ``first``: there was no round. ``states`` receives the state that each row came with."""
    n = tl.program_id(0).to(tl.int64)
    row = _row(logits, stride, vocab, keys, positions, mask_rows, masks, n, masked)
    lane = tl.arange(0, lanes)
    peak = tl.load(peaks + n * splits + lane, mask=lane < splits, other=float("-inf"))
    temperature, top_p, min_p = tl.load(temperatures + n), tl.load(top_ps + n), tl.load(min_ps + n)
    top_k, top = tl.load(top_ks + n), tl.max(peak)
    scale = scale_of(top, temperature)
    if first:
        state, token, low, total = open_row(
            row, peak, temperature, top_p, min_p, top_k, scores, masses, groups, n, splits,
            block, group, lanes, group_lanes,
        )  # fmt: skip
        state = tl.where(state == LISTED, UNLISTED, state)
    else:
        state, low, total = tl.load(states + n), tl.load(lows + n), tl.load(totals + n)
        token = tl.load(drawn + n).to(tl.int32)
        if state == OPEN:
            state, token, low = gather(row, scale, top_p, token, low, total, scores, masses, n, splits, block, lanes)
        elif state == LISTED:
            count = tl.load(counts + n)
            if count <= listed:
                token = draw_listed(
                    row[4], scale, low, count, top_k, top_p, min_p, listed_tokens, listed_logits, n, vocab, listed
                )
                state = tl.full((), SETTLED, tl.int32)
            else:
                state = tl.full((), UNLISTED, tl.int32)
    tl.store(states + n, state)
    if state != SETTLED:
        token = search(row, peak, scale, state, token, low, total, top_k, top_p, min_p, block, lanes)
    tl.store(drawn + n, token.to(tl.int64))


@triton.jit(do_not_specialize=["rows", "entries"])
def _adjust(
    logits: tl.tensor, vocab: tl.tensor, first: tl.tensor, tokens: tl.tensor, repetition: tl.tensor, shift: tl.tensor,
    rows: tl.tensor, entries: tl.tensor, block: tl.constexpr,
):  # fmt: skip
    """Apply the entries of all rows, in place."""
    entry = tl.program_id(0) * block + tl.arange(0, block)
    inside = entry < entries
    low = tl.zeros((block,), tl.int32)
    high = low + rows
    # How many rows end at the entry or before it. No more than half of what is left stays open each time.
    left = tl.full((), 0, tl.int32) + rows
    while left > 0:
        middle = (low + high) // 2
        over = tl.load(first + middle + 1, mask=inside & (low < high), other=0) <= entry
        high = tl.where(over | (low >= high), high, middle)
        low = tl.where(over & (low < high), middle + 1, low)
        left = left // 2
    inside = inside & (low < rows)
    place = low.to(tl.int64) * vocab + tl.load(tokens + entry, mask=inside, other=0)
    before = tl.load(logits + place, mask=inside, other=0.0).to(tl.float64)
    by = tl.load(repetition + entry, mask=inside, other=1.0).to(tl.float64)
    after = tl.where(before > 0, before / by, before * by)
    after += tl.load(shift + entry, mask=inside, other=0.0).to(tl.float64)
    tl.store(logits + place, after.to(tl.float32), mask=inside)


def adjusted(logits: Tensor, adjustments: Adjustments) -> Tensor:
    """See :func:`inferd_runtime.kernels.sampling.adjusted`."""
    copy = logits.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    rows, entries = len(copy), len(adjustments.tokens)
    if rows and entries:
        _adjust[(triton.cdiv(entries, ENTRIES),)](
            copy, copy.shape[1], adjustments.first, adjustments.tokens, adjustments.repetition, adjustments.shift,
            rows, entries, block=ENTRIES,
        )  # fmt: skip
    return copy


def sample(logits: Tensor, rows: SampleRows) -> Tensor:
    """See :func:`inferd_runtime.kernels.sampling.sample`."""
    return sample_tiled(logits, rows, Tiling.of(*logits.shape))[0]


def sample_tiled(logits: Tensor, rows: SampleRows, tiling: Tiling) -> tuple[Tensor, Tensor]:
    """:func:`sample`, and int32[N]: the state in which each row came to the end of the last launch, for tests."""
    if rows.adjustments is not None:
        logits = adjusted(logits, rows.adjustments)
    elif logits.stride(1) != 1:
        logits = logits.contiguous()
    count, vocab = logits.shape
    work = _Work.of(logits, triton.cdiv(vocab, tiling.block), tiling)
    if count:
        check_rows(logits, rows)
        # In the interpreter NumPy would warn of scaled logits that overflow to -inf, as they shall.
        with np.errstate(over="ignore"):
            _launch(logits, rows, tiling, work)
    return work.drawn, work.states


@dataclass(frozen=True, slots=True)
class _Work:
    """What the launches leave each other, for N rows and S splits of G groups each.

    ``peaks`` and ``scores`` float32[N, S], ``masses`` float32[N, S, 2], ``groups`` float32[N, S * G]; ``states``, ``lows``,
    ``counts`` int32[N], ``totals`` float64[N], ``drawn`` int64[N]; the lists int32 and float32[N, L].
    """

    peaks: Tensor
    scores: Tensor
    masses: Tensor
    groups: Tensor
    states: Tensor
    lows: Tensor
    counts: Tensor
    totals: Tensor
    drawn: Tensor
    listed_tokens: Tensor
    listed_logits: Tensor

    @classmethod
    def of(cls, logits: Tensor, splits: int, tiling: Tiling) -> _Work:
        """Return uninitialised memory."""
        n, groups = len(logits), splits * (tiling.block // tiling.group)

        def empty(dtype: torch.dtype, *shape: int) -> Tensor:
            return logits.new_empty((n, *shape), dtype=dtype)

        return cls(
            empty(torch.float32, splits), empty(torch.float32, splits), empty(torch.float32, splits, 2),
            empty(torch.float32, groups), empty(torch.int32), empty(torch.int32), empty(torch.int32),
            empty(torch.float64), empty(torch.int64), empty(torch.int32, tiling.listed), empty(torch.float32, tiling.listed),
        )  # fmt: skip


def _warps(tiling: Tiling) -> list[int]:
    """Return the warps of programs for a split, that settle a row, and that finish one: none of them spills."""
    return [min(8, max(least, tiling.block // tokens)) for tokens, least in ((512, 1), (256, 1), (128, 4))]


def _launch(logits: Tensor, rows: SampleRows, tiling: Tiling, work: _Work) -> None:
    count, splits = work.peaks.shape
    masked = len(rows.masks) > 0
    where = (rows.keys, rows.positions, rows.mask_rows, rows.masks)
    source = (logits, logits.stride(0), logits.shape[1])
    samplers = (*source, rows.temperature, rows.top_p, rows.min_p, rows.top_k, *where)
    found = (work.peaks, work.scores, work.masses)
    lists = (work.listed_tokens, work.listed_logits)
    result = (work.states, work.lows, work.totals, work.counts, work.drawn)
    warps, settling, finishing = _warps(tiling)
    lanes = triton.next_power_of_2(splits)
    sizes = {
        "masked": masked, "block": tiling.block, "group": tiling.group,
        "lanes": lanes, "group_lanes": triton.next_power_of_2(work.groups.shape[1]),
    }  # fmt: skip
    _scan[(splits, count)](
        *source, rows.temperature, rows.top_p, rows.top_k, *where, *found, work.groups,
        masked=masked, block=tiling.block, group=tiling.group, num_warps=warps,
    )  # fmt: skip
    for turn in range(tiling.rounds):
        _settle[(count,)](
            *samplers, *found, work.groups, *result, splits,
            first=turn == 0, num_warps=settling, maxnreg=MOST_REGISTERS, **sizes,
        )  # fmt: skip
        _round[(splits, count)](
            *source, rows.temperature, *where, *found, work.states, work.lows, work.counts, *lists,
            masked=masked, first=turn == 0, block=tiling.block, listed=tiling.listed, lanes=lanes, num_warps=warps,
            maxnreg=MOST_REGISTERS,
        )  # fmt: skip
    _finish[(count,)](
        *samplers, *found, work.groups, *result, *lists, splits,
        first=tiling.rounds == 0, listed=tiling.listed, num_warps=finishing, **sizes,
    )  # fmt: skip


def variants() -> Iterator[Variant]:
    """Yield 72 rows of 152,064 logits, and 8, in bfloat16 as a model gives them and in float32 as adjustments leave them; in
    bfloat16 of 32,000 and 262,144, too.
    """
    types = {
        "stride": "i64:16", "vocab": "i32:16", "temperatures": "*fp64", "top_ps": "*fp64", "min_ps": "*fp64",
        "top_ks": "*i64", "keys": "*i64", "positions": "*i64", "mask_rows": "*i32", "masks": "*i32", "peaks": "*fp32",
        "scores": "*fp32", "masses": "*fp32", "groups": "*fp32", "states": "*i32", "lows": "*i32", "totals": "*fp64",
        "counts": "*i32", "drawn": "*i64", "listed_tokens": "*i32", "listed_logits": "*fp32", "splits": "i32",
    }  # fmt: skip
    served = [(152_064, "*bf16"), (152_064, "*fp32"), (32_000, "*bf16"), (262_144, "*bf16")]
    for (vocab, kind), rows in product(served, (72, 8)):
        tiling = Tiling.of(rows, vocab)
        splits = triton.cdiv(vocab, tiling.block)
        lanes, group_lanes = triton.next_power_of_2(splits), triton.next_power_of_2(vocab // tiling.group)
        constants = {
            "masked": True, "first": True, "block": tiling.block, "group": tiling.group, "listed": tiling.listed,
            "lanes": lanes, "group_lanes": group_lanes,
        }  # fmt: skip
        warps, settling, finishing = _warps(tiling)
        for name, kernel, threads, registers in (
            ("scan", _scan, warps, None), ("settle", _settle, settling, MOST_REGISTERS),
            ("round", _round, warps, MOST_REGISTERS), ("finish", _finish, finishing, None),
        ):  # fmt: skip
            fixed = {each: value for each, value in constants.items() if each in kernel.arg_names}
            signature = {each: type_ for each, type_ in types.items() if each in kernel.arg_names} | {"logits": kind}
            fixed |= {"first": name != "finish"} if "first" in fixed else {}
            label = f"{name} of {rows} rows, {kind[1:]}, {vocab} tokens"
            yield Variant(label, kernel, signature, fixed, threads, most_registers=registers)
    entries = {
        "tokens": "*i32",
        "repetition": "*fp32",
        "shift": "*fp32",
        "first": "*i32",
        "rows": "i32",
        "entries": "i32",
    }
    signature = entries | {"logits": "*fp32", "vocab": "i32:16"}
    yield Variant("adjust", _adjust, signature, {"block": ENTRIES})
