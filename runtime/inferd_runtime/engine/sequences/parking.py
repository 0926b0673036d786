"""Host memory for the pages of contexts that had to leave the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from inferd_runtime.kv.table import PageCopy
from inferd_runtime.models.batch import PageData


class PageMover(Protocol):
    """The part of a driver that moves whole pages, in the order of the calls and before the next forward."""

    page_bytes: int

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Copy pages inside the cache, one after the other."""
        ...

    def read_pages(self, pages: Sequence[int]) -> PageData:
        """The K and V of whole pages, uint8[len(pages), page_bytes]."""
        ...

    def write_pages(self, pages: Sequence[int], data: PageData) -> None:
        """Put back what :meth:`read_pages` returned, exact to the bit."""
        ...


@dataclass(slots=True)
class Buffer:
    """Pages on the host; forks of a parked context share them."""

    data: PageData
    holders: int = 1


@dataclass(slots=True)
class Parked:
    """A context outside of the cache: of its ``pages``, which held ``length`` tokens, ``buffer`` has a copy, or nobody (None).

    ``charged`` pages stay on the tenant's account meanwhile; ``chain`` is what the prefix index called the full ones.
    """

    length: int
    pages: int
    charged: int
    chain: list[int]
    buffer: Buffer | None


class ParkingSpace:
    """At most ``limit`` bytes of parked pages; what does not fit is recomputed instead."""

    def __init__(self, mover: PageMover, limit: int) -> None:
        self.mover = mover
        self._limit = limit
        self.used = 0
        self.swapped = 0
        self.dropped = 0

    def store(self, pages: Sequence[int]) -> Buffer | None:
        """Copy pages to the host; None when there is no room."""
        if not pages or self.used + len(pages) * self.mover.page_bytes > self._limit:
            self.dropped += 1
            return None
        data = self.mover.read_pages(pages)
        self.used += data.nbytes
        self.swapped += 1
        return Buffer(data)

    def discard(self, parked: Parked) -> None:
        """Give the host memory back, once nobody shares it."""
        buffer, parked.buffer = parked.buffer, None
        if buffer is not None:
            buffer.holders -= 1
            if buffer.holders == 0:
                self.used -= buffer.data.nbytes

    def share(self, parked: Parked, length: int, page_size: int) -> Parked:
        """The same for a fork that keeps ``length`` tokens at most: nothing is copied, and nothing charged again."""
        if parked.buffer is not None:
            parked.buffer.holders += 1
        kept = min(length, parked.length)
        pages = min(parked.pages, -(-kept // page_size))
        return Parked(kept, pages, 0, parked.chain[: kept // page_size], parked.buffer)
