"""Page tables: the pages of one context, in order, and how many of its tokens are computed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from inferd_runtime.kv.account import Account, Allowance
from inferd_runtime.kv.pool import PagePool, PoolExhausted
from inferd_runtime.kv.prefix import PrefixKey


class PageCopy(NamedTuple):
    """A page that the driver has to copy before it writes (copy-on-write of a shared tail)."""

    source: int
    target: int


class PageTable:
    """The pages of one context.

    Owner ranges: pages ``[0, ceil(length / page_size))`` hold computed tokens and may be shared; pages behind them are
    reserved, exclusively ours, and hold nothing that counts. ``chain[i]`` stands in the prefix index for pages ``0..i``;
    it covers full pages only and never more than are computed. ``root`` is what comes before the first page there; None
    keeps the table out of the index. From token ``private_from`` on (None: nowhere) nothing is shared through it. ``ahead``:
    tokens behind the next ones to be counted that a step in flight writes; until the table is cut or trimmed, they keep their
    pages.
    """

    def __init__(self, pool: PagePool, account: Account | None = None, root: Hashable | None = None) -> None:
        self._pool = pool
        self._account = Account() if account is None else account
        self.root = root
        self.pages: list[int] = []
        self.chain: list[int] = []
        self.length = 0
        self.ahead = 0
        self.private_from: int | None = None
        self.allowance: Allowance | None = None

    def reserve(self, extra: int) -> list[PageCopy]:
        """Take the pages to write ``extra`` tokens behind ``length``, and return the copies to make first.

        Afterwards every page that will be written belongs to this table alone and is not in the prefix index. Raises
        PoolExhausted or QuotaExceeded and changes nothing if there is no room.
        """
        size = self._pool.page_size
        tail = self.length // size
        if tail >= len(self.pages):
            self.pages.extend(self._take(self._missing(extra)))
            return []
        if not self._pool.is_shared(self.pages[tail]):
            missing = self._missing(extra)
            if missing:
                self.pages.extend(self._take(missing))
            if self.length % size:
                self._pool.index.forget(self.pages[tail])
            return []
        taken = self._take(self._missing(extra) + 1)
        copy = PageCopy(self.pages[tail], taken[0])
        self._pool.release([self.pages[tail]])
        self.pages[tail] = taken[0]
        self.pages.extend(taken[1:])
        return [copy]

    def _take(self, count: int) -> list[int]:
        return self._pool.take(count, self._account, self.allowance)

    def has_room(self, extra: int) -> bool:
        """Return True if :meth:`reserve` would take no page."""
        size = self._pool.page_size
        if self.length + extra > len(self.pages) * size:
            return False
        return not self.length % size or not self._pool.is_shared(self.pages[self.length // size])

    def wanted(self, extra: int) -> int:
        """Return how many pages :meth:`reserve` would take."""
        tail = self.length // self._pool.page_size
        shared = tail < len(self.pages) and self._pool.is_shared(self.pages[tail])
        return self._missing(extra) + shared

    def _missing(self, extra: int) -> int:
        return max(0, -(-(self.length + extra) // self._pool.page_size) - len(self.pages))

    def slot(self, index: int) -> int:
        """Return the slot of token ``index``, computed or reserved: page * page_size + offset."""
        return self.pages[index // self._pool.page_size] * self._pool.page_size + index % self._pool.page_size

    def advance(self, count: int) -> None:
        """Count ``count`` newly written tokens as computed. Raises ValueError if they were not reserved."""
        if self.length + count > len(self.pages) * self._pool.page_size:
            raise ValueError(f"{count} tokens were not reserved")
        self.length += count

    def publish(self, tokens: Sequence[int]) -> None:
        """Enter the pages that have become full into the prefix index. ``tokens``: the context's, from its beginning."""
        size = self._pool.page_size
        if self.root is None or self.length // size <= len(self.chain):
            return
        for at in range(len(self.chain), self._shareable(self.length) // size):
            content = tuple(tokens[at * size : (at + 1) * size])
            self.chain.append(self._pool.index.add(self._before(), content, self.pages[at]))

    def reuse(self, tokens: Sequence[int], limit: int) -> int:
        """Share full pages of the prefix index that hold the tokens behind ``length``, up to ``limit`` tokens in all.

        Returns how many tokens need not be computed. Raises QuotaExceeded and changes nothing if there is no room.
        """
        size = self._pool.page_size
        if self.root is None or len(self.chain) * size != self.length:
            return 0
        before, found = self._before(), []
        for start in range(self.length, self._shareable(limit) - size + 1, size):
            node = self._pool.index.find(before, tuple(tokens[start : start + size]))
            if node is None:
                break
            found.append(node)
            before = node.ident
        if found:
            self._pool.adopt([node.page for node in found], self._account, self.allowance)
            self.trim()
            self.pages.extend(node.page for node in found)
            self.chain.extend(node.ident for node in found)
            self.length += len(found) * size
        return len(found) * size

    def held_again(self, chain: Sequence[int]) -> list[int]:
        """Return the pages that still hold, to the bit, what the first idents of ``chain`` stand for."""
        pages: list[int] = []
        for ident in chain:
            page = self._pool.index.page_of(ident)
            if page is None:
                break
            pages.append(page)
        return pages

    def come_back(self, chain: Sequence[int], length: int) -> int:
        """Fill an empty table with pages for ``length`` tokens, of which ``chain`` stood for the full pages.

        Returns how many pages at the front still hold what they did; the others have to be written. The allowance covers all
        of them. Raises PoolExhausted and changes nothing if there is no room.
        """
        old = self.held_again(chain)
        missing = -(-length // self._pool.page_size) - len(old)
        if missing > self._pool.available - sum(not self._pool.is_held(page) for page in old):
            raise PoolExhausted(f"{missing} KV pages wanted, {self._pool.available} free")
        self._pool.adopt(old, self._account, self.allowance)
        self.pages = old + self._take(missing)
        self.chain = list(chain[: len(old)])
        self.length = length
        return len(old)

    def republish(self, tokens: Sequence[int], chain: Sequence[int]) -> None:
        """Enter pages that were written back, under their old idents as long as all pages before have theirs."""
        size, same = self._pool.page_size, True
        for at in range(len(self.chain), len(chain)):
            content = tuple(tokens[at * size : (at + 1) * size])
            ident = self._pool.index.add(self._before(), content, self.pages[at], chain[at] if same else None)
            same = same and ident == chain[at]
            self.chain.append(ident)

    def _shareable(self, length: int) -> int:
        return length if self.private_from is None else min(length, self.private_from)

    def _before(self) -> Hashable:
        return self.chain[-1] if self.chain else self.root

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` computed tokens, and release the pages behind. Raises ValueError if there are fewer."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot keep {length} of {self.length} computed tokens")
        if length < self.length:
            self.ahead = 0
        self.length = length
        if len(self.chain) * self._pool.page_size > length:
            del self.chain[length // self._pool.page_size :]
        self._give_back(length + self.ahead)

    def trim(self) -> None:
        """Release reserved pages that hold no computed token, also those that a step in flight writes: their
        next owner writes later.
        """
        self.ahead = 0
        self._give_back(self.length)

    def trim_unplanned(self) -> None:
        """Release reserved pages that hold no computed token and that the next step does not write either."""
        self._give_back(self.length + self.ahead)

    def _give_back(self, length: int) -> None:
        """Release the pages behind the first ``length`` tokens."""
        keep = -(-length // self._pool.page_size)
        if keep < len(self.pages):
            self._pool.release(self.pages[keep:])
            del self.pages[keep:]

    def fork(self, length: int | None = None) -> PageTable:
        """Return a table that shares what is computed of the first ``length`` tokens (None: all of it).

        Costs one counter per page; the shared tail is copied on first write, by the sequence that writes first.
        """
        child = PageTable(self._pool, self._account, self.root)
        child.private_from = self.private_from
        child.length = self.length if length is None else min(length, self.length)
        child.pages = self.pages[: -(-child.length // self._pool.page_size)]
        child.chain = self.chain[: child.length // self._pool.page_size]
        self._pool.share(child.pages)
        return child

    def release(self) -> None:
        """Release every page. The table is empty afterwards and may be filled again."""
        self._pool.release(self.pages)
        self.pages = []
        self.chain = []
        self.length = self.ahead = 0

    def check_integrity(self, tokens: Sequence[int], meanings: dict[int, PrefixKey]) -> None:
        """Raise AssertionError unless pages and chain are what the first ``length`` of the sequence's ``tokens`` give.

        ``meanings`` as in :func:`check_chain`.
        """
        size = self._pool.page_size
        full = -(-self.length // size)
        assert self.length <= len(tokens), f"{self.length} tokens computed of {len(tokens)}"
        assert full <= len(self.pages), f"{len(self.pages)} pages for {self.length} computed tokens"
        assert len(set(self.pages)) == len(self.pages), "a page stands twice in a table"
        for page in self.pages[full:]:
            assert not self._pool.is_shared(page), f"page {page} is reserved, but shared"
            assert page not in self._pool.index, f"page {page} is reserved, but can be found"
        assert len(self.chain) * size <= self._shareable(self.length), (
            "a chain is longer than what is computed and shareable"
        )
        check_chain(self.root, self.chain, tokens, size, meanings)


def check_chain(
    root: Hashable, chain: Sequence[int], tokens: Sequence[int], page_size: int, meanings: dict[int, PrefixKey]
) -> None:
    """Raise AssertionError if an ident of the chain stands for other tokens elsewhere: in the index, or for another table.

    ``meanings``: what each ident stands for, as far as is known; the chain's are added.
    """
    before = root
    for at, ident in enumerate(chain):
        key = before, tuple(tokens[at * page_size : (at + 1) * page_size])
        known = meanings.setdefault(ident, key)
        assert known == key, f"prefix ident {ident} stands for {known}, and for {key}"
        before = ident
