"""The types of one engine step, one per stage: Planned -> Batch -> (logits) -> Verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np

from inferd.protocol import InferdError
from inferd_runtime.engine.context import Context
from inferd_runtime.engine.penalties import Entries
from inferd_runtime.engine.sampling import Logits, Masks, RowSampler
from inferd_runtime.kv.table import PageCopy, PageTable
from inferd_runtime.models.batch import NO_ROWS, Batch, Ids, Outputs, PageData, Placement, Rows, Span
from inferd_runtime.speculation.drafts import NO_DRAFT, Draft


class Work(NamedTuple):
    """What a job asks of this step: feed ``tokens`` behind its table, sample the last ``rows`` of them.

    The last ``len(draft)`` tokens are the draft's; ``filtered`` names the sources of guesses that the grammar forbade.
    ``masks`` (int32[rows, words]) are the grammar's, one per sampled row; so are ``adjustments`` (None: the sampler has none).
    ``scored``: the job reads the sampled rows' logits, too, as the model gave them. ``hidden``: the last that many tokens'
    final hidden states are wanted, too. ``placement`` where the tokens do not all stand at their index and see all before; the
    scheduler fills in the context's own, and the draft's where that is a tree.
    """

    tokens: Sequence[int]
    rows: int = 0
    draft: Draft = NO_DRAFT
    masks: Masks | None = None
    sampler: RowSampler | None = None
    hidden: int = 0
    placement: Placement | None = None
    filtered: Sequence[str] = ()
    adjustments: Sequence[Entries] | None = None
    scored: bool = False


class Outlook(Enum):
    """What a job wants behind the token that a row on its way brings it, unless what that token is ends it."""

    ROW = "one row more, to feed that token and sample the next"
    NOTHING = "nothing: it ends with that token, or has ended"
    OPEN = "that depends"


class Job(Protocol):
    """Something that wants rows in the batch. All methods are synchronous and called between forwards.

    ``speculates``: whether it is asked for a guess at all.
    """

    context: Context
    priority: int
    speculates: bool

    def ready(self) -> bool:
        """Whether it wants anything now."""
        ...

    def guess(self) -> Draft:
        """What it would like to have verified in the next step; NO_DRAFT for nothing. May be asked in vain."""
        ...

    def work(self, budget: int, draft: Draft) -> Work:
        """What it wants, at most ``budget`` tokens, with what it may verify of its guess. May be asked twice in one step."""
        ...

    def commit(self, done: Verified) -> None:
        """Take the step's outcome. The page table has already advanced over the fed tokens that stay."""
        ...

    def outlook(self) -> Outlook:
        """What it will want next. Asked where a step is on its way that brings it one token."""
        ...

    def fail(self, error: InferdError) -> None:
        """End with an error."""
        ...

    def finished(self) -> bool:
        """Whether it will never want anything again."""
        ...


class Planned(NamedTuple):
    """A job's work with the pages it needs reserved, and the key of the adapter that computes it ("": none).

    ``ahead``: tokens of the job that are in flight, and come before these. ``carried``: its place in the step that they are
    in, which draws the token that is fed here (-1: the host knows it).
    """

    job: Job
    work: Work
    table: PageTable
    adapter: str = ""
    ahead: int = 0
    carried: int = -1

    @property
    def start(self) -> int:
        """Where its first token stands in its sequence, by what is known when the step is laid out."""
        return self.table.length + self.ahead


class Verified(NamedTuple):
    """A job's outcome: ``tokens`` are the accepted draft plus the first sample that is not the draft's.

    ``path``: which nodes of the draft were accepted, in order. ``logits`` (float32[rows, V]) and ``hidden`` (float32[hidden,
    E]), views that die with the step, for jobs that probe. ``cost``: how long the step takes, by the cost model, relative to
    one without drafts; ``saved``: the seconds that the accepted part was worth, less what the whole draft cost.
    """

    work: Work
    tokens: Sequence[int]
    path: Sequence[int] = ()
    logits: Logits | None = None
    hidden: Rows | None = None
    cost: float = 1.0
    saved: float = 0.0

    @property
    def accepted(self) -> int:
        """How many tokens of the draft stand."""
        return len(self.path)


class Driver(Protocol):
    """The seam to the device. Holds the weights and the KV tensors.

    ``page_bytes``: bytes of one page over all layers. ``kv_layout`` names what those bytes mean (dtype, page size, heads and
    widths per layer): pages move between drivers of one layout only. A page is one part per entry of ``token_bytes``, each
    ``page_size`` rows of so many bytes, a row per token.
    """

    vocab_size: int
    page_size: int
    pages: int
    max_context: int
    page_bytes: int
    token_bytes: Sequence[int]
    kv_layout: str

    def forward(self, batch: Batch) -> Outputs:
        """Write K and V of every token, and return what the wanted rows bring, on the host."""
        ...

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Copy pages inside the cache, one after the other, before whatever comes next."""
        ...

    def move_tokens(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy the K and V of single tokens between slots (page * page_size + offset), all read before any is written."""
        ...

    def read_pages(self, pages: Sequence[int]) -> PageData:
        """The K and V of whole pages, uint8[len(pages), page_bytes] on the host. The caller owns the copy."""
        ...

    def bearable(self, data: PageData) -> bool:
        """Whether pages that were not read here hold nothing that could spoil what others compute.

        A page that is given back keeps its content, and the next holder's attention multiplies what it masks by zero: that
        is only zero for finite numbers.
        """
        ...

    def write_pages(self, pages: Sequence[int], data: PageData) -> None:
        """Put back what :meth:`read_pages` returned, into pages that the caller owns alone. Exact to the bit."""
        ...


def prepare(plan: Sequence[Planned], page_size: int) -> Batch:
    """Lay a plan out as one ragged batch. Raises ValueError for a job that feeds nothing."""
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
        carried=_carried(plan, ends),
    )


def _carried(plan: Sequence[Planned], ends: Sequence[int]) -> Ids:
    """Who draws each token that the host does not know yet."""
    if all(item.carried < 0 for item in plan):
        return NO_ROWS
    carried = np.full(ends[-1], -1, np.int64)
    carried[np.asarray(ends) - 1] = [item.carried for item in plan]
    return carried


def _placed(index: Ids, spans: Sequence[Span], placements: Mapping[int, Placement]) -> Ids:
    """The position of every token: its index in the cache, where its sequence has no placement."""
    positions = index.copy()
    for span in spans:
        if span.first in placements:
            positions[span.first : span.first + span.count] = placements[span.first].positions[span.start :]
    return positions


def _slots(spans: Sequence[Span], positions: Ids, page_size: int) -> Ids:
    """Where each token's K and V go. Pages of all spans stand behind each other, from each span's first written one on."""
    written: list[int] = []
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
    """The last ``rows[i]`` batch rows before each ``ends[i]``."""
    if max(rows) == min(rows) == 1:
        return np.asarray(ends, np.int64) - 1
    return np.asarray([row for count, end in zip(rows, ends, strict=True) for row in range(end - count, end)], np.int64)
