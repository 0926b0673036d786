"""Sessions that the gateway opens at the engine: what waits, what is kept for the next one, and what comes too late."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
import zmq

from inferd.protocol import Done, GetUsage, Unauthorized, Unavailable, Usage
from inferd_runtime.server.supervisor.engine_session import EngineChannel, EngineSession, opening_channel
from inferd_runtime.session.wire import CLOSE, ERROR, OK, OPEN, TICKET

SECONDS = 30
Answer = Callable[[str], Any]


class FakeEngine:
    """Answers each operation with what ``answer`` returns for its name, an error's wire form as an error, and notes who asked."""

    def __init__(self, context: zmq.Context[Any], folder: Path) -> None:
        self.endpoint = f"ipc://{folder}/engine"
        self.lost = anyio.Event()
        self.asked: list[tuple[bytes, int, str]] = []
        self.answer: Answer = {OPEN: Done(), CLOSE: Usage()}.get
        self._socket = context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(self.endpoint)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while (frames := self._socket.recv_multipart())[1:] != [b"end"]:
            identity, ticket, op = frames[0], TICKET.unpack(frames[1])[0], frames[2].decode()
            self.asked.append((identity, ticket, op))
            reply = self.answer(op)
            failed = isinstance(reply, Unauthorized)
            payload = msgspec.msgpack.encode(reply.to_wire() if failed else reply)
            if reply is not None:
                self._socket.send_multipart([identity, frames[1], ERROR if failed else OK, payload])
            if op == CLOSE:  # and what comes late of the session
                self._socket.send_multipart([identity, TICKET.pack(1), OK, msgspec.msgpack.encode(Usage(99))])
        self._socket.close()

    def end(self, context: zmq.Context[Any]) -> None:
        with context.socket(zmq.DEALER) as last:
            last.connect(self.endpoint)
            last.send(b"end")
            self._thread.join()


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    with zmq.Context() as context:
        yield context


@pytest.fixture
def engine(context: zmq.Context[Any], tmp_path: Path) -> Iterator[FakeEngine]:
    engine = FakeEngine(context, tmp_path)
    yield engine
    engine.end(context)


@asynccontextmanager
async def session(
    context: zmq.Context[Any], engine: FakeEngine, idle: list[EngineChannel]
) -> AsyncIterator[EngineSession]:
    with anyio.fail_after(SECONDS):
        async with opening_channel(context, engine.endpoint, b"grant", "label", engine.lost, idle) as channel:
            opened = EngineSession(channel)
            with opened.listening():
                yield opened


def close_all(idle: list[EngineChannel]) -> None:
    while idle:
        idle.pop().close()


async def test_a_channel_is_used_again_and_takes_no_late_answer_for_its_own(
    context: zmq.Context[Any], engine: FakeEngine
) -> None:
    idle: list[EngineChannel] = []
    engine.answer = {OPEN: Done(), CLOSE: Usage(), GetUsage.op: Usage(7)}.get  # type: ignore[attr-defined]
    for _ in range(3):
        async with session(context, engine, idle) as opened:
            assert await opened.call(GetUsage(), Usage) == Usage(7)
        assert len(idle) == 1
    assert len({identity for identity, _, _ in engine.asked}) == 1
    tickets = [ticket for _, ticket, op in engine.asked if op not in (OPEN, CLOSE)]
    assert len(tickets) == len(set(tickets)) == 3
    close_all(idle)


async def test_what_the_opening_is_refused_with_ends_the_first_call(
    context: zmq.Context[Any], engine: FakeEngine
) -> None:
    idle: list[EngineChannel] = []
    engine.answer = {OPEN: Unauthorized("no"), CLOSE: Usage()}.get
    async with session(context, engine, idle) as opened:
        for _ in range(2):
            with pytest.raises(Unauthorized):
                await opened.call(GetUsage(), Usage)
    close_all(idle)


async def test_a_session_that_is_lost_takes_no_further_call(context: zmq.Context[Any], engine: FakeEngine) -> None:
    idle: list[EngineChannel] = []
    async with session(context, engine, idle) as opened:
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                with pytest.raises(Unavailable):
                    await opened.call(GetUsage(), Usage)  # never answered

            tasks.start_soon(wait)
            await anyio.lowlevel.checkpoint()
            opened.lose(Unavailable("gone"))
        with pytest.raises(Unavailable):
            await opened.call(GetUsage(), Usage)
        engine.lost.set()
    assert not idle, "a lost engine's channel is not kept"
