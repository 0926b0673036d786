"""Scripts over the WebSocket: the SDK's own client, and raw frames for what it never sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest
from waiting import until
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

import inferd
from inferd.protocol import MAX_SCRIPT_MESSAGE, InvalidRequest, ListModels, Tokenize, Unauthorized, Unavailable
from inferd.transport import current_transport

from .conftest import ANN, Serve, Served


def address(served: Served) -> str:
    return served.gateway.url.replace("http://", "ws://")


@asynccontextmanager
async def raw(served: Served) -> AsyncIterator[ClientConnection]:
    headers = {"Authorization": f"Bearer {ANN}"}
    async with connect(f"{address(served)}/v1/session", additional_headers=headers) as socket:
        yield socket


async def ask(socket: ClientConnection, message: Any) -> Any:
    await socket.send(msgspec.msgpack.encode(message))
    with anyio.fail_after(5):
        return msgspec.msgpack.decode(await socket.recv(decode=False))


async def sessions(socket: ClientConnection) -> int:
    """How many sessions the engine has open: the gateway's own, and this one."""
    reply = await ask(socket, {"t": 99, "op": "context.create"})
    return int(reply["ok"]["length"])


async def test_the_sdk_calls_the_engine(shared: Served) -> None:
    async with inferd.connect(address(shared), token=ANN):
        models = await current_transport().call(ListModels())
        assert [model.name for model in models.models] == ["fake"]
        tokens = await current_transport().call(Tokenize("ab"))
        assert tokens.tokens == [97, 98]


async def test_a_wrong_token_is_unauthorized(shared: Served) -> None:
    for token in (None, "wrong"):
        with pytest.raises(Unauthorized):
            async with inferd.connect(address(shared), token=token):
                pytest.fail("it connected")


async def test_many_calls_at_once_get_their_own_replies(shared: Served) -> None:
    async with inferd.connect(address(shared), token=ANN):
        texts = [chr(97 + number % 26) * (number % 5 + 1) for number in range(200)]
        replies = await asyncio.gather(*(current_transport().call(Tokenize(text)) for text in texts))
        assert [reply.tokens for reply in replies] == [[ord(char) for char in text] for text in texts]


async def test_a_cancelled_call_is_cancelled_at_the_engine(shared: Served) -> None:
    async with raw(shared) as socket:
        await socket.send(msgspec.msgpack.encode({"t": 5, "op": "model.tokenize", "a": {"text": "hang"}}))
        assert (await ask(socket, {"t": 6, "op": "model.tokenize", "a": {"text": "a"}}))["t"] == 6
        assert (await ask(socket, {"t": 5, "op": "cancel"}))["err"]["code"] == "cancelled"
        await socket.send(msgspec.msgpack.encode({"t": 77, "op": "cancel"}))  # nothing of that number: no reply
        assert (await ask(socket, {"t": 5, "op": "model.tokenize", "a": {"text": "b"}})) == {
            "t": 5,
            "ok": {"tokens": [98]},
        }


@pytest.mark.parametrize("op", ["session.open", "session.close", "session.send", "session.receive"])
async def test_operations_that_are_not_for_scripts_are_refused_by_name(shared: Served, op: str) -> None:
    async with raw(shared) as socket:
        reply = await ask(socket, {"t": 1, "op": op, "a": {"tenant": "bob", "message": 1}})
        assert reply["t"] == 1
        assert reply["err"]["code"] == "client.invalid"
        assert op in reply["err"]["message"]
        assert (await ask(socket, {"t": 2, "op": "model.list"}))["ok"]["models"]


async def test_errors_of_the_engine_pass_through(shared: Served) -> None:
    async with raw(shared) as socket:
        reply = await ask(socket, {"t": 1, "op": "model.embed", "a": {}})
        assert reply == {
            "t": 1,
            "err": {"code": "client.invalid", "message": "the fake engine has no model.embed", "detail": {}},
        }


async def test_an_unknown_operation_is_not_repeated_at_length(shared: Served) -> None:
    async with raw(shared) as socket:
        reply = await ask(socket, {"t": 1, "op": "x" * 1_000_000, "a": {}})
        assert reply["err"]["code"] == "client.invalid"
        assert len(reply["err"]["message"]) < 200


async def test_a_ticket_that_is_in_use_is_refused(shared: Served) -> None:
    async with raw(shared) as socket:
        await socket.send(msgspec.msgpack.encode({"t": 1, "op": "model.tokenize", "a": {"text": "hang"}}))
        reply = await ask(socket, {"t": 1, "op": "model.list"})
        assert "ticket 1 is in use" in reply["err"]["message"]


@pytest.mark.parametrize("message", [b"\xc1", b"", b"\x90", msgspec.msgpack.encode({"t": 0, "op": "x"}), "text"])
async def test_what_is_no_call_ends_the_connection_with_a_reason(shared: Served, message: bytes | str) -> None:
    async with raw(shared) as socket:
        await socket.send(message)
        with anyio.fail_after(5):
            reply = msgspec.msgpack.decode(await socket.recv(decode=False))
            assert reply["err"]["code"] == "client.invalid"
            with pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1007


async def test_a_request_beyond_the_longest_is_refused_and_costs_no_connection(shared: Served) -> None:
    async with inferd.connect(address(shared), token=ANN):
        room = MAX_SCRIPT_MESSAGE - 100
        with pytest.raises(
            InvalidRequest, match=f"model.tokenize: the request takes .* bytes; {MAX_SCRIPT_MESSAGE} are"
        ):
            await current_transport().call(Tokenize("a" * (room + 100)))
        assert len((await current_transport().call(Tokenize("a" * room))).tokens) == room


async def test_the_session_is_closed_when_the_script_leaves(serve: Serve) -> None:
    async with serve() as served:
        async with raw(served), raw(served) as second:
            assert await sessions(second) == 3
        async with raw(served) as third:

            async def only_this_one() -> bool:
                return await sessions(third) == 2

            await until(only_this_one)


async def test_a_dead_engine_answers_what_waits_with_unavailable(serve: Serve) -> None:
    async with serve() as served:
        async with inferd.connect(address(served), token=ANN):
            errors = await asyncio.gather(outcome("hang"), outcome("die"))
            assert ["the engine process ended" in str(error) for error in errors] == [True, True]
            assert isinstance(await outcome("a"), Unavailable)  # the session is over
        await until(served.ready)
        async with inferd.connect(address(served), token=ANN):
            assert (await current_transport().call(Tokenize("a"))).tokens == [97]


async def test_every_call_that_waits_is_answered_before_the_connection_ends(serve: Serve) -> None:
    async with serve() as served, raw(served) as socket:
        for ticket, text in ((3, "hang"), (4, "hang"), (5, "die")):
            await socket.send(msgspec.msgpack.encode({"t": ticket, "op": "model.tokenize", "a": {"text": text}}))
        with anyio.fail_after(10):
            replies = [msgspec.msgpack.decode(await socket.recv(decode=False)) for _ in range(3)]
            assert [(reply["t"], reply["err"]["code"]) for reply in replies] == [(n, "unavailable") for n in (3, 4, 5)]
            with pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012


async def outcome(text: str) -> Exception | None:
    try:
        await current_transport().call(Tokenize(text))
    except Unavailable as error:
        return error
    return None


async def test_without_an_engine_the_handshake_is_refused(serve: Serve) -> None:
    async with serve(wait=False) as served:
        with pytest.raises(InvalidStatus) as refused:
            async with raw(served):
                pytest.fail("it connected")
        assert refused.value.response.status_code == 503


async def test_open_scripts_do_not_hold_up_the_end_of_the_server(serve: Serve) -> None:
    with anyio.fail_after(20):
        async with serve() as served:
            stack = raw(served)
            socket = await stack.__aenter__()
            assert (await ask(socket, {"t": 1, "op": "model.list"}))["t"] == 1
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        await stack.__aexit__(None, None, None)
