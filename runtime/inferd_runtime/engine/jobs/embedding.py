"""Embeddings: final hidden states of a text, pooled chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from inferd.protocol import InferdError, InvalidRequest
from inferd_runtime.engine.jobs.forward_pass import ContextJob
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.engine.stages import Verified, Work
from inferd_runtime.models.batch import FloatRows
from inferd_runtime.speculation.drafts import Draft


class Pooling(Protocol):
    """Takes a text's hidden states in order, chunk by chunk, and keeps what the result needs."""

    def first_row(self, length: int) -> int:
        """From which token of a text of ``length`` tokens on it wants states."""
        ...

    def add(self, states: FloatRows) -> int:
        """The next tokens' states, float32[n, E]. Returns by how many numbers the result has grown."""
        ...

    def result(self) -> FloatRows:
        """float32[k, E]: one row, or one per token."""
        ...


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
    """A fresh pooling. Raises InvalidRequest for a name that is none."""
    match name:
        case "mean":
            return MeanPooling()
        case "last":
            return TokenPooling("last")
        case "cls":
            return TokenPooling("first")
        case "none":
            return TokenPooling("all")
    raise InvalidRequest(f"pooling {name!r} is not one of mean, last, cls, none")


class Embedding(ContextJob):
    """Computes the pooled states of tokens in a context of its own, which it gives back at its end.

    ``spend`` hears of numbers that the result will hold, as soon as they are there; what it raises ends the job.
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
        self._next = context.rows_from = pooling.first_row(len(tokens))

    def work(self, budget: int, draft: Draft) -> Work:
        """The next chunk, with the states that are wanted and not there yet."""
        start = self.context.table.length
        chunk = self.context.tokens[start : start + budget]
        return Work(chunk, hidden=max(0, start + len(chunk) - max(start, self._next)))

    def commit(self, done: Verified) -> None:
        """Pool the chunk; end when nothing is pending."""
        if done.hidden is not None:
            if len(done.hidden) < done.work.hidden:
                raise InvalidRequest("embed: this model's hidden states cannot be read")
            self._spend(self._pooling.add(done.hidden))
            self._next = self.context.table.length
        if self.context.pending == 0:
            self._end()

    def states(self) -> FloatRows:
        """The pooled states, float32[k, E]."""
        return self._pooling.result()

    def _end(self) -> None:
        self.context.release()
        super()._end()


def normalized(states: FloatRows) -> FloatRows:
    """Rows scaled to Euclidean length 1; a row of zeros stays."""
    lengths = np.linalg.norm(states.astype(np.float64), axis=1, keepdims=True)
    return np.asarray(states / np.where(lengths > 0, lengths, 1.0), np.float32)
