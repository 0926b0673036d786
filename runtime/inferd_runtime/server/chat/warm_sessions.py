"""Conversations that stay in the cache between their requests: the engine sessions that clients named with ``X-Session-Id``."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import anyio
import zmq

from inferd.protocol import InferdError
from inferd_runtime.server.processes.background import background_tasks

KEPT_SECONDS = 300.0
MOST_OF_TENANT = 16
MOST = 256
TICK_SECONDS = 5.0
Key = tuple[str, str]
log = logging.getLogger("inferd.gateway")


@dataclass(frozen=True)
class KeptSession:
    """An open session, closed with ``held``, at the latest at ``until`` (by the table's clock)."""

    held: AsyncExitStack
    until: float


class WarmSessions:
    """Sessions by tenant and name, one of a name; the least recently used leave first. Their pages are charged to their tenants,
    and leave the cache under pressure like those of any other context.
    """

    def __init__(self) -> None:
        self._kept: dict[Key, KeptSession] = {}

    def __len__(self) -> int:
        return len(self._kept)

    async def keep(self, tenant: str, name: str, held: AsyncExitStack) -> None:
        """Take over an open session; the one before of that name is closed, and those that there is no room for."""
        leaving = [self._kept.pop((tenant, name), None)]
        self._kept[tenant, name] = KeptSession(held, time.monotonic() + KEPT_SECONDS)
        own = [key for key in self._kept if key[0] == tenant]
        leaving += [self._kept.pop(key) for key in own[: max(0, len(own) - MOST_OF_TENANT)]]
        leaving += [self._kept.pop(key) for key in list(self._kept)[: max(0, len(self._kept) - MOST)]]
        with anyio.CancelScope(shield=True):
            for session in leaving:
                if session is not None:
                    await _close(session)

    async def close_old(self) -> None:
        """Close the sessions whose time is over."""
        now = time.monotonic()
        for key in [key for key, session in self._kept.items() if session.until <= now]:
            await _close(self._kept.pop(key))

    async def close(self) -> None:
        """Close all."""
        while self._kept:
            await _close(self._kept.popitem()[1])


async def _close(session: KeptSession) -> None:
    """Close a session. What goes wrong with one, as when its engine ends now, is nothing to the others."""
    try:
        await session.held.aclose()
    except (InferdError, zmq.ZMQError) as error:
        log.info("a kept session could not be closed: %s", error)


@asynccontextmanager
async def warm_sessions() -> AsyncIterator[WarmSessions]:
    """Open a table that closes its sessions in time, and all of them at the end."""
    sessions = WarmSessions()

    async def close_in_time() -> None:
        while True:
            await anyio.sleep(TICK_SECONDS)
            await sessions.close_old()

    async with background_tasks() as tasks:
        tasks.start_soon(close_in_time)
        try:
            yield sessions
        finally:
            with anyio.CancelScope(shield=True):
                await sessions.close()
