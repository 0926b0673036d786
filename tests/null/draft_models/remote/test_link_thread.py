"""The thread that keeps a target's connection, with a draft engine that knows the key and lies."""

from __future__ import annotations

import asyncio

import pytest
from draft_engines import KEY, TERMS, LoopThread
from waiting import wait_until

from inferd_runtime.draft_models.remote import link_thread
from inferd_runtime.draft_models.remote.frames import Kind
from inferd_runtime.draft_models.remote.handshake import DraftHandshake
from inferd_runtime.draft_models.remote.link_thread import Arrived, Disconnected, LinkTarget, LinkThread
from inferd_runtime.draft_models.remote.streams import FrameStream

ANSWERS, BYTES = 20, 10_000


async def _floods(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    stream, shake = FrameStream(reader, writer), DraftHandshake(KEY, lambda: TERMS)
    while shake.keys is None:
        message = shake.receive(await stream.receive())
        stream.send(message.kind, message.payload)
    stream.outgoing.rekey(shake.keys.from_draft)
    for ticket in range(ANSWERS):
        stream.send(Kind.ANSWER, bytes(BYTES), ticket)
    await reader.read()
    writer.close()


def test_answers_that_nobody_asked_for_do_not_fill_memory_while_a_step_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft engine could leave 16 GiB there: 350 MiB came in a step of six seconds."""
    monkeypatch.setattr(link_thread, "MOST_HELD", 5 * (BYTES + link_thread.EVENT_BYTES))
    ports: list[int] = []

    async def listen() -> None:
        async with await asyncio.start_server(_floods, "127.0.0.1", 0) as server:
            ports.append(server.sockets[0].getsockname()[1])
            await asyncio.sleep(60)

    engine = LoopThread()
    engine.start(listen())
    wait_until(lambda: bool(ports))
    link = LinkThread(LinkTarget("127.0.0.1", ports[0], KEY), lambda: None)
    wait_until(lambda: any(isinstance(event, Disconnected) for event in list(link.events)))
    assert sum(isinstance(event, Arrived) for event in list(link.events)) == 5
    link.close()
    engine.close()
