"""Sessions at the engine that the gateway opens for a tenant's requests."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from inferd.protocol import Unavailable
from inferd_runtime.server.supervisor.engine_session import EngineChannel, EngineSession, opening_channel
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


@dataclass(frozen=True)
class TenantChannel:
    """A channel to ``engine`` whose session is opened."""

    engine: StartedEngine
    channel: EngineChannel

    @contextmanager
    def reading(self) -> Iterator[EngineSession]:
        """Answer calls while the block runs; without the engine they end with Unavailable."""
        session = EngineSession(self.channel)
        self.engine.others.add(session)
        if self.engine.lost.is_set():
            session.lose(Unavailable("the engine process ended", process="engine"))
        try:
            with session.listening():
                yield session
        finally:
            self.engine.others.discard(session)
            session.lose(Unavailable("the session was closed"))  # calls that a program left behind end, too


class TenantSessions:
    """Opens sessions at the engine that runs now."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @asynccontextmanager
    async def open(self, tenant: str, request: object = None) -> AsyncIterator[EngineCalls]:
        """Open a session for the block; it counts as one of the tenant's sockets, and waits for its turn to be one. ``request``:
        what is held meanwhile. Raises Unavailable, and LimitExceeded.
        """
        place = self._runtime.use.socket_in_turn(tenant, self._runtime.settings.limits.wall_s, request)
        async with place, self.channel(tenant) as opened:
            with opened.reading() as session:
                yield EngineCalls(session)

    @asynccontextmanager
    async def channel(self, tenant: str) -> AsyncIterator[TenantChannel]:
        """Open a session for the block, and close it at its end. Raises Unavailable without an engine.

        The engine's answer to the opening is not waited for: an error in it is raised by the first call.
        """
        name = LABEL + secrets.token_hex(8)
        supervisor, engine = self._runtime.engine, self._runtime.engine.current
        grant = supervisor.grants.issue(name, tenant)
        opening = opening_channel(self._runtime.context, supervisor.endpoint, grant, name, engine.lost, engine.idle)
        async with opening as channel:
            yield TenantChannel(engine, channel)
