"""The job that computes a prompt's log-probabilities, in chunks of a few rows, as logits of all rows would not fit."""

from __future__ import annotations

from collections.abc import Sequence

from inferd.protocol import InferdError, TokenLogprob, Usage
from inferd_runtime.engine.jobs.forward_pass import Prefill, rows_per_step
from inferd_runtime.engine.sampling.probes import check_numbers, token_logprob
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.engine.stages import Verified, Work
from inferd_runtime.speculation.drafts import Draft


class PromptScoring(Prefill):
    """A prefill that appends tokens, and records each one's log-probability and the ``top`` most likely tokens at its place.

    A token's row scores the next token. So the row before the first new token is computed (again, if need be), and the last
    token stays pending: its logits belong to the next generation.
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

    @property
    def usage(self) -> Usage:
        """A token for each row that was read: the first token of an empty context has none."""
        return Usage(tokens=len(self._results) - (self._base == 0), steps=self.steps)

    def work(self, budget: int, draft: Draft, ahead: int = 0) -> Work:
        """Return the next chunk, with logits from the row before the first new token on."""
        start, last = self.context.table.length + ahead, len(self.context.tokens) - 1
        first = max(self._first, start)
        end = min(last, start + budget, first + rows_per_step(self.context))
        return Work(self.context.tokens[start:end], max(0, end - first))

    def commit(self, done: Verified) -> None:
        """Score the tokens after the chunk's rows, each once: a chunk comes again after the context left the cache."""
        assert done.logits is not None
        self.steps += done.work.rows > 0
        tokens, end = self.context.tokens, self.context.table.length
        for at in range(self._base + len(self._results) - 1, end):
            row = done.logits[at - (end - done.work.rows)]
            self._results.append(token_logprob(row, tokens[at + 1], self._top))
        self.end_if_done()

    def scores(self) -> list[TokenLogprob]:
        """Return the log-probabilities, one per token given."""
        return self._results
