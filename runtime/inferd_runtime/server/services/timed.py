"""Measures what a handler takes of the event loop's time."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from inferd_runtime.server.services.pace import OPERATION_SECONDS


class Timed(Generator[Any, Any, Any]):
    """Awaits ``handled``; ``charge`` hears of the seconds that each stretch of it took between two waits."""

    def __init__(self, handled: Awaitable[Any], charge: Callable[[float], None]) -> None:
        self._steps: Any = handled.__await__()
        self._charge = charge
        self._before = OPERATION_SECONDS

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
            self._charge(self._before + time.perf_counter() - started)
            self._before = 0.0
