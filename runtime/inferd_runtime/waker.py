"""Wakes a thread that polls file descriptors, from any other thread."""

from __future__ import annotations

import os
import select
import threading


class Waker:
    """A pollable flag. It is a pipe that holds one byte at most, so that neither end ever blocks; children do not inherit it."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self._lock = threading.Lock()
        self._woken = False
        self._closed = False

    def fileno(self) -> int:
        """Return the descriptor to poll. It is readable from :meth:`wake` to :meth:`drain`."""
        return self._read

    def wake(self) -> None:
        """Make the descriptor readable. Does nothing where it is readable already, and after :meth:`close`."""
        with self._lock:
            if not (self._woken or self._closed):
                os.write(self._write, b"!")
                self._woken = True

    def drain(self) -> None:
        """Make the descriptor unreadable. Call it before taking what was queued, or a wake-up in between is lost."""
        with self._lock:
            if self._woken and not self._closed:
                os.read(self._read, 1)
                self._woken = False

    def wait(self, seconds: float) -> bool:
        """Wait until the descriptor is readable. False when the time is up."""
        poller = select.poll()
        poller.register(self._read, select.POLLIN)
        return bool(poller.poll(max(seconds, 0.0) * 1e3))

    def close(self) -> None:
        """Close both ends, once."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._read)
                os.close(self._write)
