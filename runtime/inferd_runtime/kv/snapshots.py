"""The snapshot store of the engine's thread: work runs in a disk thread, and :meth:`SnapshotStore.poll` reports the outcome."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from inferd.protocol import InferdError, InternalError, LimitExceeded
from inferd_runtime.kv.snapshot_folder import SnapshotFolder
from inferd_runtime.waker import Waker

T = TypeVar("T")
MAX_WAITING_BYTES = 2 << 30
CLOSE_SECONDS = 1.0


class SnapshotStore:
    """Runs work on a :class:`SnapshotFolder` in a thread of its own, one piece after the other.

    :meth:`submit`, :meth:`poll` and :meth:`close` belong to one thread, which polls :meth:`fileno` together with its other
    sources and then calls :meth:`poll`. At most ``max_waiting`` bytes wait to be written.
    """

    def __init__(self, folder: Path, quota: int, *, max_waiting: int = MAX_WAITING_BYTES) -> None:
        self._folder = SnapshotFolder(folder, quota)
        self._max_waiting = max_waiting
        self._waiting = 0
        self._open = 0
        self._thread = ThreadPoolExecutor(1, "snapshots")
        self._waker = Waker()
        self._finished: deque[tuple[Future[Any], int, Callable[[Any], None]]] = deque()
        self._thread.submit(self._folder.clean)

    def submit(
        self, work: Callable[[SnapshotFolder], T], done: Callable[[T | InferdError], None], *, nbytes: int = 0
    ) -> Future[T]:
        """Queue ``work`` and return its future; :meth:`poll` then calls ``done`` with its result or error.

        ``done`` must not raise, and is not called for work that was cancelled before it began. ``nbytes``: memory that the
        work holds until it is done. Raises LimitExceeded if too much waits already.
        """
        if self._waiting and self._waiting + nbytes > self._max_waiting:
            raise LimitExceeded(
                f"{self._waiting} bytes of snapshots wait to be written", limit="waiting_snapshot_bytes",
                value=self._max_waiting, raise_with="waiting for some of them",
            )  # fmt: skip
        self._waiting += nbytes
        self._open += 1
        future = self._thread.submit(work, self._folder)
        future.add_done_callback(lambda ended: self._end(ended, nbytes, done))
        return future

    def _end(self, future: Future[Any], nbytes: int, done: Callable[[Any], None]) -> None:
        self._finished.append((future, nbytes, done))
        self._waker.wake()

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`poll` has something to do."""
        return self._waker.fileno()

    def wait(self, seconds: float) -> bool:
        """Block until :meth:`poll` may have something to do. Return False if the time is up."""
        return self._waker.wait(seconds)

    def poll(self) -> bool:
        """Call ``done`` of all work that has ended. Return False if none has."""
        self._waker.drain()
        progressed = bool(self._finished)
        while self._finished:
            future, nbytes, done = self._finished.popleft()
            self._waiting -= nbytes
            self._open -= 1
            if not future.cancelled():
                done(_outcome(future))
        return progressed

    def close(self) -> None:
        """Wait for all submitted work, report it, and close the folder."""
        while self._open:
            self.wait(CLOSE_SECONDS)
            self.poll()
        self._thread.shutdown()
        self._folder.close()
        self._waker.close()


def _outcome(future: Future[T]) -> T | InferdError:
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, InferdError):
        return error
    return InternalError(f"the snapshot store failed: {error!r}")
