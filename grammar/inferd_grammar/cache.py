"""A cache of compiled grammars: one computation at a time per key, and a byte limit, at which the largest holder loses some."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from concurrent.futures import Future
from typing import Generic, TypeVar

Outcome = TypeVar("Outcome")
CacheKey = tuple[str, ...]
"""Its first part says whose it is."""


class OutcomeCache(Generic[Outcome]):
    """Thread-safe. The first caller to `claim` a key has to `keep` or `drop` it; others wait for the future they got."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held: Counter[str] = Counter()
        """Bytes by owner."""
        self._entries: OrderedDict[CacheKey, tuple[Future[Outcome], int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: CacheKey) -> Outcome | None:
        """Return the outcome that is held; None if there is none (yet)."""
        with self._lock:
            future, _ = self._entries.get(key, (None, 0))
            if future is None or not future.done() or future.cancelled():
                return None
            self._entries.move_to_end(key)
            return future.result()

    def claim(self, key: CacheKey) -> tuple[Future[Outcome], bool]:
        """Return the future of a key, and whether the caller has to compute it."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key][0], False
            future: Future[Outcome] = Future()
            self._entries[key] = (future, 0)
            return future, True

    def keep(self, key: CacheKey, future: Future[Outcome], outcome: Outcome, cost: int) -> None:
        """Set the outcome of a claimed key and hold it as `cost` bytes, its key not counted."""
        cost += sum(map(len, key))
        with self._lock:
            self._entries[key] = (future, cost)
            self._held[key[0]] += cost
            self._shrink()
        future.set_result(outcome)

    def drop(self, key: CacheKey, future: Future[Outcome], outcome: Outcome | None = None) -> None:
        """Set the outcome of a claimed key (None: cancel, so that another waiter claims the key again) and hold nothing."""
        with self._lock:
            self._entries.pop(key, None)
        if outcome is None:
            future.cancel()
        else:
            future.set_result(outcome)

    def _shrink(self) -> None:
        """Over the limit, drop the least recently used outcomes of the largest holder. The newest one stays, and claimed keys."""
        kept = [key for key in list(self._entries)[:-1] if self._entries[key][1]]
        while kept and self._held.total() > self._max_bytes:
            key = max(kept, key=lambda key: self._held[key[0]])
            kept.remove(key)
            self._held[key[0]] -= self._entries.pop(key)[1]
            if not self._held[key[0]]:
                del self._held[key[0]]
