"""A draft model in a process of its own, which drafts for the sequences of one engine process.

It speaks the frames of :mod:`~inferd_runtime.session.wire` on a socket of which its engine process alone knows the place, and
answers nobody but the socket whose identity is the key that it was told.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import zmq

from inferd_runtime.draft_models.draft_host import DraftHost
from inferd_runtime.draft_models.messages import ASK, DESCRIBE, DROP, AskDraft, DraftAnswer, DraftDescription, DropDraft
from inferd_runtime.isolation.child import Child
from inferd_runtime.server.engine_process.boot import bind
from inferd_runtime.server.engine_process.command import EngineStart, run_engine
from inferd_runtime.server.engine_process.serving import serve_model
from inferd_runtime.server.processes.stop_request import StopRequest
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.session.wire import OK

IDLE_MS = 1000


class DraftRequests:
    """Receives its owner's requests and sends each one's answer when the draft engine has it."""

    def __init__(self, socket: zmq.Socket[bytes], served: ServedModel, owner: bytes) -> None:
        self.host = DraftHost(served.engine, served.tokenizer.eos_tokens)
        self._socket = socket
        self._served = served
        self._owner = owner

    def receive(self) -> None:
        """Handle all messages that have arrived."""
        while self._socket.poll(0):
            identity, *frames = self._socket.recv_multipart()
            if identity == self._owner:
                self._handle(identity, *frames)

    def _handle(self, identity: bytes, ticket: bytes, op: bytes, form: bytes, payload: bytes) -> None:
        answer = partial(self._answer, identity, ticket)
        if op.decode() == ASK:
            self.host.ask(identity, msgspec.msgpack.decode(payload, type=AskDraft), answer)
        elif op.decode() == DROP:
            self.host.drop(identity, msgspec.msgpack.decode(payload, type=DropDraft).sequence)
        elif op.decode() == DESCRIBE:
            answer(self._describe())

    def _answer(self, identity: bytes, ticket: bytes, answer: DraftAnswer | DraftDescription) -> None:
        self._socket.send_multipart([identity, ticket, OK, msgspec.msgpack.encode(answer)])

    def _describe(self) -> DraftDescription:
        info = self._served.info
        return DraftDescription(
            self._served.grammars.table.source, info.vocab_size, list(info.eos_tokens), info.max_context
        )


def serve(start: EngineStart) -> None:
    """Load, bind, and draft until SIGTERM or SIGINT, or until the engine process has ended. Raises InferdError."""
    stop = StopRequest()
    served = serve_model(start.settings)
    context: zmq.Context[Any] = zmq.Context()
    socket = bind(context, start.endpoint)
    server = DraftRequests(socket, served, start.key.encode())
    busy = False
    while not stop.received:
        if socket.poll(0 if busy else IDLE_MS):
            server.receive()
        busy = server.host.step()
    server.host.close()
    socket.close()
    context.term()


def child_main(child: Child) -> int:
    """Draft for one engine process. Returns the exit code."""
    return run_engine(child, serve)
