"""The engine process's transport to a draft model in another process, which it keeps alive and never waits for."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq

from inferd.protocol import Unavailable
from inferd_runtime.draft_models.messages import (
    ASK,
    DESCRIBE,
    DROP,
    AnswerCallback,
    AskDraft,
    DraftAnswer,
    DraftDescription,
    DropDraft,
    Pollable,
)
from inferd_runtime.server.engine_process.command import EngineStart, draft_launch
from inferd_runtime.server.processes.backoff import Backoff
from inferd_runtime.server.processes.blocking_child import BlockingChild
from inferd_runtime.server.processes.rundir import run_directory
from inferd_runtime.session.wire import MSGPACK, parse_reply, request_frames
from inferd_runtime.settings.settings import EngineSettings

START_SECONDS = 600.0
TICK_MS = 200


class ProcessDrafts:
    """A draft model's process and the socket to it; used by the thread of the step loop alone.

    A request that the process cannot receive at once is answered with an error. A process that has died is started
    again, after a longer pause each time; its sequences are sent again when they are needed.
    """

    overlaps = True
    round_trip = 0.0

    def __init__(self, settings: EngineSettings) -> None:
        self._held = contextlib.ExitStack()
        endpoint = f"ipc://{self._held.enter_context(run_directory())}/link.sock"
        identity = secrets.token_hex(16)
        self._launch = draft_launch(EngineStart(endpoint, identity, settings))
        self._child = BlockingChild(self._launch)
        self._backoff = Backoff()
        self._restart_at = 0.0
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IDENTITY, identity.encode())
        # Nothing is queued for a process that is not there, so that sending fails at once.
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._socket.connect(endpoint)
        self._tickets = itertools.count(1)
        self._pending: dict[int, AnswerCallback] = {}

    @property
    def pid(self) -> int:
        """Process id of the draft model."""
        return self._child.pid

    def describe(self) -> DraftDescription:
        """Wait until the draft model is loaded and return its description. Raises the error that its process ended with."""
        until = time.monotonic() + START_SECONDS
        asked = False
        while not self._socket.poll(TICK_MS):
            asked = asked or self._send(0, DESCRIBE, b"\x80")
            if not self._child.alive:
                raise self._child.error("the draft model's process", process="draft")
            if time.monotonic() > until:
                raise Unavailable(f"the draft model was not loaded within {START_SECONDS:g} s", process="draft")
        reply = parse_reply(self._socket.recv_multipart())
        return msgspec.msgpack.decode(reply.payload, type=DraftDescription)

    def ask(self, request: AskDraft, done: AnswerCallback) -> None:
        """See :class:`~inferd_runtime.draft_models.messages.DraftTransport`."""
        ticket = next(self._tickets) & 0xFFFFFFFF
        if not self._send(ticket, ASK, msgspec.msgpack.encode(request)):
            return done(DraftAnswer(error="the draft model's process is not there"))
        self._pending[ticket] = done

    def drop(self, sequence: int) -> None:
        """See :class:`~inferd_runtime.draft_models.messages.DraftTransport`."""
        self._send(0, DROP, msgspec.msgpack.encode(DropDraft(sequence)))

    @property
    def waits_on(self) -> Sequence[Pollable]:
        """See :class:`~inferd_runtime.draft_models.messages.DraftTransport`."""
        return [self._socket]

    def wait(self, seconds: float) -> bool:
        """Wait until an answer has come, for callers that poll nothing else; False when the time is up."""
        return bool(self._socket.poll(int(seconds * 1000)))

    def poll(self) -> bool:
        """See :class:`~inferd_runtime.draft_models.messages.DraftTransport`. Starts a dead process again when it is time."""
        progressed = self._receive()
        if not self._child.alive:
            self._revive()
        return progressed

    def close(self) -> None:
        """See :class:`~inferd_runtime.draft_models.messages.DraftTransport`."""
        self._pending.clear()
        self._child.stop()
        self._socket.close()
        self._context.term()
        self._held.close()

    def _send(self, ticket: int, op: str, payload: bytes) -> bool:
        with contextlib.suppress(zmq.Again):
            self._socket.send_multipart(request_frames(ticket, op, MSGPACK, payload), zmq.NOBLOCK)
            return True
        return False

    def _receive(self) -> bool:
        progressed = False
        while self._socket.poll(0):
            reply = parse_reply(self._socket.recv_multipart())
            done = self._pending.pop(reply.ticket, None)
            if done is not None:
                done(msgspec.msgpack.decode(reply.payload, type=DraftAnswer))
                progressed = True
        return progressed

    def _revive(self) -> None:
        """Fail the requests of the dead process, and start another when it is time."""
        pending, self._pending = self._pending, {}
        for done in pending.values():
            done(DraftAnswer(error="the draft model's process has ended"))
        now = time.monotonic()
        if not self._restart_at:
            self._restart_at = now + self._backoff.next(now - self._child.started)
        elif now >= self._restart_at:
            self._restart_at = 0.0
            self._child.stop()
            self._child = BlockingChild(self._launch)
