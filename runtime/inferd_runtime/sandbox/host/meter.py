"""What one run has used of its limits. Pure state: the caller brings the clocks."""

from __future__ import annotations

from collections.abc import Callable

from inferd.protocol import LimitExceeded
from inferd_runtime.sandbox.messages import Limits

RAISE_WITH = {
    "wall_s": "--limit-wall, or wall_s under [tool.inferd.limits]",
    "cpu_s": "--limit-cpu, or cpu_s under [tool.inferd.limits]",
    "memory_mb": "--limit-memory, or memory_mb under [tool.inferd.limits]",
    "output_bytes": "--limit-output, or output_bytes under [tool.inferd.limits]",
    "output_events": "--limit-events, or output_events under [tool.inferd.limits]",
}


def exceeded(limit: str, message: str, value: float) -> LimitExceeded:
    """Return the error for a limit of :class:`Limits`, by field name."""
    return LimitExceeded(message, limit=limit, value=value, raise_with=RAISE_WITH[limit])


class Meter:
    """Charges a run. ``wall`` and ``cpu`` are the clocks' readings in seconds when the program starts."""

    def __init__(self, limits: Limits, wall: float, cpu: float) -> None:
        self.limits = limits
        self.wall_start = wall
        self.cpu_start = cpu
        self.output = 0
        self.events = 0

    def check(self, wall: float, cpu: float) -> LimitExceeded | None:
        """Return the error of the limit that is exceeded at these readings, or None."""
        limits = self.limits
        if wall - self.wall_start >= limits.wall_s:
            return exceeded("wall_s", f"the run took more than {limits.wall_s:g} s", limits.wall_s)
        if cpu - self.cpu_start >= limits.cpu_s:
            return exceeded("cpu_s", f"the run used more than {limits.cpu_s:g} s of processor time", limits.cpu_s)
        return None

    def wall_left(self, wall: float) -> float:
        """Return the seconds until the run's time is up, not below 0."""
        return max(self.wall_start + self.limits.wall_s - wall, 0.0)

    def write(self, size: int) -> tuple[int, LimitExceeded | None]:
        """Charge ``size`` bytes that leave the run. Returns how many of them may, and the error if not all are."""
        allowed = min(size, self.limits.output_bytes - self.output)
        self.output += allowed
        if allowed == size:
            return allowed, None
        limit = self.limits.output_bytes
        return allowed, exceeded("output_bytes", f"the run wrote, sent or returned more than {limit} bytes", limit)

    def count_event(self) -> LimitExceeded | None:
        """Charge one event that leaves the run. Returns the error if it may not."""
        self.events += 1
        limit = self.limits.output_events
        if self.events <= limit:
            return None
        return exceeded("output_events", f"the run's output came in more than {limit} pieces", limit)


UNCHARGED_BYTES = 1 << 20
"""What the host may hold for a run beside its memory: every run needs some, and looking costs system calls."""
LOOK_BYTES = 256 << 10
"""How much more the host has to hold before the size of the linear memory is looked up again."""


class MemoryMeter:
    """Charges a run's ``memory_mb`` with what the host holds for it, beside its linear memory (``linear`` returns its bytes)."""

    def __init__(self, limits: Limits, linear: Callable[[], int]) -> None:
        self.peak_bytes = 0
        self.linear_bytes = linear
        self._limits = limits
        self._next_look = UNCHARGED_BYTES

    def check(self, held: int, look: bool = False) -> LimitExceeded | None:
        """Return the error of a run for which the host holds ``held`` bytes, None if it may.

        The linear memory is looked at when ``held`` has grown, and where ``look`` says so.
        """
        if held <= UNCHARGED_BYTES or (held <= self._next_look and not look):
            self._next_look = min(self._next_look, max(held, UNCHARGED_BYTES) + LOOK_BYTES)
            return None
        self._next_look = held + LOOK_BYTES
        total = held + self.linear_bytes()
        self.peak_bytes = max(self.peak_bytes, total)
        limit = self._limits.memory_mb
        if total <= limit << 20:
            return None
        held_mb = held / (1 << 20)
        text = (
            f"the program and what waits for it to be read or answered ({held_mb:.0f} MiB) take more than {limit} MiB"
        )
        return exceeded("memory_mb", text, limit)
