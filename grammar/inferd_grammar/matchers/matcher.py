"""The matcher contract (`GrammarMatcher`), and `GuardedMatcher`, which keeps it over any library.

A library's own recogniser (`Core`) knows text only. Everything around it is the same for all and lives here, once: the
end of the text, special tokens, refusal without side effects, exact rollback, cached masks, errors that are never
silent.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from inferd_grammar.errors import DeadEnd
from inferd_grammar.tokens import TokenTable
from inferd_grammar.validation import Checked

_AND = np.bitwise_and
_INT32 = np.dtype(np.int32)
_CONTIGUOUS = (4,)
# Masks of the newest states are kept, so that a rollback after verification finds the one it lands on.
_KEPT_MASKS = 8
AT_ONCE = 1024
"""Tokens that are taken in one call: each takes some microseconds, and no other thread has its turn meanwhile."""


class GrammarMatcher(Protocol):
    """Position of one text in one grammar. Not thread-safe; `fork` gives each thread its own.

    Any method may raise GrammarFailure: the library below has failed (resource limit, bug), and does so from then on,
    or no token at all continues the text (a rollback leads out of that).
    """

    @property
    def depth(self) -> int:
        """Tokens held, the end-of-text token included."""

    def fill(self, row: NDArray[np.int32]) -> None:
        """Write the legal next tokens into `row`, int32[words], C-contiguous; every word is overwritten.

        Bit `i & 31` of word `i >> 5` is token i. EOS bits are set iff `may_end`. An ended matcher gives EOS bits only,
        so that the row of a finished text can still be sampled. Raises ValueError for a wrong dtype, shape or layout.
        """

    def accept(self, tokens: Sequence[int]) -> int:
        """Accept tokens up to the first one whose mask bit is clear; returns how many were accepted.

        A refused token changes nothing. An ended matcher accepts nothing, EOS included.
        """

    def rollback(self, count: int) -> None:
        """Undo the last `count` tokens, O(count). Raises ValueError below 0 or above `depth`, changing nothing."""

    def forced(self) -> bytes:
        """Return the bytes that any continuation starts with; b"" if there is a choice, if the text may end, or has ended."""

    def forced_tokens(self) -> list[int]:
        """Return the canonical tokens of a prefix of `forced()`; the tail that could merge with what follows is left out."""

    def may_end(self) -> bool:
        """Return True if EOS is legal now: the text is complete and not yet ended."""

    def ended(self) -> bool:
        """Return True if EOS has been accepted."""

    def fork(self) -> GrammarMatcher:
        """Return an independent matcher in the same state."""


class Core(Protocol):
    """Interface that a library is wrapped in: a recogniser of text tokens that never sees EOS.

    Every method checks the library for errors and raises GrammarFailure; once one did, all do.
    """

    @property
    def checked(self) -> tuple[Checked, ...]:
        """Assertions of the constraint that this recogniser does not enforce; empty except `best_effort`."""

    @property
    def named(self) -> frozenset[int]:
        """Special tokens that the grammar names: legal where its masks say so. No EOS id is among them."""

    @property
    def recipe(self) -> str | None:
        """Text from which `Backend.rebuild` makes the same recogniser at its start; None: compile it again."""

    def fill(self, row: NDArray[np.int32], address: int) -> None:
        """Write the library's mask of legal text tokens to `row`; `address` is that of its first word."""

    def push(self, token: int) -> None:
        """Take a token whose mask bit is set."""

    def pop(self, count: int) -> None:
        """Undo the last `count` pushes; `count` is at least 1 and at most the number held."""

    def may_end(self) -> bool:
        """Return True if the text may end here."""

    def forced(self, most: int) -> bytes:
        """Return bytes that any continuation starts with, as far as the library tells; no more than `most` are needed."""

    def forced_tokens(self) -> list[int]:
        """Return the canonical tokens of a prefix of `forced`, none if the library does not tell."""

    def copy(self) -> Core:
        """Return an independent recogniser in the same state."""


@runtime_checkable
class AnySplit(Protocol):
    """A `Core` that also takes tokens which its masks leave out because they split forced text unusually."""

    def consume(self, tokens: Sequence[int]) -> int:
        """Take tokens up to the first one that no text of the constraint goes on with; returns how many were taken."""


class MaskRing:
    """Masks of the last few depths as the library wrote them: int32[8, words], slot = depth % 8.

    `tags[slot]` is the depth whose mask the slot holds, -1 if none; `ends[slot]` whether the text may end there. A tag
    never exceeds the current depth. Open to `GuardedMatcher` alone, for which a call per mask would cost too much.
    """

    def __init__(self, words: int) -> None:
        store = np.empty((_KEPT_MASKS, words), dtype=np.int32)
        self.rows = list(store)
        # Taking an address from numpy costs 1-2 us; done once here instead of once a mask.
        base = store.ctypes.data
        self.addresses = [base + slot * words * 4 for slot in range(_KEPT_MASKS)]
        self.words = [row.data for row in self.rows]  # reading one word is faster than through numpy
        self.tags = [-1] * _KEPT_MASKS
        self.ends = [False] * _KEPT_MASKS

    def drop_above(self, depth: int) -> None:
        """Forget the masks of states that were rolled back."""
        self.tags = [tag if tag <= depth else -1 for tag in self.tags]


class GuardedMatcher:
    """`GrammarMatcher` over a `Core`. Owns EOS, special tokens and the mask cache; contract in `GrammarMatcher`."""

    def __init__(self, core: Core, table: TokenTable, *, held: int = 0, eos_held: bool = False) -> None:
        self._core = core
        self._table = table
        self._held = held  # tokens in the core
        self._eos_held = eos_held
        self._ring: MaskRing | None = None  # a matcher that only waits holds no masks
        self._text = table.text_mask.data
        self._any_split = core if isinstance(core, AnySplit) else None

    @property
    def depth(self) -> int:
        return self._held + self._eos_held

    @property
    def words(self) -> int:
        """int32 words of a mask row."""
        return self._table.words

    def fill(self, row: NDArray[np.int32]) -> None:
        table = self._table
        require_row(row, table.words)
        if self._eos_held:
            np.copyto(row, table.eos_mask)
            return
        ring, slot = self._ring or self._masks(), self._held % _KEPT_MASKS
        if ring.tags[slot] != self._held:
            self._compute(ring, slot, row)
        else:
            self._settle(ring, slot, row)

    def accept(self, tokens: Sequence[int]) -> int:
        for count, token in enumerate(tokens):
            if not self._accept_one(int(token)):
                return count
        return len(tokens)

    @property
    def cost(self) -> int:
        """Work that rules have done beside the masks so far, in units of one mask."""
        return int(getattr(self._core, "cost", 0))

    def take(self, tokens: Sequence[int]) -> int:
        """Accept tokens of text, as `accept` does, and those that masks leave out because forced text has its usual split.

        Never accepts EOS.
        """
        core = self._any_split
        if core is None or self._eos_held:
            return self.accept(tokens)
        special = self._table.special_ids
        text = list(takewhile(lambda token: token not in special or token in self._core.named, tokens))
        taken = core.consume(text) if text else 0
        self._held += taken
        return taken

    def ends_with(self, tokens: Sequence[int], check: Callable[[], None] = lambda: None) -> bool:
        """Return True if the text may end behind `tokens`, in any split. Leaves the matcher where it is.

        `check` is called before every `AT_ONCE` tokens, and may raise.
        """
        depth = self.depth
        try:
            for start in range(0, len(tokens), AT_ONCE):
                check()
                piece = tokens[start : start + AT_ONCE]
                if self.take(piece) < len(piece):
                    return False
            return self.may_end()
        finally:
            self.rollback(self.depth - depth)

    def rollback(self, count: int) -> None:
        if not 0 <= count <= self.depth:
            raise ValueError(f"rollback of {count} tokens, {self.depth} held")
        if count and self._eos_held:
            self._eos_held = False
            count -= 1
        if count:
            self._core.pop(count)
            self._held -= count
            if self._ring is not None:
                self._ring.drop_above(self._held)

    def reset(self) -> Core:
        """Go back to the start and return the core, which the caller owns from now on. Raises GrammarFailure."""
        self.rollback(self.depth)
        return self._core

    def forced(self, most: int = sys.maxsize) -> bytes:
        return b"" if self.may_end() or self._eos_held else self._core.forced(most)[:most]

    def forced_tokens(self) -> list[int]:
        return [] if self.may_end() or self._eos_held else self._core.forced_tokens()

    def may_end(self) -> bool:
        return not self._eos_held and self._core.may_end()

    def ended(self) -> bool:
        return self._eos_held

    def fork(self) -> GuardedMatcher:
        copy = GuardedMatcher(self._core.copy(), self._table, held=self._held, eos_held=self._eos_held)
        if self._ring is not None and self._ring.tags[slot := self._held % _KEPT_MASKS] == self._held:
            copy.seed_mask(self._ring.rows[slot], self._ring.ends[slot])
        return copy

    def seed_mask(self, mask: NDArray[np.int32], ends: bool) -> None:
        """Set the mask of the current state, int32[words], and `may_end`, known from a matcher in the same state."""
        ring, slot = self._masks(), self._held % _KEPT_MASKS
        np.copyto(ring.rows[slot], mask)
        ring.ends[slot] = ends
        ring.tags[slot] = self._held

    def _accept_one(self, token: int) -> bool:
        table = self._table
        if self._eos_held or not 0 <= token < table.vocab_size:
            return False
        ring, slot = self._ring or self._masks(), self._held % _KEPT_MASKS
        if ring.tags[slot] != self._held:
            self._compute(ring, slot, np.empty(table.words, np.int32))
        if token in table.eos_ids:
            self._eos_held = ring.ends[slot]
            return self._eos_held
        word = token >> 5
        if not (ring.words[slot][word] & self._text[word]) >> (token & 31) & 1:
            return False
        self._core.push(token)
        self._held += 1
        return True

    def _compute(self, ring: MaskRing, slot: int, row: NDArray[np.int32]) -> None:
        """Have the library write the mask of the current state, hold it, and settle it into `row`."""
        core, raw = self._core, ring.rows[slot]
        ring.tags[slot] = -1
        core.fill(raw, ring.addresses[slot])
        ends = ring.ends[slot] = core.may_end()
        # The same as `_settle`, inlined, because this runs for every token.
        _AND(raw, self._table.text_mask, row)
        if ends:
            np.bitwise_or(row, self._table.eos_mask, row)
        elif row.tobytes() == self._table.no_mask:
            raise DeadEnd("no token of this vocabulary continues the text, and it may not end here")
        ring.tags[slot] = self._held

    def _settle(self, ring: MaskRing, slot: int, row: NDArray[np.int32]) -> None:
        """Write the library's mask to the row, without special tokens, with EOS if it is legal."""
        _AND(ring.rows[slot], self._table.text_mask, row)
        if ring.ends[slot]:
            np.bitwise_or(row, self._table.eos_mask, row)

    def _masks(self) -> MaskRing:
        if self._ring is None:
            self._ring = MaskRing(self._table.words)
        return self._ring


def require_row(row: NDArray[np.int32], words: int) -> None:
    """Raise ValueError unless `row` is int32[words] and C-contiguous."""
    if (row.dtype is not _INT32 and row.dtype != _INT32) or row.shape != (words,) or row.strides != _CONTIGUOUS:
        raise ValueError(f"mask row must be contiguous int32[{words}], not {row.dtype}{list(row.shape)}")


def _always() -> bool:
    return True


def walk(
    matcher: GrammarMatcher, draft: Sequence[int], rows: NDArray[np.int32], in_time: Callable[[], bool] = _always
) -> int:
    """Accept a draft as far as it is legal, writing the mask before each token and the one after the last.

    `rows` is int32[len(draft) + 1 or more, words]. Row 0 is the mask of the current state, row i + 1 that after draft
    token i. Returns n, the number of legal draft tokens: the matcher is n deeper and rows[:n + 1] are valid (the last
    is the bonus row). A token behind which nothing is legal ends the walk like one that is not legal itself: a draft
    must not fail a text that may never go there. A walk also ends before a token that would not be `in_time`. After
    verification the caller does `matcher.rollback(n - kept)` and `matcher.accept([bonus])`. Raises ValueError for wrong
    `rows`, GrammarFailure if the matcher breaks.
    """
    if rows.ndim != 2 or len(rows) <= len(draft):
        raise ValueError(f"rows must be int32[{len(draft) + 1} or more, words], not {list(rows.shape)}")
    matcher.fill(rows[0])
    for count, token in enumerate(draft):
        if not in_time() or not matcher.accept([token]):
            return count
        try:
            matcher.fill(rows[count + 1])
        except DeadEnd:
            matcher.rollback(1)
            return count
    return len(draft)
