"""Host memory for the pages of parked contexts, which had to leave the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from inferd_runtime.kv.table import PageCopy
from inferd_runtime.models.batch import PageData


class PageMover(Protocol):
    """The part of a driver that moves whole pages, in the order of the calls and before the next forward pass."""

    page_bytes: int

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Copy pages inside the cache, one after the other."""
        ...

    def read_pages(self, pages: Sequence[int]) -> PageData:
        """Return the K and V of whole pages, uint8[len(pages), page_bytes]."""
        ...

    def write_pages(self, pages: Sequence[int], data: PageData) -> None:
        """Write what :meth:`read_pages` returned, exact to the bit."""
        ...


@dataclass(slots=True)
class Buffer:
    """Pages on the host, shared by the forks of a parked context."""

    data: PageData
    holders: int = 1


@dataclass(slots=True)
class Parked:
    """A context outside of the cache, which had ``length`` computed tokens in ``pages`` pages.

    ``buffer`` holds their content (None: it was dropped). ``charged`` pages stay on the tenant's account meanwhile; ``chain``
    holds the prefix index's identifiers of the full pages.
    """

    length: int
    pages: int
    charged: int
    chain: list[int]
    buffer: Buffer | None


class ParkingSpace:
    """At most ``limit`` bytes of parked pages; what does not fit is dropped and recomputed.

    ``swapped`` and ``dropped`` count the contexts that were parked with and without their pages.
    """

    def __init__(self, mover: PageMover, limit: int) -> None:
        self.mover = mover
        self._limit = limit
        self.used = 0
        self.swapped = 0
        self.dropped = 0

    def store(self, pages: Sequence[int]) -> Buffer | None:
        """Copy pages to the host. Returns None if there is no room."""
        if not pages or self.used + len(pages) * self.mover.page_bytes > self._limit:
            self.dropped += 1
            return None
        data = self.mover.read_pages(pages)
        self.used += data.nbytes
        self.swapped += 1
        return Buffer(data)

    def discard(self, parked: Parked) -> None:
        """Release one holder's part of the host memory, and the memory itself with the last one."""
        buffer, parked.buffer = parked.buffer, None
        if buffer is not None:
            buffer.holders -= 1
            if buffer.holders == 0:
                self.used -= buffer.data.nbytes

    def share(self, parked: Parked, length: int, page_size: int) -> Parked:
        """Return the parked state of a fork that keeps ``length`` tokens at most. Nothing is copied or charged again."""
        if parked.buffer is not None:
            parked.buffer.holders += 1
        kept = min(length, parked.length)
        pages = min(parked.pages, -(-kept // page_size))
        return Parked(kept, pages, 0, parked.chain[: kept // page_size], parked.buffer)
