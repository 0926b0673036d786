"""Threads that wait for work: waking one up takes a fraction of what starting one takes, the more so on a busy machine."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

PoolTask = Callable[[], None]
MOST_IDLE = 4


class ThreadPool:
    """Runs each piece of work in a thread of its own, an idle one if there is one. One thread hands out work."""

    def __init__(self) -> None:
        self._idle: deque[SimpleQueue[PoolTask]] = deque()

    @property
    def idle(self) -> int:
        """Number of threads that wait for work."""
        return len(self._idle)

    def prepare(self) -> None:
        """Start an idle thread."""
        self.run(_nothing)

    def run(self, work: PoolTask) -> None:
        """Start ``work``, which must not raise. Raises RuntimeError where there can be no more threads."""
        try:
            queue = self._idle.pop()
        except IndexError:
            queue = SimpleQueue()
            threading.Thread(target=self._serve, args=(queue,), name="run", daemon=True).start()
        queue.put(work)

    def _serve(self, queue: SimpleQueue[PoolTask]) -> None:
        while True:
            queue.get()()
            if len(self._idle) >= MOST_IDLE:
                return
            self._idle.append(queue)


def _nothing() -> None:
    pass
