"""The jobs beside generations: computing what is pending, and a program's own forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from inferd.protocol import InferdError, InvalidRequest, RowResult
from inferd_runtime.engine.context import Context
from inferd_runtime.engine.plan import Verified, Work
from inferd_runtime.engine.sampling import Logits, RowSampler, draw, log_softmax


class _ContextJob:
    """What both jobs share: they own the context until they end, well or not, and then say so once."""

    def __init__(self, context: Context) -> None:
        if context.user is not None:
            raise InvalidRequest("the context is in use by another operation")
        context.user = self
        self.context = context
        self.error: InferdError | None = None
        self.listener: Callable[[], None] | None = None
        self._ended = False

    def ready(self) -> bool:
        """Whether it wants rows."""
        return not self._ended

    def finished(self) -> bool:
        """Whether it has ended."""
        return self._ended

    def fail(self, error: InferdError) -> None:
        """End with an error."""
        if not self._ended:
            self.error = error
            self._end()

    def _end(self) -> None:
        self._ended = True
        self.context.user = None
        self.context.table.trim()
        if self.listener is not None:
            self.listener()


class Prefill(_ContextJob):
    """Computes all pending tokens but the last."""

    def ready(self) -> bool:
        """Whether more than the last token is pending."""
        return not self._ended and self.context.pending > 1

    def settle(self) -> None:
        """End at once when there is nothing to compute."""
        if not self._ended and self.context.pending <= 1:
            self._end()

    def work(self, budget: int, drafts: bool) -> Work:
        """The next chunk, without logits."""
        return Work(self.context.tokens[self.context.table.length : -1][:budget])

    def commit(self, done: Verified) -> None:
        """Count the chunk."""
        self.settle()


class ForwardPass(_ContextJob):
    """Appends tokens, computes everything pending, and keeps the results of the rows asked for."""

    def __init__(
        self, context: Context, tokens: Sequence[int], at: Sequence[int], sampler: RowSampler, top: int
    ) -> None:
        if not tokens:
            raise InvalidRequest("forward needs at least one token")
        for index in at:
            if not 0 <= index < len(tokens):
                raise InvalidRequest(f"forward: row {index} is outside the {len(tokens)} tokens given")
        if top < 0:
            raise InvalidRequest(f"forward: top = {top} is negative")
        super().__init__(context)
        self._base = len(context.tokens)
        try:
            context.append(tokens)
        except InferdError:
            context.user = None
            raise
        self._at = list(at) or [len(tokens) - 1]
        self._sampler = sampler
        self._top = top
        self.results: dict[int, RowResult] = {}

    def work(self, budget: int, drafts: bool) -> Work:
        """The next chunk; logits from the first row that was asked for on."""
        chunk = self.context.tokens[self.context.table.length :][:budget]
        behind = self.context.table.length + len(chunk) - (self._base + min(self._at))
        return Work(chunk, min(len(chunk), max(0, behind)))

    def commit(self, done: Verified) -> None:
        """Keep what the rows hold; end when nothing is pending."""
        logits = done.logits
        first = self.context.table.length - done.work.rows - self._base
        for index in self._at:
            if logits is not None and first <= index < first + done.work.rows:
                self.results[index] = self._row(index, logits[index - first])
        if self.context.pending == 0:
            self._end()

    def rows(self) -> list[RowResult]:
        """The results in the order asked for."""
        return [self.results[index] for index in self._at]

    def _row(self, index: int, logits: Logits) -> RowResult:
        token = draw(logits, self._sampler, self._base + index + 1)
        logprobs = log_softmax(logits)
        best = np.argsort(-logprobs, kind="stable")[: self._top]
        entropy = -float((np.exp(logprobs) * logprobs).sum())
        return RowResult(index, token, best.tolist(), logprobs[best].tolist(), entropy)
