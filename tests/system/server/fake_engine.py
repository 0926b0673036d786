"""A process that answers the engine link without a model: ``fake_engine.py --endpoint ipc://...``.

It keeps the sessions that are open and refuses everything else by name. ``model.tokenize`` drives the tests: the text
``die`` ends the process, ``hang`` is never answered (except a cancel), anything else is its characters' code points.
``context.create`` answers how many sessions are open, as the context's length. Whoever watches speculation gets one step
each time that it asks.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import zmq

from inferd.protocol import (
    Adapters,
    Cancelled,
    ContextState,
    Done,
    ErrorInfo,
    InvalidRequest,
    ModelInfo,
    Models,
    NotFound,
    Tokenize,
    Tokens,
    Usage,
)
from inferd_runtime.session.grants import SIGNATURE_BYTES, Grant
from inferd_runtime.session.wire import (
    CANCEL,
    CLOSE,
    ERROR,
    JSON,
    OK,
    OPEN,
    TICKET,
    CloseNamedSessions,
    CyclePage,
    EngineStats,
    GetCycles,
    GetEngineStats,
    GetProduced,
    OpenSession,
    ProducedTokens,
    WatchedCycle,
)

MODELS = Models([ModelInfo("fake", 256, 1024, 16, [0], "sha256:fake")])


class Engine:
    def __init__(self, socket: zmq.Socket[bytes], produces: Path | None = None) -> None:
        self.socket = socket
        self.produces = produces
        self.sessions: dict[bytes, str] = {}
        self.hanging: dict[tuple[bytes, bytes], bytes] = {}

    def reply(self, session: bytes, ticket: bytes, form: bytes, value: Any) -> None:
        status = ERROR if isinstance(value, ErrorInfo) else OK
        encode = msgspec.json.encode if form == JSON else msgspec.msgpack.encode
        self.socket.send_multipart([session, ticket, status, encode(value)])

    def handle(self, session: bytes, ticket: bytes, op: bytes, form: bytes, payload: bytes) -> None:
        name = op.decode()
        if name == OPEN:
            opened = msgspec.msgpack.decode(payload, type=OpenSession)
            self.sessions[session] = msgspec.msgpack.decode(opened.grant[SIGNATURE_BYTES:], type=Grant).session
            self.reply(session, ticket, form, Done())
        elif session not in self.sessions:
            self.reply(session, ticket, form, NotFound(f"session {session!r} is not open").to_wire())
        elif name == CLOSE:
            del self.sessions[session]
            self.reply(session, ticket, form, Usage())
        elif name == CANCEL:
            waiting = self.hanging.pop((session, ticket), None)
            if waiting is not None:
                self.reply(session, ticket, waiting, Cancelled("the call was cancelled").to_wire())
        else:
            self.operate(session, ticket, name, form, payload)

    def operate(self, session: bytes, ticket: bytes, op: str, form: bytes, payload: bytes) -> None:
        if op == "model.list":
            self.reply(session, ticket, form, MODELS)
        elif op == "adapter.list":
            self.reply(session, ticket, form, Adapters([]))
        elif op == GetEngineStats.op:
            self.reply(session, ticket, form, EngineStats(7, 0, len(self.sessions), 64, 60))
        elif op == GetProduced.op:
            produces = self.produces is not None and self.produces.exists()
            self.reply(session, ticket, form, ProducedTokens({"ann": 900} if produces else {}))
        elif op == GetCycles.op:
            asked = msgspec.msgpack.decode(payload, type=GetCycles)
            cycle = WatchedCycle(max(0, asked.after), asked.tenant, 1, 1, "ngram", 4, 2, 3)
            self.reply(session, ticket, form, CyclePage([cycle], cycle.index + 1))
        elif op == CloseNamedSessions.op:
            names = msgspec.msgpack.decode(payload, type=CloseNamedSessions).sessions
            self.sessions = {key: held for key, held in self.sessions.items() if held not in names}
            self.reply(session, ticket, form, Done())
        elif op == "context.create":
            self.reply(session, ticket, form, ContextState(1, len(self.sessions), 0))
        elif op == "model.tokenize":
            decode = msgspec.json.decode if form == JSON else msgspec.msgpack.decode
            text = decode(payload, type=Tokenize).text
            if text == "die":
                print("the fake engine was told to die", file=sys.stderr, flush=True)
                os._exit(3)
            if text == "hang":
                self.hanging[session, ticket] = form
            else:
                self.reply(session, ticket, form, Tokens([ord(char) for char in text]))
        else:
            self.reply(session, ticket, form, InvalidRequest(f"the fake engine has no {op}").to_wire())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--fail", action="store_true", help="print a line and exit before answering anything")
    parser.add_argument(
        "--after", default="", metavar="FIFO", help="answer once somebody has opened that pipe for writing"
    )
    parser.add_argument(
        "--produces", type=Path, help="once that file is there, ann generates 900 tokens between any two looks"
    )
    options = parser.parse_args()
    if options.fail:
        sys.exit("no such model: fake")
    if options.after:
        Path(options.after).read_bytes()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.bind(options.endpoint)
    engine = Engine(socket, options.produces)
    while True:
        session, ticket, op, form, payload = socket.recv_multipart()
        assert len(ticket) == TICKET.size
        engine.handle(session, ticket, op, form, payload)


if __name__ == "__main__":
    main()
