"""The snapshot store of the engine's thread: work runs in other threads, and :meth:`SnapshotStore.poll` reports the outcome."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from inferd.protocol import InferdError, InternalError, LimitExceeded, Unavailable
from inferd_runtime.kv.snapshot_place import SnapshotPlace
from inferd_runtime.lanes import Charge, Lanes, Piece, free

T = TypeVar("T")
MAX_WAITING_BYTES = 2 << 30
TENANTS_SHARE = 4
"""A tenant may have this part of the bytes that may wait."""
CLOSE_SECONDS = 1.0


@dataclass(eq=False)
class _Job:
    """What was submitted. ``due``: when its caller is told that it takes too long (monotonic seconds); ``late``: it was."""

    piece: Piece
    done: Callable[[Any], None]
    nbytes: int
    due: float
    late: bool = False


class SnapshotStore:
    """Runs work on a :class:`SnapshotPlace` in ``threads`` of its own, in which tenants take turns; one has half of them at most.
    With one thread, each tenant's work is done in order.

    :meth:`submit`, :meth:`poll` and :meth:`close` belong to one thread, which polls :meth:`fileno` together with its other
    sources and then calls :meth:`poll`, and now and then without. At most ``max_waiting`` bytes wait to be written, a quarter of
    them of one tenant; a tenant with none waiting may bring any number. A caller waits at most ``seconds``, whatever a place
    elsewhere does.
    """

    def __init__(
        self,
        place: SnapshotPlace,
        *,
        max_waiting: int = MAX_WAITING_BYTES,
        threads: int = 1,
        seconds: float = math.inf,
        charge: Charge = free,
    ) -> None:
        """``charge``: told the processor time of a tenant's work."""
        self._place = place
        self._max_waiting = max_waiting
        self._seconds = seconds
        self._waiting: Counter[str] = Counter()
        self._open: dict[_Job, None] = {}
        self._lanes = Lanes(threads, "snapshots", charge, of_tenant=max(1, threads // 2))
        self._lanes.submit(Piece("", place.clean, lambda ended: None))

    def submit(
        self,
        tenant: str,
        work: Callable[[SnapshotPlace], T],
        done: Callable[[T | InferdError], None],
        *,
        nbytes: int = 0,
    ) -> Callable[[], None]:
        """Queue a tenant's ``work``; :meth:`poll` then calls ``done`` with its result or error. Returns what leaves it out, if it
        has not begun.

        ``done`` must not raise, and is not called for work that was left out. For work that takes too long it is called with
        Unavailable, and again with what that still comes to. ``nbytes``: memory that the work holds until it is done. Raises
        LimitExceeded if too much waits already.
        """
        self._check_room(tenant, nbytes)
        piece = Piece(tenant, lambda: work(self._place), lambda ended: self._end(job, ended), lambda: job in self._open)
        job = _Job(piece, done, nbytes, time.monotonic() + self._seconds)
        self._open[job] = None
        self._waiting[tenant] += nbytes
        self._lanes.submit(piece)
        return lambda: self._leave_out(job)

    def _check_room(self, tenant: str, nbytes: int) -> None:
        share, own = self._max_waiting // TENANTS_SHARE, self._waiting[tenant]
        if nbytes and own and (own + nbytes > share or self._waiting.total() + nbytes > self._max_waiting):
            raise LimitExceeded(
                f"{own} bytes of the tenant's snapshots wait to be written", limit="waiting_snapshot_bytes",
                value=share, raise_with="waiting for some of them",
            )  # fmt: skip

    def _leave_out(self, job: _Job) -> None:
        if job in self._open and not job.piece.begun:
            self._forget(job)

    def _forget(self, job: _Job) -> None:
        del self._open[job]
        self._waiting[job.piece.tenant] -= job.nbytes
        if not self._waiting[job.piece.tenant]:
            del self._waiting[job.piece.tenant]

    def _end(self, job: _Job, ended: Future[Any]) -> None:
        self._forget(job)
        job.done(_outcome(ended))

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`poll` has something to do."""
        return self._lanes.fileno()

    def wait(self, seconds: float) -> bool:
        """Block until :meth:`poll` may have something to do. Return False if the time is up."""
        return self._lanes.wait(seconds)

    def poll(self) -> bool:
        """Call ``done`` of all work that has ended, or takes too long. Return False if there is none."""
        progressed = self._lanes.poll()
        return self._tell_late() or progressed

    def _tell_late(self) -> bool:
        """Tell the callers of work that takes too long, and leave out what has not begun. False if there is none."""
        now = time.monotonic()
        late = [job for job in self._open if job.due <= now and not job.late]
        for job in late:
            job.late = True
            self._leave_out(job)
            job.done(Unavailable(f"the store of saved contexts has not answered for {self._seconds:g} s"))
        return bool(late)

    def close(self) -> None:
        """Wait for all submitted work that does not take too long, report it, and close the place."""
        while any(not job.late for job in self._open):
            self.wait(CLOSE_SECONDS)
            self.poll()
        self._lanes.close(wait=not self._open)
        self._place.close()


def _outcome(future: Future[T]) -> T | InferdError:
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, InferdError):
        return error
    return InternalError(f"the snapshot store failed: {error!r}")
