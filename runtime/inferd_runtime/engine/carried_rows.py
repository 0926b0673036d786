"""Rows behind drafts of the step before, once it is known how much of those stands: the plain twin of what a device does.

They are planned as if all of a draft stood. Each of its tokens that falls moves them one place to the front.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from inferd_runtime.engine.sampling.device_sampling import SamplingInputs
from inferd_runtime.models.batch import NO_ROWS, Batch, Ids, Span


def shifts(batch: Batch, fallen: Ids) -> Ids:
    """Return by how many places each row moves. ``fallen``: of each sequence that the step before sampled, the draft tokens that
    did not stand.
    """
    return np.where(batch.carried >= 0, fallen[batch.carried.clip(0)], 0)


def resolve(batch: Batch, last: Ids, fallen: Ids, page_size: int) -> Batch:
    """Return the batch with its rows where they belong, and the tokens that were not known: ``last``, of each sequence."""
    shift = shifts(batch, fallen)
    positions, slots = batch.positions - shift, batch.slots.copy()
    for span in batch.spans:
        rows = np.arange(span.first, span.first + span.count)
        rows = rows[shift[rows] > 0]
        slots[rows] = _slots(span, positions[rows], page_size)
    return replace(
        batch,
        tokens=np.where(batch.tokens < 0, last[batch.carried.clip(0)], batch.tokens),
        positions=positions,
        slots=slots,
        spans=[span._replace(start=span.start - int(shift[span.first])) for span in batch.spans],
        carried=NO_ROWS,
    )


def sampled_there(sampling: SamplingInputs, batch: Batch, fallen: Ids) -> SamplingInputs:
    """Return a batch's sampling with the noise of the places that its rows belong to."""
    return replace(sampling, positions=sampling.positions - shifts(batch, fallen)[batch.logit_rows[sampling.rows]])


def _slots(span: Span, positions: Ids, page_size: int) -> Ids:
    pages = np.asarray(span.pages, np.int64)
    return np.asarray(pages[positions // page_size] * page_size + positions % page_size)
