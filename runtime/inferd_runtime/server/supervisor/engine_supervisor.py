"""Keeps one engine process alive: starts it, waits until it answers, says when it is lost, starts it again."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
import zmq

from inferd.protocol import InferdError, ListModels, Models, Unavailable
from inferd_runtime.change_signal import ChangeSignal
from inferd_runtime.isolation.order import Launch
from inferd_runtime.launch_marks import forget_marks
from inferd_runtime.server.processes.backoff import Backoff
from inferd_runtime.server.processes.child_process import ChildProcess
from inferd_runtime.server.processes.child_protocol import printed_error
from inferd_runtime.server.processes.rundir import let_children_connect
from inferd_runtime.server.supervisor.engine_session import EngineChannel, EngineSession, engine_channel
from inferd_runtime.session.grants import SessionGrants, new_key

T = TypeVar("T")
OWN_TENANT = "inferd"
OWN_LABEL = "gateway"
STOP_SECONDS = 5.0
LOOK_SECONDS = 10.0
"""How often it is looked whether an engine has answered a question that it answers between two steps."""
SILENT, HANGING = 4, 90
"""Looks at one question without an answer, behind which an engine counts as not ready, and is killed: a step of a large model may
take minutes. Looks are counted and not time, so that a machine, or a server, that stood still does not end its engine.
"""
log = logging.getLogger("inferd.runtime")


@dataclass(frozen=True)
class StartedEngine:
    """One engine process that answers; ``models`` are what it serves, ``session`` is the gateway's own. ``others``: sessions that
    it opens for requests, which are lost with it; ``idle``: channels for the next of them.
    """

    child: ChildProcess
    session: EngineSession
    models: Models
    others: set[EngineSession] = field(default_factory=set)
    idle: list[EngineChannel] = field(default_factory=list)

    @property
    def lost(self) -> anyio.Event:
        """Set when the process has ended."""
        return self.child.exited

    def close_idle(self) -> None:
        """Close the channels that nobody uses."""
        while self.idle:
            self.idle.pop().close()


class EngineSupervisor:
    """``launch`` says how to start an engine, from its endpoint and key; ``on_lost`` is called for every engine that ended.

    The key is new with this object. :attr:`grants` makes with it what a session is opened with.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        endpoint: str,
        launch: Callable[[str, str], Launch],
        on_lost: Callable[[Unavailable], None],
        start_seconds: float,
    ) -> None:
        self.endpoint = endpoint
        self.restarts = 0
        self._context = context
        key = new_key()
        self.grants = SessionGrants(key)
        self._start = launch(endpoint, key.hex())
        self._on_lost = on_lost
        self._start_seconds = start_seconds
        self._numbers = itertools.count(1)
        self._up: StartedEngine | None = None
        self._failure: Unavailable | None = None
        self._start_error: InferdError | None = None
        self._silent = 0
        self._changed = ChangeSignal()

    @property
    def current(self) -> StartedEngine:
        """The engine that answers now. Raises Unavailable with the last failure while there is none."""
        if self._up is None:
            failure = self._failure or Unavailable("the engine is starting", process="engine")
            raise Unavailable(failure.message, **failure.detail)
        return self._up

    @property
    def pid(self) -> int | None:
        """Process id of the engine, while it is up."""
        return None if self._up is None else self._up.child.pid

    @property
    def answers(self) -> bool:
        """Whether there is an engine that has answered lately."""
        return self._up is not None and self._silent < SILENT

    async def supervise(self) -> None:
        """Run engines one after another, for ever. Cancel it to end the engine and itself."""
        backoff = Backoff()
        while True:
            uptime = await self._run_engine()
            self.restarts += 1
            await anyio.sleep(backoff.next(uptime))

    async def wait_up(self) -> StartedEngine:
        """Wait until an engine answers. Raises the error that it ended with if it dies before that, or Unavailable with
        what it printed.
        """
        while self._up is None:
            if self._start_error is not None:
                raise self._start_error
            await self._changed.wait()
        return self._up

    async def wait_answers(self, seconds: float) -> None:
        """Wait until an engine answers, at most ``seconds``, through any number of failed starts."""
        with anyio.move_on_after(seconds):
            while self._up is None:
                await self._changed.wait()

    async def call(self, request: Any, reply_type: type[T]) -> T:
        """Send one call on the gateway's own session. Raises Unavailable while no engine answers."""
        return await self.current.session.call(request, reply_type)

    async def _run_engine(self) -> float:
        """Start an engine and watch it until it ends; returns how many seconds that took."""
        started, by_itself = anyio.current_time(), False
        try:
            child = await ChildProcess.start("engine", self._start)
        except OSError as error:
            self._engine_ended(f"the engine cannot be started: {error}", None, "")
            return 0.0
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._serve, child)
                ending = await child.wait()
                by_itself = True
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await child.stop(STOP_SECONDS if self._up is not None else 0)  # one that still loads does not listen
            if not by_itself:
                forget_marks(child.pid)
        self._engine_ended(f"the engine {ending}", child.pid, child.tail)
        return anyio.current_time() - started

    async def _serve(self, child: ChildProcess) -> None:
        """Open the gateway's own session, announce the engine, and read replies until the engine ends, or hangs."""
        grant = self.grants.issue(f"{OWN_LABEL}/{next(self._numbers)}", OWN_TENANT, gateway=True)
        try:
            with anyio.fail_after(self._start_seconds) as starting:
                async with engine_channel(self._context, self.endpoint, grant, OWN_LABEL, child.exited) as channel:
                    let_children_connect(self.endpoint)
                    session = EngineSession(channel)
                    with session.listening():
                        models = await session.call(ListModels(), Models)
                        starting.deadline = math.inf
                        up = StartedEngine(child, session, models)
                        self._announce(up)
                        try:
                            await self._watch(up)
                        finally:
                            up.close_idle()
        except TimeoutError:
            log.error("the engine did not answer within %g s", self._start_seconds)
            child.kill()
        except InferdError as error:  # it answered wrongly, or ended before it could
            log.error("the engine did not come up: %s", error.message)
            child.kill()

    async def _watch(self, up: StartedEngine) -> None:
        """Kill an engine that hangs: all that waits for it would wait for ever."""
        while True:
            await anyio.sleep(LOOK_SECONDS)
            async with anyio.create_task_group() as looking:
                looking.start_soon(self._count_looks, up.child)
                with contextlib.suppress(InferdError):  # an answer as well, unless it has just ended
                    await up.session.call(ListModels(), Models)
                looking.cancel_scope.cancel()
            self._silent = 0

    async def _count_looks(self, child: ChildProcess) -> None:
        """Count them while a question is open."""
        while self._silent < HANGING:
            await anyio.sleep(LOOK_SECONDS)
            self._silent += 1
            if self._silent == SILENT:
                log.error("engine %d does not answer", child.pid)
        log.error("engine %d has not answered in %g s, and is killed", child.pid, HANGING * LOOK_SECONDS)
        child.kill()

    def _announce(self, up: StartedEngine) -> None:
        self._up = up
        self._silent = 0
        self._failure = None
        self._changed.wake()
        log.info("engine %d serves %s", up.child.pid, ", ".join(model.name for model in up.models.models))

    def _engine_ended(self, message: str, pid: int | None, printed: str) -> None:
        """End all that waits for the engine, which ended. What it printed may be about other tenants' work."""
        level = logging.WARNING if self._up is None else logging.ERROR  # whoever waits for the start gets it anyway
        log.log(level, "%s\n%s", message, printed)
        error = Unavailable(message, process="engine", pid=pid)
        self._start_error = printed_error(printed) or Unavailable(
            f"{message}\n{printed}".strip(), process="engine", pid=pid
        )
        up, self._up, self._failure = self._up, None, error
        if up is not None:
            for session in (up.session, *up.others):
                session.lose(error)
        self._on_lost(error)
        self._changed.wake()
