"""Odd frames at the socket of a real engine process: it lives on, and nothing of them is left in it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import psutil
import pytest
import zmq
from fuzzing import engine_frames, many, mutated
from hypothesis import HealthCheck, given, settings

from inferd_runtime.session.wire import CLOSE, MSGPACK, OPEN, TICKET, OpenSession, new_identity, open_frames

from .engine_client import GRANTS, SECONDS, Caller, EngineProcess, engine_process

SETTLE_SECONDS = 30.0
BATCH = 50
SYNC = TICKET.pack(1 << 31)
"""A ticket that no odd frame has: its answer tells that all frames before it were read."""
QUIET = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=True)
SLACK = 8
"""Descriptors and threads that come with the first use of something, and sockets that are being closed."""


class EngineUnderFire:
    """An engine process, the gateway's own session on it, and what it held before the first odd frame."""

    def __init__(self, engine: EngineProcess) -> None:
        self.engine = engine
        self.sent = self.answers = 0
        self._context: zmq.Context[Any] = zmq.Context()
        self._gateway: Caller = engine.session("gateway")
        self._process = psutil.Process(engine.process.pid)
        self._names = itertools.count()
        self._first = self._held()

    def take(self, messages: list[list[bytes]]) -> None:
        """Send messages over a socket of their own, some of them with a session and some without, and leave it behind."""
        number = next(self._names)
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.IDENTITY, new_identity())
        socket.connect(self.engine.endpoint)
        random = Random(number)
        name = f"run/fuzz-{number}"
        if random.random() < 0.9:
            socket.send_multipart(open_frames(GRANTS.issue(name, f"tenant-{number % 5}"), "fuzz"))
        for at in range(0, len(messages), BATCH):
            for frames in messages[at : at + BATCH]:
                socket.send_multipart(self._spoilt(frames, random) or [b""])
                self.sent += 1
            self._read_all(socket)
        if random.random() < 0.5:
            socket.send_multipart([TICKET.pack(0), CLOSE.encode(), MSGPACK, b"\x80"])
        socket.close()
        self._gateway.close_session(name)

    def _read_all(self, socket: zmq.Socket[bytes]) -> None:
        """Read until the engine has come to what is sent now: with a session or without, it answers."""
        socket.send_multipart([SYNC, b"model.list", MSGPACK, b"\x80"])
        while True:
            assert socket.poll(int(SECONDS * 1e3)), "the engine does not answer"
            if socket.recv_multipart()[0] == SYNC:
                return
            self.answers += 1

    def _spoilt(self, frames: list[bytes], random: Random) -> list[bytes]:
        """Return the frames, or seldom an opening with a grant that is none."""
        whole = GRANTS.issue("run/other", "bob")
        grant = mutated(whole, random)
        if random.random() > 0.01 or grant == whole:
            return frames
        return [TICKET.pack(0), OPEN.encode(), MSGPACK, msgspec.msgpack.encode(OpenSession(grant))]

    def check(self) -> None:
        """Fail if the engine has ended, or holds more than at the beginning."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while not self._as_before() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert self.engine.process.poll() is None
        assert self._as_before(), (self._first, self._held())

    def _as_before(self) -> bool:
        sessions, jobs, used, descriptors, threads = self._held()
        first = self._first
        same = (sessions, jobs, used) == first[:3]
        return same and descriptors <= first[3] + SLACK and threads <= first[4] + SLACK

    def _held(self) -> tuple[int, int, int, int, int]:
        """Sessions, jobs, pages that are not free, descriptors, threads."""
        stats = self._gateway.stats()
        process = self._process
        return (stats.sessions, stats.jobs, stats.pages - stats.pages_free, process.num_fds(), process.num_threads())

    def close(self) -> None:
        """Close the sockets."""
        self._context.term()


@pytest.fixture
def fire(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[EngineUnderFire]:
    with engine_process(tmp_path, pages=2048, check=True) as engine:
        fire = EngineUnderFire(engine)
        yield fire
        fire.check()
        fire.close()
    assert "Traceback" not in capfd.readouterr().err


def under_fire(fire: EngineUnderFire, examples: int, each: int) -> None:
    """Try so many sockets with so many messages each."""

    @settings(QUIET, max_examples=examples)
    @given(many(engine_frames, each))
    def tried(messages: list[list[bytes]]) -> None:
        fire.take(messages)

    tried()


def test_odd_frames_at_the_engines_socket_end_nothing_and_leave_nothing(fire: EngineUnderFire) -> None:
    under_fire(fire, 15, 100)
    assert fire.answers > 500


@pytest.mark.long
def test_a_hundred_thousand_odd_frames_at_the_engines_socket(fire: EngineUnderFire) -> None:
    """Prints how many were sent and answered."""
    under_fire(fire, 1000, 100)
    print(f"{fire.sent} frames sent, {fire.answers} answers")
