"""When a process that runs a loop of its own has to end."""

from __future__ import annotations

import os
import signal


class StopRequest:
    """Made in the main thread; from then on SIGTERM and SIGINT end the process by :attr:`received` alone."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._signals: list[int] = []
        self._read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)  # else a poll would go on after the signal
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _frame: self._signals.append(received))

    def fileno(self) -> int:
        """Return the descriptor that is readable from a signal on."""
        return self._read

    @property
    def received(self) -> bool:
        """True once a signal has come or the parent has ended."""
        return bool(self._signals) or os.getppid() != self._parent
