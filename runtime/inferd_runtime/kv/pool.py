"""The page pool: which pages of the KV cache are free, and how many tables hold each of the others. No tensors here."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence

from inferd_runtime.kv.account import Account, Allowance
from inferd_runtime.kv.prefix import PrefixIndex


class PoolExhausted(Exception):
    """Raised if fewer pages are free than were asked for; nothing was taken."""


class PagePool:
    """``pages`` pages of ``page_size`` tokens with reference counts.

    A page is in one of three states. *Held*: counted by at least one table, and charged to one account or forgiven. *Kept*:
    counted by none, but its content stands in the prefix index; it is handed out when no free page is left, the longest
    unused first. *Free*: neither. The lowest free page is handed out first, so that a lone stream tends to hold one
    contiguous range, which attention can read in place.
    """

    def __init__(self, pages: int, page_size: int) -> None:
        if pages < 1 or page_size < 1:
            raise ValueError(f"a pool needs at least one page of one token, not {pages} of {page_size}")
        self.size = pages
        self.page_size = page_size
        self.index = PrefixIndex()
        self._free = list(range(pages))
        self._kept: dict[int, None] = {}
        self._counts = [0] * pages
        self._accounts: list[Account | None] = [None] * pages

    @property
    def available(self) -> int:
        """Number of pages that can be handed out: free ones and kept ones."""
        return len(self._free) + len(self._kept)

    @property
    def kept(self) -> int:
        """Number of pages that no table holds but whose content is still in the prefix index."""
        return len(self._kept)

    def take(self, count: int, account: Account, allowance: Allowance | None = None) -> list[int]:
        """Hand out ``count`` pages with one reference each, charged to the account as far as the allowance does not reach.

        Raises PoolExhausted or QuotaExceeded and takes none when there are fewer or the account has no room.
        """
        if count == 0:
            return []
        if count > self.available:
            raise PoolExhausted(f"{count} KV pages wanted, {self.available} of {self.size} free")
        owners = _owners(count, account, allowance)
        pages = [heapq.heappop(self._free) if self._free else self._oldest_kept() for _ in range(count)]
        for page, owner in zip(pages, owners, strict=True):
            self._counts[page] = 1
            self._accounts[page] = owner
        return pages

    def _oldest_kept(self) -> int:
        page = next(iter(self._kept))
        del self._kept[page]
        self.index.forget(page)
        return page

    def share(self, pages: Iterable[int]) -> None:
        """Add one reference to each page. The pages must be held already."""
        for page in pages:
            if self._counts[page] == 0:
                raise ValueError(f"page {page} is free and cannot be shared")
            self._counts[page] += 1

    def adopt(self, pages: Sequence[int], account: Account, allowance: Allowance | None = None) -> None:
        """Add one reference to each page, held or kept. Raises QuotaExceeded and adds none when the account has no room."""
        fresh = [page for page in pages if self._counts[page] == 0]
        for page, owner in zip(fresh, _owners(len(fresh), account, allowance), strict=True):
            del self._kept[page]
            self._accounts[page] = owner
        for page in pages:
            self._counts[page] += 1
            if self._accounts[page] is None and allowance is not None and allowance.paid:
                allowance.paid -= 1
                self._accounts[page] = account

    def release(self, pages: Sequence[int]) -> None:
        """Drop one reference from each page; those without any become kept or free.

        The last page goes first, because pages deeper in the prefix tree are reused less often.
        """
        for page in reversed(pages):
            if self._counts[page] == 0:
                raise ValueError(f"page {page} is released twice")
            self._counts[page] -= 1
            if self._counts[page] == 0:
                self._drop(page)

    def _drop(self, page: int) -> None:
        account, self._accounts[page] = self._accounts[page], None
        if account is not None:
            account.refund(1)
        if page in self.index:
            self._kept[page] = None
        else:
            heapq.heappush(self._free, page)

    def is_held(self, page: int) -> bool:
        """Return True if a table holds the page."""
        return self._counts[page] > 0

    def charged(self, account: Account) -> int:
        """Return how many held pages are charged to an account."""
        return sum(owner is account for owner in self._accounts)

    def is_shared(self, page: int) -> bool:
        """Return True if more than one table holds the page."""
        return self._counts[page] > 1

    def forget_kept(self) -> None:
        """Free every kept page and take it out of the prefix index."""
        while self._kept:
            heapq.heappush(self._free, self._oldest_kept())

    def check_integrity(self, owners: Iterable[Sequence[int]]) -> None:
        """Raise AssertionError if the counts are not what ``owners`` (the pages of every table) give, or a page leaks."""
        held = Counter(page for pages in owners for page in pages)
        for page, count in enumerate(self._counts):
            assert held[page] == count, f"page {page}: {count} references counted, {held[page]} found"
            assert count or self._accounts[page] is None, f"page {page} is charged though nobody holds it"
        free = set(self._free)
        assert len(free) == len(self._free), "a page is free twice"
        assert not free & self._kept.keys(), "a page is free and kept"
        unheld = {page for page, count in enumerate(self._counts) if count == 0}
        assert free | self._kept.keys() == unheld, "free list and counts disagree"
        assert all(page in self.index for page in self._kept), "a kept page cannot be found"
        assert not any(page in self.index for page in free), "a free page can be found"
        self.index.check_integrity()


def _owners(count: int, account: Account, allowance: Allowance | None) -> list[Account | None]:
    """Charge an account for ``count`` pages, and return whom each is charged to (None: nobody, it is forgiven).

    Pages that the allowance covers are not charged again. Raises QuotaExceeded and changes nothing.
    """
    if allowance is None:
        account.charge(count)
        return [account] * count
    paid = min(allowance.paid, count)
    forgiven = min(allowance.forgiven, count - paid)
    account.charge(count - paid - forgiven)
    allowance.paid -= paid
    allowance.forgiven -= forgiven
    return [account] * (count - forgiven) + [None] * forgiven
