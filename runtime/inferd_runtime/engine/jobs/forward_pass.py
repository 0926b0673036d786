"""The jobs that compute a context without generating: prefill, and a program's own forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inferd.protocol import InferdError, InvalidRequest, RowResult, Usage
from inferd_runtime.engine.job import Job, NextWork
from inferd_runtime.engine.sampling.host_sampling import LogitRows, RowSampler, draw, log_softmax
from inferd_runtime.engine.sampling.probes import Reading, RowEdit, entropy, top_logprobs
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.engine.sequences.visibility import RunEnds, length_of, sees, sees_from
from inferd_runtime.engine.stages import Verified, Work
from inferd_runtime.speculation.drafts import Draft

LOGITS_PER_STEP = 1 << 20
ROWS_PER_STEP = 64
"""The most that one program's pass may bring to the host in one step, so that it does not delay the others."""


class ContextJob(Job):
    """The common part of these jobs: it owns the context until the job ends, and then calls ``listener`` once.

    ``steps``: how many engine steps brought it something to read.
    """

    def __init__(self, context: CachedSequence) -> None:
        context.check_unused()
        context.user = self
        self.context = context
        self.priority = 0
        self.speculates = False
        self.error: InferdError | None = None
        self.listener: Callable[[], None] | None = None
        self.steps = 0
        self._ended = False

    @property
    def usage(self) -> Usage:
        """What it has used so far, beside the prompt's tokens: nothing where the model's output is not read."""
        return Usage()

    def ready(self) -> bool:
        """True until it has ended."""
        return not self._ended

    def finished(self) -> bool:
        """True once it has ended."""
        return self._ended

    def next_work(self, in_flight: Work) -> NextWork:
        """Return PENDING: which tokens these jobs compute does not depend on what they read."""
        return NextWork.PENDING

    def fail(self, error: InferdError) -> None:
        """End with an error."""
        if not self._ended:
            self.error = error
            self._undo()
            self._end()

    def _undo(self) -> None:
        """Take back what a failed or cancelled job did to the context's tokens."""

    def _end(self) -> None:
        self._ended = True
        self.context.user = None
        self.context.rows_from = None
        self.context.table.trim()
        if self.listener is not None:
            self.listener()


class Prefill(ContextJob):
    """Computes all pending tokens but the last."""

    def ready(self) -> bool:
        """True while more than the last token is pending."""
        return not self._ended and self.context.pending > 1

    def end_if_done(self) -> None:
        """End the job if nothing is left to compute."""
        if not self._ended and self.context.pending <= 1:
            self._end()

    def work(self, budget: int, draft: Draft, ahead: int = 0) -> Work:
        """Return the next chunk, without logits. Ends the job if a reused prefix has covered all of it meanwhile."""
        self.end_if_done()
        return Work(self.context.tokens[self.context.table.length + ahead : -1][:budget])

    def commit(self, done: Verified) -> None:
        """End the job if the chunk was the last."""
        self.end_if_done()


@dataclass(frozen=True, slots=True)
class RowSpec:
    """What a forward pass does with each requested row: edit its logits, sample a token, list the ``top`` ones, probe."""

    sampler: RowSampler
    edit: RowEdit | None = None
    top: int = 0
    readings: Sequence[Reading] = ()

    def read(self, index: int, position: int, logits: LogitRows) -> RowResult:
        """Return the result of one row, float32[V]. The token is sampled for the absolute ``position``."""
        if self.edit is not None:
            logits = self.edit.apply(logits)
        logprobs = log_softmax(logits)
        tokens, likely = top_logprobs(logprobs, self.top)
        found = [reading.read(logits, logprobs) for reading in self.readings]
        return RowResult(index, draw(logits, self.sampler, position), tokens, likely, entropy(logprobs), found)


class ForwardPass(ContextJob):
    """Appends tokens, computes all that is pending, and keeps the results of the requested rows.

    ``at`` are the indices of the tokens whose rows are requested; empty: the last one's, which without tokens is the context's
    own. Raises InvalidRequest if there is no token at all. ``positions`` (one per token; empty: each after the one
    before) and ``visible`` (a row per token, of all tokens up to itself at least; empty: it sees all these) stay with the
    context.
    """

    def __init__(
        self,
        context: CachedSequence,
        tokens: Sequence[int],
        at: Sequence[int],
        rows: RowSpec,
        *,
        positions: Sequence[int] = (),
        visible: Sequence[RunEnds] = (),
    ) -> None:
        if not tokens and not context.tokens:
            raise InvalidRequest("forward: the context is empty and no token is given, so there is no row to look at")
        super().__init__(context)
        self._base = len(context.tokens)
        self._at = list(at) or [len(tokens) - 1]
        self._wanted = sorted({self._base + index for index in self._at})
        self._rows = rows
        self.results: dict[int, RowResult] = {}
        try:
            check_placement(context, len(tokens), positions, visible)
            context.append(tokens)
        except InferdError:
            context.user = None
            raise
        context.place(self._base, positions, visible)
        # Without tokens the last row is wanted, so its token is computed once more.
        context.uncompute(self._wanted[0])
        context.rows_from = self._wanted[0]

    def _undo(self) -> None:
        self.context.truncate(self._base)

    @property
    def usage(self) -> Usage:
        """A token for each row that was read, whose distribution or drawn token the program gets."""
        return Usage(tokens=len(self.results), steps=self.steps)

    def work(self, budget: int, draft: Draft, ahead: int = 0) -> Work:
        """Return the next chunk, with logits from the next requested row on."""
        start = self.context.table.length + ahead
        first = next((index for index in self._wanted if index >= start), len(self.context.tokens))
        end = min(len(self.context.tokens), start + budget, first + rows_per_step(self.context))
        return Work(self.context.tokens[start:end], max(0, end - first))

    def commit(self, done: Verified) -> None:
        """Read the requested rows; end if nothing is pending."""
        assert done.logits is not None
        self.steps += done.work.rows > 0
        end = self.context.table.length
        first = end - done.work.rows
        for index in self._wanted:
            if first <= index < end:
                at = index - self._base
                self.results[at] = self._rows.read(at, index + 1, done.logits[index - first])
        if self.context.pending == 0:
            self._end()

    def rows(self) -> list[RowResult]:
        """Return the results in the order of the request."""
        return [self.results[index] for index in self._at]


def rows_per_step(context: CachedSequence) -> int:
    """Return how many rows of logits a pass on the context may request in one step."""
    return max(1, min(ROWS_PER_STEP, LOGITS_PER_STEP // context.vocab_size))


def check_placement(context: CachedSequence, count: int, positions: Sequence[int], visible: Sequence[RunEnds]) -> None:
    """Check positions and visibility of ``count`` tokens after a context. Raises InvalidRequest that names what is wrong."""
    for at, position in enumerate(positions):
        if not 0 <= position < context.model_length:
            raise InvalidRequest(
                f"positions[{at}] = {position} is outside 0 to {context.model_length - 1}, the model's context"
            )
    start, length = len(context.tokens), len(context.tokens) + count
    for at, row in enumerate(visible):
        if not start + at < length_of(row) <= length:
            raise InvalidRequest(
                f"attention_mask[{at}] speaks of {length_of(row)} tokens; the context holds {length} then"
            )
        if sees_from(row, start + at + 1):
            raise InvalidRequest(f"attention_mask[{at}] lets a token see what stands behind it")
        if not sees(row, start + at):
            raise InvalidRequest(f"attention_mask[{at}] does not let the token see itself")
