"""SQLite files for an event loop that never waits on a disk: one thread writes behind it, and reads for it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
import time
from collections import Counter, defaultdict, deque
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


RUNS_FILE = "runs.sqlite3"
T = TypeVar("T")
F = TypeVar("F", bound=ArchivedFile)
MAX_QUEUED = 4096
MAX_QUEUED_BYTES = 64 << 20
"""What may wait to be written, half of it of one tenant. Beyond it nothing is taken, and runs stay in memory as far as their
tenant's quotas let them.
"""
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
    tenant: str
    job: Callable[[F], Any]
    size: int
    done: OnDone | None


class _Line(Generic[F]):
    """Jobs of all tenants: in order those of each, one of each in turn. One of no tenant comes behind all that were there before.

    ``bytes``: theirs, until they are :meth:`over`. Pure state.
    """

    def __init__(self) -> None:
        self.bytes: Counter[str] = Counter()
        self._numbers = itertools.count()
        self._waiting: dict[str, deque[tuple[int, _Task[F]]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def has_room(self, tenant: str, size: int) -> bool:
        """Return True if a job of so many bytes may wait, too: the only one of a tenant may take more than its half, and reads
        take nothing.
        """
        own = self.bytes[tenant]
        is_fair = not (tenant and own and size) or (
            own + size <= MAX_QUEUED_BYTES // 2 and len(self._waiting.get(tenant, ())) < MAX_QUEUED // 2
        )
        return len(self) < MAX_QUEUED and is_fair and self.bytes.total() + size <= MAX_QUEUED_BYTES

    def add(self, task: _Task[F]) -> None:
        """Add a job behind its tenant's others."""
        self._waiting.setdefault(task.tenant, deque()).append((next(self._numbers), task))
        self.bytes[task.tenant] += task.size

    def next(self) -> _Task[F] | None:
        """Take out the job whose turn it is; None if there is none."""
        if not self._waiting:
            return None
        tenant = min(self._waiting, key=lambda one: self._waiting[one][0][0])
        if tenant:
            tenant = next(filter(None, self._waiting))
        tasks = self._waiting.pop(tenant)
        _, task = tasks.popleft()
        if tasks:
            self._waiting[tenant] = tasks  # behind the others now
        return task

    def over(self, task: _Task[F]) -> None:
        """Note that a job was carried out."""
        self.bytes[task.tenant] -= task.size
        if not self.bytes[task.tenant]:
            del self.bytes[task.tenant]


class FileArchive(Generic[F]):
    """Carries out jobs on a file in a thread of its own: those of one tenant in order, one of each tenant in turn, so that what
    one writes holds no other up. Belongs to the event loop that made it.

    ``open_file`` raises InferdError where it cannot; ``what`` names the file in errors.
    """

    def __init__(self, open_file: Callable[[], F], what: str) -> None:
        self.failure: str | None = None
        """Why the file does not work at the moment, None while it does."""
        self._open_file = open_file
        self._what = what
        self._loop = asyncio.get_running_loop()
        self._turns: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)
        self._line: _Line[F] = _Line()
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

    def save(self, job: Callable[[F], Any], size: int, done: OnDone | None = None, *, tenant: str = "") -> bool:
        """Queue a job that writes about ``size`` bytes; ``done`` gets its outcome in the event loop. False: no room."""
        with self._changed:
            if self._closing or not self._line.has_room(tenant, size):
                return False
            self._line.add(_Task(tenant, job, size, done))
            self._urgent = self._urgent or not size  # a read
            if self._urgent or not self._gathering:
                self._changed.notify()
        return True

    async def read(self, job: Callable[[F], T], tenant: str = "") -> T:
        """Return what a job reads, behind what was queued for its tenant before, for "" behind all. Raises Unavailable. Cancelled
        before, the job is not done.

        Of the jobs for a ``tenant`` one is queued at a time: however many it asks for, another's waits for one of them.
        """
        async with self._turns[tenant] if tenant else nullcontext():
            return await self._read(job, tenant)

    async def _read(self, job: Callable[[F], T], tenant: str) -> T:
        waiting: asyncio.Future[T] = self._loop.create_future()

        def done(value: T, error: InferdError | None) -> None:
            if waiting.done():
                return
            if error is None:
                waiting.set_result(value)
            else:
                waiting.set_exception(error)

        if not self.save(lambda file: None if waiting.cancelled() else job(file), 0, done, tenant=tenant):
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
        while self._gathered():
            while (task := self._next()) is not None:
                self._carry_out(task)
                with self._changed:
                    self._line.over(task)
        if self._file is not None:
            self._file.close()

    def _gathered(self) -> bool:
        """Wait for jobs, and a moment for more. Returns False once there is none and the store is to be closed."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._line) or self._closing)
            self._gathering = True
            self._changed.wait_for(lambda: self._urgent or self._closing, GATHER_SECONDS)
            self._gathering = False
            return len(self._line) > 0

    def _next(self) -> _Task[F] | None:
        with self._changed:
            task = self._line.next()
            self._urgent = self._urgent and task is not None
            return task

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
