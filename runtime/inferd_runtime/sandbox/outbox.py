"""What the worker's threads have to tell the gateway, handed to the one thread that owns the socket."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from queue import Empty, SimpleQueue

from inferd_runtime.sandbox.messages import FromWorker, Output

MAX_MERGED = 256 << 10


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
        """Make the pipe readable."""
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


class Outbox:
    """A queue of messages with a pipe that says when there are some."""

    def __init__(self) -> None:
        self.pipe = WakePipe()
        self._queue: SimpleQueue[FromWorker] = SimpleQueue()

    def put(self, message: FromWorker) -> None:
        """Queue a message, from any thread."""
        self._queue.put(message)
        self.pipe.wake()

    def take(self) -> list[FromWorker]:
        """All that is queued, with pieces of one stream that follow each other made one message."""
        self.pipe.drain()
        return list(merged(self._queued()))

    def _queued(self) -> Iterator[FromWorker]:
        while True:
            try:
                yield self._queue.get_nowait()
            except Empty:
                return


def merged(messages: Iterable[FromWorker]) -> Iterator[FromWorker]:
    """The same messages with fewer pieces of output: a program that prints a lot of lines is not to cost a frame for each."""
    held: list[Output] = []
    size = 0
    for message in messages:
        fits = isinstance(message, Output) and size + len(message.text) <= MAX_MERGED
        if held and not (fits and _same_stream(held[0], message)):
            yield _joined(held)
            held, size = [], 0
        if isinstance(message, Output):
            held.append(message)
            size += len(message.text)
        else:
            yield message
    if held:
        yield _joined(held)


def _same_stream(output: Output, other: FromWorker) -> bool:
    return isinstance(other, Output) and (output.run, output.stream) == (other.run, other.stream)


def _joined(pieces: list[Output]) -> Output:
    return Output(pieces[0].run, pieces[0].stream, "".join(piece.text for piece in pieces))
