"""What the worker's threads have to tell the gateway, handed to the one thread that owns the socket."""

from __future__ import annotations

from queue import Empty, SimpleQueue

from inferd_runtime.sandbox.messages import FromWorker, Started
from inferd_runtime.waker import Waker


class Outbox:
    """A queue of messages with a waker for the thread that takes them. A run's own queue bounds what it puts here."""

    def __init__(self) -> None:
        self.waker = Waker()
        self._queue: SimpleQueue[FromWorker] = SimpleQueue()

    def put(self, message: FromWorker) -> None:
        """Queue a message, from any thread. ``Started`` wakes nobody: it goes out with the run's next message."""
        self._queue.put(message)
        if not isinstance(message, Started):
            self.waker.wake()

    def take(self) -> list[FromWorker]:
        """Return all that is queued."""
        self.waker.drain()
        messages: list[FromWorker] = []
        while True:
            try:
                messages.append(self._queue.get_nowait())
            except Empty:
                return messages
