"""A driver without maths: it keeps token ids where K and V would be, and derives logits from what it reads back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inferd_runtime.engine.sampling.host_sampling import LogitRows
from inferd_runtime.engine.sampling.noise import mix
from inferd_runtime.kv.table import PageCopy
from inferd_runtime.models.batch import Batch, FloatRows, Ids, Outputs, PageData, Span
from inferd_runtime.models.lora.files import AdapterFiles, AdapterSize, LoraConfig

HIDDEN = 8
MOVED = 1_000_003


class NullDriver:
    """Logits are a pseudo-random function of the last ``order`` tokens as the page tables show them, and of ``seed``.

    A stale page, a wrong slot or a wrong position therefore changes the output, as it would with a real model, and so does
    the adapter that one of the tokens was computed with. ``scale`` spreads the logits: large is confident, small is noisy.
    """

    def __init__(
        self, *, vocab_size: int = 32, pages: int = 256, page_size: int = 4, max_context: int = 512,
        order: int = 2, scale: float = 2.0, seed: int = 0,
    ) -> None:  # fmt: skip
        self.vocab_size = vocab_size
        self.pages = pages
        self.page_size = page_size
        self.max_context = max_context
        self.token_bytes: Sequence[int] = (8,)
        self.page_bytes = page_size * 8
        self.kv_layout = f"null/int64/{page_size}"
        self.steps = 0
        self.tokens_fed = 0
        self._order = order
        self._scale = scale
        self._seed = seed
        self.adapters: dict[str, int] = {}
        self._memory = np.full((pages, page_size), -1, np.int64)

    def forward(self, batch: Batch) -> Outputs:
        """Logits float32[R, V] and hidden states float32[H, HIDDEN] of the wanted rows."""
        self.steps += 1
        self.tokens_fed += len(batch.tokens)
        assert all(span.count > 0 for span in batch.spans), "a sequence without tokens"
        self._memory.reshape(-1)[batch.slots] = batch.tokens + self._offsets(batch)
        spans = {row: span for span in batch.spans for row in range(span.first, span.first + span.count)}
        logits = [self.logits(self._history(spans[row], row, batch)) for row in batch.logit_rows.tolist()]
        hidden = [self.hidden(self._history(spans[row], row, batch)) for row in batch.hidden_rows.tolist()]
        return Outputs(_stacked(logits, self.vocab_size), _stacked(hidden, HIDDEN))

    def load_adapter(self, key: str, files: AdapterFiles) -> AdapterSize:
        """See :class:`~inferd_runtime.engine.adapters.AdapterDevice`. The weights may be any bytes."""
        config = LoraConfig.parse(files)
        self.adapters[key] = int(files.digest(), 16) >> 2
        return AdapterSize(config.max_rank, len(files.weights))

    def unload_adapter(self, key: str) -> None:
        """See :class:`~inferd_runtime.engine.adapters.AdapterDevice`."""
        del self.adapters[key]

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """See :class:`~inferd_runtime.engine.driver.Driver`."""
        for copy in copies:
            self._memory[copy.target] = self._memory[copy.source]

    def move_tokens(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """See :class:`~inferd_runtime.engine.driver.Driver`."""
        flat = self._memory.reshape(-1)
        flat[list(targets)] = flat[list(sources)]

    def read_pages(self, pages: Sequence[int]) -> PageData:
        """See :class:`~inferd_runtime.engine.driver.Driver`."""
        return self._memory[list(pages)].view(np.uint8).reshape(len(pages), self.page_bytes)

    def bearable(self, data: PageData) -> bool:
        """See :class:`~inferd_runtime.engine.driver.Driver`. Token ids spoil nothing."""
        return True

    def write_pages(self, pages: Sequence[int], data: PageData) -> None:
        """See :class:`~inferd_runtime.engine.driver.Driver`."""
        self._memory[list(pages)] = data.reshape(len(pages), self.page_bytes).view(np.int64)

    def _offsets(self, batch: Batch) -> Ids:
        """What the adapters add to the token ids that are kept: whatever reads them back notices another adapter."""
        if not any(span.adapter for span in batch.spans):
            return np.zeros(1, np.int64)
        each = [self.adapters[span.adapter] if span.adapter else 0 for span in batch.spans]
        return np.repeat(np.asarray(each, np.int64), [span.count for span in batch.spans])

    def _history(self, span: Span, row: int, batch: Batch) -> list[int]:
        """The last ``order`` tokens that the row sees; a position that is not their number changes the last one."""
        index = span.start + row - span.first
        placement = batch.placements.get(span.first)
        seen = np.arange(index + 1) if placement is None else np.flatnonzero(placement.visible[row - span.first])
        where = seen[-self._order :]
        pages = np.asarray(span.pages, np.int64)[where // self.page_size]
        tokens: list[int] = self._memory[pages, where % self.page_size].tolist()
        tokens[-1] += (int(batch.positions[row]) + 1 - len(seen)) * MOVED
        return tokens

    def logits(self, history: list[int]) -> LogitRows:
        """float32[V] logits behind ``history``, of which only the last ``order`` tokens count."""
        return (self._generator(history, 0).standard_normal(self.vocab_size) * self._scale).astype(np.float32)

    def hidden(self, history: list[int]) -> FloatRows:
        """float32[HIDDEN], the final hidden state behind ``history``, of which only the last ``order`` tokens count."""
        return self._generator(history, 1).standard_normal(HIDDEN).astype(np.float32)

    def _generator(self, history: list[int], stream: int) -> np.random.Generator:
        key = self._seed
        for token in history[-self._order :]:
            key = mix(key * 31 + token + 7)
        return np.random.Generator(np.random.SFC64(key if stream == 0 else mix(key + stream)))


def _stacked(rows: Sequence[FloatRows], width: int) -> FloatRows:
    return np.stack(rows) if rows else np.empty((0, width), np.float32)
