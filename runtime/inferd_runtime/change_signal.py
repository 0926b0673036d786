"""Waiting for something to change."""

from __future__ import annotations

import anyio


class ChangeSignal:
    """Wakes all tasks that wait for a change. Belongs to one event loop."""

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    def wake(self) -> None:
        """Wake all tasks that wait now."""
        event, self._event = self._event, None
        if event is not None:
            event.set()

    async def wait(self) -> None:
        """Wait until the next :meth:`wake`. The caller checks its condition before and after, with no other wait in between."""
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()
