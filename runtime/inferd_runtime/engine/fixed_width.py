"""Steps of a fixed width: every sequence computes the same number of rows, with a draft or without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from inferd_runtime.models.batch import Batch, Ids, Span


def widen(batch: Batch, width: int, page: int, page_size: int) -> Batch:
    """Return the batch with filler rows, so that every sequence feeds ``width`` tokens or more.

    Fillers stand behind a sequence's own tokens, where none of those can see them. Their results are not read, and their K and
    V go to ``page``, which belongs to no sequence. Sequences with a placement stay as they are.
    """
    missing = [0 if span.first in batch.placements else max(0, width - span.count) for span in batch.spans]
    if not any(missing):
        return batch
    counts = [span.count for span in batch.spans]
    shifts = np.cumsum([0, *missing[:-1]])
    row_shift = np.repeat(shifts, counts)
    ends = np.repeat(np.cumsum(counts), missing)
    return replace(
        batch,
        tokens=np.insert(batch.tokens, ends, 0),
        # The last token's position, as a later one may be beyond the model's.
        positions=np.insert(batch.positions, ends, batch.positions[ends - 1]),
        slots=np.insert(batch.slots, ends, page * page_size),
        logit_rows=_moved(batch.logit_rows, row_shift),
        hidden_rows=_moved(batch.hidden_rows, row_shift),
        spans=[_wider(*each, page, page_size) for each in zip(batch.spans, shifts.tolist(), missing, strict=True)],
        carried=np.insert(batch.carried, ends, -1) if len(batch.carried) else batch.carried,
        placements={first + int(row_shift[first]): placed for first, placed in batch.placements.items()},
    )


def _moved(rows: Ids, shift: Ids) -> Ids:
    """Return row indices of the batch as those of the widened batch."""
    return np.asarray(rows + shift[rows]) if len(rows) else rows


def _wider(span: Span, shift: int, missing: int, page: int, page_size: int) -> Span:
    """Return the widened span, with the filler page where its own pages end before its fillers do."""
    count = span.count + missing
    short = -(-(span.start + count) // page_size) - len(span.pages)
    pages: Sequence[int] = [*span.pages, *[page] * short] if short > 0 else span.pages
    return Span(span.first + shift, count, span.start, pages, span.adapter)
