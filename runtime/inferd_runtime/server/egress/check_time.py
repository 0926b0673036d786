"""Bounds the processor time of a library's check over a stranger's values, which may backtrack or compare without end."""

from __future__ import annotations

import signal
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

T = TypeVar("T")
AGAIN_SECONDS = 0.05
"""How often it is tried to end a check that is over its time: Python drops what is raised while an object is freed."""


class CheckTooLong(Exception):
    """A check took more than its processor time."""


@contextmanager
def processor_seconds(seconds: float) -> Iterator[None]:
    """Run the body, in the process's main thread, for at most so much of the process's processor time.

    Raises CheckTooLong from wherever the body is by then, also within a regular expression. Does not nest.
    """
    left = False

    def over(number: int, frame: object) -> None:
        if not left:
            raise CheckTooLong(f"more than {seconds:g} s of processor time")

    before = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, seconds, AGAIN_SECONDS)
    try:
        yield
    finally:
        left = True
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class BoundedSteps(Generic[T]):
    """Awaits a coroutine, and gives it so much processor time (seconds) from each wait to the next. Raises CheckTooLong."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], seconds: float) -> None:
        self._coroutine = coroutine
        self._seconds = seconds

    def __await__(self) -> Generator[Any, Any, T]:
        """Return what the coroutine returns. Its time stands still while it waits, when the loop does other work."""
        step, value = self._coroutine.send, None
        while True:
            try:
                with processor_seconds(self._seconds):
                    waits_for = step(value)
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                value = yield waits_for
                step = self._coroutine.send
            except BaseException as error:  # noqa: BLE001 - a cancellation, too, is the coroutine's to take
                step, value = self._coroutine.throw, error
