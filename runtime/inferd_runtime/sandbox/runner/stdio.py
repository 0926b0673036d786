"""``sys.stdout`` and ``sys.stderr`` on the host's ``log``: WASI's own streams drop what does not fit their buffer.

``sys.stdin`` is the launcher's messages, a line for each.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import sys
from collections.abc import Callable
from typing import Any

from inferd_runtime.sandbox.runner.completions import Host

BUFFER_BYTES = 8 << 10
CHUNK_BYTES = 64 << 10


class LogWriter(io.RawIOBase):
    """A raw stream of UTF-8 that hands what it gets to the host, in pieces of at most ``CHUNK_BYTES``."""

    def __init__(self, host: Host, target: str) -> None:
        self._host = host
        self._target = target
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Hand out all of ``data``; a character cut in two by the buffer goes with its second half."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), CHUNK_BYTES):
            text = self._decoder.decode(view[start : start + CHUNK_BYTES])
            if text:
                self._host.log(self._target, text)
        return len(view)


class LogStream(io.TextIOWrapper):
    """A text stream as Python makes for a terminal: handed out at each line end, and when 8 KiB are full."""

    def __init__(self, host: Host, target: str) -> None:
        raw = io.BufferedWriter(LogWriter(host, target), BUFFER_BYTES)
        super().__init__(raw, encoding="utf-8", errors="backslashreplace", newline="\n", line_buffering=True)
        self.written = False

    def write(self, text: str, /) -> int:
        """Write text."""
        self.written = True
        return super().write(text)


class MessageReader(io.RawIOBase):
    """A raw stream of UTF-8 that has a line for each message; ``receive`` raises EOFError where there are no more."""

    def __init__(self, receive: Callable[[], str]) -> None:
        self._receive = receive
        self._unread = b""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` with what is left of a message, or wait for the next one; 0 at the end."""
        if not self._unread:
            with contextlib.suppress(EOFError):
                self._unread = f"{self._receive()}\n".encode()
        piece = self._unread[: len(buffer)]
        buffer[: len(piece)] = piece
        self._unread = self._unread[len(piece) :]
        return len(piece)


class Streams:
    """The program's streams."""

    def __init__(self, host: Host) -> None:
        self.stdout = LogStream(host, "stdout")
        self.stderr = LogStream(host, "stderr")

    def install(self, receive: Callable[[], str]) -> None:
        """Put them in the place of WASI's; what stdin reads is what ``receive`` returns."""
        stdin = io.TextIOWrapper(io.BufferedReader(MessageReader(receive)), encoding="utf-8")
        sys.stdin = sys.__stdin__ = stdin  # type: ignore[misc]
        sys.stdout = sys.__stdout__ = self.stdout  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = self.stderr  # type: ignore[misc]

    def flush(self) -> None:
        """Hand out what was written to them; cheap if nothing was."""
        for stream in (self.stdout, self.stderr):
            if stream.written and not stream.closed:
                stream.written = False
                stream.flush()

    def close(self) -> None:
        """Hand out everything, what the program has put in the streams' place included."""
        for stream in (sys.stdout, sys.stderr, self.stdout.buffer, self.stderr.buffer):
            with contextlib.suppress(AttributeError, ValueError, OSError):
                stream.flush()
