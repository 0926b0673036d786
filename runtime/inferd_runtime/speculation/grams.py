"""The two parts of an n-gram index: sorted arrays for old tokens, a dictionary for new ones.

Both find the places of an n-gram in the text. A place is the position of the token that followed the n-gram, so an n-gram is
known once its continuation is, and the end of a text never finds itself.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

WIDTH = 4
"""Bytes per token."""
MAX_ORDER = 8
_POSITION_BITS = 20
_POSITION = (1 << _POSITION_BITS) - 1
_ALL = (1 << 64) - 1
_HASH = _ALL - _POSITION
MAX_TOKENS = 1 << _POSITION_BITS
"""The longest text that is frozen in one piece."""
POWERS = tuple(pow(0x9E3779B97F4A7C15, power, 1 << 64) for power in range(1, MAX_ORDER + 1))
"""An n-gram's hash is the sum of its tokens, last first, times these, modulo 2**64."""


class FrozenGrams:
    """The n-grams of the places ``start`` to before ``end``. Immutable.

    Per order there is one sorted array of uint64: 44 bits of the n-gram's hash, then 20 bits of the place. Equal n-grams are
    adjacent, from old to new, so the newest before any place is found by bisection, inside a bucket of the hash's first bits.
    Tokens are not compared: a collision of hashes makes a wrong guess, no more.
    """

    def __init__(self, tokens: array[int], first: int, start: int, orders: Sequence[int]) -> None:
        """``tokens``: the text from position ``first`` on, which is before ``start`` by as much as the longest order needs.

        Raises ValueError for more than MAX_TOKENS.
        """
        if len(tokens) > MAX_TOKENS:
            raise ValueError(f"{len(tokens)} tokens are more than the {MAX_TOKENS} that are indexed in one piece")
        self.start, self.end = start, first + len(tokens)
        self._first = first
        self._shift = 64 - max(1, len(tokens).bit_length() - 2)
        self._sorted: dict[int, tuple[memoryview, memoryview]] = {}
        values = np.frombuffer(tokens, np.uint32).astype(np.uint64)
        sums, places = np.zeros(len(values), np.uint64), np.arange(len(values), dtype=np.uint64)
        summed = 0
        for order in orders:
            for back in range(summed, min(order, len(values))):
                sums[back + 1 :] += values[: -back - 1] * np.uint64(POWERS[back])
            summed, low = order, max(order, start - first)
            self._sorted[order] = self._sort((sums[low:] & np.uint64(_HASH)) | places[low:])

    def _sort(self, keys: npt.NDArray[np.uint64]) -> tuple[memoryview, memoryview]:
        """Return the sorted keys, and the end of each bucket of them, with a 0 in front."""
        keys.sort()
        counts = np.bincount((keys >> np.uint64(self._shift)).view(np.int64), minlength=1 << (64 - self._shift))
        ends = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=ends[1:])
        return keys.data, ends.data

    def places(self, order: int, hashed: int, before: int, most: int) -> list[int]:
        """Return the newest ``most`` places before ``before`` of the n-grams with that hash (modulo 2**64), newest first."""
        found: list[int] = []
        if before > self.start:
            keys, ends = self._sorted[order]
            hashed &= _ALL
            bucket = hashed >> self._shift
            hashed &= _HASH
            shift, low = self._first - hashed, ends[bucket]
            at = bisect_left(keys, (before if before < self.end else self.end) - shift, low, ends[bucket + 1])
            while at > low and len(found) < most and keys[at - 1] >= hashed:
                at -= 1
                found.append(keys[at] + shift)
        return found

    def nearest(self, order: int, hashed: int, place: int) -> int:
        """Return the first place from ``place`` on of an n-gram by hash (modulo 2**64), else the last before it, else -1."""
        keys, _ = self._sorted[order]
        hashed &= _HASH
        at = bisect_left(keys, hashed + max(0, min(place, self.end) - self._first))
        if at < len(keys) and keys[at] & _HASH == hashed:
            return (keys[at] & _POSITION) + self._first
        return (keys[at - 1] & _POSITION) + self._first if at and keys[at - 1] >= hashed else -1


class RecentGrams:
    """The n-grams of the places from ``start`` on: for every n-gram its newest place, linked to the one before."""

    def __init__(self, start: int, window: bytes, orders: Sequence[int]) -> None:
        """``window``: the tokens before ``start``, as many as the longest order needs, WIDTH bytes each."""
        self.start = start
        self._sizes = [WIDTH * order for order in orders]
        self._window = window
        self._newest: dict[bytes, int] = {}
        self._links = array("i")

    def __len__(self) -> int:
        return len(self._links) // len(self._sizes)

    def extend(self, tokens: bytes) -> None:
        """Add the places of these tokens, WIDTH bytes each."""
        window, newest, links = self._window, self._newest, self._links
        entry, longest = len(links), self._sizes[-1]
        for at in range(0, len(tokens), WIDTH):
            for size in self._sizes:
                if size <= len(window):
                    gram = window[-size:]
                    links.append(newest.get(gram, -1))
                    newest[gram] = entry
                else:
                    links.append(-1)
                entry += 1
            window = (window + tokens[at : at + WIDTH])[-longest:]
        self._window = window

    def places(self, gram: bytes, most: int) -> list[int]:
        """Return the newest ``most`` places of an n-gram, newest first."""
        entry = self._newest.get(gram, -1)
        found: list[int] = []
        while entry >= 0 and len(found) < most:
            found.append(self.start + entry // len(self._sizes))
            entry = self._links[entry]
        return found

    def fork(self) -> RecentGrams:
        """Return a copy."""
        twin = RecentGrams(self.start, self._window, ())
        twin._sizes, twin._newest, twin._links = self._sizes, self._newest.copy(), self._links[:]
        return twin
