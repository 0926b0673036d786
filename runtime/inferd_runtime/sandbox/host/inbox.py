"""What other threads have to say to a run's thread."""

from __future__ import annotations

import threading
from collections import deque

from inferd.protocol import ErrorInfo, LimitExceeded
from inferd_runtime.waker import Waker

MAX_MESSAGES = 1024
"""Messages that may wait for a program."""


def too_many_messages() -> LimitExceeded:
    """Return the error of a program that does not read its messages."""
    text = f"{MAX_MESSAGES} messages wait for the program already"
    return LimitExceeded(text, limit="messages", value=MAX_MESSAGES, raise_with="a program that receives them faster")


class Inbox:
    """A run's messages and the reason to end it. Any thread may write; the run's thread reads, polls, and closes it."""

    def __init__(self) -> None:
        self._waker = Waker()
        self._messages: deque[bytes] = deque()
        self._lock = threading.Lock()
        self.error: ErrorInfo | None = None

    def fileno(self) -> int:
        """Return the descriptor to poll. It is readable when there is something new."""
        return self._waker.fileno()

    def end(self, error: ErrorInfo) -> None:
        """Ask for the run to end; the first reason counts."""
        with self._lock:
            if self.error is not None:
                return
            self.error = error
        self._waker.wake()

    def deliver(self, message: bytes) -> None:
        """Queue a message for the program, as JSON. One too many ends the run."""
        if len(self._messages) >= MAX_MESSAGES:
            self.end(too_many_messages().to_wire())
            return
        self._messages.append(message)
        self._waker.wake()

    def take(self) -> list[bytes]:
        """Return the messages that came since the last call."""
        self._waker.drain()
        return [self._messages.popleft() for _ in range(len(self._messages))]

    def close(self) -> None:
        """Stop reading; what comes later is dropped."""
        self._waker.close()
