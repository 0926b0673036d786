"""The fewest tokens that spell some bytes: not the usual split, which may have more."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy

import numpy as np

_FAR = (1 << 31) - 1
FIRST_MARK, MOST_MARKS = 0xF8, 8
"""Bytes that no UTF-8 text has stand for special tokens."""


class Splitter:
    """Splits bytes into the fewest tokens of one vocabulary. Thread-safe."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        """`tokens` are the bytes of each id; those of special tokens are empty."""
        self._ids: Mapping[bytes, int] = {
            token: i for i, token in reversed(list(enumerate(tokens))) if token and b"\xff" not in token
        }
        self._tokens = tokens
        self.longest = max(map(len, self._ids), default=1)
        """Bytes of the longest token."""
        self._marks: Mapping[int, bytes] = {}
        self._set_single({token[0]: i for token, i in sorted(self._ids.items()) if len(token) == 1})

    def _set_single(self, single: Mapping[int, int]) -> None:
        self.single = single
        """Id of the token that is one byte, by the byte."""
        self.bytes = np.array(list(single), np.int64)
        self.byte_ids = np.array(list(single.values()), np.int64)
        """The same as arrays, in order of the bytes."""

    def naming(self, ids: Collection[int]) -> Splitter:
        """Return the same splitter for texts with special tokens in them, each of the first few as a byte of its own."""
        other = copy(self)
        other._marks = {i: bytes([FIRST_MARK + at]) for at, i in enumerate(sorted(ids)[:MOST_MARKS])}
        marks = {mark[0]: i for i, mark in other._marks.items()}
        other._set_single({byte: i for byte, i in self.single.items() if byte < FIRST_MARK} | marks)
        return other

    def written(self, token: int) -> bytes:
        """Return what a token writes: its bytes, or those of :meth:`naming`."""
        return self._marks.get(token) or self._tokens[token]

    def split(self, text: bytes, known: Split | None = None, check: Callable[[], None] = lambda: None) -> Split:
        """Return the best split of each suffix at once, those that ``known`` has as well as they are there. A byte takes some ten
        microseconds: ``check`` is called for each, and may raise.
        """
        split = Split(text) if known is None else known.ending(text)
        fewest, tokens, widths = split.fewest, split.token, split.width
        for start in range(len(text) - split.done - 1, -1, -1):
            check()
            for width in range(1, min(self.longest, len(text) - start) + 1):
                if fewest[start + width] + 1 < fewest[start] or width == 1:
                    token = self._id(text[start : start + width])
                    if token is not None and fewest[start + width] + 1 < fewest[start]:
                        fewest[start], tokens[start], widths[start] = fewest[start + width] + 1, token, width
        return split

    def _id(self, piece: bytes) -> int | None:
        if self._marks and len(piece) == 1 and piece[0] >= FIRST_MARK:
            return self.single.get(piece[0])
        return self._ids.get(piece)


class Split:
    """A text and, for each place in it, the fewest tokens that spell the rest; the first of them, and its bytes."""

    def __init__(self, text: bytes) -> None:
        size = len(text)
        self.text = text
        self.done = 0
        """How many bytes at the end of the text were split when this one was made."""
        self.fewest = array("i", [_FAR]) * size + array("i", [0])
        self.token, self.width = array("i", [-1]) * size, array("i", [1]) * size

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return len(self.text) + 3 * self.fewest.itemsize * len(self.fewest)

    def ending(self, text: bytes) -> Split:
        """Return the split of another text as far as the two end alike."""
        other = Split(text)
        alike, most = 0, min(len(text), len(self.text))
        while alike < most:
            tried = (alike + most + 1) // 2
            if text.endswith(self.text[len(self.text) - tried :]):
                alike = tried
            else:
                most = tried - 1
        here, there = len(self.text) - alike, len(text) - alike
        other.done, other.fewest[there:] = alike, self.fewest[here:]
        other.token[there:], other.width[there:] = self.token[here:], self.width[here:]
        return other

    def count(self, start: int) -> int:
        """Return how many tokens spell the text from ``start`` on; a huge number where none do."""
        return self.fewest[start]

    def tokens(self, start: int) -> list[int]:
        """Return these tokens."""
        result: list[int] = []
        while start < len(self.text):
            result.append(self.token[start])
            start += self.width[start]
        return result

    def first(self, start: int) -> int:
        """Return the first of these tokens."""
        return self.token[start]
