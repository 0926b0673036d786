"""A driver without maths: it keeps token ids where K and V would be, and derives logits from what it reads back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inferd_runtime.engine.noise import mix
from inferd_runtime.engine.sampling import Logits
from inferd_runtime.models.batch import Batch, Ids, PageData, Span


class NullDriver:
    """Logits are a pseudo-random function of the last ``order`` tokens as the page tables show them, and of ``seed``.

    A stale page, a wrong slot or a wrong position therefore changes the output, as it would with a real model. ``scale``
    spreads the logits: large is confident, small is noisy.
    """

    def __init__(
        self, *, vocab_size: int = 32, pages: int = 256, page_size: int = 4, max_context: int = 512,
        order: int = 2, scale: float = 2.0, seed: int = 0,
    ) -> None:  # fmt: skip
        self.vocab_size = vocab_size
        self.pages = pages
        self.page_size = page_size
        self.max_context = max_context
        self.page_bytes = page_size * 8
        self.kv_layout = f"null/int64/{page_size}"
        self.steps = 0
        self._order = order
        self._scale = scale
        self._seed = seed
        self._memory = np.full((pages, page_size), -1, np.int64)

    def forward(self, batch: Batch) -> Logits:
        """float32[R, V] logits of the wanted rows."""
        self.steps += 1
        for copy in batch.copies:
            self._memory[copy.target] = self._memory[copy.source]
        self._memory.reshape(-1)[batch.slots] = batch.tokens
        spans = {row: span for span in batch.spans for row in range(span.first, span.first + span.count)}
        rows = [self._row(spans[row], int(batch.positions[row])) for row in batch.logit_rows.tolist()]
        return np.stack(rows) if rows else np.empty((0, self.vocab_size), np.float32)

    def read_pages(self, pages: Sequence[int]) -> PageData:
        """See :class:`~inferd_runtime.engine.plan.Driver`."""
        return self._memory[list(pages)].view(np.uint8).reshape(len(pages), self.page_bytes)

    def write_pages(self, pages: Sequence[int], data: PageData) -> None:
        """See :class:`~inferd_runtime.engine.plan.Driver`."""
        self._memory[list(pages)] = data.reshape(len(pages), self.page_bytes).view(np.int64)

    def _row(self, span: Span, position: int) -> Logits:
        return self.logits(self._history(span, position).tolist())

    def _history(self, span: Span, position: int) -> Ids:
        where = np.arange(max(0, position + 1 - self._order), position + 1)
        pages = np.asarray(span.pages, np.int64)[where // self.page_size]
        return np.asarray(self._memory[pages, where % self.page_size])

    def logits(self, history: list[int]) -> Logits:
        """float32[V] logits behind ``history``, of which only the last ``order`` tokens count."""
        key = self._seed
        for token in history[-self._order :]:
            key = mix(key * 31 + token + 7)
        generator = np.random.Generator(np.random.SFC64(key))
        return (generator.standard_normal(self.vocab_size) * self._scale).astype(np.float32)
