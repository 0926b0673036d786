"""A cache of compiled grammars: one computation at a time per key, and a byte limit, at which the largest holder loses some."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, defaultdict
from concurrent.futures import Future
from sys import getsizeof
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
        self._entries: defaultdict[str, OrderedDict[CacheKey, tuple[Future[Outcome], int]]] = defaultdict(OrderedDict)
        """By owner, what was used last at the end."""
        self._lock = threading.Lock()

    def get(self, key: CacheKey) -> Outcome | None:
        """Return the outcome that is held; None if there is none (yet)."""
        with self._lock:
            entries = self._entries.get(key[0], OrderedDict())
            future, _ = entries.get(key, (None, 0))
            if future is None or not future.done() or future.cancelled():
                return None
            entries.move_to_end(key)
            return future.result()

    def claim(self, key: CacheKey) -> tuple[Future[Outcome], bool]:
        """Return the future of a key, and whether the caller has to compute it."""
        with self._lock:
            entries = self._entries[key[0]]
            if key in entries:
                entries.move_to_end(key)
                return entries[key][0], False
            future: Future[Outcome] = Future()
            entries[key] = (future, 0)
            return future, True

    def keep(self, key: CacheKey, future: Future[Outcome], outcome: Outcome, cost: int) -> None:
        """Set the outcome of a claimed key and hold it as `cost` bytes, its key not counted."""
        cost += sum(map(getsizeof, key))
        with self._lock:
            self._entries[key[0]][key] = (future, cost)
            self._held[key[0]] += cost
            while self._held.total() > self._max_bytes and (old := self._oldest(key)) is not None:
                self._forget(old)
        future.set_result(outcome)

    def grow(self, key: CacheKey, more: int) -> None:
        """Hold an outcome as so many bytes more, if it is held."""
        with self._lock:
            entries = self._entries.get(key[0])
            if entries is not None and key in entries:
                future, cost = entries[key]
                entries[key] = (future, cost + more)
                self._held[key[0]] += more

    def drop(self, key: CacheKey, future: Future[Outcome], outcome: Outcome | None = None) -> None:
        """Set the outcome of a claimed key (None: cancel, so that another waiter claims the key again) and hold nothing."""
        with self._lock:
            self._forget(key)
        if outcome is None:
            future.cancel()
        else:
            future.set_result(outcome)

    def _oldest(self, newest: CacheKey) -> CacheKey | None:
        """Return the least recently used outcome of the largest holder that has one beside the newest; no claimed key is one."""
        holders = sorted(self._held, key=self._held.__getitem__, reverse=True)
        held = (key for owner in holders for key, (_, cost) in self._entries[owner].items() if cost and key != newest)
        return next(held, None)

    def _forget(self, key: CacheKey) -> None:
        owner = key[0]
        _, cost = self._entries[owner].pop(key, (None, 0))
        self._held[owner] -= cost
        if not self._entries[owner]:
            del self._entries[owner], self._held[owner]
