"""Measures what a handler takes of the event loop's time."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any


class Timed(Generator[Any, Any, Any]):
    """Awaits ``handled``; ``charge`` hears of the seconds that each stretch of it took between two waits, beyond the ``paid``
    ones that were charged before.
    """

    def __init__(self, handled: Awaitable[Any], charge: Callable[[float], None], paid: float) -> None:
        self._steps: Any = handled.__await__()
        self._charge = charge
        self._paid = paid

    def __await__(self) -> Timed:
        return self

    def send(self, value: Any) -> Any:
        """Go on with a value; see PEP 342."""
        return self._timed(self._steps.send, value)

    def throw(self, *error: Any) -> Any:
        """Go on with an exception; see PEP 342."""
        return self._timed(self._steps.throw, *error)

    def close(self) -> None:
        """End it; see PEP 342."""
        self._steps.close()

    def _timed(self, step: Callable[..., Any], *values: Any) -> Any:
        started = time.perf_counter()
        try:
            return step(*values)
        finally:
            took = time.perf_counter() - started
            if took > self._paid:
                self._charge(took - self._paid)
            self._paid = max(self._paid - took, 0.0)
