"""Connections that say nothing, half of something, too much, or nonsense."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack

import httpx
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from .arena import Arena, Hostile, checked, open_socket
from .attack import OK, Attack, Conduct, attacks, ended, ending, withstood
from .clients import REFUSED, SLEEP, connected, others_are_served, request_head

ASKING_SECONDS = 2.0


def say(raw: socket.socket, data: bytes) -> None:
    """Send; what stands behind the handshake of a WebSocket once that is answered, which a client has to wait for."""
    head, end, frames = data.partition(b"\r\n\r\n")
    raw.sendall(head + end)
    if frames and b"Upgrade: websocket" in head:
        raw.settimeout(10)
        assert b" 101 " in raw.recv(4096)
    raw.sendall(frames)


def half_sent(count: int, data: Callable[[Hostile], bytes]) -> Callable[[Arena], str]:
    """Open connections that say only the beginning, and hold them while somebody else comes."""

    def act(arena: Arena) -> str:
        with ExitStack() as held:
            for _ in range(count):
                try:
                    raw = held.enter_context(connected(arena))
                    say(raw, data(arena.mallory))
                except (OSError, AssertionError):  # refused: it has enough of them
                    break
            return others_are_served(arena, OK)

    return act


def raw_bytes(data: Callable[[Hostile], bytes], times: int = 1) -> Callable[[Arena], str]:
    """Say something that is no request of ours; the answer's status, or ``closed``."""

    def act(arena: Arena) -> str:
        with connected(arena) as raw, contextlib.suppress(OSError):
            for _ in range(times):
                say(raw, data(arena.mallory))
            raw.shutdown(socket.SHUT_WR)
            raw.settimeout(10)
            while raw.recv(65536):
                pass
        return others_are_served(arena, OK)

    return act


def websockets(count: int) -> Callable[[Arena], str]:
    """Open sessions until they are refused; then somebody else comes."""

    def act(arena: Arena) -> str:
        end = OK
        with ExitStack() as held:
            for _ in range(count):
                try:
                    held.enter_context(open_socket(arena.url, arena.mallory.headers))
                except InvalidStatus as refused:
                    end = refusal(refused)
                    break
                except (OSError, WebSocketException):
                    end = "closed"
                    break
            return others_are_served(arena, end)

    return act


def refusal(refused: InvalidStatus) -> str:
    """The typed error of a handshake that was refused."""
    return ended(json.loads(refused.response.body or b"{}").get("error"))


def socket_that_never_reads(arena: Arena) -> str:
    """Ask for large answers and read none."""
    with arena.mallory.session() as session:
        tokens = session.call("model.tokenize", text="ab c" * 500)["tokens"]
        with contextlib.suppress(ConnectionClosed, OSError, TimeoutError):
            for _ in range(900):
                session.send("model.detokenize", tokens=tokens)
        return others_are_served(arena, OK)


def asking(count: int, path: str) -> Callable[[Arena], str]:
    """Ask over so many connections until ``ASKING_SECONDS`` are over, without waiting for an answer."""

    def act(arena: Arena) -> str:
        requests = request_head(arena.mallory, "GET", path) * 20
        end = time.monotonic() + ASKING_SECONDS
        with ExitStack() as held:
            sent = {held.enter_context(connected(arena)): 0 for _ in range(count)}
            while time.monotonic() < end:
                for raw, done in sent.items():
                    with contextlib.suppress(OSError):
                        sent[raw] = (done + raw.send(requests[done:], socket.MSG_DONTWAIT)) % len(requests)
                    with contextlib.suppress(OSError):
                        raw.recv(1 << 16, socket.MSG_DONTWAIT)
                select.select(sent, [], [], 0.01)
        return others_are_served(arena, OK)

    return act


def resets(arena: Arena) -> str:
    """Ask and reset, 200 times."""
    for _ in range(200):
        with connected(arena) as raw:
            raw.sendall(request_head(arena.mallory, "GET", "/v1/runs"))
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return others_are_served(arena, OK)


def handshakes(arena: Arena) -> str:
    """Open and drop 60 sessions."""
    for _ in range(60):
        try:
            with open_socket(arena.url, arena.mallory.headers):
                pass
        except InvalidStatus as refused:
            return others_are_served(arena, refusal(refused))
    return others_are_served(arena, OK)


def wrong_tokens(arena: Arena) -> str:
    """Guess 300 tokens."""
    with httpx.Client(base_url=arena.url) as stranger:
        ends = {ending(stranger.get("/v1/runs", headers={"Authorization": f"Bearer {n:x}"})) for n in range(300)}
    assert ends == {"client.unauthorized"}
    return others_are_served(arena, OK)


def anothers_run(arena: Arena) -> str:
    """Read, cancel and write to a run of another tenant."""
    other = arena.hostile["trudy"]
    run = other.start(SLEEP)
    mallory = arena.mallory.http
    ends = {
        ending(mallory.get(f"/v1/runs/{run}")),
        ending(mallory.get(f"/v1/runs/{run}/events")),
        ending(mallory.post(f"/v1/runs/{run}/cancel")),
        ending(mallory.post(f"/v1/runs/{run}/messages", json={"message": 1})),
    }
    assert checked(other.http.get(f"/v1/runs/{run}"))["finished_at"] is None
    other.cancel(run)
    return " ".join(sorted(ends))


def frame(opcode: int, data: bytes, masked: bool = True) -> bytes:
    """A WebSocket frame of at most 125 bytes."""
    return bytes([0x80 | opcode, (0x80 if masked else 0) | len(data)]) + (bytes(4) if masked else b"") + data


def websocket_then(data: bytes) -> Callable[[Hostile], bytes]:
    """A handshake, and what follows it."""
    more = (
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: " + "A" * 22 + "==",
    )
    return lambda hostile: request_head(hostile, "GET", "/v1/session", *more) + data


CONNECTIONS: list[Attack] = [
    Conduct("400 half heads", half_sent(400, lambda h: b"GET /v1/runs HTTP/1.1\r\nHost: x\r\n"), OK),
    Conduct("400 half heads with a token", half_sent(400, lambda h: request_head(h, "GET", "/v1/runs")[:-2]), OK),
    Conduct(
        "400 half bodies",
        half_sent(400, lambda h: request_head(h, "POST", "/v1/programs", "Content-Length: 1000") + b"{"),
        OK,
    ),
    Conduct(
        "24 held bodies of 4 MB",
        half_sent(
            24, lambda h: request_head(h, "POST", "/v1/programs", f"Content-Length: {4 << 20}") + b" " * ((4 << 20) - 9)
        ),
        OK,
        seconds=60,
    ),
    Conduct("400 silent connections", half_sent(400, lambda h: b""), OK),
    Conduct("200 half handshakes", half_sent(200, lambda h: websocket_then(b"")(h)[:-2]), OK),
    Conduct("100 half frames", half_sent(100, websocket_then(b"\x82\xff\0\0\0\0\0\x10\0\0\0\0\0\0")), OK),
    Conduct("100 messages begun", half_sent(100, websocket_then(b"\x02\xfe\xff\xff\0\0\0\0" + bytes(65535))), OK),
    Conduct("1,021 sessions", websockets(1021), REFUSED, seconds=90),
    Conduct("60 handshakes", handshakes, REFUSED),
    Conduct("a session that never reads", socket_that_never_reads, OK),
    Conduct("200 resets", resets, OK),
    Conduct(
        "2,000 requests in one go", raw_bytes(lambda h: request_head(h, "GET", "/v1/runs") * 200, 10), OK, seconds=60
    ),
    Conduct("24 connections that ask without end", asking(24, "/v1/runs"), OK),
    Conduct("24 connections that ask for what is not there", asking(24, "/v1/nothing"), OK),
    Conduct("a head of 200 KB", raw_bytes(lambda h: request_head(h, "GET", "/v1/runs", "X: " + "x" * 200_000)), OK),
    Conduct("20,000 headers", raw_bytes(lambda h: request_head(h, "GET", "/v1/runs", *["a: b"] * 20_000)), OK),
    Conduct(
        "two lengths",
        raw_bytes(lambda h: request_head(h, "POST", "/v1/runs", "Content-Length: 5", "Content-Length: 50") + b"{}"),
        OK,
    ),
    Conduct(
        "a length and chunks",
        raw_bytes(
            lambda h: (
                request_head(h, "POST", "/v1/runs", "Content-Length: 5", "Transfer-Encoding: chunked")
                + b"0\r\n\r\nGET /v1/runs HTTP/1.1\r\n\r\n"
            )
        ),
        OK,
    ),
    Conduct(
        "chunks of one byte",
        raw_bytes(
            lambda h: request_head(h, "POST", "/v1/runs", "Transfer-Encoding: chunked") + b"1\r\n \r\n" * 100_000
        ),
        OK,
    ),
    Conduct(
        "a chunk of 2**64",
        raw_bytes(lambda h: request_head(h, "POST", "/v1/runs", "Transfer-Encoding: chunked") + b"f" * 17 + b"\r\n"),
        OK,
    ),
    Conduct(
        "a body that declares 10**18",
        raw_bytes(lambda h: request_head(h, "POST", "/v1/programs", "Content-Length: " + "9" * 18) + b"{}"),
        OK,
    ),
    Conduct("no HTTP", raw_bytes(lambda h: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)), OK),
    Conduct("a megabyte without an end of line", raw_bytes(lambda h: b"G" * (1 << 20)), OK),
    Conduct("50,000 pings", raw_bytes(websocket_then(frame(9, b"x") * 50_000)), OK),
    Conduct(
        "50,000 empty fragments", raw_bytes(websocket_then(b"\x02\x80\0\0\0\0" + b"\x00\x80\0\0\0\0" * 50_000)), OK
    ),
    Conduct("an opcode that is none", raw_bytes(websocket_then(frame(11, b"x"))), OK),
    Conduct("a frame without a mask", raw_bytes(websocket_then(frame(2, b"x", masked=False))), OK),
    Conduct("a frame of 2**63", raw_bytes(websocket_then(b"\x82\xff\x7f" + b"\xff" * 7 + bytes(4))), OK),
    Conduct("a ping of 64 KB", raw_bytes(websocket_then(b"\x89\xfe\xff\xff" + bytes(4 + 65535))), OK),
    Conduct("a close that is none", raw_bytes(websocket_then(frame(8, b"\xff"))), OK),
    Conduct("300 guesses of a token", wrong_tokens, OK),
    Conduct("another tenant's run", anothers_run, "client.not_found"),
]


@attacks(*CONNECTIONS)
def test_a_connection_that_misbehaves_holds_up_nobody(arena: Arena, attack: Attack) -> None:
    withstood(arena, attack)


def test_what_is_no_frame_leaves_no_traceback_in_the_log(arena: Arena) -> None:
    before = len(arena.tracebacks())
    for data in (
        frame(11, b"x"),
        frame(2, b"x", masked=False),
        frame(8, b"\xff"),
        frame(1, b"\xff"),
        b"\x01\x81\0\0\0\0\xe2" + b"\x80\x81\0\0\0\0\x28",
        b"\x89\xfe\xff\xff" + bytes(4 + 65535),
    ):
        raw_bytes(websocket_then(data))(arena)
    assert arena.tracebacks()[before:] == []
