"""The snapshot store of the engine's thread: work runs in other threads, and :meth:`SnapshotStore.poll` reports the outcome."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from inferd.protocol import InferdError, InternalError, LimitExceeded, Unavailable
from inferd_runtime.kv.snapshot_place import SnapshotPlace
from inferd_runtime.waker import Waker

T = TypeVar("T")
MAX_WAITING_BYTES = 2 << 30
CLOSE_SECONDS = 1.0


@dataclass(eq=False)
class _Piece:
    """One piece of work. ``due``: when its caller is told that it takes too long (monotonic seconds); ``late``: it was."""

    done: Callable[[Any], None]
    nbytes: int
    due: float
    late: bool = False


class SnapshotStore:
    """Runs work on a :class:`SnapshotPlace` in ``threads`` of its own, by default one piece after the other.

    :meth:`submit`, :meth:`poll` and :meth:`close` belong to one thread, which polls :meth:`fileno` together with its other
    sources and then calls :meth:`poll`, and now and then without. At most ``max_waiting`` bytes wait to be written. A caller
    waits at most ``seconds``, whatever a place elsewhere does.
    """

    def __init__(
        self, place: SnapshotPlace, *, max_waiting: int = MAX_WAITING_BYTES, threads: int = 1, seconds: float = math.inf
    ) -> None:
        self._place = place
        self._max_waiting = max_waiting
        self._seconds = seconds
        self._waiting = 0
        self._open: dict[_Piece, Future[Any]] = {}
        self._threads = ThreadPoolExecutor(threads, "snapshots")
        self._waker = Waker()
        self._finished: deque[_Piece] = deque()
        self._threads.submit(self._place.clean)

    def submit(
        self, work: Callable[[SnapshotPlace], T], done: Callable[[T | InferdError], None], *, nbytes: int = 0
    ) -> Future[T]:
        """Queue ``work`` and return its future; :meth:`poll` then calls ``done`` with its result or error.

        ``done`` must not raise, and is not called for work that was cancelled before it began. For work that takes too long it is
        called with Unavailable, and again with what that still comes to. ``nbytes``: memory that the work holds until it is done.
        Raises LimitExceeded if too much waits already.
        """
        if self._waiting and self._waiting + nbytes > self._max_waiting:
            raise LimitExceeded(
                f"{self._waiting} bytes of snapshots wait to be written", limit="waiting_snapshot_bytes",
                value=self._max_waiting, raise_with="waiting for some of them",
            )  # fmt: skip
        piece = _Piece(done, nbytes, time.monotonic() + self._seconds)
        self._waiting += nbytes
        future = self._open[piece] = self._threads.submit(work, self._place)
        future.add_done_callback(lambda ended: self._end(piece))
        return future

    def _end(self, piece: _Piece) -> None:
        self._finished.append(piece)
        self._waker.wake()

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`poll` has something to do."""
        return self._waker.fileno()

    def wait(self, seconds: float) -> bool:
        """Block until :meth:`poll` may have something to do. Return False if the time is up."""
        return self._waker.wait(seconds)

    def poll(self) -> bool:
        """Call ``done`` of all work that has ended, or takes too long. Return False if there is none."""
        self._waker.drain()
        progressed = bool(self._finished)
        while self._finished:
            piece = self._finished.popleft()
            future = self._open.pop(piece)
            self._waiting -= piece.nbytes
            if not future.cancelled():
                piece.done(_outcome(future))
        return self._tell_late() or progressed

    def _tell_late(self) -> bool:
        """Tell the callers of work that takes too long, and leave out what has not begun. False if there is none."""
        now = time.monotonic()
        late = [piece for piece in self._open if piece.due <= now and not piece.late]
        for piece in late:
            piece.late = True
            self._open[piece].cancel()
            piece.done(Unavailable(f"the store of saved contexts has not answered for {self._seconds:g} s"))
        return bool(late)

    def close(self) -> None:
        """Wait for all submitted work that does not take too long, report it, and close the place."""
        while any(not piece.late for piece in self._open):
            self.wait(CLOSE_SECONDS)
            self.poll()
        self._threads.shutdown(wait=not self._open)
        self._place.close()
        self._waker.close()


def _outcome(future: Future[T]) -> T | InferdError:
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, InferdError):
        return error
    return InternalError(f"the snapshot store failed: {error!r}")
