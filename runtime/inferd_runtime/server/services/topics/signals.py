"""Waiting for something to change."""

from __future__ import annotations

import anyio


class Signal:
    """Wakes all who wait for it at a moment."""

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    def wake(self) -> None:
        """Have all who wait look again."""
        event, self._event = self._event, None
        if event is not None:
            event.set()

    async def wait(self) -> None:
        """Wait until the next :meth:`wake`."""
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()
