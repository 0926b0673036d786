"""The built-in chat program, run in the gateway's own process over an engine session: the same program, without a sandbox."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import anyio

from inferd.chat import ChatEvent, ChatRequest, UsageReport
from inferd.protocol import (
    ChatFormat,
    CloseGenerate,
    ContextState,
    Done,
    GetChatFormat,
    InferdError,
    InternalError,
    InvalidRequest,
    LimitExceeded,
    NextSteps,
    ReceiveMessage,
    ReleaseContext,
    SendMessage,
    Step,
    Steps,
    TokenLogprobs,
)
from inferd.transport import transport_in_force
from inferd_runtime.server.chat.answer_pace import (
    EVENT_SECONDS,
    TURN_SECONDS,
    AnswerPace,
    Turn,
    seconds_of,
    seconds_of_entries,
)
from inferd_runtime.server.chat.program_events import EventReader
from inferd_runtime.server.chat.tenant_sessions import TenantSessions
from inferd_runtime.server.chat.warm_sessions import WarmSessions
from inferd_runtime.server.processes.background import background_tasks
from inferd_runtime.server.supervisor.engine_session import EngineSession
from inferd_runtime.server.supervisor.engine_supervisor import StartedEngine
from inferd_runtime.server.supervisor.runtime import Runtime

QUEUED_MESSAGES = 16
"""What a client that reads slowly leaves waiting; then the program waits, and the engine with its generation."""
UNKNOWN = ContextState(0, 0, 0)
"""The state of no context: what the runtime answers where there is none."""
ChatMain = Callable[[ChatRequest], Awaitable[Any]]
Item = list[ChatEvent] | InferdError | None
"""Events, an error, or the end."""
Written = asyncio.Queue[Item]
Formats = Awaitable[ChatFormat]
log = logging.getLogger("inferd.gateway")


class ChatFormats:
    """What the models' chat templates know, which each engine process is asked for once."""

    def __init__(self) -> None:
        self._engine: StartedEngine | None = None
        self._known: dict[str, ChatFormat] = {}

    async def get(self, request: GetChatFormat, engine: StartedEngine, session: EngineSession) -> ChatFormat:
        """Return what ``engine`` answers, which ``session`` belongs to. Raises what it answers."""
        if engine is not self._engine:
            self._engine, self._known = engine, {}
        known = self._known
        if request.model not in known:
            known[request.model] = await session.call(request, ChatFormat)
        return known[request.model]


class ProgramTransport:
    """Carries the requests of a program in this process to its engine session, and its messages to the reader of ``written``."""

    def __init__(
        self,
        session: EngineSession,
        reader: EventReader,
        written: Written,
        formats: Callable[[GetChatFormat], Formats],
        turn: Turn,
    ) -> None:
        self._turn = turn
        self._paid = 0.0
        self._left: dict[int, Steps] = {}
        """By generation the steps that the program has not been given yet."""
        self.reader = reader
        self._session = session
        self._written = written
        self._formats = formats

    async def call(self, request: Any) -> Any:
        """Send a request, and return its reply; see :class:`inferd.transport.Transport`."""
        if isinstance(request, SendMessage):
            return await self._send(self.reader.read(request.message))
        if isinstance(request, ReceiveMessage):
            raise InvalidRequest("a chat request has nobody who sends messages")
        if isinstance(request, GetChatFormat):
            return await self._formats(request)
        if isinstance(request, ReleaseContext):
            return Done()  # released with the session, which ends now, or is kept for the next request
        if isinstance(request, NextSteps):
            return await self._next_steps(request)
        if isinstance(request, CloseGenerate):
            self._left.pop(request.generation, None)
            await self._session.post(request)
            return UNKNOWN  # the context is not used again: nobody waits for what becomes of it
        reply = await self._session.call(request, type(request).reply)
        if isinstance(reply, TokenLogprobs):  # of which the program makes events a few at a time
            await self._pay(min(seconds_of_entries(reply.tokens), TURN_SECONDS))
        return reply

    async def _send(self, events: list[ChatEvent]) -> Done:
        """Hand events to the reader, then charge the time that making them took beyond what was charged with the reply.

        Events with log-probabilities wait until they are read, so that at most one message of them is held.
        """
        if events:
            await self._written.put(events)
        if any(getattr(event, "scores", ()) for event in events):
            await self._written.join()
        seconds = sum(map(seconds_of, events))
        unpaid, self._paid = seconds - self._paid, max(self._paid - seconds, 0.0)
        if unpaid > 0:
            await self._turn(unpaid)
        return Done()

    async def _pay(self, seconds: float) -> None:
        """Wait until the program may make events for so long."""
        self._paid += seconds
        await self._turn(seconds)

    async def _next_steps(self, request: NextSteps) -> Steps:
        """Return the next steps of a generation, and of many that have come together a few at a time."""
        left = self._left.pop(request.generation, None)
        reply = await self._session.call(request, Steps) if left is None else left
        part, rest = parted(reply)
        if rest is not None:
            self._left[request.generation] = rest
        await self._pay(seconds_of_steps(part.steps))
        return part


def seconds_of_steps(steps: Sequence[Step]) -> float:
    """Return about how long a generation's steps take until they are events."""
    return EVENT_SECONDS * len(steps) + sum(seconds_of_entries(step.logprobs) for step in steps if step.logprobs)


def parted(reply: Steps) -> tuple[Steps, Steps | None]:
    """Return the steps that may be handled without a turn of others, and what comes behind them."""
    seconds = seconds_of_steps(reply.steps)
    if seconds <= TURN_SECONDS:
        return reply, None
    count = max(1, int(len(reply.steps) * TURN_SECONDS / seconds))
    if count == len(reply.steps):
        return reply, None
    return Steps(reply.steps[:count]), replace(reply, steps=reply.steps[count:])


class DirectAnswer:
    """Reads what the program puts into the stream. ``complete`` once it was read to its end, without an error."""

    run = ""

    def __init__(self, written: Written) -> None:
        self.complete = False
        self._written = written
        self._over = False
        self._error: InferdError | None = None

    async def next(self) -> list[ChatEvent]:
        """Wait for more events, and return all that there are; see :class:`AnswerSource`."""
        events: list[ChatEvent] = []
        while not self._over and not (events and self._written.empty()):
            item = await self._written.get()
            self._written.task_done()
            if isinstance(item, list):
                events += item
            else:
                self._over, self._error = True, item
        if self._error is not None and not events:
            raise self._error
        self.complete = self._over and self._error is None
        return events


class DirectChat:
    """Runs ``main``, the built-in program, for one request after the other."""

    def __init__(
        self, runtime: Runtime, sessions: TenantSessions, main: ChatMain, warm: WarmSessions, pace: AnswerPace
    ) -> None:
        self._runtime = runtime
        self._main = main
        self._warm = warm
        self._sessions = sessions
        self._formats = ChatFormats()
        self._pace = pace

    @asynccontextmanager
    async def answer(self, tenant: str, request: ChatRequest) -> AsyncIterator[DirectAnswer]:
        """Run the program in a session of the tenant's, which is closed with the block: then its generations end. The session of
        a named conversation that came to its end stays open.

        A request beyond the tenant's number of sessions waits for one. Raises Unavailable without an engine, and LimitExceeded by
        a quota.
        """
        runtime = self._runtime
        runtime.use.admit_launch(tenant)
        async with runtime.use.socket_in_turn(tenant, runtime.settings.limits.wall_s, request):
            written = Written(QUEUED_MESSAGES)
            answer = DirectAnswer(written)
            async with AsyncExitStack() as held:
                opened = await held.enter_async_context(self._sessions.channel(tenant))
                turn = partial(self._pace.turn, tenant)
                with opened.reading() as session:
                    async with background_tasks() as tasks:
                        tasks.start_soon(self._run, request, opened.engine, session, written, turn)
                        yield answer
                if answer.complete and request.session:
                    await self._warm.keep(tenant, request.session, held.pop_all())

    async def _run(
        self, request: ChatRequest, engine: StartedEngine, session: EngineSession, written: Written, turn: Turn
    ) -> None:
        """Run the program to its end, and put how it ended behind what it wrote."""
        formats = partial(self._formats.get, engine=engine, session=session)
        transport = ProgramTransport(session, EventReader(request.n), written, formats, turn)
        with transport_in_force(transport):
            await written.put(await self._ending(request, transport.reader))
            await written.put(None)

    async def _ending(self, request: ChatRequest, reader: EventReader) -> Item:
        seconds = self._runtime.settings.limits.wall_s
        try:
            with anyio.fail_after(seconds):
                result = await self._main(request)
            return reader.finish(result, UsageReport(0, 0))
        except TimeoutError:
            message = f"the request took more than {seconds:g} s"
            return LimitExceeded(message, limit="wall_s", value=seconds, raise_with="the server's --limit-wall")
        except InferdError as error:
            return error.with_traceback(
                None
            )  # else its frames, with all scores in them, stay until a garbage collection
        except Exception as error:  # the boundary between a program and the gateway
            log.exception("a chat request failed")
            return InternalError(f"a bug in the runtime: {type(error).__name__}")
