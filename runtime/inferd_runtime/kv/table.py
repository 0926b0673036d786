"""A page table: the pages of one context, in order, and how many tokens of them are computed."""

from __future__ import annotations

from typing import NamedTuple

from inferd_runtime.kv.pool import PagePool


class PageCopy(NamedTuple):
    """A page whose contents the driver has to copy before it writes (copy-on-write of a shared tail)."""

    source: int
    target: int


class PageTable:
    """The pages of one context.

    Owner ranges: pages ``[0, ceil(length / page_size))`` hold computed tokens and may be shared; pages behind them are
    reserved, exclusively ours, and hold nothing that counts.
    """

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self.pages: list[int] = []
        self.length = 0

    def reserve(self, extra: int) -> list[PageCopy]:
        """Make room to write ``extra`` tokens behind ``length``.

        Afterwards every page that will be written is exclusively ours. Returns the copies to make first. Raises
        PoolExhausted and changes nothing when the pool is short.
        """
        tail = self.length // self._pool.page_size
        taken = self._pool.take(self._wanted(extra))
        copies = []
        if self._tail_is_shared():
            copies.append(PageCopy(self.pages[tail], taken[0]))
            self._pool.release([self.pages[tail]])
            self.pages[tail] = taken.pop(0)
        self.pages.extend(taken)
        return copies

    def shortage(self, extra: int) -> bool:
        """Whether :meth:`reserve` would fail."""
        return self._wanted(extra) > self._pool.available

    def _wanted(self, extra: int) -> int:
        missing = -(-(self.length + extra) // self._pool.page_size) - len(self.pages)
        return max(0, missing) + self._tail_is_shared()

    def _tail_is_shared(self) -> bool:
        tail = self.length // self._pool.page_size
        return tail < len(self.pages) and self._pool.is_shared(self.pages[tail])

    def advance(self, count: int) -> None:
        """Count ``count`` freshly written tokens as computed."""
        if self.length + count > len(self.pages) * self._pool.page_size:
            raise ValueError(f"{count} tokens were not reserved")
        self.length += count

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` computed tokens; pages behind them go back to the pool."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot keep {length} of {self.length} computed tokens")
        self.length = length
        self.trim()

    def trim(self) -> None:
        """Give reserved pages back that hold no computed token."""
        keep = -(-self.length // self._pool.page_size)
        if keep < len(self.pages):
            self._pool.release(self.pages[keep:])
            del self.pages[keep:]

    def fork(self, length: int | None = None) -> PageTable:
        """A table that shares what is computed of the first ``length`` tokens (None: all of it).

        Costs one counter per page; the shared tail is copied on first write, by whoever writes first.
        """
        child = PageTable(self._pool)
        child.length = self.length if length is None else min(length, self.length)
        child.pages = self.pages[: -(-child.length // self._pool.page_size)]
        self._pool.share(child.pages)
        return child

    def release(self) -> None:
        """Give every page back. The table is empty afterwards and may be filled again."""
        self._pool.release(self.pages)
        self.pages = []
        self.length = 0
