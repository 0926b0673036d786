"""The system drafter: an n-gram hash index over prompt and output (prompt lookup, Saxena 2023, made incremental)."""

from __future__ import annotations

from collections.abc import Sequence

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


class NgramDrafter:
    """Lookup with a draft length that follows success.

    Long matches (n >= 5) start with whole drafts, short ones with half, and each keeps a length of its own: a draft that
    is accepted whole doubles it, one that fails cuts it to what would have been right. Short matches that keep failing
    are paused, twice as long each time up to 32 steps; a long match is always tried.
    """

    def __init__(self, max_draft: int = MAX_DRAFT) -> None:
        self._index = NgramIndex()
        self._unseen: list[Sequence[int]] = []
        self._max_draft = max_draft
        self._lengths = {True: max_draft, False: max(2, max_draft // 2)}
        self._strong = False
        self._pause = 1
        self._wait = 0

    def observe(self, tokens: Sequence[int]) -> None:
        """Learn committed tokens; they are indexed when a proposal is first wanted."""
        self._unseen.append(tokens)

    def propose(self, limit: int) -> Sequence[int]:
        """The continuation of the longest match, or nothing while short matches are paused."""
        for tokens in self._unseen:
            self._index.extend(tokens)
        self._unseen.clear()
        draft, order = self._index.lookup(min(limit, self._max_draft))
        self._strong = order >= STRONG_MATCH
        if not self._strong and self._wait > 0:
            self._wait -= 1
            return ()
        return draft[: self._lengths[self._strong]]

    def feedback(self, proposed: int, accepted: int) -> None:
        """Adapt length and pause."""
        length = 2 * self._lengths[self._strong] if accepted == proposed else accepted + 1
        self._lengths[self._strong] = max(2, min(self._max_draft, length))
        if accepted:
            self._pause, self._wait = 1, 0
        elif not self._strong:
            self._wait = self._pause
            self._pause = min(32, 2 * self._pause)
