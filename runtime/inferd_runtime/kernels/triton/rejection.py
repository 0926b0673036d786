"""Rejection sampling in Triton, on the device from scores to tokens. Reference: :mod:`inferd_runtime.kernels.verify`.

Four launches whose grids depend on shapes alone: the normaliser of each row's softmax, in splits of the vocabulary; which
nodes stand, a program per sequence; of the row behind them the Gumbel-argmax of the residual (p - q)+, and of p itself for
where nothing is left of it, in splits; and the verdict. All of it in float64, as p - q cancels: an H200 does half as many
operations in it as in float32. Rows behind a draft's end are not read, nor q behind the first token that falls.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from inferd_runtime.kernels import verify
from inferd_runtime.kernels.triton.noise import gumbel, row_word, stream, uniform
from inferd_runtime.kernels.triton.variant import Variant
from inferd_runtime.kernels.triton.verify import lanes_of
from inferd_runtime.kernels.verify import Drafts, Noise, Verdict, check_chains

ACCEPT = tl.constexpr(verify.ACCEPT)
RESIDUAL = tl.constexpr(verify.RESIDUAL)
PAD = tl.constexpr(verify.PAD)
NONE = tl.constexpr(float("-inf"))
BLOCK = 2048


@triton.jit
def _log(x: tl.tensor):
    """Return the logarithm, -inf for 0."""
    return tl.where(x > 0, tl.log(tl.where(x > 0, x, 1.0)), NONE)


@triton.jit(do_not_specialize=["rows"])
def _normalise(
    target: tl.tensor, lengths: tl.tensor, tops: tl.tensor, sums: tl.tensor, vocab: tl.tensor, rows: tl.tensor,
    block: tl.constexpr,
):  # fmt: skip
    """Write the largest score of one split of one row, and the sum of exp(score - largest)."""
    split, splits, b, row = tl.program_id(0), tl.num_programs(0), tl.program_id(2).to(tl.int64), tl.program_id(1)
    if row <= tl.load(lengths + b):
        token = split * block + tl.arange(0, block)
        at = b * rows + row
        score = tl.load(target + at * vocab + token, mask=token < vocab, other=NONE).to(tl.float64)
        top = tl.max(score)
        tl.store(tops + at * splits + split, top)
        tl.store(sums + at * splits + split, tl.sum(tl.exp(score - tl.where(top > NONE, top, 0.0))))


@triton.jit
def _row_of(tops: tl.tensor, sums: tl.tensor, at: tl.tensor, splits: tl.tensor, lanes: tl.constexpr):
    """Return the largest score of a row (0 where all are -inf) and the sum of exp(score - largest)."""
    lane = tl.arange(0, lanes)
    top = tl.load(tops + at * splits + lane, mask=lane < splits, other=NONE)
    part = tl.load(sums + at * splits + lane, mask=lane < splits, other=0.0)
    largest = tl.max(top)
    largest = tl.where(largest > NONE, largest, 0.0)
    return largest, tl.sum(part * tl.exp(top - largest))


@triton.jit
def _share(score: tl.tensor, top: tl.tensor, total: tl.tensor):
    """Return the probabilities p, 0 everywhere in a row that allows nothing."""
    return tl.where(total > 0, tl.exp(score.to(tl.float64) - top) / tl.where(total > 0, total, 1.0), 0.0)


@triton.jit(do_not_specialize=["width"])
def _accept(
    target: tl.tensor, tokens: tl.tensor, lengths: tl.tensor, probabilities: tl.tensor, keys: tl.tensor,
    positions: tl.tensor, tops: tl.tensor, sums: tl.tensor, accepted: tl.tensor, chosen: tl.tensor, vocab: tl.tensor,
    width: tl.tensor, splits: tl.tensor, lanes: tl.constexpr,
):  # fmt: skip
    """Count nodes that stand, u < p(x) / q(x), in logarithms. ``chosen`` float64[B, 2]: the softmax of the row behind them."""
    b = tl.program_id(0).to(tl.int64)
    length = tl.minimum(tl.load(lengths + b), width)
    key, position = stream(tl.load(keys + b).to(tl.uint64), ACCEPT), tl.load(positions + b)
    node = tl.full((), 0, tl.int64)
    alive = tl.full((), 1, tl.int32)
    while alive > 0:
        at = b * (width + 1) + node
        top, total = _row_of(tops, sums, at, splits, lanes)
        tl.store(chosen + b * 2, top)
        tl.store(chosen + b * 2 + 1, total)
        alive = (node < length).to(tl.int32)
        if node < length:
            token = tl.maximum(tl.load(tokens + b * width + node), 0)
            likely = _share(tl.load(target + at * vocab + token), top, total)
            drawn = tl.full((), 0.0, tl.float64)
            if probabilities is not None:
                drawn = _log(tl.load(probabilities + (b * width + node) * vocab + token).to(tl.float64))
            u = uniform(row_word(key, position + node), tl.full((), 0, tl.int32))
            alive = ((likely > 0) & (tl.log(u) < _log(likely) - drawn)).to(tl.int32)
        node += alive
    tl.store(accepted + b, node)


@triton.jit
def _best(score: tl.tensor, token: tl.tensor, vocab: tl.tensor):
    """Return the largest score, and the first token that has it."""
    best = tl.max(score)
    return best, tl.min(tl.where(score == best, token, vocab))


@triton.jit(do_not_specialize=["width"])
def _draw(
    target: tl.tensor, tokens: tl.tensor, lengths: tl.tensor, probabilities: tl.tensor, keys: tl.tensor,
    positions: tl.tensor, accepted: tl.tensor, chosen: tl.tensor, scores: tl.tensor, drawn: tl.tensor, vocab: tl.tensor,
    width: tl.tensor, block: tl.constexpr,
):  # fmt: skip
    """Write the best of the residual and of p in one split. ``scores`` float64 and ``drawn`` int32 [B, S, 2]."""
    split, splits, b = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    node = tl.load(accepted + b)
    token = split * block + tl.arange(0, block)
    inside = token < vocab
    score = tl.load(target + (b * (width + 1) + node) * vocab + token, mask=inside, other=NONE)
    p = _share(score, tl.load(chosen + b * 2), tl.load(chosen + b * 2 + 1))
    q = tl.zeros((block,), tl.float64)
    # Behind the draft q is 0, so that the residual is p itself: the bonus.
    if node < tl.load(lengths + b):
        at = b * width + node
        if probabilities is not None:
            q = tl.load(probabilities + at * vocab + token, mask=inside, other=0.0).to(tl.float64)
        else:
            q = (token == tl.maximum(tl.load(tokens + at), 0)).to(tl.float64)
    key = stream(tl.load(keys + b).to(tl.uint64), RESIDUAL)
    noise = gumbel(row_word(key, tl.load(positions + b) + node), token)
    place = (b * splits + split) * 2
    best, first = _best(_log(tl.maximum(p - q, 0.0)) + noise, token, vocab)
    tl.store(scores + place, best)
    tl.store(drawn + place, first)
    best, first = _best(_log(p) + noise, token, vocab)
    tl.store(scores + place + 1, best)
    tl.store(drawn + place + 1, first)


@triton.jit(do_not_specialize=["width"])
def _emit(
    tokens: tl.tensor, accepted: tl.tensor, scores: tl.tensor, drawn: tl.tensor, emitted: tl.tensor, path: tl.tensor,
    vocab: tl.tensor, width: tl.tensor, splits: tl.tensor, nodes: tl.constexpr, lanes: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, lanes)
    at = (b * splits + lane) * 2
    residual = tl.load(scores + at, mask=lane < splits, other=NONE)
    at = tl.where(tl.max(residual) > NONE, at, at + 1)
    score = tl.load(scores + at, mask=lane < splits, other=NONE)
    best = tl.max(score)
    token = tl.min(tl.where(score == best, tl.load(drawn + at, mask=lane < splits, other=vocab), vocab))
    token = tl.where(best > NONE, token, PAD)
    count, node = tl.load(accepted + b), tl.arange(0, nodes)
    stands = node < count
    kept = tl.load(tokens + b * width + node, mask=stands, other=PAD)
    tl.store(emitted + b * (width + 1) + node, tl.where(node == count, token, kept), mask=node <= width)
    tl.store(path + b * width + node, tl.where(stands, node, PAD), mask=node < width)


def rejection(target: Tensor, drafts: Drafts, noise: Noise) -> Verdict:
    """See :func:`inferd_runtime.kernels.verify.rejection`."""
    check_chains(drafts)
    batch, rows, vocab = target.shape
    width, splits = rows - 1, triton.cdiv(vocab, BLOCK)
    target, tokens = target.contiguous(), drafts.tokens.contiguous()
    q = None if drafts.probabilities is None else drafts.probabilities.contiguous()
    lanes = triton.next_power_of_2(splits)
    tops, sums = (target.new_empty(batch, rows, splits, dtype=torch.float64) for _ in range(2))
    scores, drawn = (target.new_empty(batch, splits, 2, dtype=dtype) for dtype in (torch.float64, torch.int32))
    chosen, accepted = target.new_empty(batch, 2, dtype=torch.float64), tokens.new_empty(batch)
    emitted, path = tokens.new_empty(batch, rows), tokens.new_empty(batch, width)
    if batch:
        block = min(BLOCK, max(32, triton.next_power_of_2(vocab)))
        _normalise[(splits, rows, batch)](target, drafts.lengths, tops, sums, vocab, rows, block=block)
        _accept[(batch,)](
            target, tokens, drafts.lengths, q, noise.keys, noise.positions, tops, sums, accepted, chosen, vocab, width, splits,
            lanes=lanes, num_warps=1,
        )  # fmt: skip
        _draw[(splits, batch)](
            target, tokens, drafts.lengths, q, noise.keys, noise.positions, accepted, chosen, scores, drawn, vocab, width,
            block=block, num_warps=8,
        )  # fmt: skip
        _emit[(batch,)](
            tokens, accepted, scores, drawn, emitted, path, vocab, width, splits,
            nodes=lanes_of(rows), lanes=lanes, num_warps=1,
        )  # fmt: skip
    return Verdict(accepted, emitted, path)


def variants() -> Iterator[Variant]:
    """152,064 scores a row, as the processing leaves them; drafts of up to 15 nodes."""
    numbers = dict.fromkeys(("tokens", "lengths", "keys", "positions", "accepted", "emitted", "path"), "*i64")
    floats = dict.fromkeys(("tops", "sums", "chosen", "scores"), "*fp64")
    sizes = {"vocab": "i32:16", "width": "i32", "rows": "i32", "splits": "i32", "drawn": "*i32"}
    for kind in ("*fp64", "*fp32"):
        types = {"target": kind, "probabilities": "*fp32", **numbers, **floats, **sizes}
        constants = {"block": BLOCK, "lanes": 128, "nodes": 16}
        for name, kernel, warps in (
            ("normalise", _normalise, 4), ("accept", _accept, 1), ("draw", _draw, 8), ("emit", _emit, 1),
        ):  # fmt: skip
            names = kernel.arg_names
            signature = {each: type_ for each, type_ in types.items() if each in names}
            fixed = {each: value for each, value in constants.items() if each in names}
            yield Variant(f"{name} {kind[1:]}", kernel, signature, fixed, warps)
