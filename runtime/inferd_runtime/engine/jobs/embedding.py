"""The job of an embedding: final hidden states of a text, pooled chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from inferd.protocol import InferdError, InvalidRequest, Usage
from inferd_runtime.engine.jobs.forward_pass import ContextJob
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.engine.stages import Verified, Work
from inferd_runtime.models.batch import FloatRows
from inferd_runtime.speculation.drafts import Draft


class Pooling(Protocol):
    """Pools a text's hidden states, which arrive in order, chunk by chunk."""

    def first_row(self, length: int) -> int:
        """Return the first token of a text of ``length`` tokens whose state it needs."""

    def add(self, states: FloatRows) -> int:
        """Take the next tokens' states, float32[n, E]. Returns by how many numbers the result has grown."""

    def result(self) -> FloatRows:
        """Return the pooled states, float32[k, E]: one row, or one per token."""


class MeanPooling:
    """The mean over all tokens, summed in float64."""

    def __init__(self) -> None:
        self._sum: npt.NDArray[np.float64] | float = 0.0
        self._count = 0

    def first_row(self, length: int) -> int:
        """See :class:`Pooling`."""
        return 0

    def add(self, states: FloatRows) -> int:
        """See :class:`Pooling`."""
        grown = 0 if self._count else states.shape[1]
        self._sum = self._sum + states.sum(0, dtype=np.float64)
        self._count += len(states)
        return grown

    def result(self) -> FloatRows:
        """See :class:`Pooling`."""
        return np.asarray(self._sum / self._count, np.float32)[None]


class TokenPooling:
    """The states of single tokens: the first one's, the last one's, or all (``which``: first | last | all)."""

    def __init__(self, which: str) -> None:
        self._last = which == "last"
        self._all = which == "all"
        self._kept: list[FloatRows] = []

    def first_row(self, length: int) -> int:
        """See :class:`Pooling`."""
        return length - 1 if self._last else 0

    def add(self, states: FloatRows) -> int:
        """See :class:`Pooling`."""
        if self._kept and not self._all:
            return 0
        self._kept.append((states if self._all else states[:1]).copy())
        return self._kept[-1].size

    def result(self) -> FloatRows:
        """See :class:`Pooling`."""
        return np.concatenate(self._kept)


def pooling_of(name: str) -> Pooling:
    """Return a new pooling of one of the names POOLINGS of the protocol."""
    match name:
        case "mean":
            return MeanPooling()
        case "last":
            return TokenPooling("last")
        case "cls":
            return TokenPooling("first")
    return TokenPooling("all")


class Embedding(ContextJob):
    """Computes the pooled states of tokens in a context of its own, which it releases at its end.

    ``spend`` is called with how many numbers the result has grown by; an exception from it ends the job.
    """

    def __init__(
        self, context: CachedSequence, tokens: Sequence[int], pooling: Pooling, spend: Callable[[int], None]
    ) -> None:
        super().__init__(context)
        self._pooling = pooling
        self._spend = spend
        try:
            context.append(tokens)
        except InferdError:
            context.release()
            raise
        self._vectors = 0
        self._next = context.rows_from = pooling.first_row(len(tokens))

    @property
    def usage(self) -> Usage:
        """A token for each vector."""
        return Usage(tokens=self._vectors, steps=self.steps)

    def work(self, budget: int, draft: Draft, ahead: int = 0) -> Work:
        """Return the next chunk, with the states that the pooling needs of it."""
        start = self.context.table.length + ahead
        chunk = self.context.tokens[start : start + budget]
        return Work(chunk, hidden=max(0, start + len(chunk) - max(start, self._next)))

    def commit(self, done: Verified) -> None:
        """Pool the chunk; end if nothing is pending."""
        if done.hidden is not None:
            if len(done.hidden) < done.work.hidden:
                raise InvalidRequest("embed: this model's hidden states cannot be read")
            grown = self._pooling.add(done.hidden)
            self.steps += 1
            self._vectors += grown // done.hidden.shape[1]
            self._spend(grown)
            self._next = self.context.table.length
        if self.context.pending == 0:
            self._end()

    def states(self) -> FloatRows:
        """Return the pooled states, float32[k, E]."""
        return self._pooling.result()

    def _end(self) -> None:
        self.context.release()
        super()._end()


def normalized(states: FloatRows) -> FloatRows:
    """Return the rows scaled to Euclidean length 1; rows of zeros stay."""
    lengths = np.linalg.norm(states.astype(np.float64), axis=1, keepdims=True)
    return np.asarray(states / np.where(lengths > 0, lengths, 1.0), np.float32)
