"""The interface of observers of runs, such as traces."""

from __future__ import annotations

from typing import Protocol

from inferd_runtime.server.supervisor.runs import Run


class RunObserver(Protocol):
    """Called when a run begins or ends. Neither call may raise or block."""

    def launched(self, run: Run) -> None:
        """A run was launched, in the request that asked for it."""

    def ended(self, run: Run) -> None:
        """A run is over."""
