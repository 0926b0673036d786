"""Prepare: a planned step becomes one ragged batch of arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from inferd_runtime.engine.job import Planned
from inferd_runtime.models.batch import NO_ROWS, Batch, Ids, Placement, Span


def prepare(plan: Sequence[Planned], page_size: int) -> Batch:
    """Return the plan as one ragged batch, in the plan's order. Raises ValueError for a job that feeds no token."""
    counts = [len(item.work.tokens) for item in plan]
    if not all(counts):
        raise ValueError("a planned job feeds no token")
    starts = [item.start for item in plan]
    ends = list(accumulate(counts))
    spans = [
        Span(end - count, count, start, item.table.pages, item.adapter)
        for item, count, start, end in zip(plan, counts, starts, ends, strict=True)
    ]
    index = np.arange(ends[-1]) + np.repeat(np.subtract(starts, ends) + counts, counts)
    placements = {
        span.first: item.work.placement
        for item, span in zip(plan, spans, strict=True)
        if item.work.placement is not None
    }
    hidden = [item.work.hidden for item in plan]
    return Batch(
        tokens=np.fromiter((token for item in plan for token in item.work.tokens), np.int64, ends[-1]),
        positions=_placed(index, spans, placements) if placements else index,
        slots=_slots(spans, index, page_size),
        logit_rows=_last_rows([item.work.rows for item in plan], ends),
        spans=spans,
        hidden_rows=_last_rows(hidden, ends) if any(hidden) else NO_ROWS,
        placements=placements,
        carried=_carried(plan, counts),
    )


def _carried(plan: Sequence[Planned], counts: Sequence[int]) -> Ids:
    """Return, per row, which of the sequences that the step in flight samples it goes on behind; -1: none."""
    carried = [item.carried for item in plan]
    return NO_ROWS if max(carried) < 0 else np.repeat(np.asarray(carried, np.int64), counts)


def _placed(index: Ids, spans: Sequence[Span], placements: Mapping[int, Placement]) -> Ids:
    """Return the position of every token: its index in the cache, unless its sequence has a placement."""
    positions = index.copy()
    for span in spans:
        if span.first in placements:
            positions[span.first : span.first + span.count] = placements[span.first].positions[span.start :]
    return positions


def _slots(spans: Sequence[Span], positions: Ids, page_size: int) -> Ids:
    """Return the slot (page * page_size + offset) of every token's K and V."""
    written: list[int] = []  # the pages that each span writes, one span after the other
    bases: list[int] = []
    for _, count, start, pages, _ in spans:
        first = start // page_size
        bases.append(len(written) - first)
        if count == 1:
            written.append(pages[first])
        else:
            written.extend(pages[first : (start + count - 1) // page_size + 1])
    where = positions // page_size + np.repeat(bases, [span.count for span in spans])
    return np.asarray(np.asarray(written, np.int64)[where] * page_size + positions % page_size)


def _last_rows(rows: Sequence[int], ends: Sequence[int]) -> Ids:
    """Return the last ``rows[i]`` batch rows before each ``ends[i]``."""
    if max(rows) == min(rows) == 1:
        return np.asarray(ends, np.int64) - 1
    return np.asarray([row for count, end in zip(rows, ends, strict=True) for row in range(end - count, end)], np.int64)
