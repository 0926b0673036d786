"""A worker process whose code is hostile: started as a real worker is, with this script in the worker's place.

A run's program begins with a mode: ``wait`` opens the run's session, waits for a message and answers whether it is still there;
any other mode names a function of :mod:`attempts`, whose answer is the run's result. ``child`` is what the launcher leaves here.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

from inferd.protocol import ContextState, CreateContext, Done
from inferd_runtime.sandbox.messages import (
    Cancel,
    Deliver,
    FromWorker,
    LaunchRun,
    RunFinished,
    RunUsage,
    Started,
    ToWorker,
    WorkerReady,
)
from inferd_runtime.sandbox.worker_start import WorkerStart
from inferd_runtime.session.wire import EngineLink

if TYPE_CHECKING:
    from inferd_runtime.isolation.child import Child

attempts_at = Path(sys.argv[1])
spec = importlib.util.spec_from_file_location("attempts", attempts_at)
assert spec is not None
assert spec.loader is not None
attempts = importlib.util.module_from_spec(spec)
spec.loader.exec_module(attempts)


class Intruder:
    """Speaks to the gateway as a worker does."""

    def __init__(self, start: WorkerStart) -> None:
        self.links = start.links
        self.context: zmq.Context[Any] = zmq.Context()
        self.control: zmq.Socket[bytes] = self.context.socket(zmq.DEALER)
        self.control.setsockopt(zmq.IDENTITY, start.links.secret.encode())
        self.control.connect(start.links.control)
        self.waiting: dict[str, EngineLink] = {}

    def say(self, message: FromWorker) -> None:
        self.control.send(msgspec.msgpack.encode(message))

    def serve(self) -> None:
        self.say(WorkerReady(1))
        decoder: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
        while True:
            match decoder.decode(self.control.recv()):
                case LaunchRun() as launch:
                    self.launch(launch)
                case Deliver(run=run):
                    self.finish(run, call(self.waiting.pop(run), CreateContext(), ContextState).context)
                case Cancel(run=run, error=error):
                    self.say(RunFinished(run, RunUsage(), error=error))

    def launch(self, launch: LaunchRun) -> None:
        self.say(Started(launch.run))
        mode = launch.bundle.files["main.py"].partition("\n")[0].removeprefix("# ")
        if mode == "wait":
            link = EngineLink(self.context, self.links.engine)
            link.open(launch.grant, "victim")
            link.socket.poll(20_000)
            msgspec.msgpack.decode(link.socket.recv_multipart()[2], type=Done)
            self.waiting[launch.run] = link
        else:
            self.finish(launch.run, getattr(attempts, mode)(self, launch, **json.loads(launch.arguments)))

    def finish(self, run: str, result: Any) -> None:
        self.say(RunFinished(run, RunUsage(), json.dumps(result)))


def call(link: EngineLink, request: Any, kind: type[Any]) -> Any:
    link.send(1, request.op, msgspec.json.encode(request))
    assert link.socket.poll(20_000)
    reply = link.receive()
    assert reply is not None
    return msgspec.json.decode(reply.payload, type=kind)


child: Child = globals()["child"]
intruder = Intruder(child.settings(WorkerStart))
child.seal()
intruder.serve()
