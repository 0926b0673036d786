"""Constraints written as a program: an object that says, for the tokens so far, which may come next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from inferd_grammar.errors import GrammarError
from inferd_grammar.matchers.matcher import GrammarMatcher, GuardedMatcher
from inferd_grammar.tokens import TokenTable, bit_mask
from inferd_grammar.validation import Checked


class MaskSource(Protocol):
    """A constraint as a function of the text so far.

    It must depend on `accepted` alone: tokens are taken back when a draft is rejected, and the same text must get the
    same answer again.
    """

    def step(self, accepted: Sequence[int]) -> NDArray[np.int32] | Iterable[int]:
        """Return the legal next tokens after `accepted`, all tokens since the start of the text.

        Either a mask, int32[words] (bit `i & 31` of word `i >> 5` is token i), or the ids. An EOS id among them says
        that the text may end here. Special tokens never become legal, whatever is said of them.
        """


def source_matcher(source: MaskSource, table: TokenTable) -> GrammarMatcher:
    """Return a matcher at the start of a text that `source` constrains. `step` is called at most once for each state entered.

    The matcher raises GrammarError for a mask of the wrong shape or dtype and ids out of range, GrammarFailure where
    `step` leaves no token and no end; what `step` raises passes through. Each leaves the matcher as it was.
    """
    return GuardedMatcher(SourceCore(source, table), table)


class SourceCore:
    """`Core` over a `MaskSource`: the tokens, and the mask that was last asked for."""

    checked: tuple[Checked, ...] = ()
    named: frozenset[int] = frozenset()
    recipe = None

    def __init__(self, source: MaskSource, table: TokenTable, accepted: Sequence[int] = ()) -> None:
        self._source = source
        self._table = table
        self._accepted = list(accepted)
        self._mask: NDArray[np.int32] | None = None

    def fill(self, row: NDArray[np.int32], address: int) -> None:
        np.copyto(row, self._current())

    def push(self, token: int) -> None:
        self._accepted.append(token)
        self._mask = None

    def pop(self, count: int) -> None:
        del self._accepted[len(self._accepted) - count :]
        self._mask = None

    def may_end(self) -> bool:
        return bool(np.bitwise_and(self._current(), self._table.eos_mask).any())

    def forced(self, most: int) -> bytes:
        """Return nothing: a program says what may come next, not what must come after."""
        return b""

    def forced_tokens(self) -> list[int]:
        return []

    def copy(self) -> SourceCore:
        copy = SourceCore(self._source, self._table, self._accepted)
        copy._mask = self._mask
        return copy

    def _current(self) -> NDArray[np.int32]:
        if self._mask is None:
            self._mask = _mask(self._source.step(tuple(self._accepted)), self._table)
        return self._mask


def _mask(answer: NDArray[np.int32] | Iterable[int], table: TokenTable) -> NDArray[np.int32]:
    """Return the answer of a source as its own copy of a mask, int32[words]."""
    if isinstance(answer, np.ndarray):
        if answer.dtype != np.int32 or answer.shape != (table.words,):
            raise GrammarError(f"step must give int32[{table.words}], not {answer.dtype}{list(answer.shape)}")
        return answer.copy()
    ids = list(answer)
    for token in ids:
        if not isinstance(token, (int, np.integer)) or not 0 <= token < table.vocab_size:
            raise GrammarError(f"step gave {token!r}, which is no token id below {table.vocab_size}")
    return bit_mask(ids, table.vocab_size)
