"""What other threads have to say to a run's thread."""

from __future__ import annotations

import threading
from collections import deque

from inferd.protocol import ErrorInfo, LimitExceeded
from inferd_runtime.sandbox.messages import Answered
from inferd_runtime.waker import Waker

MAX_MESSAGES = 1024
"""Messages that may wait for a program."""
MAX_MESSAGE_BYTES = 16 << 20
"""Bytes of messages that may wait for a program to look: those that it has not read are charged to its memory."""


def too_many_messages() -> LimitExceeded:
    """Return the error of a program that does not read its messages."""
    text = f"{MAX_MESSAGES} messages wait for the program already"
    return LimitExceeded(text, limit="messages", value=MAX_MESSAGES, raise_with="a program that receives them faster")


def too_large_messages() -> LimitExceeded:
    """Return the error of a program for which more than ``MAX_MESSAGE_BYTES`` of messages wait."""
    text = f"more than {MAX_MESSAGE_BYTES} bytes of messages wait for the program"
    return LimitExceeded(
        text, limit="message_bytes", value=MAX_MESSAGE_BYTES, raise_with="a program that receives them faster"
    )


class Inbox:
    """A run's messages, the gateway's answers and receipts, and the reason to end it. Any thread may write; the run's thread
    reads, polls, and closes it. There are no more answers than the run has asked for.
    """

    def __init__(self) -> None:
        self._waker = Waker()
        self._messages: deque[bytes] = deque()
        self._answers: list[Answered] = []
        self._bytes = 0
        self._taken = 0
        self._lock = threading.Lock()
        self.error: ErrorInfo | None = None
        self.reports_use = False
        """Whether the gateway wants to hear what the run uses."""

    def fileno(self) -> int:
        """Return the descriptor to poll. It is readable when there is something new."""
        return self._waker.fileno()

    def wait(self, seconds: float) -> None:
        """Sleep until there is something new, at most ``seconds``."""
        self._waker.wait(seconds)

    def end(self, error: ErrorInfo) -> None:
        """Ask for the run to end; the first reason counts."""
        with self._lock:
            if self.error is not None:
                return
            self.error = error
        self._waker.wake()

    def deliver(self, message: bytes) -> None:
        """Queue a message for the program, as JSON. One too many, or too much, ends the run."""
        with self._lock:
            if len(self._messages) >= MAX_MESSAGES:
                refusal = too_many_messages()
            elif self._bytes + len(message) > MAX_MESSAGE_BYTES:
                refusal = too_large_messages()
            else:
                refusal = None
                self._messages.append(message)
                self._bytes += len(message)
        if refusal is not None:
            self.end(refusal.to_wire())
        self._waker.wake()

    def answer(self, answer: Answered) -> None:
        """Queue the gateway's answer to an operation."""
        with self._lock:
            self._answers.append(answer)
        self._waker.wake()

    def note_taken(self, events: int) -> None:
        """Note that the gateway has handled so many more of the run's events."""
        with self._lock:
            self._taken += events
        self._waker.wake()

    def take(self) -> list[bytes]:
        """Return the messages that came since the last call."""
        self._waker.drain()
        with self._lock:
            messages = list(self._messages)
            self._messages.clear()
            self._bytes = 0
        return messages

    def take_answers(self) -> list[Answered]:
        """Return the gateway's answers that came since the last call."""
        with self._lock:
            answers, self._answers = self._answers, []
        return answers

    def take_receipts(self) -> int:
        """Return how many events the gateway has handled since the last call."""
        with self._lock:
            taken, self._taken = self._taken, 0
        return taken

    def close(self) -> None:
        """Stop reading; what comes later is dropped."""
        self._waker.close()
