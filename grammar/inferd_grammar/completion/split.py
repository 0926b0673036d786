"""The fewest tokens that spell some bytes: not the usual split, which may have more."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy

import numpy as np

_FAR = 1 << 40
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
        self._longest = max(map(len, self._ids), default=1)
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

    def split(self, text: bytes) -> Split:
        """Return the best split of each suffix at once."""
        size = len(text)
        fewest, tokens = [_FAR] * size + [0], [-1] * size
        widths = [1] * size
        for start in range(size - 1, -1, -1):
            for width in range(1, min(self._longest, size - start) + 1):
                if fewest[start + width] + 1 < fewest[start] or width == 1:
                    token = self._id(text[start : start + width])
                    if token is not None and fewest[start + width] + 1 < fewest[start]:
                        fewest[start], tokens[start], widths[start] = fewest[start + width] + 1, token, width
        return Split(text, fewest, tokens, widths)

    def _id(self, piece: bytes) -> int | None:
        if self._marks and len(piece) == 1 and piece[0] >= FIRST_MARK:
            return self.single.get(piece[0])
        return self._ids.get(piece)


class Split:
    """A text and, for each place in it, the fewest tokens that spell the rest."""

    def __init__(self, text: bytes, fewest: Sequence[int], tokens: Sequence[int], widths: Sequence[int]) -> None:
        self.text = text
        self._fewest = fewest
        self._tokens = tokens
        self._widths = widths

    def count(self, start: int) -> int:
        """Return how many tokens spell the text from ``start`` on; a huge number where none do."""
        return self._fewest[start]

    def tokens(self, start: int) -> list[int]:
        """Return these tokens."""
        result: list[int] = []
        while start < len(self.text):
            result.append(self._tokens[start])
            start += self._widths[start]
        return result

    def first(self, start: int) -> int:
        """Return the first of these tokens."""
        return self._tokens[start]
