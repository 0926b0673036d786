"""A draft model in a process of its own: an engine, a socket, and the sequences of one engine process that it drafts for.

It speaks the frames of :mod:`~inferd_runtime.session.wire` on a socket that its engine process alone knows: no program and no
script reaches it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import zmq

from inferd.protocol import InferdError
from inferd_runtime.draft_models.draft_host import DraftHost
from inferd_runtime.draft_models.messages import (
    ASK,
    DESCRIBE,
    DROP,
    AskDraft,
    DraftAnswer,
    DraftDescription,
    DropDraft,
)
from inferd_runtime.engine.scheduling.tenants import Tenancy
from inferd_runtime.models.options import ModelOptions
from inferd_runtime.server.engine_process.boot import EngineSettings, serve_models
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.session.wire import OK

IDLE_MS = 1000


class DraftServer:
    """Takes requests off the wire, and sends each one's answer when the draft engine has it."""

    def __init__(self, socket: zmq.Socket[bytes], served: ServedModel) -> None:
        self.host = DraftHost(served.engine, served.tokenizer.eos_tokens)
        self._socket = socket
        self._served = served

    def receive(self) -> None:
        """Take all messages that have come."""
        while self._socket.poll(0):
            identity, *frames = self._socket.recv_multipart()
            self._take(identity, *frames)

    def _take(self, identity: bytes, ticket: bytes, op: bytes, form: bytes, payload: bytes) -> None:
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


def run(settings: EngineSettings, model: ModelOptions) -> None:
    """Load, bind, draft until SIGTERM or SIGINT, or until the engine process has ended."""
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: stopping.append(received))
    (served,) = serve_models(settings, [model])
    context: zmq.Context[Any] = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.bind(settings.endpoint)
    desk = DraftServer(socket, served)
    busy, parent = False, os.getppid()
    while not stopping and os.getppid() == parent:
        if socket.poll(0 if busy else IDLE_MS):
            desk.receive()
        busy = desk.host.step()
    desk.host.close()
    socket.close()
    context.term()


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m inferd_runtime.server.engine_process.draft_process --endpoint ipc://... --model tiny-draft``.

    An error ends it with exit code 2, and is the last line that it prints, as JSON.
    """
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--model", required=True, metavar="NAME[,OPTION=VALUE]")
    for name, value in (("threads", 0), ("page-size", 16), ("token-budget", 512)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--tenancy", type=partial(msgspec.json.decode, type=Tenancy), default=Tenancy(), help="JSON")
    parser.add_argument("--kv-dtype", choices=("model", "fp8"), default="model")
    parser.add_argument("--graphs", choices=("on", "off"), default="on")
    parser.add_argument("--products", choices=("auto", "torch", "kernel"), default="auto")
    parser.add_argument("--plain", action="store_true", help="run transformers' own modules, never the fused pass")
    options = vars(parser.parse_args(argv))
    try:
        model = ModelOptions.parse(options.pop("model"))
        run(EngineSettings(**options, swap_mb=0), model)
    except InferdError as error:
        print(msgspec.json.encode(error.to_wire()).decode(), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
