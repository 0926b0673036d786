"""Slow work of sessions in threads beside the step loop: tenants take turns, and each pays for what its work took."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from inferd_runtime.waker import Waker

Charge = Callable[[str, float], None]
"""Called with a tenant and the seconds of processor time that it used."""


def free(tenant: str, seconds: float) -> None:
    """Charge no tenant."""


def no_more() -> float:
    """Return the processor seconds of work that used none but its own thread's."""
    return 0.0


@dataclass(eq=False)
class Piece:
    """One piece of work. ``done`` gets its future in the loop's thread and must not raise; ``wanted``: False to leave it out.

    ``extra`` is called in the work's thread once it has ended: further processor seconds, of other processes. ``begun``: it is
    not left out any more; ``slow``: it has given way.
    """

    tenant: str
    work: Callable[[], Any]
    done: Callable[[Future[Any]], None]
    wanted: Callable[[], bool] = lambda: True
    extra: Callable[[], float] = no_more
    seconds: float = 0.0
    begun: bool = False
    slow: bool = False

    def run(self) -> Any:
        """Do the work, and note the processor time that it took."""
        started = time.thread_time()
        try:
            return self.work()
        finally:
            self.seconds = time.thread_time() - started + self.extra()


class Lanes:
    """Belongs to the thread of the step loop, which polls :meth:`fileno` with its other sources and calls :meth:`poll`.

    Tenants take turns, and each has ``of_tenant`` pieces running at most: a tenant that sends slow work delays only itself, as
    long as there are fewer such tenants than lanes. Up to ``aside`` pieces that have given way take none of the lanes.
    """

    def __init__(self, lanes: int, name: str, charge: Charge = free, of_tenant: int = 1, aside: int = 0) -> None:
        self._lanes = lanes
        self._aside = aside
        self._of_tenant = of_tenant
        self._charge = charge
        self._threads = ThreadPoolExecutor(lanes + aside, name)
        self._own = threading.local()
        self._waker = Waker()
        self._waiting: dict[str, deque[Piece]] = {}
        self._running: list[Piece] = []
        self._finished: deque[tuple[Piece, Future[Any]]] = deque()

    def submit(self, piece: Piece) -> None:
        """Queue a piece behind the tenant's others."""
        self._waiting.setdefault(piece.tenant, deque()).append(piece)
        self._start()

    def drop_unwanted(self, tenant: str) -> None:
        """Drop a tenant's pieces that have not begun and are not wanted any more, with what they hold."""
        left = deque(piece for piece in self._waiting.get(tenant, ()) if piece.wanted())
        if left:
            self._waiting[tenant] = left
        else:
            self._waiting.pop(tenant, None)

    def waiting(self, tenant: str) -> int:
        """Return the number of the tenant's pieces that have not begun."""
        return len(self._waiting.get(tenant, ()))

    def fileno(self) -> int:
        """Readable when :meth:`poll` has something to do."""
        return self._waker.fileno()

    def wait(self, seconds: float) -> bool:
        """Wait until there may be something to do, for callers that poll nothing else. False when the time is up."""
        return self._waker.wait(seconds)

    def wake(self) -> None:
        """Have :meth:`poll` called again."""
        self._waker.wake()

    def poll(self) -> bool:
        """Tell what has ended, and start what waited for it. False when nothing has."""
        self._waker.drain()
        progressed = bool(self._finished)
        while self._finished:
            piece, future = self._finished.popleft()
            self._running.remove(piece)
            self._charge(piece.tenant, piece.seconds)
            piece.done(future)
        self._start()
        return progressed

    def give_way(self) -> None:
        """Let another piece begin beside the one whose thread calls this: it takes long, at a low priority."""
        piece: Piece | None = getattr(self._own, "piece", None)
        if piece is not None:
            piece.slow = True
            self._waker.wake()

    def close(self, *, wait: bool = True) -> None:
        """Drop what waits, without an answer, and ``wait`` for what runs."""
        self._waiting.clear()
        self._threads.shutdown(wait=wait)
        self._waker.close()

    def drop_waiting(self) -> None:
        """Drop what waits, without an answer."""
        self._waiting.clear()

    def _start(self) -> None:
        """Fill the lanes, one piece of each tenant in turn."""
        while self._taken() < self._lanes and (piece := self._next()) is not None:
            self._run(piece)

    def _taken(self) -> int:
        return len(self._running) - min(self._aside, sum(piece.slow for piece in self._running))

    def _next(self) -> Piece | None:
        """Take out the piece whose turn it is; None if there is none."""
        running = Counter(piece.tenant for piece in self._running)
        for tenant in [one for one in self._waiting if running[one] < self._of_tenant]:
            queue = self._waiting.pop(tenant)
            while queue and not queue[0].wanted():
                queue.popleft()
            if queue:
                piece = queue.popleft()
                if queue:
                    self._waiting[tenant] = queue  # behind the others now
                return piece
        return None

    def _run(self, piece: Piece) -> None:
        piece.begun = True
        self._running.append(piece)
        future = self._threads.submit(self._in_thread, piece)
        future.add_done_callback(lambda ended: self._end(piece, ended))

    def _in_thread(self, piece: Piece) -> Any:
        self._own.piece = piece
        return piece.run()

    def _end(self, piece: Piece, future: Future[Any]) -> None:
        self._finished.append((piece, future))
        self._waker.wake()
