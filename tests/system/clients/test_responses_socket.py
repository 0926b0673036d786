"""Responses over a WebSocket, as OpenAI's own package speaks it, and as others may."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from inferd_runtime.server.gateway.responses_socket import MOST_WAITING

from .conftest import BOB, TOKEN, LiveServer
from .test_leaving import figure

LAST = ("response.completed", "response.incomplete", "response.failed", "error")
LONG = {"max_output_tokens": 3000, "ignore_eos": True}


@contextmanager
def connected(server: LiveServer, token: str = TOKEN) -> Iterator[ClientConnection]:
    url = "ws" + server.url.removeprefix("http") + "/v1/responses"
    with connect(url, additional_headers={"Authorization": f"Bearer {token}"}, proxy=None) as socket:
        yield socket


def ask(socket: ClientConnection, **fields: Any) -> None:
    socket.send(
        json.dumps({"type": "response.create", "model": "tiny", "input": "Hi", "max_output_tokens": 4, **fields})
    )


def answered(socket: ClientConnection) -> list[dict[str, Any]]:
    """The events of the next response, or the error in its place."""
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] not in LAST:
        events.append(json.loads(socket.recv(timeout=60)))
    return events


@pytest.mark.filterwarnings(
    "ignore:connect..:DeprecationWarning"
)  # openai opens it as older versions of websockets want it
def test_a_response_has_the_events_of_its_stream(server: LiveServer, client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "input": "Hello there", "max_output_tokens": 12, "temperature": 0}
    with client.responses.connect() as connection:
        connection.response.create(**asked)
        events = []
        for event in connection:
            events.append(event)
            if event.type in LAST:
                break
    streamed = list(client.responses.create(**asked, stream=True))
    assert [event.type for event in events] == [event.type for event in streamed]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.output_text == streamed[-1].response.output_text
    assert client.responses.retrieve(events[-1].response.id).output_text == streamed[-1].response.output_text


def test_what_is_stored_nowhere_is_followed_on_its_connection_alone(server: LiveServer, client: openai.OpenAI) -> None:
    with connected(server) as socket, connected(server) as other:
        ask(socket, store=False, input="Blue is a colour.")
        first = answered(socket)[-1]["response"]
        ask(other, previous_response_id=first["id"])
        assert answered(other)[-1]["error"]["code"] == "previous_response_not_found"
        ask(socket, previous_response_id=first["id"], store=False)
        second = answered(socket)[-1]["response"]
        assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"] + first["usage"]["output_tokens"]
        ask(socket, previous_response_id=first["id"])
        assert answered(socket)[-1]["error"]["code"] == "previous_response_not_found"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(second["id"])


def test_a_request_that_is_not_to_be_answered_is_computed_and_can_be_followed(server: LiveServer) -> None:
    words = "red green blue " * 20
    with connected(server) as socket:
        ask(socket, store=False, generate=False, input=words)
        events = answered(socket)
        warmed = events[-1]["response"]
        assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.completed"]
        assert (warmed["output"], warmed["usage"]["output_tokens"]) == ([], 0)
        ask(socket, store=False, previous_response_id=warmed["id"], input=[])
        usage = answered(socket)[-1]["response"]["usage"]
        assert usage["input_tokens"] == warmed["usage"]["input_tokens"]
        assert usage["input_tokens_details"]["cached_tokens"] > usage["input_tokens"] / 2
        ask(socket, store=False, generate=False, instructions="Be brief.", input=[])
        nothing = answered(socket)[-1]["response"]
        assert (nothing["status"], nothing["usage"]["total_tokens"]) == ("completed", 0)
        ask(socket, previous_response_id=nothing["id"])
        assert answered(socket)[-1]["response"]["output"]


REFUSED: list[tuple[str | bytes, int, str | None]] = [
    ("", 400, None),
    ("nothing", 400, None),
    (b"\xff", 400, None),
    ("[]", 400, None),
    ("{}", 400, "type"),
    ('{"type": "response.steer"}', 400, "type"),
    ('{"type": "response.create"}', 400, "model"),
    ('{"type": "response.create", "model": "tiny"}', 400, "input"),
    ('{"type": "response.create", "model": "nobody", "input": "a"}', 404, "model"),
    ('{"type": "response.create", "model": "nobody", "generate": false}', 404, "model"),
    ('{"type": "response.create", "model": "tiny", "input": "a", "generate": 1}', 400, "generate"),
    ('{"type": "response.create", "model": "tiny", "input": "a", "stream": false}', 400, "stream"),
    ('{"type": "response.create", "model": "tiny", "input": "a", "stream_id": "b"}', 400, "stream_id"),
    ('{"type": "response.create", "model": "tiny", "input": "a", "background": true}', 400, "background"),
    (json.dumps({"type": "response.create", "model": "tiny", "input": "a " * 50_000}), 400, None),
]


def test_a_response_that_is_cancelled_ends_and_can_be_followed_and_a_late_cancel_is_not_answered(
    server: LiveServer,
) -> None:
    """Clients that speak interrupt the model, and read up to the response's end: an error behind it would be the next one's."""
    cancel = json.dumps({"type": "response.cancel"})
    with connected(server) as socket:
        ask(socket, **LONG, store=False)
        begun = json.loads(socket.recv(timeout=60))["response"]["id"]
        socket.send(json.dumps({"type": "response.cancel", "response_id": "resp_another"}))
        socket.send(json.dumps({"type": "response.cancel", "response_id": begun}))
        ended = answered(socket)[-1]
        assert (ended["type"], ended["response"]["status"]) == ("response.incomplete", "cancelled")
        socket.send(cancel)
        ask(socket, previous_response_id=begun)
        assert answered(socket)[-1]["response"]["previous_response_id"] == begun
        socket.send(cancel)
        ask(socket)
        assert answered(socket)[-1]["response"]["status"] != "cancelled"


def test_what_is_refused_is_told_in_an_event_and_the_connection_goes_on(server: LiveServer) -> None:
    with connected(server) as socket:
        for sent, status, param in REFUSED:
            socket.send(sent)
            told = answered(socket)[-1]
            assert (told["type"], told["status"], told["error"]["param"]) == ("error", status, param), sent
        ask(socket)
        assert answered(socket)[-1]["response"]["output"]


def test_requests_are_answered_in_their_order_and_too_many_close_the_connection(server: LiveServer) -> None:
    with connected(server) as socket:
        for number in range(MOST_WAITING):
            ask(socket, metadata={"number": str(number)})
        answers = [answered(socket)[-1]["response"]["metadata"]["number"] for _ in range(MOST_WAITING)]
        assert answers == [str(number) for number in range(MOST_WAITING)]
        for _ in range(MOST_WAITING + 2):
            ask(socket, **LONG)
        with pytest.raises(ConnectionClosed) as closed:
            list(socket)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1013


def test_a_message_beyond_the_largest_body_closes_the_connection(server: LiveServer) -> None:
    with connected(server) as socket:
        socket.send("x" * (server.gateway.runtime.settings.max_body_bytes + 1))
        assert answered(socket)[-1]["status"] == 413
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=60)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


def test_a_client_that_leaves_ends_its_answer_and_nothing_of_it_is_held(server: LiveServer) -> None:
    use = server.gateway.runtime.use
    with server.http() as http:
        before = figure(http, "inferd_engine_sessions")
        with connected(server, BOB) as socket:
            ask(socket, store=False)
            answered(socket)
            assert use.outstanding.held("bob")
            ask(socket, **LONG)
            socket.recv(timeout=60)
            ask(socket, input="x" * 100_000)
        deadline = time.monotonic() + 20
        while use.outstanding.held("bob") or use.bodies.held("bob") or figure(http, "inferd_engine_sessions") > before:
            assert time.monotonic() < deadline


def test_a_handshake_without_a_token_is_refused(server: LiveServer) -> None:
    with pytest.raises(Exception, match="401"), connected(server, "wrong-token-0123456789"):
        pass
    with server.http() as http:
        plain: httpx.Response = http.get("/v1/responses")
    assert (plain.status_code, plain.headers["allow"]) == (405, "POST")
