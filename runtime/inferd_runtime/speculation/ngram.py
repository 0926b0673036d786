"""The system drafter: an n-gram hash index over prompt and output (prompt lookup, Saxena 2023, made incremental)."""

from __future__ import annotations

from collections.abc import Sequence

from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.speculation.drafts import NOTHING, Proposal

ORDERS = (8, 5, 3, 2)
MAX_DRAFT = 16
STRONG_MATCH = 5


class NgramIndex:
    """For each n, where the newest occurrence of every n-gram continues.

    An n-gram is entered when the token behind it is known, so a lookup of the current end never finds itself. Appending
    costs one dictionary write per order; looking up costs at most one read per order, whatever the length.
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._tables: dict[int, dict[tuple[int, ...], int]] = {order: {} for order in ORDERS}

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens."""
        for token in tokens:
            end = len(self._tokens)
            for order, table in self._tables.items():
                if order <= end:
                    table[tuple(self._tokens[end - order :])] = end
            self._tokens.append(token)

    def lookup(self, limit: int) -> tuple[list[int], int]:
        """The continuation (at most ``limit`` tokens) of the longest known n-gram at the end, and its n (0: none known).

        A continuation that runs into the end goes on with its own beginning, as a repetition would.
        """
        for order, table in self._tables.items():
            if order <= len(self._tokens):
                start = table.get(tuple(self._tokens[-order:]))
                if start is not None:
                    return self._continue(start, limit), order
        return [], 0

    def _continue(self, start: int, limit: int) -> list[int]:
        draft = self._tokens[start : start + limit]
        period = len(self._tokens) - start
        while len(draft) < limit:
            draft.append(draft[len(draft) - period])
        return draft


class NgramDrafter(Drafter):
    """Lookup of the longest known n-gram at the end."""

    source = "ngram"

    def __init__(self, max_draft: int = MAX_DRAFT) -> None:
        self._index = NgramIndex()
        self._max_draft = max_draft

    def observe(self, tokens: Sequence[int]) -> None:
        """Learn committed tokens."""
        self._index.extend(tokens)

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        """The continuation of the longest match."""
        if ahead:
            return NOTHING
        draft, order = self._index.lookup(min(limit, self._max_draft))
        return Proposal(draft, match=order)
