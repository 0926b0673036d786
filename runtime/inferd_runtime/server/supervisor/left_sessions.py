"""Sessions at the engine that runs have left: closed where their workers have not done that."""

from __future__ import annotations

import contextlib

import anyio
import anyio.abc

from inferd.protocol import Done, InferdError
from inferd_runtime.server.supervisor.engine_supervisor import EngineSupervisor
from inferd_runtime.session.wire import CloseNamedSessions

GATHER_SECONDS = 0.05
"""How long they are gathered before the engine is told: most are closed already."""


class LeftSessions:
    """Tells the engine to close them, many at a time."""

    def __init__(self, engine: EngineSupervisor, tasks: anyio.abc.TaskGroup) -> None:
        self._engine = engine
        self._tasks = tasks
        self._names: list[str] = []

    def add(self, name: str) -> None:
        """Have a session closed, soon: what holds it may have died, or kept it back."""
        if not self._names:
            self._tasks.start_soon(self._close)
        self._names.append(name)

    async def _close(self) -> None:
        await anyio.sleep(GATHER_SECONDS)
        names, self._names = self._names, []
        with contextlib.suppress(InferdError):  # an engine that is gone holds nothing; a refusal ends no other run
            await self._engine.call(CloseNamedSessions(names), Done)
