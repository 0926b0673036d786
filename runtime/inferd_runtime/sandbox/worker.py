"""A sandbox worker: one tenant's runs, each in a thread with an instance of its own.

The gateway talks to it over a DEALER socket, one msgpack frame (:mod:`~inferd_runtime.sandbox.messages`) each way, and knows it
by the socket's identity, which it made for this worker alone.
Runs talk to the engine directly. A run cannot outlast its wall-clock limit: a guest computes, where it is interrupted every
20 ms, or waits in the host; it has no way to block anywhere else. Behind that stands the gateway, which kills a worker that does
not end a run.
"""

from __future__ import annotations

import gc
import os
import threading
import time
import unicodedata  # noqa: F401 - a library in a file, which traceback loads late: no code is loaded once it is sealed
from pathlib import Path
from typing import Any

import msgspec
import zmq

from inferd.protocol import Cancelled, InternalError, InvalidRequest
from inferd_runtime.file_limit import raise_file_limit
from inferd_runtime.isolation.child import Child
from inferd_runtime.log_lines import configure_logging
from inferd_runtime.sandbox.host.inbox import Inbox
from inferd_runtime.sandbox.host.kept_code import KeptCode
from inferd_runtime.sandbox.host.run import EngineAddress, SandboxRun
from inferd_runtime.sandbox.messages import (
    Answered,
    Bundle,
    Cancel,
    Deliver,
    EventsTaken,
    ForgetProgram,
    FromWorker,
    KeepProgram,
    LaunchRun,
    ReportUse,
    RunFinished,
    RunUsage,
    Shutdown,
    Started,
    ToWorker,
    WorkerReady,
    in_parts,
)
from inferd_runtime.sandbox.outbox import Outbox
from inferd_runtime.sandbox.threads import ThreadPool
from inferd_runtime.sandbox.wasm.engine_settings import THREAD_STACK_BYTES
from inferd_runtime.sandbox.wasm.epochs import EpochTicker
from inferd_runtime.sandbox.wasm.loaded_runner import LoadedRunner
from inferd_runtime.sandbox.wasm.warm_up import warm_up
from inferd_runtime.sandbox.worker_start import WorkerStart

MAX_SOCKETS = 16384
SHUTDOWN_SECONDS = 2.0
STARTED_MS = 5
LINGER_MS = 1000


class Worker:
    """Launches, ends and reports runs. One thread calls :meth:`serve`; it alone touches the control socket."""

    def __init__(self, control: zmq.Socket[bytes], engine: EngineAddress, runner: LoadedRunner) -> None:
        self._control = control
        self._engine = engine
        self._runner = runner
        self._runs: dict[str, SandboxRun] = {}
        self._programs: dict[str, Bundle] = {}
        self._code = KeptCode()
        self._outbox = Outbox()
        self._decoder: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
        self._busy = threading.Event()
        self._threads = ThreadPool()
        self._starting: set[str] = set()
        """Runs not yet reported as started: the report waits a moment, to go out with their first message."""
        self._closing = False

    def serve(self) -> None:
        """Work until told to shut down, then end all runs and report them."""
        EpochTicker(self._runner.tick, self._busy).start()
        self._threads.prepare()
        poller = zmq.Poller()
        poller.register(self._control, zmq.POLLIN)
        poller.register(self._outbox.waker.fileno(), zmq.POLLIN)
        self._send(WorkerReady(os.getpid()))
        while not self._closing:
            poller.poll(STARTED_MS if self._starting else None)
            self._receive()
            self._report()
        self._shut_down()

    def _receive(self) -> None:
        while not self._closing:
            try:
                payload = self._control.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._handle(self._decoder.decode(payload))

    def _handle(self, message: ToWorker) -> None:
        """Act on a message. One about a run that is over is ignored."""
        if isinstance(message, Shutdown):
            self._closing = True
        elif isinstance(message, KeepProgram):
            self._programs[message.program] = message.bundle
        elif isinstance(message, ForgetProgram):
            del self._programs[message.program]
        elif isinstance(message, LaunchRun):
            self._launch(message)
        elif message.run in self._runs:
            _pass_on(message, self._runs[message.run].inbox)

    def _launch(self, launch: LaunchRun) -> None:
        if launch.run in self._runs:
            error = InvalidRequest(f"run {launch.run} goes on already").to_wire()
            self._send(RunFinished(launch.run, RunUsage(), error=error))
            return
        if launch.program:
            launch = msgspec.structs.replace(launch, bundle=self._programs[launch.program])
        run = SandboxRun(launch, self._runner, self._engine, self._outbox.put, self._code)
        self._runs[launch.run] = run
        self._starting.add(launch.run)
        self._busy.set()
        run.start(self._threads)

    def _report(self) -> None:
        for message in self._outbox.take():
            self._send(message)
            if isinstance(message, Started | RunFinished):
                self._starting.discard(message.run)
            if isinstance(message, RunFinished):
                del self._runs[message.run]
        if not self._runs:
            self._busy.clear()

    def _send(self, message: FromWorker) -> None:
        for part in in_parts(message):
            self._control.send(packed(part))

    def _shut_down(self) -> None:
        for run in self._runs.values():
            run.inbox.end(Cancelled("the runtime is shutting down").to_wire())
        end = time.monotonic() + SHUTDOWN_SECONDS
        while self._runs and time.monotonic() < end:
            for run in list(self._runs.values()):
                run.join(end - time.monotonic())
            self._report()


def packed(message: FromWorker) -> bytes:
    """Return a message's frame. What cannot be packed was to be refused where it came from; here it ends its run alone."""
    try:
        return msgspec.msgpack.encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        failed = InternalError(f"a {type(message).__name__} cannot be sent: {error}").to_wire()
        usage = message.usage if isinstance(message, RunFinished) else RunUsage()
        return msgspec.msgpack.encode(RunFinished(getattr(message, "run", ""), usage, error=failed))


def _pass_on(message: ReportUse | Cancel | Deliver | Answered | EventsTaken, inbox: Inbox) -> None:
    match message:
        case ReportUse():
            inbox.reports_use = True
        case Cancel():
            inbox.end(message.error)
        case Deliver():
            inbox.deliver(message.json.encode())
        case Answered():
            inbox.answer(message)
        case EventsTaken():
            inbox.note_taken(message.events)


def control_socket(context: zmq.Context[Any], start: WorkerStart) -> zmq.Socket[bytes]:
    """Return the socket to the gateway, which has yet to be connected."""
    control: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    control.setsockopt(zmq.IDENTITY, start.links.secret.encode())
    control.setsockopt(zmq.LINGER, LINGER_MS)
    for limit in (zmq.SNDHWM, zmq.RCVHWM):
        control.setsockopt(limit, 0)  # a slow gateway must not block this thread, which also hears what is to end
    return control


def child_main(child: Child) -> int:
    """Serve one gateway. Returns the exit code."""
    configure_logging("json", "warning")  # the gateway takes the lines over
    start = child.settings(WorkerStart)
    threading.stack_size(THREAD_STACK_BYTES)
    raise_file_limit()  # a run takes about five
    context: zmq.Context[Any] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
    control = control_socket(context, start)
    runner = LoadedRunner(Path(start.runner))
    warm_up(runner)
    gc.freeze()  # what is loaded stays: collections do not look at it
    child.seal()
    control.connect(start.links.control)
    Worker(control, EngineAddress(context, start.links.engine), runner).serve()
    control.close()
    context.term()
    return 0
