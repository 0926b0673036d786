"""How long to wait before something that died is started again."""

from __future__ import annotations


class Backoff:
    """Doubles from ``first`` to ``most`` seconds; something that lived for ``healthy`` seconds starts from ``first`` again."""

    def __init__(self, first: float = 0.2, most: float = 15.0, healthy: float = 30.0) -> None:
        self._first = first
        self._most = most
        self._healthy = healthy
        self._next = first

    def next(self, lived: float) -> float:
        """Return the seconds to wait now, after a life of ``lived`` seconds."""
        if lived >= self._healthy:
            self._next = self._first
        delay, self._next = self._next, min(self._next * 2, self._most)
        return delay
