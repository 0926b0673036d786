"""Host memory for the pages of parked contexts, which had to leave the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

from inferd_runtime.kv.table import PageCopy
from inferd_runtime.models.batch import PageData


class PageMover(Protocol):
    """The part of a driver that moves whole pages, in the order of the calls and before the next forward pass."""

    page_bytes: int

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Copy pages inside the cache, one after the other."""

    def read_pages(self, pages: Sequence[int]) -> PageData:
        """Return the K and V of whole pages, uint8[len(pages), page_bytes]."""

    def write_pages(self, pages: Sequence[int], data: PageData) -> None:
        """Write what :meth:`read_pages` returned, exact to the bit."""


@runtime_checkable
class PageReader(PageMover, Protocol):
    """A driver that copies pages out beside its steps."""

    def start_reading(self, pages: Sequence[int]) -> Callable[[], PageData]:
        """Start as :meth:`read_pages`, and return a call, for any thread, that waits for the result. The pages may be written to
        at once: what later calls and steps do to them comes behind."""


def start_reading(mover: PageMover, pages: Sequence[int]) -> Callable[[], PageData]:
    """Return a call that waits for the pages' K and V: started where the driver can do that, else read now."""
    if isinstance(mover, PageReader):
        return mover.start_reading(pages)
    data = mover.read_pages(pages)
    return lambda: data


class Buffer:
    """Pages on the host, ``nbytes`` of them, shared by the forks of a parked context. ``read`` waits until they are there."""

    def __init__(self, nbytes: int, read: Callable[[], PageData]) -> None:
        self.nbytes = nbytes
        self.holders = 1
        self._read = read

    @cached_property
    def data(self) -> PageData:
        """The pages. Waits for them. Raises what went wrong on the device."""
        return self._read()


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
        """Copy pages to the host, beside the steps where the driver can. Returns None if there is no room."""
        nbytes = len(pages) * self.mover.page_bytes
        if not pages or self.used + nbytes > self._limit:
            self.dropped += 1
            return None
        buffer = Buffer(nbytes, start_reading(self.mover, pages))
        self.used += nbytes
        self.swapped += 1
        return buffer

    def discard(self, parked: Parked) -> None:
        """Release one holder's part of the host memory, and the memory itself with the last one."""
        buffer, parked.buffer = parked.buffer, None
        if buffer is not None:
            buffer.holders -= 1
            if buffer.holders == 0:
                self.used -= buffer.nbytes

    def share(self, parked: Parked, length: int, page_size: int) -> Parked:
        """Return the parked state of a fork that keeps ``length`` tokens at most. Nothing is copied or charged again."""
        if parked.buffer is not None:
            parked.buffer.holders += 1
        kept = min(length, parked.length)
        pages = min(parked.pages, -(-kept // page_size))
        return Parked(kept, pages, 0, parked.chain[: kept // page_size], parked.buffer)
