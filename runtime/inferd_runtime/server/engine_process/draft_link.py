"""An engine process's end of a draft model in another process: keeps that alive, and never waits for it."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from tempfile import TemporaryFile
from typing import Any

import msgspec
import zmq

from inferd.protocol import InferdError, Unavailable
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
from inferd_runtime.server.processes.backoff import Backoff
from inferd_runtime.server.processes.rundir import run_directory
from inferd_runtime.server.supervisor.engine_supervisor import told_error
from inferd_runtime.session.wire import MSGPACK, parse_reply, request_frames

START_SECONDS = 600.0
STOP_SECONDS = 5.0
TICK_MS = 200
TAIL_BYTES = 1 << 14


class DraftChild:
    """The process, which ends with this one. What it prints is kept for error messages."""

    def __init__(self, flags: Sequence[str]) -> None:
        self._printed = TemporaryFile()  # noqa: SIM115 - closed with the child
        self.started = time.monotonic()
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "inferd_runtime.server.processes.tether", str(os.getpid()),
                "inferd_runtime.server.engine_process.draft_process", *flags,
            ],
            stdin=subprocess.DEVNULL, stdout=self._printed, stderr=self._printed,
        )  # fmt: skip

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def error(self) -> InferdError:
        """Why it ended."""
        end = self._printed.seek(0, os.SEEK_END)
        self._printed.seek(max(0, end - TAIL_BYTES))
        printed = self._printed.read().decode(errors="replace").strip()
        return told_error(printed) or Unavailable(f"the draft model's process ended\n{printed}", process="draft")

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._printed.close()


class RemoteDrafts:
    """Owned by the thread of the step loop. What the process does not take at once is answered with an error at once.

    A process that has died is started again, later each time; its sequences are sent again by who needs them.
    """

    overlaps = True

    def __init__(self, flags: Sequence[str]) -> None:
        self._held = contextlib.ExitStack()
        endpoint = f"ipc://{self._held.enter_context(run_directory())}/link.sock"
        self._flags = ["--endpoint", endpoint, *flags]
        self._child = DraftChild(self._flags)
        self._backoff = Backoff()
        self._restart_at = 0.0
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        # To a process that is not there nothing is queued: who asks hears so at once.
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._socket.connect(endpoint)
        self._tickets = itertools.count(1)
        self._pending: dict[int, AnswerCallback] = {}

    @property
    def pid(self) -> int:
        """Process id of the draft model."""
        return self._child.pid

    def describe(self) -> DraftDescription:
        """Wait until the draft model is loaded. Raises the error that its process ended with."""
        until = time.monotonic() + START_SECONDS
        asked = False
        while not self._socket.poll(TICK_MS):
            asked = asked or self._send(0, DESCRIBE, b"\x80")
            if not self._child.alive:
                raise self._child.error()
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
        """Wait until there may be something to do, for callers that poll nothing else. False when the time is up."""
        return bool(self._socket.poll(int(seconds * 1000)))

    def poll(self) -> bool:
        """See :class:`~inferd_runtime.draft_models.messages.DraftTransport`. Looks after the process, too."""
        progressed = self._receive()
        if not self._child.alive:
            self._revive()
        return progressed

    def close(self) -> None:
        """See :class:`~inferd_runtime.draft_models.messages.DraftTransport`."""
        self._pending.clear()
        self._child.close()
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
        """Answer what the dead process did not, and start another when it is time."""
        pending, self._pending = self._pending, {}
        for done in pending.values():
            done(DraftAnswer(error="the draft model's process has ended"))
        now = time.monotonic()
        if not self._restart_at:
            self._restart_at = now + self._backoff.next(now - self._child.started)
        elif now >= self._restart_at:
            self._restart_at = 0.0
            self._child.close()
            self._child = DraftChild(self._flags)
