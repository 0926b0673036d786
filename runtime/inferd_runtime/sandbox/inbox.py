"""What other threads have to say to a run's thread."""

from __future__ import annotations

import os
import threading
from collections import deque

from inferd.protocol import ErrorInfo, LimitExceeded

MAX_MESSAGES = 1024
"""How many messages may wait for a program."""


def too_many_messages() -> LimitExceeded:
    """The error of a program that does not read its messages."""
    text = f"{MAX_MESSAGES} messages wait for the program already"
    return LimitExceeded(text, limit="messages", value=MAX_MESSAGES, raise_with="a program that receives them faster")


class WakePipe:
    """Something to poll that any thread can wake; wake-ups that are not yet noticed count once."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self._lock = threading.Lock()
        self._woken = False

    def fileno(self) -> int:
        """The end to poll."""
        return self._read

    def wake(self) -> None:
        """Make the pipe readable. After :meth:`close` nothing happens."""
        with self._lock:
            if not self._woken:
                os.write(self._write, b"!")
                self._woken = True

    def drain(self) -> None:
        """Make the pipe unreadable until the next wake-up. What was queued before a wake-up is to be read after this."""
        if self._woken:
            with self._lock:
                os.read(self._read, 1)
                self._woken = False

    def close(self) -> None:
        """Close both ends."""
        with self._lock:
            self._woken = True
            os.close(self._read)
            os.close(self._write)


class Inbox:
    """A run's messages and the reason to end it. Any thread may write; the run's thread reads, polls, and closes it."""

    def __init__(self) -> None:
        self._pipe = WakePipe()
        self._mail: deque[bytes] = deque()
        self._lock = threading.Lock()
        self.error: ErrorInfo | None = None

    def fileno(self) -> int:
        """Readable when there is something new."""
        return self._pipe.fileno()

    def end(self, error: ErrorInfo) -> None:
        """The run has to end; the first reason counts."""
        with self._lock:
            if self.error is not None:
                return
            self.error = error
        self._pipe.wake()

    def deliver(self, message: bytes) -> None:
        """A message for the program, as JSON. One too many ends the run."""
        if len(self._mail) >= MAX_MESSAGES:
            self.end(too_many_messages().to_wire())
            return
        self._mail.append(message)
        self._pipe.wake()

    def take(self) -> list[bytes]:
        """The messages that came since the last call."""
        self._pipe.drain()
        return [self._mail.popleft() for _ in range(len(self._mail))]

    def close(self) -> None:
        """Nobody reads any more; what comes later is dropped."""
        self._pipe.close()
