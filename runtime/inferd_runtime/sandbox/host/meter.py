"""What one run has used of its limits. Pure state: the caller brings the clocks."""

from __future__ import annotations

from inferd.protocol import LimitExceeded
from inferd_runtime.sandbox.messages import Limits

RAISE_WITH = {
    "wall_s": "--limit-wall, or wall_s under [tool.inferd.limits]",
    "cpu_s": "--limit-cpu, or cpu_s under [tool.inferd.limits]",
    "memory_mb": "--limit-memory, or memory_mb under [tool.inferd.limits]",
    "output_bytes": "--limit-output, or output_bytes under [tool.inferd.limits]",
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
        return allowed, exceeded("output_bytes", f"the run wrote more than {limit} bytes", limit)
