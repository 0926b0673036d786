"""When the gateway is told what a run has used: for runs whose use counts to another one's limits. Pure state."""

from __future__ import annotations

from inferd_runtime.sandbox.messages import Used

CPU_SECONDS = 0.1
MEMORY_MB = 8
OUTPUT_BYTES = 64 << 10
OUTPUT_EVENTS = 256
LOOK_SECONDS = 0.005
"""Processor time between two looks at the memory's size."""


class UseReports:
    """Says whether use has grown enough since it was told last."""

    def __init__(self, run: str) -> None:
        self.told = Used(run)
        self._looked_at = -1.0

    def looks(self, cpu_s: float) -> bool:
        """Return True if it is time to look at the memory's size again."""
        if cpu_s - self._looked_at < LOOK_SECONDS:
            return False
        self._looked_at = cpu_s
        return True

    def due(self, now: Used) -> bool:
        """Return True, and note it as told, if this differs enough from what was told last."""
        told = self.told
        grown = (
            now.cpu_s - told.cpu_s >= CPU_SECONDS
            or now.memory_mb - told.memory_mb >= MEMORY_MB
            or now.output_bytes - told.output_bytes >= OUTPUT_BYTES
            or now.output_events - told.output_events >= OUTPUT_EVENTS
        )
        if grown:
            self.told = now
        return grown
