"""Rows behind drafts of the step before, once their outcome is known: the plain twin of ``engine/drivers/carried.py``.

They are planned as if all of a draft were accepted. Each rejected token moves them one place to the front.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from inferd_runtime.engine.sampling.device_sampling import SamplingInputs
from inferd_runtime.models.batch import NO_ROWS, Batch, Ids, Span


def shifts(batch: Batch, rejected: Ids) -> Ids:
    """Return by how many places each row moves. ``rejected``: draft tokens of each sequence that the step before sampled."""
    return np.where(batch.carried >= 0, rejected[batch.carried.clip(0)], 0)


def resolve(batch: Batch, last: Ids, rejected: Ids, page_size: int) -> Batch:
    """Return the batch with its rows moved, and with the carried tokens: ``last`` holds that of each sequence."""
    shift = shifts(batch, rejected)
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


def sampled_there(sampling: SamplingInputs, batch: Batch, rejected: Ids) -> SamplingInputs:
    """Return a batch's sampling with the positions, and so the noise, of its moved rows."""
    return replace(sampling, positions=sampling.positions - shifts(batch, rejected)[batch.logit_rows[sampling.rows]])


def _slots(span: Span, positions: Ids, page_size: int) -> Ids:
    pages = np.asarray(span.pages, np.int64)
    return np.asarray(pages[positions // page_size] * page_size + positions % page_size)
