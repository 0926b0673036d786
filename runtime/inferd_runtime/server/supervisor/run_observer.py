"""Who else hears of runs."""

from __future__ import annotations

from typing import Protocol

from inferd_runtime.server.supervisor.runs import Run


class RunObserver(Protocol):
    """Who hears of runs that begin and end. Neither call may raise or wait."""

    def launched(self, run: Run) -> None:
        """A run was launched, in the request that asked for it."""

    def ended(self, run: Run) -> None:
        """A run is over."""
