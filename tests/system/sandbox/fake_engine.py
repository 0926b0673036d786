"""An engine without a model: it answers a few operations at once, and keeps what it was asked."""

from __future__ import annotations

import json
import threading
from typing import Any

import msgspec
import zmq

from inferd.protocol import ConstraintError, Done, InvalidRequest, Usage
from inferd_runtime.session.grants import SIGNATURE_BYTES, Grant
from inferd_runtime.session.wire import CANCEL, CLOSE, ERROR, OK, OPEN, TICKET, OpenSession

USED = Usage(prompt_tokens=7, tokens=5, steps=4, drafted=3, accepted=2)


class FakeEngine:
    """``model.tokenize`` echoes a text's length, ``model.detokenize`` the tokens' sum, ``context.flush`` never comes back, and
    ``context.create`` of the model "bad" is refused. ``opened`` has the tenant and label of each session by its name.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.opened: dict[str, tuple[str, str]] = {}
        self._names: dict[bytes, str] = {}
        self.closed: list[str] = []
        self.cancelled: list[tuple[str, int]] = []
        self.asked: list[tuple[str, str]] = []
        self.refuse_sessions = False
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.bind(endpoint)
        self._stop_out = self._context.socket(zmq.PAIR)
        self._stop_in = self._context.socket(zmq.PAIR)
        self._stop_in.bind("inproc://stop")
        self._stop_out.connect("inproc://stop")
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._stop_out.send(b"")
        self._thread.join()
        for socket in (self._socket, self._stop_in, self._stop_out):
            socket.close(linger=0)
        self._context.term()

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._stop_in, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._stop_in in ready:
                return
            identity, *request = self._socket.recv_multipart()
            for reply in self._answer(identity, *request):
                self._socket.send_multipart([identity, *reply])

    def _answer(self, identity: bytes, ticket: bytes, op: bytes, form: bytes, payload: bytes) -> list[list[bytes]]:
        if op.decode() == OPEN:
            opened = msgspec.msgpack.decode(payload, type=OpenSession)
            grant = msgspec.msgpack.decode(opened.grant[SIGNATURE_BYTES:], type=Grant)
            self._names[identity] = grant.session
            self.opened[grant.session] = (grant.tenant, opened.label)
        session = self._names[identity]
        self.asked.append((session, op.decode()))
        match op.decode():
            case name if name == OPEN:
                if self.refuse_sessions:
                    refusal = InvalidRequest("no session for you").to_wire()
                    return [[ticket, ERROR, msgspec.msgpack.encode(refusal)]]
                return [[ticket, OK, msgspec.msgpack.encode(Done())]]
            case name if name == CLOSE:
                self.closed.append(session)
                return [[ticket, OK, msgspec.msgpack.encode(USED)]]
            case name if name == CANCEL:
                self.cancelled.append((session, TICKET.unpack(ticket)[0]))
                return []
        assert form == b"j"
        return self._operation(ticket, op.decode(), json.loads(payload))

    def _operation(self, ticket: bytes, op: str, arguments: dict[str, Any]) -> list[list[bytes]]:
        match op:
            case "model.tokenize":
                return [[ticket, OK, json.dumps({"tokens": [len(arguments["text"])]}).encode()]]
            case "model.detokenize":
                return [[ticket, OK, json.dumps({"text": str(sum(arguments["tokens"]))}).encode()]]
            case "context.create":
                if arguments["model"] == "bad":
                    error = ConstraintError("no such luck", pointer="/a").to_wire()
                    return [[ticket, ERROR, msgspec.json.encode(error)]]
                return [[ticket, OK, b'{"context":1,"length":0,"pending":0}']]
        return []
