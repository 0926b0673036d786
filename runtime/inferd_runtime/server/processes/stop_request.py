"""When a process that runs a loop of its own has to end."""

from __future__ import annotations

import os
import signal


class StopRequest:
    """Made in the main thread; from then on SIGTERM and SIGINT end the process by :attr:`received` alone."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._signals: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _frame: self._signals.append(received))

    @property
    def received(self) -> bool:
        """True once a signal has come or the parent has ended."""
        return bool(self._signals) or os.getppid() != self._parent
