"""A driver without maths: it keeps token ids where K and V would be, and derives logits from what it reads back.

Beside each token id it keeps a checksum of all tokens that the token saw, with their positions and adapters, as K and V depend
on them in a model. So a page that was computed behind another text is noticed when it is read, whatever the logits say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from inferd_runtime.engine.sampling.host_sampling import LogitRows
from inferd_runtime.engine.sampling.noise import mix
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.kv.table import PageCopy
from inferd_runtime.models.batch import Batch, FloatRows, Ids, Outputs, PageData, Placement, Seen, Span
from inferd_runtime.models.lora.files import AdapterFiles, AdapterSize, LoraConfig

HIDDEN = 8
MOVED = 1_000_003
ODD = 0x1E3779B97F4A7C15
"""Any odd number with its bits well mixed."""
MASKED = 1
"""The bit of a checksum that says that the token did not see all tokens before it."""


class WrongHistory(BaseException):
    """A slot that is read was not computed behind the tokens before it. No engine's error boundary catches this."""


class NullDriver:
    """Logits are a pseudo-random function of the last ``order`` tokens as the page tables show them, and of ``seed``.

    A stale page, a wrong slot or a wrong position therefore changes the output, as it would with a real model, and so does
    the adapter that one of the tokens was computed with. ``scale`` spreads the logits: large is confident, small is noisy.

    A slot holds two int64: the token id plus a number of its adapter, and the checksum (:func:`checksums`) of what the token
    saw. Every forward pass raises WrongHistory if what it attends over does not stand behind what comes before it there, unless
    ``checked`` is False: for batches over pages that nobody computed.
    """

    def __init__(
        self, *, vocab_size: int = 32, pages: int = 256, page_size: int = 4, max_context: int = 512,
        order: int = 2, scale: float = 2.0, seed: int = 0, checked: bool = True,
    ) -> None:  # fmt: skip
        self.vocab_size = vocab_size
        self.pages = pages
        self.page_size = page_size
        self.max_context = max_context
        self.token_bytes: Sequence[int] = (16,)
        self.page_bytes = page_size * 16
        self.kv_layout = f"null/2xint64/{page_size}"
        self.steps = 0
        self.tokens_fed = 0
        self._order = order
        self._scale = scale
        self._seed = seed
        self.checked = checked
        self.adapters: dict[str, int] = {}
        self._memory = np.full((pages, page_size, 2), -1, np.int64)

    def forward(self, batch: Batch) -> Outputs:
        """Logits float32[R, V] and hidden states float32[H, HIDDEN] of the wanted rows."""
        self.steps += 1
        self.tokens_fed += len(batch.tokens)
        assert all(span.count > 0 for span in batch.spans), "a sequence without tokens"
        self._write(batch)
        spans = {row: span for span in batch.spans for row in range(span.first, span.first + span.count)}
        logits = [self.logits(self._history(spans[row], row, batch)) for row in batch.logit_rows.tolist()]
        hidden = [self.hidden(self._history(spans[row], row, batch)) for row in batch.hidden_rows.tolist()]
        return Outputs(_stacked(logits, self.vocab_size), _stacked(hidden, HIDDEN))

    def adapter_reader(self) -> Callable[[AdapterFiles], tuple[int, AdapterSize]]:
        """See :class:`~inferd_runtime.engine.adapters.AdapterDevice`. The weights may be any bytes."""
        return lambda files: (
            int(files.digest(), 16) >> 2, AdapterSize(LoraConfig.parse(files).max_rank, len(files.weights))
        )  # fmt: skip

    def load_adapter(self, key: str, read: tuple[int, AdapterSize]) -> AdapterSize:
        """See :class:`~inferd_runtime.engine.adapters.AdapterDevice`."""
        self.adapters[key], size = read
        return size

    def unload_adapter(self, key: str) -> None:
        """See :class:`~inferd_runtime.engine.adapters.AdapterDevice`."""
        del self.adapters[key]

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """See :class:`~inferd_runtime.engine.driver.Driver`."""
        for copy in copies:
            self._memory[copy.target] = self._memory[copy.source]

    def move_tokens(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """See :class:`~inferd_runtime.engine.driver.Driver`."""
        flat = self._memory.reshape(-1, 2)
        flat[list(targets)] = flat[list(sources)]
        # What is moved has been accepted: the tokens that it did not see, its siblings, are overwritten.
        flat[list(targets), 1] &= ~MASKED

    def read_pages(self, pages: Sequence[int]) -> PageData:
        """See :class:`~inferd_runtime.engine.driver.Driver`."""
        return self._memory[list(pages)].view(np.uint8).reshape(len(pages), self.page_bytes)

    def bearable(self, data: PageData) -> bool:
        """See :class:`~inferd_runtime.engine.driver.Driver`. Token ids spoil nothing."""
        return True

    def write_pages(self, pages: Sequence[int], data: PageData) -> None:
        """See :class:`~inferd_runtime.engine.driver.Driver`."""
        self._memory[list(pages)] = np.ascontiguousarray(data).view(np.int64).reshape(-1, self.page_size, 2)

    def _write(self, batch: Batch) -> None:
        """Write every sequence's tokens, and check what they attend over. Raises WrongHistory."""
        flat = self._memory.reshape(-1, 2)
        offsets = [self.adapters[span.adapter] if span.adapter else 0 for span in batch.spans]
        values = batch.tokens + np.repeat(np.asarray(offsets, np.int64), [span.count for span in batch.spans])
        flat[batch.slots, 0] = values
        for span, offset in zip(batch.spans, offsets, strict=True):
            rows = slice(span.first, span.first + span.count)
            placement = batch.placements.get(span.first)
            cached = self._slots(span.pages, span.start)
            sums = checksums(np.concatenate([cached[:, 0], values[rows]]), placement, span.count)
            free = None if placement is None else cached[:, 1] & MASKED == 1
            if self.checked:
                self._check(cached, sums[: span.start], offset, free)
            flat[batch.slots[rows], 1] = sums[span.start :]

    def _slots(self, pages: Sequence[int], count: int) -> Ids:
        """int64[count, 2], what the first slots of the pages hold."""
        return self._memory[np.asarray(pages[: -(-count // self.page_size)], np.int64)].reshape(-1, 2)[:count]

    def _check(self, held: Ids, sums: Ids, offset: int, free: Seen | None = None) -> None:
        """Raise WrongHistory for slots with another checksum or adapter. ``free``: not those, whose mask is not known here."""
        wrong = held[:, 1] != sums
        if free is not None:
            wrong &= ~free
        ids = held[:, 0] - offset
        wrong |= (ids < 0) | (ids >= self.vocab_size)
        if wrong.any():
            raise WrongHistory(f"token {int(wrong.argmax())} was computed behind other tokens, or with another adapter")

    def check_sequence(self, context: CachedSequence) -> None:
        """Raise WrongHistory if what is cached of a context, or parked, is not what its own tokens give."""
        count = context.computed
        if not count or not self.checked:
            return
        if context.parked is not None and context.parked.buffer is not None:
            held = context.parked.buffer.data.view(np.int64).reshape(-1, 2)[:count]
        else:
            held = self._slots(context.table.pages, count)
        tokens = np.asarray(context.tokens[:count], np.int64)
        # An adapter that has been unloaded meanwhile is known by the first token that it computed.
        offset = self.adapters.get(context.adapter, int(held[0, 0] - tokens[0])) if context.adapter else 0
        self._check(held, checksums(tokens + offset, context.positions.placement(0, count), count), offset)
        if not np.array_equal(held[:, 0], tokens + offset):
            raise WrongHistory(f"the cache holds {(held[:, 0] - offset).tolist()}, the context {tokens.tolist()}")

    def _history(self, span: Span, row: int, batch: Batch) -> list[int]:
        """The last ``order`` tokens that the row sees; a position that is not their number changes the last one."""
        index = span.start + row - span.first
        placement = batch.placements.get(span.first)
        seen = np.arange(index + 1) if placement is None else np.flatnonzero(placement.visible[row - span.first])
        where = seen[-self._order :]
        pages = np.asarray(span.pages, np.int64)[where // self.page_size]
        tokens: list[int] = self._memory[pages, where % self.page_size, 0].tolist()
        tokens[-1] += (int(batch.positions[row]) + 1 - len(seen)) * MOVED
        return tokens

    def logits(self, history: list[int]) -> LogitRows:
        """float32[V] logits behind ``history``, of which only the last ``order`` tokens count."""
        return (self._normal(history, 0, self.vocab_size) * self._scale).astype(np.float32)

    def hidden(self, history: list[int]) -> FloatRows:
        """float32[HIDDEN], the final hidden state behind ``history``, of which only the last ``order`` tokens count."""
        return self._normal(history, 1, HIDDEN).astype(np.float32)

    def _normal(self, history: list[int], stream: int, count: int) -> NDArray[np.float64]:
        key = self._seed
        for token in history[-self._order :]:
            key = mix(key * 31 + token + 7)
        return _normal(key if stream == 0 else mix(key + stream), count)


@lru_cache(maxsize=2048)
def _normal(key: int, count: int) -> NDArray[np.float64]:
    """Numbers of a normal distribution, of which each key has others; a test asks for many of them several times."""
    return np.random.Generator(np.random.SFC64(key)).standard_normal(count)


def checksums(values: Ids, placement: Placement | None, count: int) -> Ids:
    """int64[len(values)]: of each token, the sum of the numbers of the tokens that it sees and their positions.

    Only the last ``count`` tokens have a row in ``placement.visible``; the others are taken to see all before them. A branch
    of a tree has the sums of a chain. The last bit is MASKED where a token does not see all before it.
    """
    positions = np.arange(len(values)) if placement is None else placement.positions
    mixed = (values + positions * ODD) * ODD
    mixed = (mixed ^ (mixed >> 29)) * ODD
    mixed ^= mixed >> 32
    sums = np.cumsum(mixed) & ~MASKED
    if placement is not None:
        start = len(values) - count
        seen = placement.visible @ mixed & ~MASKED
        masked = placement.visible.sum(axis=1) < np.arange(start, len(values)) + 1
        sums[start:] = np.where(masked, seen | MASKED, sums[start:])
    return sums


def _stacked(rows: Sequence[FloatRows], width: int) -> FloatRows:
    return np.stack(rows) if rows else np.empty((0, width), np.float32)
