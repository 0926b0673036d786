"""Connections that are kept for the next request. httpcore's own pool looks at each of them, and at all others for each, whenever
a request comes or ends: with 250 that is 36 ms of the front's loop.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import httpcore

SWEEP_SECONDS = 1.0


class KeptConnections:
    """Belongs to one event loop. ``seconds``: how long an unused connection stays open."""

    def __init__(self, seconds: float, backend: httpcore.AsyncNetworkBackend | None = None) -> None:
        self._seconds = seconds
        self._backend = backend
        self._idle: dict[tuple[bytes, int | None], deque[httpcore.AsyncHTTPConnection]] = {}
        self._sweep_at = 0.0

    @asynccontextmanager
    async def stream(self, request: httpcore.Request) -> AsyncIterator[httpcore.Response]:
        """Send a request, and yield the answer once its head is there. Raises what httpcore raises."""
        place = request.url.host, request.url.port
        connection = await self._usable(place, request.url.origin)
        try:
            answer = await connection.handle_async_request(request)
            try:
                yield answer
            finally:
                with anyio.CancelScope(shield=True):
                    await answer.aclose()
        finally:
            await self._keep(place, connection)

    async def _usable(self, place: tuple[bytes, int | None], origin: httpcore.Origin) -> httpcore.AsyncHTTPConnection:
        """Return the connection that was used last and is open still, or a new one."""
        kept = self._idle.get(place)
        while kept:
            connection = kept.pop()
            if not connection.has_expired():
                return connection
            await _close(connection)
        return httpcore.AsyncHTTPConnection(origin, keepalive_expiry=self._seconds, network_backend=self._backend)

    async def _keep(self, place: tuple[bytes, int | None], connection: httpcore.AsyncHTTPConnection) -> None:
        if connection.is_idle() and not connection.is_closed():
            self._idle.setdefault(place, deque()).append(connection)
        else:
            await _close(connection)
        if time.monotonic() >= self._sweep_at:
            await self._sweep()

    async def _sweep(self) -> None:
        """Close those that were unused for too long, also where nothing is asked any more: the oldest are first."""
        self._sweep_at = time.monotonic() + SWEEP_SECONDS
        for place, kept in list(self._idle.items()):
            while kept and kept[0].has_expired():
                await _close(kept.popleft())
            if not kept and self._idle.get(place) is kept:
                del self._idle[place]

    async def close(self) -> None:
        """Close all that are unused."""
        for kept in self._idle.values():
            while kept:
                await _close(kept.pop())


async def _close(connection: httpcore.AsyncHTTPConnection) -> None:
    with anyio.CancelScope(shield=True):
        await connection.aclose()
