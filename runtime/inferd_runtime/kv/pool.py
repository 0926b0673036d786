"""The page pool: which pages of the KV cache are free, and how many tables hold each of the others. No tensors here."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence


class PoolExhausted(Exception):
    """Fewer pages are free than were asked for; nothing was taken."""


class PagePool:
    """``pages`` pages of ``page_size`` tokens with reference counts.

    A page is owned by the tables that count it; it returns to the free list when the last one lets go. The lowest free
    page is handed out first, so that a lone stream tends to hold one contiguous range, which attention can read in place.
    """

    def __init__(self, pages: int, page_size: int) -> None:
        if pages < 1 or page_size < 1:
            raise ValueError(f"a pool needs at least one page of one token, not {pages} of {page_size}")
        self.size = pages
        self.page_size = page_size
        self._free = list(range(pages))
        self._counts = [0] * pages

    @property
    def available(self) -> int:
        """Pages that are free."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Hand out ``count`` pages with one reference each. Raises PoolExhausted and takes none if there are fewer."""
        if count > len(self._free):
            raise PoolExhausted(f"{count} KV pages wanted, {len(self._free)} of {self.size} free")
        pages = [heapq.heappop(self._free) for _ in range(count)]
        for page in pages:
            self._counts[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Add one reference to each page. The pages must be held already."""
        for page in pages:
            if self._counts[page] == 0:
                raise ValueError(f"page {page} is free and cannot be shared")
            self._counts[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Drop one reference from each page; those without any become free."""
        for page in pages:
            if self._counts[page] == 0:
                raise ValueError(f"page {page} is released twice")
            self._counts[page] -= 1
            if self._counts[page] == 0:
                heapq.heappush(self._free, page)

    def is_shared(self, page: int) -> bool:
        """Whether more than one table holds the page."""
        return self._counts[page] > 1

    def check_integrity(self, owners: Iterable[Sequence[int]]) -> None:
        """Re-add who holds what. Raises AssertionError when a page leaks or a count is off."""
        held = Counter(page for pages in owners for page in pages)
        for page, count in enumerate(self._counts):
            assert held[page] == count, f"page {page}: {count} references counted, {held[page]} found"
        free = set(self._free)
        assert len(free) == len(self._free), "a page is free twice"
        assert free == {page for page, count in enumerate(self._counts) if count == 0}, "free list and counts disagree"
