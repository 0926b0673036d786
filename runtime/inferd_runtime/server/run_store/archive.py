"""SQLite files for an event loop that never waits on a disk: one thread writes behind it, and reads for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import anyio

from inferd.protocol import InferdError, InternalError, Unavailable
from inferd_runtime.server.run_store.run_file import RunFile


class ArchivedFile(Protocol):
    """A file that an archive opens."""

    def close(self) -> None:
        """Close the file."""
        ...


T = TypeVar("T")
F = TypeVar("F", bound=ArchivedFile)
MAX_QUEUED = 4096
MAX_QUEUED_BYTES = 64 << 20
"""What may wait to be written. Beyond it nothing is taken, and runs stay in memory as far as their tenant's quotas let them."""
GATHER_SECONDS = 0.05
"""How long writes are gathered, unless somebody reads: each time that the thread wakes up it interrupts the event loop."""
READ_SECONDS = 10.0
REOPEN_SECONDS = 1.0
"""How long a file that could not be opened is left alone."""
CLOSE_SECONDS = 10.0
STILL_OPEN = frozenset({"disk_full", "locked", "read_only"})
"""Reasons of a failure that leave the file as it is: what it holds can be read."""
log = logging.getLogger("inferd.runs")
OnDone = Callable[[Any, InferdError | None], None]


@dataclass(frozen=True)
class _Task(Generic[F]):
    job: Callable[[F], Any]
    size: int
    done: OnDone | None


class FileArchive(Generic[F]):
    """Carries out jobs on a file, in order, in a thread of its own. Belongs to the event loop that made it.

    ``open_file`` raises InferdError where it cannot; ``what`` names the file in errors.
    """

    def __init__(self, open_file: Callable[[], F], what: str) -> None:
        self.failure: str | None = None
        """Why the file does not work at the moment, None while it does."""
        self._open_file = open_file
        self._what = what
        self._loop = asyncio.get_running_loop()
        self._turns: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)
        self._tasks: deque[_Task[F]] = deque()
        self._bytes = 0
        self._closing = False
        self._urgent = False
        """True while a job is queued that somebody waits for."""
        self._gathering = False
        self._changed = threading.Condition()
        self._file: F | None = None
        self._suspect = False
        """True once something is wrong with the open file, until it was opened anew."""
        self._retry_at = 0.0
        self._thread = threading.Thread(target=self._work, name="file-archive", daemon=True)
        self._thread.start()

    def save(self, job: Callable[[F], Any], size: int, done: OnDone | None = None) -> bool:
        """Queue a job that writes about ``size`` bytes; ``done`` gets its outcome in the event loop. False: no room."""
        with self._changed:
            if self._closing or len(self._tasks) >= MAX_QUEUED or self._bytes + size > MAX_QUEUED_BYTES:
                return False
            self._tasks.append(_Task(job, size, done))
            self._bytes += size
            self._urgent = self._urgent or not size  # a read
            if self._urgent or not self._gathering:
                self._changed.notify()
        return True

    async def read(self, job: Callable[[F], T], tenant: str = "") -> T:
        """Return what a job reads, behind all that was queued before. Raises Unavailable. Cancelled before, the job is not done.

        Of the jobs for a ``tenant`` one is queued at a time: however many it asks for, another's waits for one of them.
        """
        async with self._turns[tenant] if tenant else nullcontext():
            return await self._read(job)

    async def _read(self, job: Callable[[F], T]) -> T:
        waiting: asyncio.Future[T] = self._loop.create_future()

        def done(value: T, error: InferdError | None) -> None:
            if waiting.done():
                return
            if error is None:
                waiting.set_result(value)
            else:
                waiting.set_exception(error)

        if not self.save(lambda file: None if waiting.cancelled() else job(file), 0, done):
            raise Unavailable(f"{self._what} has too much to do", reason="queue")
        try:
            with anyio.fail_after(READ_SECONDS):
                return await waiting
        except TimeoutError:
            raise Unavailable(f"{self._what} did not answer within {READ_SECONDS:g} s", reason="slow") from None

    async def close(self) -> None:
        """Write what is queued, for ``CLOSE_SECONDS`` at most, and close the file."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        await anyio.to_thread.run_sync(self._thread.join, CLOSE_SECONDS)
        if self._thread.is_alive():
            log.error("%s did not take everything within %g s", self._what, CLOSE_SECONDS)

    def _work(self) -> None:
        while tasks := self._gathered():
            for task in tasks:
                self._carry_out(task)
                with self._changed:
                    self._bytes -= task.size
        if self._file is not None:
            self._file.close()

    def _gathered(self) -> list[_Task[F]]:
        """Wait for jobs, and return all that are queued; none once there is none and the store is to be closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._tasks or self._closing)
            self._gathering = True
            self._changed.wait_for(lambda: self._urgent or self._closing, GATHER_SECONDS)
            self._gathering = self._urgent = False
            tasks = list(self._tasks)
            self._tasks.clear()
            return tasks

    def _carry_out(self, task: _Task[F]) -> None:
        value, error = None, None
        try:
            value = task.job(self._opened())
            if task.size:  # a read that works does not say that writing does
                self.failure = None
        except InferdError as failed:
            error = failed
            self._failed(failed)
        except Exception as bug:
            error = InternalError(f"{self._what} failed: {type(bug).__name__}")
            log.exception("a job of %s failed", self._what)
        if task.done is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
                self._loop.call_soon_threadsafe(task.done, value, error)

    def _opened(self) -> F:
        if (self._file is None or self._suspect) and time.monotonic() >= self._retry_at:
            self._open()
        if self._file is None:
            raise Unavailable(self.failure or f"{self._what} does not work now")
        return self._file

    def _open(self) -> None:
        """Open the file, again if need be: where that does not work, what is open may still be read."""
        try:
            fresh = self._open_file()
        except InferdError:
            if self._file is None:
                raise
            self._retry_at = time.monotonic() + REOPEN_SECONDS
            return
        if self._file is not None:
            self._file.close()
        self._file, self._suspect = fresh, False

    def _failed(self, error: InferdError) -> None:
        """Note why the file does not work, and open it again for a later job where that could help."""
        if self.failure is None:
            log.error("%s", error.message)
        self.failure = error.message
        if error.detail.get("reason") not in STILL_OPEN:
            self._suspect = True
            self._retry_at = time.monotonic() + REOPEN_SECONDS


class RunArchive(FileArchive[RunFile]):
    """The store of runs."""

    def __init__(self, path: Path) -> None:
        super().__init__(lambda: RunFile(path), "the store of runs")


@asynccontextmanager
async def open_archive(path: Path) -> AsyncIterator[RunArchive]:
    """Open a store of runs; what is queued at the end is written."""
    archive = RunArchive(path)
    try:
        yield archive
    finally:
        with anyio.CancelScope(shield=True):
            await archive.close()
