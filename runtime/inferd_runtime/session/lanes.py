"""Slow work of sessions in threads beside the step loop: tenants take turns, and each pays for what its work took."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from inferd_runtime.waker import Waker

Charge = Callable[[str, float], None]
"""Called with a tenant and the seconds of processor time that it used."""


def free(tenant: str, seconds: float) -> None:
    """Charge nobody."""


def no_more() -> float:
    """Return the processor seconds of work that used none but its own thread's."""
    return 0.0


@dataclass
class Piece:
    """One piece of work. ``done`` gets its future in the loop's thread and must not raise; ``wanted``: False to leave it out.

    ``extra`` is called in the work's thread once it has ended: further processor seconds, of other processes.
    """

    tenant: str
    work: Callable[[], Any]
    done: Callable[[Future[Any]], None]
    wanted: Callable[[], bool] = lambda: True
    extra: Callable[[], float] = no_more
    seconds: float = 0.0

    def run(self) -> Any:
        """Do the work, and note the processor time that it took."""
        started = time.thread_time()
        try:
            return self.work()
        finally:
            self.seconds = time.thread_time() - started + self.extra()


class Lanes:
    """Belongs to the thread of the step loop, which polls :meth:`fileno` with its other sources and calls :meth:`poll`.

    Tenants take turns, and each has one piece running at most: a tenant that sends slow work delays only itself, as long as
    there are fewer such tenants than lanes.
    """

    def __init__(self, lanes: int, name: str, charge: Charge = free) -> None:
        self._lanes = lanes
        self._charge = charge
        self._threads = ThreadPoolExecutor(lanes, name)
        self._waker = Waker()
        self._waiting: dict[str, deque[Piece]] = {}
        self._running: set[str] = set()
        self._finished: deque[tuple[Piece, Future[Any]]] = deque()

    def submit(self, piece: Piece) -> None:
        """Queue a piece behind the tenant's others."""
        self._waiting.setdefault(piece.tenant, deque()).append(piece)
        self._start()

    def waiting(self, tenant: str) -> int:
        """Return the number of the tenant's pieces that have not begun."""
        return len(self._waiting.get(tenant, ()))

    def fileno(self) -> int:
        """Readable when :meth:`poll` has something to do."""
        return self._waker.fileno()

    def wait(self, seconds: float) -> bool:
        """Wait until there may be something to do, for callers that poll nothing else. False when the time is up."""
        return self._waker.wait(seconds)

    def poll(self) -> bool:
        """Tell what has ended, and start what waited for it. False when nothing has."""
        self._waker.drain()
        progressed = bool(self._finished)
        while self._finished:
            piece, future = self._finished.popleft()
            self._running.discard(piece.tenant)
            self._charge(piece.tenant, piece.seconds)
            piece.done(future)
        self._start()
        return progressed

    def close(self) -> None:
        """Drop what waits, without an answer, and wait for what runs."""
        self._waiting.clear()
        self._threads.shutdown()
        self._waker.close()

    def drop_waiting(self) -> None:
        """Drop what waits, without an answer."""
        self._waiting.clear()

    def _start(self) -> None:
        """Fill the lanes, one piece of each tenant in turn."""
        for tenant in list(self._waiting):
            if len(self._running) >= self._lanes:
                return
            if tenant in self._running:
                continue
            queue = self._waiting.pop(tenant)
            while queue and not queue[0].wanted():
                queue.popleft()
            if queue:
                self._run(queue.popleft())
            if queue:
                self._waiting[tenant] = queue  # behind the others now

    def _run(self, piece: Piece) -> None:
        self._running.add(piece.tenant)
        future = self._threads.submit(piece.run)
        future.add_done_callback(lambda ended: self._end(piece, ended))

    def _end(self, piece: Piece, future: Future[Any]) -> None:
        self._finished.append((piece, future))
        self._waker.wake()
