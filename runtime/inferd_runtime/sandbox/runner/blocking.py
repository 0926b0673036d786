"""Blocking calls of the standard library, put on the host's ``wait`` so that a run that is to end gets out of them.

The guest has one thread and no files or sockets to wait for: a lock that is taken stays taken, so waiting for it without a
time limit is an error here and not a hang. :func:`install` has to run before other modules import these names.
"""

from __future__ import annotations

import _thread
import select
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

Sleep = Callable[[float], None]


class GuestLock:
    """``threading.Lock`` for a program with one thread; ``sleep`` is what its time limits wait with."""

    sleep: Sleep

    def __init__(self) -> None:
        self._taken = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock. Raises RuntimeError where a second thread would have to release it first."""
        if not blocking and timeout != -1:
            raise ValueError("can't specify a timeout for a non-blocking call")
        if timeout < 0 and timeout != -1:
            raise ValueError("timeout value must be a non-negative number")
        if self._taken and blocking:
            self._wait(timeout)
        taken, self._taken = self._taken, True
        return not taken

    def release(self) -> None:
        """Give the lock back."""
        if not self._taken:
            raise RuntimeError("release unlocked lock")
        self._taken = False

    def locked(self) -> bool:
        """True if the lock is taken."""
        return self._taken

    def _wait(self, timeout: float) -> None:
        if timeout < 0:
            raise RuntimeError("the program would wait for ever: it has one thread, and that holds the lock itself")
        if timeout > 0:
            type(self).sleep(timeout)

    def _at_fork_reinit(self) -> None:
        self._taken = False

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def install(sleep: Sleep) -> None:
    """Replace ``time.sleep``, ``select`` and the locks. ``sleep`` takes seconds, more than 0."""
    lock = type("lock", (GuestLock,), {"sleep": staticmethod(sleep)})
    time.sleep = _checked(sleep)  # type: ignore[assignment]
    select.select = _select(sleep)
    select.poll = _poll(sleep)  # type: ignore[misc]
    for module, names in ((_thread, ("allocate_lock", "allocate")), (threading, ("Lock", "_allocate_lock"))):
        for name in names:
            setattr(module, name, lock)
    import queue  # only now: it takes its locks from threading when it is imported

    queue.SimpleQueue = queue._PySimpleQueue  # type: ignore[attr-defined, misc]


def _checked(sleep: Sleep) -> Callable[[float], None]:
    def guest_sleep(seconds: float, /) -> None:
        """Delay execution for a number of seconds, which may be a fraction."""
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        if seconds > 0:
            sleep(float(seconds))

    return guest_sleep


def _select(sleep: Sleep) -> Callable[..., tuple[list[Any], list[Any], list[Any]]]:
    def guest_select(
        rlist: Any, wlist: Any, xlist: Any, timeout: float | None = None, /
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Sleep: ``select.select`` where there are no files."""
        if [*rlist, *wlist, *xlist]:
            raise OSError("the sandbox has no files or sockets to wait for")
        _sleep_or_refuse(sleep, timeout)
        return [], [], []

    return guest_select


def _poll(sleep: Sleep) -> type[Any]:
    class Poll:
        """``select.poll`` where there are no files: a sleep."""

        def register(self, fd: Any, eventmask: int = 0) -> None:
            """Refuse: there are no files."""
            raise OSError("the sandbox has no files or sockets to wait for")

        modify = register

        def unregister(self, fd: Any) -> None:
            """Do nothing: no file is ever registered."""
            raise KeyError(fd)

        def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
            """Wait for ``timeout`` milliseconds."""
            _sleep_or_refuse(sleep, None if timeout is None or timeout < 0 else timeout / 1e3)
            return []

    return Poll


def _sleep_or_refuse(sleep: Sleep, timeout: float | None) -> None:
    if timeout is None:
        raise RuntimeError("the program would wait for ever: there are no files or sockets to wait for")
    if timeout > 0:
        sleep(timeout)
