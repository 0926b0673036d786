"""Sessions at the engine that the gateway opens for a tenant's requests."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from inferd.protocol import Unavailable
from inferd_runtime.server.processes.background import background_tasks
from inferd_runtime.server.supervisor.engine_session import EngineChannel, EngineSession, engine_channel
from inferd_runtime.server.supervisor.engine_supervisor import StartedEngine
from inferd_runtime.server.supervisor.runtime import Runtime

LABEL = "chat/"


class EngineCalls:
    """A :class:`~inferd.transport.Transport` over a session that the gateway has opened."""

    def __init__(self, session: EngineSession) -> None:
        self._session = session

    async def call(self, request: Any) -> Any:
        """Send a request, and return its reply. Raises what the engine answers."""
        return await self._session.call(request, type(request).reply)


class TenantSessions:
    """Opens sessions at the engine that runs now."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @asynccontextmanager
    async def open(self, tenant: str) -> AsyncIterator[EngineCalls]:
        """Open a session for the block; it counts as one of the tenant's sockets. Raises Unavailable, and LimitExceeded."""
        with self._runtime.use.socket(tenant):
            async with self.channel(tenant) as channel, self.reading(channel) as session:
                yield EngineCalls(session)

    def channel(self, tenant: str) -> AbstractAsyncContextManager[EngineChannel]:
        """Return a channel whose session is opened and closed with its block. Raises Unavailable without an engine."""
        name = LABEL + secrets.token_hex(8)
        engine = self._runtime.engine
        grant = engine.grants.issue(name, tenant)
        return engine_channel(self._runtime.context, engine.endpoint, grant, name, engine.current.lost)

    @asynccontextmanager
    async def reading(self, channel: EngineChannel) -> AsyncIterator[EngineSession]:
        """Answer calls over an open channel while the block runs; without the engine they end with Unavailable."""
        session = EngineSession(channel)
        async with background_tasks() as tasks:
            tasks.start_soon(session.read)
            tasks.start_soon(_watch, self._runtime.engine.current, session)
            try:
                yield session
            finally:
                session.lose(Unavailable("the session was closed"))  # calls that a program left behind end, too


async def _watch(engine: StartedEngine, session: EngineSession) -> None:
    await engine.lost.wait()
    session.lose(Unavailable("the engine process ended", process="engine"))
