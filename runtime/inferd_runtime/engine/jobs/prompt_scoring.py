"""The log-probabilities of a prompt, chunk by chunk: no more than a few rows of logits exist at any time."""

from __future__ import annotations

from collections.abc import Sequence

from inferd.protocol import InferdError, TokenLogprob
from inferd_runtime.engine.jobs.forward_pass import ContextJob, rows_per_step
from inferd_runtime.engine.sampling.probes import check_numbers, token_logprob
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.engine.stages import Verified, Work
from inferd_runtime.speculation.drafts import Draft


class PromptScoring(ContextJob):
    """Appends tokens and keeps what each one's log-probability was, and the ``top`` most likely tokens at its place.

    The row of a token tells about the next one. So the row before the first new token is computed (again, if need be), and
    the last token stays pending: its logits are the next generation's.
    """

    def __init__(self, context: CachedSequence, tokens: Sequence[int], top: int) -> None:
        check_numbers(len(tokens) * (1 + 2 * top))
        super().__init__(context)
        self._base = len(context.tokens)
        self._first = max(0, self._base - 1)
        self._top = top
        self._results: list[TokenLogprob] = [TokenLogprob(tokens[0])] if self._base == 0 else []
        try:
            context.append(tokens)
        except InferdError:
            context.user = None
            raise
        context.uncompute(self._first)
        context.rows_from = self._first

    def _undo(self) -> None:
        self.context.truncate(self._base)

    def ready(self) -> bool:
        """Whether more than the last token is pending."""
        return not self._ended and self.context.pending > 1

    def end_if_done(self) -> None:
        """End at once when there is nothing to compute."""
        if not self._ended and self.context.pending <= 1:
            self._end()

    def work(self, budget: int, draft: Draft) -> Work:
        """The next chunk; logits from the row before the first new token on."""
        start, last = self.context.table.length, len(self.context.tokens) - 1
        first = max(self._first, start)
        end = min(last, start + budget, first + rows_per_step(self.context))
        return Work(self.context.tokens[start:end], max(0, end - first))

    def commit(self, done: Verified) -> None:
        """Score the tokens behind the chunk's rows, once: a chunk may come again after the context left the cache."""
        assert done.logits is not None
        tokens, end = self.context.tokens, self.context.table.length
        for at in range(self._base + len(self._results) - 1, end):
            row = done.logits[at - (end - done.work.rows)]
            self._results.append(token_logprob(row, tokens[at + 1], self._top))
        self.end_if_done()

    def scores(self) -> list[TokenLogprob]:
        """One per token given."""
        return self._results
