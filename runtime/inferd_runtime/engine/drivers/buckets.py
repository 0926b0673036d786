"""Which shapes a captured step may have. A CUDA graph has fixed shapes: a step runs in the smallest one that holds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST_ROWS = 16
"""Rows of one sequence in a captured step: more is a prompt, which is worth its launches."""
WIDTHS = (1, 2, 4, 8, 16)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MOST_TOTAL = 1024
"""Rows of a captured step in all. Beyond, arithmetic takes so long that launches hide behind it."""


@dataclass(frozen=True, slots=True, order=True)
class StepBucket:
    """The fixed sizes of a step: ``rows`` of ``batch`` sequences, in ``tiles`` of up to ``tile_rows`` rows of one sequence;
    drafts of up to ``nodes`` nodes.
    """

    rows: int
    batch: int
    tiles: int
    tile_rows: int
    nodes: int


def bucket(counts: Sequence[int]) -> StepBucket | None:
    """Return the captured shape for sequences with so many rows each; None where there is none.

    Rows are packed: one sequence may use what another leaves, up to MOST_ROWS. A step without drafts has the plain decode
    shape of its batch size.
    """
    longest, total = max(counts), sum(counts)
    if longest > MOST_ROWS:
        return None
    batch = next((size for size in BATCHES if size >= len(counts)), None)
    if batch is None:
        return None
    width = next((width for width in WIDTHS if width * batch >= total), None)
    if width is None or width * batch > MOST_TOTAL:
        return None
    if width == 1 and longest > 1:
        width = 2
    return captured_shape(batch, width)


def captured_shape(batch: int, width: int) -> StepBucket:
    """Return the shape of ``width`` rows for each of ``batch`` sequences on average."""
    if width == 1:
        return StepBucket(batch, batch, batch, 1, 0)
    return StepBucket(batch * width, batch, batch, MOST_ROWS, MOST_ROWS - 1)


def captured_shapes(most_rows: int) -> list[StepBucket]:
    """Return every shape that :func:`bucket` may name, of at most so many rows; the largest first, so that memory fits all."""
    most = min(most_rows, MOST_TOTAL)
    pairs = [(batch, width) for batch in BATCHES for width in WIDTHS if batch * width <= most]
    return sorted({captured_shape(batch, width) for batch, width in pairs}, reverse=True)


def exact_shape(counts: Sequence[int], tile_rows: int, nodes: int) -> StepBucket:
    """Return the shape of a step that is not captured: as large as it is."""
    tiles = sum(-(-count // tile_rows) for count in counts)
    return StepBucket(sum(counts), len(counts), tiles, tile_rows, nodes)
