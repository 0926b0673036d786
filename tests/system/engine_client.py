"""An engine process of its own, and sessions on it as plain blocking calls."""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import zmq

from inferd import protocol as p
from inferd_runtime.isolation.order import Launch
from inferd_runtime.isolation.start import close_input, give_order
from inferd_runtime.server.engine_process.command import NO_SECRETS, DraftSecrets, EngineStart, engine_launch
from inferd_runtime.session.grants import SessionGrants, new_key
from inferd_runtime.session.wire import (
    ERROR,
    MSGPACK,
    OPEN,
    TICKET,
    CloseNamedSessions,
    EngineStats,
    GetEngineStats,
    OpenSession,
    new_identity,
)
from inferd_runtime.settings.settings import EngineSettings

SECONDS = 60.0
KEY = new_key()
GRANTS = SessionGrants(KEY)


class Caller:
    """One session. Requests may be in flight together; their answers come by ticket."""

    def __init__(self, context: zmq.Context[Any], endpoint: str, tenant: str) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IDENTITY, new_identity())
        self._socket.connect(endpoint)
        self._tickets = itertools.count(1)
        self._kinds: dict[int, Any] = {}
        self._got: dict[int, Any] = {}
        grant = GRANTS.issue(f"test/{tenant}", tenant, gateway=True)
        self._result(self._send(OPEN, msgspec.msgpack.encode(OpenSession(grant)), p.Done))

    def submit(self, request: Any) -> int:
        """Send a request; its ticket."""
        op = type(request).op
        return self._send(op, msgspec.msgpack.encode(request), type(request).reply)

    def ready(self, ticket: int) -> bool:
        """Whether the answer is there, without waiting."""
        while self._socket.poll(0):
            self._receive()
        return ticket in self._got

    def wait(self, ticket: int) -> Any:
        """The answer, an InferdError as a value."""
        deadline = time.monotonic() + SECONDS
        while ticket not in self._got:
            assert self._socket.poll(max(0, int(1e3 * (deadline - time.monotonic())))), "the engine does not answer"
            self._receive()
        return self._got.pop(ticket)

    def call(self, request: Any) -> Any:
        """The reply. Raises what was answered if it is an error."""
        return self._result(self.submit(request))

    def stats(self) -> EngineStats:
        """The engine's counters."""
        stats: EngineStats = self._result(self._send(GetEngineStats.op, b"\x80", EngineStats))
        return stats

    def close_session(self, name: str) -> None:
        """Close a session of this name, whoever opened it, as the gateway does."""
        self._result(self._send(CloseNamedSessions.op, msgspec.msgpack.encode(CloseNamedSessions([name])), p.Done))

    def prompt(self, text: str) -> int:
        """A context that holds a text."""
        context: int = self.call(p.CreateContext()).context
        self.call(p.AppendContext(context, [p.Part("text", text=text)]))
        return context

    def close(self) -> None:
        """Close the socket; the engine's end stays."""
        self._socket.close()

    def _send(self, op: str, payload: bytes, kind: Any) -> int:
        ticket = next(self._tickets)
        self._kinds[ticket] = kind
        self._socket.send_multipart([TICKET.pack(ticket), op.encode(), MSGPACK, payload])
        return ticket

    def _receive(self) -> None:
        head, mark, payload = self._socket.recv_multipart()
        (ticket,) = TICKET.unpack(head)
        if mark == ERROR:
            self._got[ticket] = msgspec.msgpack.decode(payload, type=p.ErrorInfo).to_exception()
        else:
            self._got[ticket] = msgspec.msgpack.decode(payload, type=self._kinds[ticket])

    def _result(self, ticket: int) -> Any:
        answer = self.wait(ticket)
        if isinstance(answer, p.InferdError):
            raise answer
        return answer


def new_engine(endpoint: str, settings: EngineSettings, drafts: DraftSecrets = NO_SECRETS) -> Launch:
    """How an engine process is started."""
    return engine_launch(EngineStart(endpoint, KEY.hex(), settings, drafts=drafts))


def start(launch: Launch) -> subprocess.Popen[bytes]:
    """Start a child that prints where the tests do."""
    process = subprocess.Popen(launch.command, stdin=subprocess.PIPE, env=launch.environment)
    give_order(process, launch)
    close_input(process)
    return process


class EngineProcess:
    """An engine process with one thread, and ``settings``."""

    def __init__(self, folder: Path, *, drafts: DraftSecrets = NO_SECRETS, **settings: Any) -> None:
        self.endpoint = f"ipc://{folder}/engine"
        self.process = start(new_engine(self.endpoint, EngineSettings(threads=1, **settings), drafts))
        self._context: zmq.Context[Any] = zmq.Context()
        self._callers: list[Caller] = []

    def session(self, tenant: str) -> Caller:
        """A new session of a tenant."""
        caller = Caller(self._context, self.endpoint, tenant)
        self._callers.append(caller)
        return caller

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(SECONDS)
        for caller in self._callers:
            caller.close()
        self._context.term()


@contextmanager
def engine_process(folder: Path, **settings: Any) -> Iterator[EngineProcess]:
    """An engine that is up."""
    engine = EngineProcess(folder, **settings)
    try:
        yield engine
    finally:
        engine.close()
