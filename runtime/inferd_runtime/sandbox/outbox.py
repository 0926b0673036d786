"""What the worker's threads have to tell the gateway, handed to the one thread that owns the socket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from queue import Empty, SimpleQueue

from inferd_runtime.sandbox.messages import FromWorker, Output
from inferd_runtime.waker import Waker

MAX_MERGED = 256 << 10


class Outbox:
    """A queue of messages with a waker for the thread that takes them."""

    def __init__(self) -> None:
        self.waker = Waker()
        self._queue: SimpleQueue[FromWorker] = SimpleQueue()

    def put(self, message: FromWorker) -> None:
        """Queue a message, from any thread."""
        self._queue.put(message)
        self.waker.wake()

    def take(self) -> list[FromWorker]:
        """Return all that is queued, with adjacent pieces of one stream joined."""
        self.waker.drain()
        return list(merged(self._queued()))

    def _queued(self) -> Iterator[FromWorker]:
        while True:
            try:
                yield self._queue.get_nowait()
            except Empty:
                return


def merged(messages: Iterable[FromWorker]) -> Iterator[FromWorker]:
    """Yield the messages with adjacent pieces of one stream joined, so that many printed lines do not cost a frame each."""
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
