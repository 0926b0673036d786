"""HTTP as it comes in pieces, over a pair of sockets."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import anyio
import anyio.to_thread
import h11
import pytest
from starlette.responses import PlainTextResponse
from uvicorn.config import Config
from uvicorn.server import ServerState

from inferd.protocol import Unauthorized
from inferd_runtime.server.gateway.http_protocol import Headers, ServerConnection, TypedHttp, handshake_problem
from inferd_runtime.server.gateway.replies import deny
from inferd_runtime.server.gateway.socket_protocol import BinarySocket

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_an_answer_to_a_body_that_went_wrong_is_not_an_error_of_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where both were there at once, each such request had the log grow by a traceback of 8 KiB."""
    refused, answered = asyncio.Event(), asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await refused.wait()
        await PlainTextResponse("late")(scope, receive, send)
        answered.set()

    config = Config(application, log_config=None, lifespan="off")
    config.load()
    protocol = TypedHttp(config, ServerState(), {})
    own, client = socket.socketpair()
    own.setblocking(False)
    with own, client, caplog.at_level(logging.ERROR), anyio.fail_after(10):
        await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, own)
        protocol.data_received(HEAD)
        protocol.data_received(b"-5\r\n")
        refused.set()
        await answered.wait()
        said = await anyio.to_thread.run_sync(lambda: b"".join(iter(lambda: client.recv(65536), b"")))
    assert said.startswith(b"HTTP/1.1 400 ")
    assert b"late" not in said
    assert not caplog.records


async def test_a_frame_that_comes_with_its_handshake_is_heard() -> None:
    """It was dropped where both were read at once, and its sender waited for the answer until its time was up."""
    heard = asyncio.get_running_loop().create_future()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        heard.set_result(await receive())

    config = Config(application, ws=BinarySocket, log_config=None, lifespan="off")
    config.load()
    protocol = TypedHttp(config, ServerState(), {})
    own, client = socket.socketpair()
    own.setblocking(False)
    with own, client, anyio.fail_after(10):
        await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, own)
        protocol.data_received(HANDSHAKE + b"\x82\x82\0\0\0\0hi")
        assert (await heard)["bytes"] == b"hi"


async def accepting(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})


async def refusing(scope: Any, receive: Any, send: Any) -> None:
    await deny(Unauthorized("no token"), scope, receive, send)


async def answer_to(application: Any, start: bytes) -> bytes:
    """Return all that is sent to a client of an application that ends the connection."""
    config, state = Config(application, ws=BinarySocket, log_config=None, lifespan="off"), ServerState()
    config.load()
    protocol = TypedHttp(config, state, {})
    own, client = socket.socketpair()
    own.setblocking(False)
    with own, client, anyio.fail_after(10):
        await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, own)
        protocol.data_received(start)
        said = await anyio.to_thread.run_sync(lambda: b"".join(iter(lambda: client.recv(65536), b"")))
        await asyncio.gather(*state.tasks)
    return said


async def test_a_handshake_that_is_refused_is_not_an_error_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    """Each WebSocket without a valid token, as all that browsers open, had the log tell of a bug in the server."""
    with caplog.at_level(logging.ERROR):
        assert (await answer_to(refusing, HANDSHAKE)).startswith(b"HTTP/1.1 401 ")
    assert not caplog.records


@pytest.mark.parametrize("application", [accepting, refusing])
async def test_a_token_in_an_address_is_not_logged(application: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A browser's WebSocket can send no header: whoever tries it puts the token there."""
    with caplog.at_level(logging.INFO):
        await answer_to(application, HANDSHAKE.replace(b"GET /", b"GET /v1/session?token=s3cret"))
    assert "/v1/session" in caplog.text
    assert "s3cret" not in caplog.text


def test_a_handshake_of_http_1_0_is_refused() -> None:
    """A proxy that speaks it passes the headers on and knows nothing of frames: they would be its client's next requests."""
    good: Headers = [(b"sec-websocket-version", b"13"), (b"sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ==")]
    assert handshake_problem(b"GET", good, b"1.0") == "it must be of HTTP/1.1"
    assert handshake_problem(b"GET", good, b"1.1") == ""


@pytest.mark.parametrize("value", [b"\x1b[31m", b"a\x7fb", b"a\x0bb"])
def test_a_handshake_with_control_characters_is_refused(value: bytes) -> None:
    """It was not answered at all, until its head was late."""
    good: Headers = [(b"sec-websocket-version", b"13"), (b"sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ==")]
    assert handshake_problem(b"GET", [*good, (b"x", b"a b\tc\xff")]) == ""
    assert handshake_problem(b"GET", [*good, (b"sec-websocket-protocol", value)]) == "a header has control characters"


@pytest.mark.parametrize(
    ("target", "meant"),
    [
        (b"http://127.0.0.1:7070/v1/models?limit=2", b"/v1/models?limit=2"),
        (b"HTTPS://a.example", b"/"),
        (b"http://a.example?x=http://b/", b"/?x=http://b/"),
        (b"/http://a/b", b"/http://a/b"),
        (b"*", b"*"),
    ],
)
def test_a_target_that_is_a_whole_url_is_its_path(target: bytes, meant: bytes) -> None:
    """A client that has the server for its proxy got a 404."""
    connection = ServerConnection(h11.SERVER)
    connection.receive_data(b"OPTIONS " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    request = connection.next_event()
    assert (request.target, request.method, request.headers) == (meant, b"OPTIONS", [(b"host", b"x")])
    assert isinstance(connection.next_event(), h11.EndOfMessage)


@pytest.mark.parametrize("start", [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/3.0\r\nHost: x\r\n\r\n"])
def test_another_http_is_no_request(start: bytes) -> None:
    """A client of gRPC, or of HTTP/2 without asking first, was told that its token was missing."""
    connection = ServerConnection(h11.SERVER)
    connection.receive_data(start)
    with pytest.raises(h11.RemoteProtocolError):
        connection.next_event()


@pytest.mark.parametrize(
    ("name", "refused"), [("Authorization", True), ("X-Api-Key", True), ("Content-Encoding", True), ("Accept", False)]
)
def test_a_header_that_says_twice_who_or_what_it_is_is_refused_unless_it_says_the_same(
    name: str, refused: bool
) -> None:
    """The first counted, silently: a proxy that looks at the last has let in somebody else."""
    for second, wrong in (("a", False), ("b", refused)):
        connection = ServerConnection(h11.SERVER)
        connection.receive_data(f"GET / HTTP/1.1\r\nHost: x\r\n{name}: a\r\n{name.lower()}: {second}\r\n\r\n".encode())
        if wrong:
            with pytest.raises(h11.RemoteProtocolError, match=f"two headers {name.lower()} that differ"):
                connection.next_event()
        else:
            assert isinstance(connection.next_event(), h11.Request)
