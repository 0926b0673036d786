"""Host memory for the pages of contexts that had to leave the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from inferd_runtime.models.batch import PageData


class PageMover(Protocol):
    """The part of a driver that moves whole pages between the cache and the host."""

    page_bytes: int

    def read_pages(self, pages: Sequence[int]) -> PageData:
        """The K and V of whole pages, uint8[len(pages), page_bytes]."""
        ...

    def write_pages(self, pages: Sequence[int], data: PageData) -> None:
        """Put back what :meth:`read_pages` returned, exact to the bit."""
        ...


@dataclass(slots=True)
class Parked:
    """A context outside of the cache: ``length`` tokens are computed if ``data`` holds their pages, else none.

    ``charged`` pages stay on the tenant's account meanwhile.
    """

    length: int
    charged: int
    data: PageData | None


class ParkingSpace:
    """At most ``limit`` bytes of parked pages; what does not fit is recomputed instead."""

    def __init__(self, mover: PageMover, limit: int) -> None:
        self._mover = mover
        self._limit = limit
        self.used = 0
        self.swapped = 0
        self.dropped = 0

    def fits(self, pages: int) -> bool:
        """Whether there is room."""
        return self.used + pages * self._mover.page_bytes <= self._limit

    def store(self, pages: Sequence[int]) -> PageData | None:
        """Copy pages to the host; None when there is no room."""
        if not pages or not self.fits(len(pages)):
            self.dropped += 1
            return None
        data = self._mover.read_pages(pages)
        self.used += data.nbytes
        self.swapped += 1
        return data

    def load(self, parked: Parked, pages: Sequence[int]) -> None:
        """Copy parked pages back into the cache."""
        assert parked.data is not None
        self._mover.write_pages(pages, parked.data[: len(pages)])

    def discard(self, parked: Parked) -> None:
        """Give the host memory back."""
        if parked.data is not None:
            self.used -= parked.data.nbytes
            parked.data = None

    def copy(self, parked: Parked) -> PageData | None:
        """The same pages for a fork: counted once more, though the memory is the same, so that counting stays simple."""
        if parked.data is not None:
            self.used += parked.data.nbytes
        return parked.data
