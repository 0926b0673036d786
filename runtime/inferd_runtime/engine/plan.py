"""The types of one engine step, one per stage: Planned -> Batch -> (logits) -> Verified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from inferd.protocol import InferdError
from inferd_runtime.engine.context import Context
from inferd_runtime.engine.sampling import Logits, Masks, RowSampler
from inferd_runtime.kv.table import PageCopy, PageTable
from inferd_runtime.models.batch import Batch, PageData, Span


@dataclass(frozen=True, slots=True)
class Work:
    """What a job asks of this step: feed ``tokens`` behind its table, sample the last ``rows`` of them.

    The last ``len(draft)`` tokens are guesses; ``masks`` (int32[rows, words]) are the grammar's, one per sampled row.
    """

    tokens: Sequence[int]
    rows: int = 0
    draft: Sequence[int] = ()
    masks: Masks | None = None
    sampler: RowSampler | None = None


class Job(Protocol):
    """Something that wants rows in the batch. All methods are synchronous and called between forwards."""

    context: Context

    def ready(self) -> bool:
        """Whether it wants anything now."""
        ...

    def work(self, budget: int, drafts: bool) -> Work:
        """What it wants, at most ``budget`` tokens; no draft unless ``drafts``. May be asked twice in one step."""
        ...

    def commit(self, done: Verified) -> None:
        """Take the step's outcome. The page table has already advanced over the fed tokens that stay."""
        ...

    def fail(self, error: InferdError) -> None:
        """End with an error."""
        ...

    def finished(self) -> bool:
        """Whether it will never want anything again."""
        ...


@dataclass(frozen=True, slots=True)
class Planned:
    """A job's work with the pages it needs reserved."""

    job: Job
    work: Work
    table: PageTable
    copies: Sequence[PageCopy]


@dataclass(frozen=True, slots=True)
class Verified:
    """A job's outcome: ``tokens`` are the accepted draft plus the first sample that is not the draft's.

    ``logits`` (float32[rows, V], a view that dies with the step) for jobs that probe.
    """

    work: Work
    tokens: Sequence[int]
    accepted: int
    logits: Logits | None = None


class Driver(Protocol):
    """The seam to the device. Holds the weights and the KV tensors.

    ``page_bytes``: bytes of one page over all layers. ``kv_layout`` names what those bytes mean (dtype, page size, heads and
    widths per layer): pages move between drivers of one layout only.
    """

    vocab_size: int
    page_size: int
    pages: int
    max_context: int
    page_bytes: int
    kv_layout: str

    def forward(self, batch: Batch) -> Logits:
        """Copy ``batch.copies``, write K and V of every token, and return float32[R, V] logits of the wanted rows."""
        ...

    def read_pages(self, pages: Sequence[int]) -> PageData:
        """The K and V of whole pages, uint8[len(pages), page_bytes] on the host. The caller owns the copy."""
        ...

    def write_pages(self, pages: Sequence[int], data: PageData) -> None:
        """Put back what :meth:`read_pages` returned, into pages that the caller owns alone. Exact to the bit."""
        ...


def prepare(plan: Sequence[Planned], page_size: int) -> Batch:
    """Lay a plan out as one ragged batch."""
    tokens: list[int] = []
    positions: list[npt.NDArray[Any]] = []
    slots: list[npt.NDArray[Any]] = []
    rows: list[int] = []
    spans: list[Span] = []
    for item in plan:
        count, start, first = len(item.work.tokens), item.table.length, len(tokens)
        where = np.arange(start, start + count)
        pages = np.asarray(item.table.pages[start // page_size : (start + count - 1) // page_size + 1], np.int64)
        positions.append(where)
        slots.append(pages[where // page_size - start // page_size] * page_size + where % page_size)
        tokens.extend(item.work.tokens)
        rows.extend(range(len(tokens) - item.work.rows, len(tokens)))
        spans.append(Span(first, count, start, item.table.pages))
    return Batch(
        tokens=np.asarray(tokens, np.int64),
        positions=np.concatenate(positions),
        slots=np.concatenate(slots),
        logit_rows=np.asarray(rows, np.int64),
        spans=spans,
        copies=[copy for item in plan for copy in item.copies],
    )
