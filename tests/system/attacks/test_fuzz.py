"""Odd frames at every socket: nothing ends, nothing is left behind, and no traceback is in the log.

Each way is fuzzed with some thousands of frames; ``pytest -m long`` tries a million.
"""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import msgspec
import psutil
import pytest
from fuzzing import Frame, engine_frames, http_request, many, script_frame
from hypothesis import HealthCheck, given, settings
from websockets.exceptions import ConnectionClosed

from inferd_runtime.server.supervisor.engine_session import MOST_IDLE
from inferd_runtime.session.grants import SessionGrants, new_key
from inferd_runtime.session.hub import SessionHub
from inferd_runtime.session.wire import MSGPACK, OPEN, TICKET, OpenSession
from inferd_runtime.testing.served import null_model

from .arena import TOKENS, Arena

SYNC = 1 << 31
"""A ticket that no fuzzed frame has: its answer tells that all frames before it were read."""
QUIET = settings(
    deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=True, derandomize=False
)  # fmt: skip
BATCH = 5
SLACK = 12
"""Descriptors and threads that a server may hold more of, for connections that are being closed."""
OF_A_CHANNEL = 3
"""Descriptors of a channel between gateway and engine, at both of its ends; some are kept for the next session."""


SETTLE_SECONDS = 20.0
"""How long it may take until they are closed."""


@dataclass(frozen=True)
class Held:
    """What the server's processes hold."""

    descriptors: int
    threads: int
    sessions: float
    pages: float

    def within(self, other: Held) -> bool:
        """True if it is no more than another, except connections that are being closed, and kept channels."""
        descriptors, threads = other.descriptors + SLACK + OF_A_CHANNEL * MOST_IDLE, other.threads + SLACK
        return self.sessions <= other.sessions and self.descriptors <= descriptors and self.threads <= threads


def held(arena: Arena) -> Held:
    """Count it."""
    processes = [psutil.Process(arena.server.pid), *psutil.Process(arena.server.pid).children()]
    figures = arena.operator.http.get("/metrics").text
    descriptors = threads = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            descriptors += process.num_fds()
            threads += process.num_threads()
    return Held(descriptors, threads, gauge(figures, "inferd_engine_sessions"), gauge(figures, "inferd_kv_pages_free"))


def gauge(figures: str, name: str) -> float:
    """A figure of ``/metrics``."""
    found = re.search(rf"^{name} (\S+)$", figures, re.MULTILINE)
    assert found, name
    return float(found[1])


@contextlib.contextmanager
def nothing_left(arena: Arena) -> Iterator[None]:
    """Fail if the server is not as it was, once the connections are gone."""
    arena.watcher.after(1)  # the neighbour has its session, whatever the attack before did
    before, tracebacks = held(arena), len(arena.tracebacks())
    arena.watcher.report()
    yield
    arena.restarts()
    arena.watcher.after(2)
    deadline = time.monotonic() + SETTLE_SECONDS
    while not held(arena).within(before) and time.monotonic() < deadline:
        time.sleep(0.2)
    after = held(arena)
    assert after.within(before), (before, after)
    assert arena.tracebacks()[tracebacks:] == []


def send_frames(arena: Arena, frames: list[Frame]) -> int:
    """Send frames over WebSockets, a new one whenever the server has had enough: after one that is no call of a script.

    A few at a time, because it reads none behind that one. Returns how many it read for certain.
    """
    read, at = 0, 0
    while at < len(frames):
        with arena.mallory.session() as session:
            try:
                while at < len(frames):
                    batch = frames[at : at + BATCH]
                    at += len(batch)
                    for frame in batch:
                        session.socket.send(frame)
                    session.socket.send(msgspec.msgpack.encode({"t": SYNC, "op": "model.list", "a": {}}))
                    while session.receive()["t"] != SYNC:
                        pass
                    read += len(batch)
            except ConnectionClosed:
                continue
    return read


def send_requests(arena: Arena, requests: list[bytes]) -> None:
    """Send requests over connections of their own; none may find a bug."""
    address = urlsplit(arena.url)
    for data in requests:
        with socket.create_connection((str(address.hostname), int(address.port or 0)), 10) as raw:
            raw.settimeout(10)
            answer = b""
            with contextlib.suppress(OSError):
                raw.sendall(data)
                raw.shutdown(socket.SHUT_WR)
                while piece := raw.recv(65536):
                    answer += piece
            status = answer.split(b"\r\n", 1)[0]
            assert b" 500 " not in status, (data, answer)


class HubUnderFire:
    """The engine's end of its socket without the socket, over a model without weights."""

    def __init__(self) -> None:
        self.model = null_model()
        self.answers = 0
        self._grants = SessionGrants(new_key())
        self.hub = SessionHub({"null": self.model}, self._send, self._grants)

    def _send(self, identity: bytes, frames: list[bytes]) -> None:
        self.answers += 1

    def take(self, messages: list[list[bytes]]) -> None:
        """Open a session, send it messages with steps between them, and close it: nothing is left."""
        opening = msgspec.msgpack.encode(OpenSession(self._grants.issue("run/1", "mallory")))
        self.hub.receive(b"run/1", [TICKET.pack(0), OPEN.encode(), MSGPACK, opening])
        for number, frames in enumerate(messages):
            self.hub.receive(b"run/1" if number % 9 else b"run/unknown", frames)
            if not number % 10:
                self.model.engine.step()
        self.hub.close_all()
        while self.model.engine.step():
            pass
        assert self.hub.stats().sessions == 0
        assert self.model.engine.scheduler.jobs == 0
        pool = self.model.engine.pool
        assert pool.available == pool.size
        self.model.engine.check_integrity()


def fuzzed(take: Callable[[list[object]], object], make: Callable[[Random], object], examples: int, each: int) -> None:
    """Try so many examples of so many frames each."""

    @settings(QUIET, max_examples=examples)
    @given(many(make, each))
    def tried(frames: list[object]) -> None:
        take(frames)

    tried()


def test_odd_frames_over_a_websocket_leave_nothing(arena: Arena) -> None:
    with nothing_left(arena):
        fuzzed(lambda frames: send_frames(arena, frames), script_frame, 20, 100)  # type: ignore[arg-type]


def test_odd_requests_over_http_leave_nothing(arena: Arena) -> None:
    with nothing_left(arena):
        fuzzed(lambda frames: send_requests(arena, frames), request_of_mallory, 10, 30)  # type: ignore[arg-type]


def test_odd_frames_at_the_engine_leave_nothing(caplog: pytest.LogCaptureFixture) -> None:
    hub = HubUnderFire()
    with caplog.at_level(logging.ERROR):
        fuzzed(hub.take, engine_frames, 30, 200)  # type: ignore[arg-type]
    assert hub.answers > 1000
    assert not caplog.records


def request_of_mallory(random: Random) -> bytes:
    """A request with a token that is accepted."""
    return http_request(random, TOKENS["mallory"])


@pytest.mark.long
def test_a_million_odd_frames(arena: Arena, tmp_path: Path) -> None:
    """Prints how many went where."""
    hub = HubUnderFire()
    fuzzed(hub.take, engine_frames, 3000, 200)  # type: ignore[arg-type]
    with nothing_left(arena):
        fuzzed(lambda frames: send_frames(arena, frames), script_frame, 3000, 100)  # type: ignore[arg-type]
        fuzzed(lambda frames: send_requests(arena, frames), request_of_mallory, 300, 100)  # type: ignore[arg-type]
