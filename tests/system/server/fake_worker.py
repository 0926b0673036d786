"""A sandbox worker without a sandbox: it runs each program's ``main`` as a task of its own event loop.

Programs may import ``worker``, which has ``send(value)``, ``receive()``, ``ask()`` (which says before that the program waits),
``garble(bytes)``, ``call(op, **arguments)`` on the run's engine session, and ``die()``, which kills this process. ``--deaf``
makes a worker that ignores cancels, ``--fail`` one that does not start.
"""

from __future__ import annotations

import argparse
import asyncio
import contextvars
import inspect
import io
import json
import os
import signal
import sys
import time
import traceback
import types
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from inferd.protocol import Cancelled, EndOfMessages, ErrorInfo, InferdError, ProgramError
from inferd_runtime.sandbox.messages import (
    Bundle,
    Cancel,
    Deliver,
    FromWorker,
    KeepProgram,
    LaunchRun,
    Output,
    RunFinished,
    RunUsage,
    Sent,
    Started,
    ToWorker,
    Waiting,
    WorkerReady,
    in_parts,
)
from inferd_runtime.session.wire import JSON, new_identity, open_frames, parse_reply, request_frames

current: contextvars.ContextVar[FakeRun] = contextvars.ContextVar("run")


class Stream(io.TextIOBase):
    def __init__(self, name: str, plain: Any) -> None:
        self.stream_name = name
        self.plain = plain

    def write(self, text: str) -> int:
        run = current.get(None)
        if run is None:
            self.plain.write(text)
        else:
            run.worker.say(Output(run.launch.run, self.stream_name, text))
        return len(text)


class FakeRun:
    def __init__(self, worker: Worker, launch: LaunchRun) -> None:
        self.worker = worker
        self.launch = launch
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()
        self.verdict: ErrorInfo | None = None
        self.session = worker.context.socket(zmq.DEALER)
        self.session.setsockopt(zmq.IDENTITY, new_identity())
        self.session.connect(worker.engine)
        self.task = asyncio.get_running_loop().create_task(self.run())

    async def call(self, op: str, **arguments: Any) -> Any:
        await self.session.send_multipart(request_frames(1, op, JSON, json.dumps(arguments).encode()))
        while (reply := parse_reply(await self.session.recv_multipart())).ticket != 1:
            pass
        if not reply.ok:
            raise msgspec.json.decode(reply.payload, type=ErrorInfo).to_exception()
        return json.loads(reply.payload)

    async def run(self) -> None:
        current.set(self)
        started = time.monotonic()
        self.worker.say(Started(self.launch.run))
        result: str | None = None
        error: ErrorInfo | None = None
        try:
            await self.session.send_multipart(open_frames(self.launch.grant, self.launch.bundle.name))
            result = json.dumps(await self.main())
        except asyncio.CancelledError:
            error = self.verdict or Cancelled("cancelled").to_wire()
        except InferdError as caught:
            error = caught.to_wire()
        except Exception as caught:  # noqa: BLE001 - the program's boundary
            error = ProgramError(repr(caught), traceback=traceback.format_exc()).to_wire()
        self.session.close(linger=0)
        usage = RunUsage(tokens=7, steps=3, drafted=6, accepted=4, wall_ms=(time.monotonic() - started) * 1e3)
        self.worker.say(RunFinished(self.launch.run, usage, result, error))

    async def main(self) -> Any:
        module = types.ModuleType("program")
        bundle = self.launch.bundle
        exec(compile(bundle.files[bundle.entry], bundle.entry, "exec"), module.__dict__)
        value = module.main(**json.loads(self.launch.arguments))
        return await value if inspect.isawaitable(value) else value


class Worker:
    def __init__(self, context: zmq.asyncio.Context, options: argparse.Namespace) -> None:
        self.context = context
        self.engine = options.engine
        self.deaf = options.deaf
        self.runs: dict[str, FakeRun] = {}
        self.programs: dict[str, Bundle] = {}
        self.control = context.socket(zmq.DEALER)
        self.control.setsockopt(zmq.IDENTITY, options.identity.encode())
        self.control.connect(options.control)
        self.outbox: asyncio.Queue[FromWorker] = asyncio.Queue()

    def say(self, message: FromWorker) -> None:
        self.outbox.put_nowait(message)

    async def speak(self) -> None:
        while True:
            for part in in_parts(await self.outbox.get()):
                await self.control.send(msgspec.msgpack.encode(part))

    async def listen(self) -> None:
        self.say(WorkerReady(os.getpid()))
        decoder: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
        while True:
            message = decoder.decode(await self.control.recv())
            if isinstance(message, KeepProgram):
                self.programs[message.program] = message.bundle
            elif isinstance(message, LaunchRun):
                if message.program:
                    message = msgspec.structs.replace(message, bundle=self.programs[message.program])
                self.runs[message.run] = FakeRun(self, message)
            elif isinstance(message, Deliver):
                heard = json.loads(message.json) if message.json else EndOfMessages("no more")
                self.runs[message.run].inbox.put_nowait(heard)
            elif isinstance(message, Cancel) and not self.deaf:
                self.runs[message.run].verdict = message.error
                self.runs[message.run].task.cancel()

    async def main(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.speak())
            tasks.create_task(self.listen())


def helper() -> types.ModuleType:
    """The module ``worker`` that programs import."""
    module = types.ModuleType("worker")

    async def call(op: str, **arguments: Any) -> Any:
        return await current.get().call(op, **arguments)

    async def receive() -> Any:
        heard = await current.get().inbox.get()
        if isinstance(heard, EndOfMessages):
            raise heard
        return heard

    async def ask() -> Any:
        current.get().worker.say(Waiting(current.get().launch.run))
        return await receive()

    def send(value: Any) -> None:
        run = current.get()
        run.worker.say(Sent(run.launch.run, value if isinstance(value, msgspec.msgpack.Ext) else json.dumps(value)))

    def garble(data: bytes) -> None:
        run = current.get()
        run.worker.control.send(data)

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    vars(module).update(call=call, ask=ask, receive=receive, send=send, die=die, garble=garble, pid=os.getpid())
    return module


async def work(options: argparse.Namespace) -> None:
    await Worker(zmq.asyncio.Context(), options).main()


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--control", "--engine", "--identity"):
        parser.add_argument(name, required=True)
    parser.add_argument("--deaf", action="store_true")
    parser.add_argument("--fail", action="store_true")
    options = parser.parse_args()
    if options.fail:
        sys.exit("the fake runner is broken")
    sys.modules["worker"] = helper()
    sys.stdout = Stream("stdout", sys.stdout)
    sys.stderr = Stream("stderr", sys.stderr)
    asyncio.run(work(options))


if __name__ == "__main__":
    main()
