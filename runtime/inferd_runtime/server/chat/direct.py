"""The built-in chat program, run in the gateway's own process over an engine session: the same program, without a sandbox."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from inferd.chat import ChatEvent, ChatRequest, UsageReport
from inferd.protocol import (
    Done,
    InferdError,
    InternalError,
    InvalidRequest,
    LimitExceeded,
    ReceiveMessage,
    SendMessage,
    Unavailable,
)
from inferd.transport import restore_transport, use_transport
from inferd_runtime.server.chat.program_events import EventReader
from inferd_runtime.server.processes.background import background_tasks
from inferd_runtime.server.supervisor.engine_session import EngineSession, engine_channel
from inferd_runtime.server.supervisor.engine_supervisor import StartedEngine
from inferd_runtime.server.supervisor.runtime import Runtime

QUEUED_MESSAGES = 16
"""What a client that reads slowly leaves waiting; then the program waits, and the engine with its generation."""
SESSION = "chat/"
ChatMain = Callable[[ChatRequest], Awaitable[Any]]
Item = list[ChatEvent] | InferdError
log = logging.getLogger("inferd.gateway")


class ProgramTransport:
    """Carries the requests of a program in this process to its engine session, and its messages to whoever reads ``sent``."""

    def __init__(self, session: EngineSession, reader: EventReader, sent: MemoryObjectSendStream[Item]) -> None:
        self._session = session
        self._reader = reader
        self._sent = sent

    async def call(self, request: Any) -> Any:
        """Send a request, and return its reply; see :class:`inferd.transport.Transport`."""
        if isinstance(request, SendMessage):
            events = self._reader.read(request.message)
            if events:
                await self._sent.send(events)
            return Done()
        if isinstance(request, ReceiveMessage):
            raise InvalidRequest("a chat request has nobody who sends messages")
        return await self._session.call(request, type(request).reply)


class DirectAnswer:
    """Made by :func:`direct_answer`: reads what the program puts into the stream, up to its end or its error."""

    run = ""

    def __init__(self, received: MemoryObjectReceiveStream[Item]) -> None:
        self._received = received

    async def next(self) -> list[ChatEvent]:
        """Wait for more events; see :class:`AnswerSource`."""
        try:
            item = await self._received.receive()
        except anyio.EndOfStream:
            return []
        if isinstance(item, InferdError):
            raise item
        return item


@asynccontextmanager
async def direct_answer(
    runtime: Runtime, tenant: str, main: ChatMain, request: ChatRequest
) -> AsyncIterator[DirectAnswer]:
    """Run ``main`` for a request, in a session of the tenant's that is closed with the block: then its generations end.

    Raises Unavailable without an engine, and LimitExceeded by a quota.
    """
    runtime.use.admit_launch(tenant)
    with runtime.use.socket(tenant):
        engine = runtime.engine.current
        name = SESSION + secrets.token_hex(8)
        grant = runtime.engine.grants.issue(name, tenant)
        sent, received = anyio.create_memory_object_stream[Item](QUEUED_MESSAGES)
        async with engine_channel(runtime.context, runtime.engine.endpoint, grant, name, engine.lost) as channel:
            session = EngineSession(channel)
            async with background_tasks() as tasks:
                tasks.start_soon(session.read)
                tasks.start_soon(_watch, engine, session)
                tasks.start_soon(_run, main, request, session, sent, runtime.settings.limits.wall_s)
                with received:
                    yield DirectAnswer(received)


async def _watch(engine: StartedEngine, session: EngineSession) -> None:
    await engine.lost.wait()
    session.lose(Unavailable("the engine process ended", process="engine"))


async def _run(
    main: ChatMain, request: ChatRequest, session: EngineSession, sent: MemoryObjectSendStream[Item], seconds: float
) -> None:
    """Run the program to its end, and put how it ended behind what it wrote."""
    reader = EventReader(request.n)
    token = use_transport(ProgramTransport(session, reader, sent))
    try:
        with sent:
            await sent.send(await _ending(main, request, reader, seconds))
    except anyio.BrokenResourceError:
        pass  # nobody reads any more
    finally:
        restore_transport(token)


async def _ending(main: ChatMain, request: ChatRequest, reader: EventReader, seconds: float) -> Item:
    try:
        with anyio.fail_after(seconds):
            result = await main(request)
        return reader.finish(result, UsageReport(0, 0))
    except TimeoutError:
        message = f"the request took more than {seconds:g} s"
        return LimitExceeded(message, limit="wall_s", value=seconds, raise_with="the server's --wall-s")
    except InferdError as error:
        return error
    except anyio.BrokenResourceError:
        raise
    except Exception as error:  # the boundary between a program and the gateway
        log.exception("a chat request failed")
        return InternalError(f"a bug in the runtime: {type(error).__name__}")
