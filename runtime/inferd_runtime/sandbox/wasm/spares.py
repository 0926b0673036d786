"""Things that take a while to make, kept ready."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
RESTOCK_SECONDS = 0.02
"""How long after one was taken a new one is made: the run that took it goes first."""


class Spares(Generic[T]):
    """Hands out spares while there are any, and else makes one on the spot. Any thread may take one."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._ready: deque[T] = deque()
        self._wanted = threading.Event()

    def take(self) -> T:
        """Return a spare, or a new one."""
        try:
            spare = self._ready.popleft()
        except IndexError:
            spare = self._make()
        self._wanted.set()
        return spare

    def keep(self, count: int, make: Callable[[], T]) -> None:
        """Make all with ``make`` from now on, and keep ``count``: the first ones now, later ones by a thread. Call it once."""
        self._make = make
        self._fill(count, make)
        self._wanted.clear()
        threading.Thread(target=self._restock, args=(count, make), name="spares", daemon=True).start()

    def _restock(self, count: int, make: Callable[[], T]) -> None:
        while True:
            self._wanted.wait()
            time.sleep(RESTOCK_SECONDS)
            self._wanted.clear()
            self._fill(count, make)

    def _fill(self, count: int, make: Callable[[], T]) -> None:
        while len(self._ready) < count:
            self._ready.append(make())
