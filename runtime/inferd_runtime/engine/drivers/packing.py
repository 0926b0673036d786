"""A planned step as the arrays of :mod:`~inferd_runtime.engine.drivers.staging`. NumPy only."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack
from typing import Any

import numpy as np
import numpy.typing as npt

from inferd_runtime.engine.drivers.buckets import FEW_ROOM, MOST_LINES, MOST_SPLIT_ROWS, PROMPT_ROOM, StepBucket
from inferd_runtime.engine.sampling.device_sampling import SamplingInputs
from inferd_runtime.kernels.rows import FEW_ROWS
from inferd_runtime.models.batch import Batch, Ids, Placement, Span

BITS = 64
Int32s = npt.NDArray[np.int32]


def pack_batch(batch: Batch, shape: StepBucket) -> dict[str, npt.NDArray[Any]]:
    """Return the rows, sequences and tiles of a step. Placements must be trees: see :func:`is_tree`."""
    counts = np.asarray([span.count for span in batch.spans], np.int32)
    starts = np.asarray([span.start for span in batch.spans], np.int32)
    lengths = starts + counts
    splits = choose_splits(counts, lengths, shape)
    values: dict[str, npt.NDArray[Any]] = {
        "tokens": batch.tokens,
        "positions": batch.positions,
        "slots": batch.slots,
        "first": np.asarray([span.first for span in batch.spans], np.int32),
        "counts": counts,
        "lengths": lengths,
        "tails": lengths,
        **_tiles("tile", counts, splits, shape.tile_rows, counts <= FEW_ROWS),
    }
    if shape.prompt_tiles:
        values |= _tiles("prompt", counts, splits, shape.prompt_rows, counts > FEW_ROWS)
    if splits.max() > 1:
        values |= _split_rows(counts, splits)
    if len(batch.carried):
        values["carried"] = batch.carried
    if batch.placements:
        values |= _trees(batch, starts, lengths)
    return values


def pack_sampling(sampling: SamplingInputs) -> dict[str, npt.NDArray[Any]]:
    """Return the samplers and drafts of a step."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "top_k": sampling.top_k,
        "keys": sampling.keys,
        "sampled_positions": sampling.positions,
        "mask_rows": sampling.mask_rows,
        "draft_first": sampling.first,
        "draft_lengths": sampling.lengths,
        "draft_tokens": sampling.tokens,
        "draft_parents": sampling.parents,
    }


def pack_pages(spans: Sequence[Span], page_size: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return the pages that each sequence reads or writes, behind each other, and where each one's begin."""
    used = [span.pages[: -(-(span.start + span.count) // page_size)] for span in spans]
    counts = np.asarray([len(pages) for pages in used], np.int32)
    # What the struct module packs takes half the time of what an array or NumPy reads (measured).
    flat = b"".join([pack(f"{len(pages)}i", *pages) for pages in used])
    return np.frombuffer(flat, np.int32), (np.cumsum(counts) - counts).astype(np.int32)


def choose_splits(counts: Int32s, lengths: Int32s, shape: StepBucket) -> Int32s:
    """Return into how many splits each sequence's keys are cut, for sequences of ``counts`` rows and ``lengths`` keys.

    By its length, or 1 where it alone would want more than half of the room there is. Should all together want more than all
    of it, the longest are cut.
    """
    wanted = -(-lengths // shape.split_keys)
    ones = np.ones_like(wanted)
    if not len(wanted) or wanted.max() == 1:
        return ones
    few = counts <= FEW_ROWS
    more = (wanted - 1) * np.where(few, 1, -(-counts // shape.prompt_rows))
    room = np.where(few, FEW_ROOM, PROMPT_ROOM)
    cut = (wanted > 1) & (2 * counts * wanted <= MOST_LINES) & (more <= room)
    order = np.argsort(-wanted, kind="stable")
    taken = np.where(cut, (counts * wanted, counts, more * few, more * ~few), 0)[:, order].cumsum(axis=1)
    rooms = np.asarray([[MOST_LINES], [MOST_SPLIT_ROWS], [FEW_ROOM], [PROMPT_ROOM]])
    cut[order] &= (taken <= rooms).all(axis=0)
    return np.where(cut, wanted, ones).astype(np.int32)


def _tiles(
    name: str, counts: Int32s, splits: Int32s, tile_rows: int, chosen: npt.NDArray[np.bool_]
) -> dict[str, npt.NDArray[Any]]:
    """Return an entry for each split of each tile of the ``chosen`` sequences, all first splits before the others."""
    each = np.where(chosen, -(-counts // tile_rows) * splits, 0)
    sequences = np.repeat(np.arange(len(counts), dtype=np.int32), each)
    within = np.arange(len(sequences)) - np.repeat(np.cumsum(each) - each, each)
    tiles, split = np.divmod(within, splits[sequences])
    starts = tiles * tile_rows
    if split.any():
        order = np.argsort(split > 0, kind="stable")
        sequences, starts, split = sequences[order], starts[order], split[order]
    return {
        f"{name}_sequences": sequences,
        f"{name}_starts": starts.astype(np.int32),
        f"{name}_splits": split.astype(np.int32),
        f"{name}_live": np.asarray([len(sequences)], np.int32),
    }


def _split_rows(counts: Int32s, splits: Int32s) -> dict[str, npt.NDArray[Any]]:
    """Return each row's splits, which rows have several, and where the sums of those are."""
    each = np.repeat(splits, counts)
    rows = np.flatnonzero(each > 1).astype(np.int32)
    lines = np.where(each > 1, each, 0)
    return {
        "split_counts": each,
        "split_first": (np.cumsum(lines) - lines).astype(np.int32),
        "split_rows": rows,
        "split_live": np.asarray([len(rows)], np.int32),
    }


def _trees(batch: Batch, starts: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32]) -> dict[str, npt.NDArray[Any]]:
    """Return which of its sequence's fed tokens each row sees, as bits."""
    seen = np.zeros(len(batch.tokens), np.int64)
    tails = lengths.copy()
    for at, span in enumerate(batch.spans):
        placement = batch.placements.get(span.first)
        if placement is not None:
            seen[span.first : span.first + span.count] = _bits(placement.visible[:, span.start :])
            tails[at] = starts[at]
    return {"seen": seen, "tails": tails}


def _bits(visible: npt.NDArray[np.bool_]) -> Ids:
    """Return bool[count, n] with n <= 64 as int64[count]."""
    weights = np.left_shift(np.uint64(1), np.arange(visible.shape[1], dtype=np.uint64))
    return np.asarray((visible * weights).sum(axis=1, dtype=np.uint64).view(np.int64))


def is_tree(span: Span, placement: Placement) -> bool:
    """True if a placement is one that the kernels know: everything before this step's tokens is seen, and stands where its
    index says; and these are few enough for a bit each.
    """
    start = span.start
    return bool(
        span.count <= BITS
        and placement.visible[:, :start].all()
        and np.array_equal(placement.positions[:start], np.arange(start))
    )
