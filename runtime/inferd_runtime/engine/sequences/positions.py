"""Positions and visibility of a context's tokens, where they differ from plain text's (position = index, causal)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from inferd_runtime.engine.sequences.visibility import KeptRow, RunEnds, bools_of, keep
from inferd_runtime.models.batch import Ids, Placement

TOKEN_BYTES = 8
"""Of a token in the list of a context."""
MARK_BYTES = 200
"""Of a shift, or of a row beside what it says."""


def tree_placement(start: int, count: int, parents: Sequence[int]) -> Placement:
    """Return the placement of ``count`` consecutive tokens from ``start`` on, with a draft tree after them.

    Each node's position is its depth; it sees what comes before the tree, its ancestors and itself. ``parents`` are as in
    :class:`~inferd_runtime.speculation.drafts.Draft`.
    """
    root, end = start + count, start + count + len(parents)
    positions = np.arange(end)
    visible = np.zeros((end - start, end), np.bool_)
    visible[:count] = np.arange(end) <= np.arange(start, root)[:, None]
    for node, parent in enumerate(parents):
        row = visible[count + node]
        row[:] = visible[count + parent]
        row[root + node] = True
        positions[root + node] = positions[root + parent] + 1
    return Placement(positions, visible)


class Positions:
    """Sparse marks on a context's tokens, by index in the cache.

    A shift holds from its index on: position = index + shift. So tokens after explicit positions go on from the last one. A row
    says which tokens one token sees, itself included and none with a higher index: causality is the order of writing, whatever
    the positions are. Both are added in order. ``weight``: the memory of all marks, in tokens of a context.
    """

    def __init__(self) -> None:
        self.weight = 0
        self._shifts: list[tuple[int, int]] = []
        self._seen: dict[int, KeptRow] = {}

    @property
    def irregular_from(self) -> int | None:
        """The first token with a mark; None if there is none."""
        return min((*(index for index, _ in self._shifts[:1]), *islice(self._seen, 1)), default=None)

    @property
    def shift(self) -> int:
        """Position minus index of the next token to be appended."""
        return self._shifts[-1][1] if self._shifts else 0

    def reach(self, length: int) -> tuple[int, int]:
        """Return the lowest and the highest position of the first ``length`` tokens; 0 for none."""
        positions = self._of(np.arange(max(length, 1)))
        return int(positions.min()), int(positions.max())

    def marks(self) -> Iterator[tuple[int, int | None, KeptRow | None]]:
        """Yield each token with a mark, in order: its index, the shift that begins there, and its row."""
        shifts = dict(self._shifts)
        for index in sorted({*shifts, *self._seen}):
            yield index, shifts.get(index), self._seen.get(index)

    def place(self, start: int, positions: Sequence[int]) -> None:
        """Set the positions of the tokens from ``start`` on, which are the last of the context."""
        for index, position in enumerate(positions, start):
            if position - index != self.shift:
                self._shifts.append((index, position - index))
                self.weight += MARK_BYTES // TOKEN_BYTES

    def restrict(self, start: int, rows: Sequence[RunEnds]) -> None:
        """Set what the tokens from ``start`` on see: a row each, of at least index + 1 tokens."""
        for index, row in enumerate(rows, start):
            self.see(index, keep(row, index + 1))

    def see(self, index: int, row: KeptRow | None) -> None:
        """Set what one token sees, behind all for which that was set; None is all before it."""
        if row is not None:
            self._seen[index] = row
            self.weight += _weight(row)

    def placement(self, start: int, count: int) -> Placement | None:
        """Return the placement of ``count`` tokens from ``start`` on; None if neither they nor those before have a mark."""
        end = start + count
        first = self.irregular_from
        if first is None or first >= end:
            return None
        index = np.arange(end)
        visible = index <= np.arange(start, end)[:, None]
        for at, row in self._seen.items():
            if start <= at < end:
                visible[at - start, : at + 1] = bools_of(row, at + 1)
        return Placement(self._of(index), visible)

    def _of(self, index: Ids) -> Ids:
        starts, shifts = [0, *(at for at, _ in self._shifts)], [0, *(shift for _, shift in self._shifts)]
        return np.asarray(index + np.asarray(shifts)[np.searchsorted(starts, index, side="right") - 1], np.int64)

    def truncate(self, length: int) -> None:
        """Keep the marks on the first ``length`` tokens."""
        while self._shifts and self._shifts[-1][0] >= length:
            self._shifts.pop()
            self.weight -= MARK_BYTES // TOKEN_BYTES
        if self._seen:
            self.weight -= sum(_weight(row) for index, row in self._seen.items() if index >= length)
            self._seen = {index: row for index, row in self._seen.items() if index < length}

    def copy(self, length: int) -> Positions:
        """Return a copy of the marks on the first ``length`` tokens."""
        child = Positions()
        child._shifts = list(self._shifts)
        child._seen = dict(self._seen)
        child.weight = self.weight
        child.truncate(length)
        return child


def _weight(row: KeptRow) -> int:
    return (MARK_BYTES + row.nbytes) // TOKEN_BYTES
