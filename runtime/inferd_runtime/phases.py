"""How long each phase of a start took."""

from __future__ import annotations

import time
from collections.abc import Callable


class Phases:
    """Seconds by the clock, and of this process's time on a processor, of phases that follow each other.

    The first begins when the process does, as far as its processor time is concerned.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, processor: Callable[[], float] = time.process_time
    ) -> None:
        self._clock = clock
        self._processor = processor
        self._wall, self._cpu = clock(), 0.0
        self._parts: list[str] = []

    def end(self, phase: str) -> None:
        """Note that a phase is over, and that the next one begins."""
        wall, cpu = self._clock(), self._processor()
        self._parts.append(f"{phase} {wall - self._wall:.2f} ({cpu - self._cpu:.2f})")
        self._wall, self._cpu = wall, cpu

    def __str__(self) -> str:
        """Return all phases, in seconds by the clock (and on a processor)."""
        return f"{', '.join(self._parts)} s (on a processor)"
