"""How sure a draw was, in Triton: one pass over the logits. Reference: :mod:`inferd_runtime.kernels.confidence`."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from inferd_runtime.kernels.confidence import COLDEST, HOTTEST, LARGEST
from inferd_runtime.kernels.sampling import SampleRows, check_rows, check_tensor
from inferd_runtime.kernels.triton.noise import gumbel, rough_gumbel, row_word
from inferd_runtime.kernels.triton.rows import tile
from inferd_runtime.kernels.triton.variant import Variant

BLOCK = 2048
"""Tokens of a program."""
LIMITS = {"coldest": COLDEST, "hottest": HOTTEST, "largest": LARGEST}


@triton.jit(do_not_specialize_on_alignment=["tokens", "temperature", "keys", "positions", "mask_rows", "masks"])
def _share(
    logits: tl.tensor, tokens: tl.tensor, temperature: tl.tensor, keys: tl.tensor, positions: tl.tensor,
    mask_rows: tl.tensor, masks: tl.tensor, out: tl.tensor, row_stride: tl.tensor, vocab: tl.tensor, splits: tl.tensor,
    words: tl.tensor, coldest: tl.constexpr, hottest: tl.constexpr, largest: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Add up a part of one row: what each token's score is worth where the drawn one's is 1. Grid (N, splits)."""
    n = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * block + tl.arange(0, block)
    mask_row = tl.load(mask_rows + n)
    word = row_word(tl.load(keys + n), tl.load(positions + n))
    mask = masks + tl.maximum(mask_row, 0).to(tl.int64) * words
    row = (logits + n * row_stride, mask, mask_row >= 0, vocab, word)
    drawn = tl.maximum(tl.load(tokens + n), 0)
    scores = tile(row, places) - tl.load(row[0] + drawn).to(tl.float32)
    heat = tl.load(temperature + n)
    if heat > 0:
        noise = rough_gumbel(word, places) - gumbel(word, drawn).to(tl.float32)
        scores = scores / tl.minimum(tl.maximum(heat, coldest), hottest).to(tl.float32) + noise
    tl.store(out + n * splits + tl.program_id(1), tl.sum(tl.exp(tl.minimum(scores, largest))))


def confidence(logits: Tensor, rows: SampleRows, tokens: Tensor) -> Tensor:
    """See :func:`inferd_runtime.kernels.confidence.confidence`. Sums go by parts, in their order."""
    check_rows(logits, rows)
    check_tensor("tokens", tokens, torch.int32, (len(logits),))
    count, vocab = logits.shape
    splits = triton.cdiv(vocab, BLOCK)
    sums = torch.empty(count, splits, dtype=torch.float32, device=logits.device)
    if count:
        _share[(count, splits)](
            logits, tokens, rows.temperature, rows.keys, rows.positions, rows.mask_rows, rows.masks, sums, logits.stride(0),
            vocab, splits, rows.masks.shape[1], **LIMITS, block=BLOCK,
        )  # fmt: skip
    return (1.0 / sums.sum(1)).masked_fill(tokens < 0, 0.0)


def variants() -> Iterator[Variant]:
    """Yield what is compiled for logits in bfloat16 and in float32."""
    for dtype in ("*bf16", "*fp32"):
        signature = {
            "logits": dtype, "tokens": "*i32", "temperature": "*fp64", "keys": "*i64", "positions": "*i64", "mask_rows": "*i32",
            "masks": "*i32", "out": "*fp32", "row_stride": "i32:16", "vocab": "i32", "splits": "i32", "words": "i32",
        }  # fmt: skip
        yield Variant(f"confidence {dtype[1:]}", _share, signature, {**LIMITS, "block": BLOCK})
