"""An egress process's end of its link: one answer for each call, and nothing of a call is held behind it."""

from __future__ import annotations

import gc
import secrets
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import zmq

from inferd.protocol import Done, ErrorInfo, InferdError, InvalidRequest
from inferd_runtime.server.egress.link_child import EgressHandlers, EgressServer
from inferd_runtime.server.egress.messages import READY, EgressAnswer, EgressCall, EgressDrop
from inferd_runtime.server.supervisor.loop_socket import LoopSocket


class Asked(msgspec.Struct, weakref=True):
    """A request that tells when it is gone."""

    text: str


class Gateway:
    """The other end."""

    def __init__(self, socket: LoopSocket) -> None:
        self.socket = socket

    async def send(self, message: EgressCall | EgressDrop) -> None:
        await self.socket.send([msgspec.msgpack.encode(message)])

    async def call(self, number: int, op: str, request: Any) -> EgressAnswer:
        await self.send(EgressCall(number, op, msgspec.Raw(msgspec.msgpack.encode(request))))
        return await self.answer()

    async def answer(self) -> EgressAnswer:
        return msgspec.msgpack.decode(b"".join(await self.socket.receive()), type=EgressAnswer)


@asynccontextmanager
async def linked(handlers: EgressHandlers) -> AsyncIterator[Gateway]:
    context: zmq.Context[Any] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    endpoint = f"inproc://{secrets.token_hex(8)}"
    socket.bind(endpoint)
    gateway = Gateway(LoopSocket(socket))
    server = EgressServer(context, endpoint, handlers)
    try:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server.serve)
                assert (await gateway.answer()).number == READY
                yield gateway
                tasks.cancel_scope.cancel()
    finally:
        gateway.socket.close()
        context.destroy(linger=0)


def error_of(answer: EgressAnswer) -> InferdError:
    assert not answer.ok
    return msgspec.msgpack.decode(answer.payload, type=ErrorInfo).to_exception()


async def test_what_an_error_refuses_is_not_held_until_a_collection_of_garbage() -> None:
    """Its traceback had the frames that had the call: bodies of megabytes stayed, as many as there were refusals."""
    held: list[weakref.ref[Asked]] = []

    async def refuse(asked: Asked) -> Done:
        held.append(weakref.ref(asked))
        raise InvalidRequest("no")

    gc.collect()
    gc.disable()
    try:
        async with linked({"refuse": (Asked, refuse)}) as gateway:
            for number in range(1, 4):
                assert error_of(await gateway.call(number, "refuse", Asked("x"))).message == "no"
            await anyio.lowlevel.checkpoint()
            assert [one() for one in held] == [None, None, None]
    finally:
        gc.enable()


async def test_a_bug_and_what_is_no_request_cost_their_call_alone() -> None:
    async def broken(asked: Asked) -> Done:
        raise KeyError(asked.text)

    async def fine(asked: Asked) -> Asked:
        return asked

    async with linked({"broken": (Asked, broken), "fine": (Asked, fine)}) as gateway:
        assert error_of(await gateway.call(1, "broken", Asked("x"))).code == "internal"
        assert error_of(await gateway.call(2, "fine", [1, 2])).code == "internal"
        assert error_of(await gateway.call(3, "unknown", Asked("x"))).code == "client.invalid"
        answer = await gateway.call(4, "fine", Asked("still there"))
        assert (answer.number, msgspec.msgpack.decode(answer.payload, type=Asked).text) == (4, "still there")


async def test_a_call_that_nobody_waits_for_is_ended_and_answered() -> None:
    begun = anyio.Event()

    async def for_ever(asked: Asked) -> Done:
        begun.set()
        await anyio.sleep_forever()
        return Done()

    async with linked({"wait": (Asked, for_ever)}) as gateway:
        await gateway.send(EgressCall(7, "wait", msgspec.Raw(msgspec.msgpack.encode(Asked("x")))))
        await begun.wait()
        await gateway.send(EgressDrop(7))
        answer = await gateway.answer()
        assert (answer.number, error_of(answer).code) == (7, "cancelled")
