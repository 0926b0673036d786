"""A script's connection, over a real WebSocket to a fake runtime."""

from __future__ import annotations

import asyncio
import gc
import http
from collections import deque
from collections.abc import Callable
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

import inferd
from inferd import (
    ConstraintError,
    Context,
    InternalError,
    InvalidRequest,
    JsonSchema,
    Model,
    Sampler,
    Speculator,
    Unauthorized,
    Unavailable,
)
from inferd.protocol import ForwardResult, RowResult, Tokenize, Tokens
from inferd.testing import FakeRuntime
from inferd.transport import current_transport
from inferd.transport.room import MOST_AT_ONCE

GREEDY = Sampler.argmax()
PROTOCOL = [Subprotocol("inferd.v1")]


class HoldingRuntime(FakeRuntime):
    """Never answers operations in ``held`` before ``gate`` opens."""

    def __init__(self, outputs: list[str], held: str) -> None:
        super().__init__(outputs)
        self.held = held
        self.gate = asyncio.Event()
        self.waiting = self.most = 0

    async def call(self, request: Any) -> Any:
        if request.op == self.held:
            self.waiting += 1
            self.most = max(self.most, self.waiting)
            if self.waiting == MOST_AT_ONCE:
                asyncio.get_running_loop().call_later(0.05, self.gate.set)  # any more would come by then
            await self.gate.wait()
            self.waiting -= 1
        return await super().call(request)


def address(server: Any) -> str:
    return f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def no_tasks_left() -> bool:
    """Whether only the test itself still runs, once everything had a turn."""
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    return not [task for task in asyncio.all_tasks() if (task.get_name() or "").startswith("inferd")]


async def test_the_same_calls_work_over_the_network(wire: Any) -> None:
    runtime = FakeRuntime(["héllo", '{"a":[1,2]}', "xy"], steps=[1, 2], replies=[2])
    runtime.answers["forward"] = lambda request: ForwardResult([RowResult(1, 7, [7], [-0.5])], 2)
    async with wire(runtime, token="secret") as server:
        async with inferd.connect(server.url + "/", token="secret"):
            ctx = Context().system("s").user("u")
            assert await ctx.generate(GREEDY).collect_text() == "héllo"
            constraint = JsonSchema({"type": "object"})
            assert await ctx.user("json").generate(GREEDY, constrain=constraint).collect_json() == {"a": [1, 2]}
            async with await ctx.fork() as fork:
                assert await fork.generate(GREEDY, speculator=Speculator()).collect_text() == "xy"
            assert (await Model.load()).name == "fake"
            assert (await ctx.forward([1, 2], top=1)).rows == [RowResult(1, 7, [7], [-0.5])]
        assert await no_tasks_left()
        with pytest.raises(Unavailable, match=r"inferd\.connect"):
            current_transport()
        with pytest.raises(Unavailable):
            await ctx.flush()
    assert server.paths == ["/v1/session"]
    assert {frozenset(message) for message in server.messages} == {frozenset({"t", "op", "a"})}
    tickets = [message["t"] for message in server.messages]
    assert tickets == sorted(set(tickets))


async def test_many_calls_at_once_find_their_own_replies(wire: Any) -> None:
    runtime = FakeRuntime(lambda tokens: bytes(tokens).decode())
    async with wire(runtime) as server, inferd.connect(server.url):
        texts = [str(number) for number in range(50)]
        made = await asyncio.gather(*(Context().append(text).generate(GREEDY).collect_text() for text in texts))
    assert made == texts


async def test_the_address_that_a_server_prints_is_one_for_scripts_too(wire: Any) -> None:
    async with wire(FakeRuntime(["x"])) as server, inferd.connect(server.url.replace("ws://", "http://")):
        assert await Context().append("p").generate(GREEDY).collect_text() == "x"


async def test_errors_of_the_runtime_arrive_as_they_were(wire: Any) -> None:
    runtime = FakeRuntime(["x"])
    runtime.failures["generate.start"] = deque([ConstraintError("no", pointer="/a")])
    async with wire(runtime) as server, inferd.connect(server.url):
        ctx = Context().append("p")
        with pytest.raises(ConstraintError, match=r"^no$") as raised:
            await ctx.generate(GREEDY).collect_text()
        assert raised.value.detail == {"pointer": "/a"}
        assert await ctx.generate(GREEDY).collect_text() == "x"


@pytest.mark.parametrize("token", [None, "wrong"])
async def test_a_missing_or_wrong_token(wire: Any, token: str | None) -> None:
    async with wire(FakeRuntime(), token="secret") as server:
        with pytest.raises(Unauthorized, match="token"):
            async with inferd.connect(server.url, token=token):
                pytest.fail("entered")
    assert await no_tasks_left()


@pytest.mark.parametrize("token", ["", "a b", "a\r\nX-Evil: 1", "é", 5])
async def test_tokens_that_no_header_may_hold(token: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^token must"):
        inferd.connect(token=token)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "127.0.0.1:7070", "", None, "ws://", "ws://x:notaport"])
async def test_addresses_that_are_none(url: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^url"):
        async with inferd.connect(url):
            pytest.fail("entered")


async def test_nobody_answers() -> None:
    async with serve(lambda connection: asyncio.sleep(0), "127.0.0.1", 0) as server:
        url = address(server)
    with pytest.raises(Unavailable, match="no runtime answers"):
        async with inferd.connect(url):
            pytest.fail("entered")


async def test_somebody_else_answers() -> None:
    async with serve(lambda connection: connection.wait_closed(), "127.0.0.1", 0) as server:
        with pytest.raises(Unavailable):
            async with inferd.connect(address(server)):
                pytest.fail("entered")
    assert await no_tasks_left()


async def test_cancelling_a_call_cancels_the_operation(wire: Any) -> None:
    runtime = HoldingRuntime(["abc", "xyz"], "generate.next")
    async with wire(runtime) as server, inferd.connect(server.url):
        ctx = Context().append("p")
        waiting = asyncio.create_task(ctx.generate(GREEDY).collect_text())
        await server.until(lambda: server.last_op() == "generate.next")
        held = server.messages[-1]["t"]
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await server.until(lambda: server.last_op() == "cancel")
        assert server.messages[-1] == {"t": held, "op": "cancel", "a": {}}
        runtime.gate.set()  # the late reply finds nobody, and nothing breaks
        assert await ctx.tokens() in (list(b"p"), list(b"pabc"))
        assert await ctx.generate(GREEDY).collect_text() == "xyz"


async def test_a_lost_connection_ends_every_call(wire: Any) -> None:
    runtime = HoldingRuntime([], "context.flush")
    async with wire(runtime) as server:
        async with inferd.connect(server.url):
            waiting = [asyncio.create_task(Context().append("p").flush()) for _ in range(3)]
            await server.until(lambda: sum(message["op"] == "context.flush" for message in server.messages) == 3)
            for connection in list(server.open):
                connection.transport.abort()
            for result in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(result, Unavailable)
            with pytest.raises(Unavailable, match="lost"):
                await Context().flush()
        runtime.gate.set()
    assert await no_tasks_left()


async def test_leaving_the_block_ends_calls_of_other_tasks(wire: Any) -> None:
    runtime = HoldingRuntime([], "context.flush")
    async with wire(runtime) as server:
        async with inferd.connect(server.url):
            waiting = asyncio.create_task(Context().append("p").flush())
            await server.until(lambda: server.last_op() == "context.flush")
        with pytest.raises(Unavailable):
            await waiting
        runtime.gate.set()
    assert await no_tasks_left()


async def test_what_is_used_after_its_block_is_told_so_and_not_of_a_lost_connection(wire: Any) -> None:
    async with wire(FakeRuntime()) as server:
        async with inferd.connect(server.url):
            ctx = await Context().append("p").flush()
        with pytest.raises(Unavailable, match="block has ended"):
            await ctx.flush()


async def test_a_call_from_another_threads_event_loop_is_refused_and_does_not_wait_for_ever(wire: Any) -> None:
    async with wire(FakeRuntime()) as server, inferd.connect(server.url):
        ctx = Context().append("p")
        with pytest.raises(InvalidRequest, match="another event loop"):
            await asyncio.wait_for(asyncio.to_thread(lambda: asyncio.run(flushed(ctx))), 10)


async def flushed(ctx: Context) -> None:
    await ctx.flush()


@pytest.mark.parametrize(
    ("body", "told"),
    [('{"error": {"message": "it is starting"}}', "503: it is starting"), ("<html>", "503$"), ("[]", "503$")],
)
async def test_why_a_connection_is_refused_is_told_and_not_its_status_alone(body: str, told: str) -> None:
    def refuse(connection: Any, request: Any) -> Any:
        return connection.respond(503, body)

    async with serve(lambda connection: connection.wait_closed(), "127.0.0.1", 0, process_request=refuse) as server:
        with pytest.raises(Unavailable, match=told):
            async with inferd.connect(address(server)):
                pytest.fail("entered")


async def test_an_error_in_the_block_passes_through(wire: Any) -> None:
    async with wire(FakeRuntime()) as server:
        with pytest.raises(KeyError):
            async with inferd.connect(server.url):
                raise KeyError("mine")
    assert await no_tasks_left()


@pytest.mark.parametrize(
    "data", [b"\xc1", "text", msgpack.packb([1]), msgpack.packb({"ok": {}}), msgpack.packb({"t": 1, "err": 5})]
)
async def test_messages_that_are_not_of_the_protocol_end_the_connection(data: Any) -> None:
    async def nonsense(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.send(data)
        await connection.wait_closed()

    async with serve(nonsense, "127.0.0.1", 0, subprotocols=PROTOCOL) as server, inferd.connect(address(server)):
        with pytest.raises(InternalError, match="not of its protocol"):
            await Context().flush()
        with pytest.raises(InternalError):
            await Context().flush()
    assert await no_tasks_left()


async def test_a_reply_that_lacks_something_is_an_error() -> None:
    async def curt(connection: ServerConnection) -> None:
        async for data in connection:
            await connection.send(msgpack.packb({"t": msgpack.unpackb(data)["t"], "ok": {"new": 1}}))

    async with serve(curt, "127.0.0.1", 0, subprotocols=PROTOCOL) as server, inferd.connect(address(server)):
        with pytest.raises(InternalError, match=r"reply to context\.create"):
            await Context().flush()


async def test_an_argument_that_cannot_be_sent_is_refused(wire: Any) -> None:
    async with wire(FakeRuntime()) as server, inferd.connect(server.url) as connection:
        with pytest.raises(InvalidRequest, match="cannot be sent"):
            await Context().append([2**70]).flush()
        assert (await Context().append("ok").flush()).length == 2
        del connection


async def test_two_connections_side_by_side(wire: Any) -> None:
    async with wire(FakeRuntime(["one"])) as first, wire(FakeRuntime(["two"])) as second:

        async def ask(url: str) -> str:
            async with inferd.connect(url):
                return await Context().append("p").generate(GREEDY).collect_text()

        assert list(await asyncio.gather(ask(first.url), ask(second.url))) == ["one", "two"]


async def test_a_connection_is_entered_once(wire: Any) -> None:
    async with wire(FakeRuntime()) as server:
        connection = inferd.connect(server.url)
        with pytest.raises(Unavailable, match="not connected yet"):
            await connection.call(None)
        async with connection:
            pass
        with pytest.raises(InvalidRequest, match="once"):
            async with connection:
                pytest.fail("entered")


def test_keyboard_interrupt_leaves_no_warning(wire: Callable[..., Any]) -> None:
    async def interrupted() -> None:
        async with wire(FakeRuntime()) as server, inferd.connect(server.url):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(interrupted())
    gc.collect()


async def test_a_script_that_asks_for_more_at_once_than_a_connection_takes_waits(wire: Any) -> None:
    """1,500 generations in one `asyncio.gather` failed with "1000 calls are outstanding on this connection"."""
    runtime = HoldingRuntime([], "model.tokenize")
    runtime.answers["model.tokenize"] = lambda request: Tokens([1])
    async with wire(runtime, token=None) as server, inferd.connect(server.url):
        calls = [current_transport().call(Tokenize("a")) for _ in range(2 * MOST_AT_ONCE)]
        assert await asyncio.gather(*calls) == [Tokens([1])] * (2 * MOST_AT_ONCE)
    assert runtime.most == MOST_AT_ONCE


async def test_neither_a_redirect_nor_a_proxy_of_the_environment_gets_the_token(
    wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A redirect was followed to any host, with the token in older versions of the library, and so was `http_proxy`."""

    def away(connection: ServerConnection, request: Request) -> Response:
        response = connection.respond(http.HTTPStatus.TEMPORARY_REDIRECT, "")
        response.headers["Location"] = f"{other.url}/v1/session"
        return response

    async with wire(FakeRuntime(["x"])) as other:
        monkeypatch.setenv("http_proxy", other.url.replace("ws", "http"))
        monkeypatch.delenv("no_proxy", raising=False)
        async with serve(lambda _: asyncio.sleep(0), "127.0.0.1", 0, process_request=away) as server:
            with pytest.raises(Unavailable, match="status 307"):
                async with inferd.connect(address(server), token="secret"):
                    pass
    assert other.paths == []


@pytest.mark.parametrize("message", [
    [], 7, {"t": [1], "ok": {}}, {"t": {"a": 1}, "ok": {}}, {"t": 1, "ok": 7}, {"t": 1},
    {"t": 1, "err": {"code": 1, "message": [], "detail": {}}}, {"t": 1, "err": "no"},
])  # fmt: skip
async def test_a_message_that_is_not_of_the_protocol_ends_the_connection_by_name(message: Any) -> None:
    """One whose ticket was a list ended the reader with a TypeError, which closing the connection raised."""

    async def lie(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.send(msgpack.packb(message))
        await connection.wait_closed()

    async with serve(lie, "127.0.0.1", 0, subprotocols=PROTOCOL) as server, inferd.connect(address(server)):
        with pytest.raises(InternalError, match="not of its protocol"):
            await Model.load()
    assert await no_tasks_left()
