"""A sandbox worker in a process of its own, between a gateway and an engine that the tests play."""

from __future__ import annotations

import itertools
import json
import subprocess
import textwrap
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from inferd.protocol import ErrorInfo
from inferd_runtime.isolation.start import close_input, give_order
from inferd_runtime.sandbox.messages import (
    Asked,
    Bundle,
    Cancel,
    Deliver,
    EventsTaken,
    FromWorker,
    LaunchRun,
    Limits,
    Output,
    Received,
    ResultPart,
    RunFinished,
    Sent,
    Shutdown,
    Started,
    ToWorker,
    Waiting,
    Withdrawn,
    WorkerReady,
)
from inferd_runtime.sandbox.runner_build.component import ensure_runner
from inferd_runtime.sandbox.worker_start import WorkerBounds, WorkerLinks, WorkerStart, worker_launch
from inferd_runtime.session.grants import SessionGrants, new_key
from inferd_runtime.session.wire import RUN_SESSION

from .fake_engine import FakeEngine

DEADLINE = 60.0
SECRET = "secret-of-the-worker"
GRANTS = SessionGrants(new_key())


class Gateway:
    """Launches programs on one worker and collects what it reports. Everything is synchronous."""

    def __init__(self, endpoint: str) -> None:
        self.messages: dict[str, list[FromWorker]] = defaultdict(list)
        self.ready: WorkerReady | None = None
        self.takes = True
        self._numbers = itertools.count(1)
        self._decoder: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # a ROUTER drops what is above it
        self._socket.bind(endpoint)

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()

    def send(self, message: ToWorker) -> None:
        self._socket.send_multipart([SECRET.encode(), msgspec.msgpack.encode(message)])

    def launch(
        self,
        program: str | dict[str, str],
        limits: Limits | None = None,
        entry: str = "main.py",
        /,
        packages: dict[str, bytes] | None = None,
        kept: str = "",
        **arguments: Any,
    ) -> str:
        """Start a program, with the files of its packages; or one that the worker has, under this name."""
        files = {"main.py": program} if isinstance(program, str) else program
        files = {path: textwrap.dedent(text) for path, text in files.items()}
        run = f"run-{next(self._numbers)}"
        bundle = Bundle("test", files, entry, packages=packages or {})
        grant = GRANTS.issue(RUN_SESSION + run, "tenant")
        self.send(LaunchRun(run, grant, bundle, json.dumps(arguments), limits or Limits(), program=kept))
        return run

    def cancel(self, run: str, error: ErrorInfo) -> None:
        self.send(Cancel(run, error))

    def deliver(self, run: str, message: Any) -> None:
        self.send(Deliver(run, json.dumps(message)))

    def wait(self, run: str) -> RunFinished:
        finished: RunFinished = self.wait_for(run, RunFinished)
        parts = [message.text for message in self.messages[run] if isinstance(message, ResultPart)]
        return msgspec.structs.replace(finished, result="".join([*parts, finished.result or ""])) if parts else finished

    def run(self, program: str | dict[str, str], limits: Limits | None = None, /, **arguments: Any) -> RunFinished:
        return self.wait(self.launch(program, limits, **arguments))

    def value(self, program: str | dict[str, str], /, **arguments: Any) -> Any:
        """What ``main`` returned; fails if it did not."""
        finished = self.run(program, **arguments)
        assert finished.error is None, finished.error
        assert finished.result is not None
        return json.loads(finished.result)

    def error(self, program: str | dict[str, str], limits: Limits | None = None, /, **arguments: Any) -> ErrorInfo:
        """The error that the program ended with; fails if it did not."""
        finished = self.run(program, limits, **arguments)
        assert finished.error is not None, finished.result
        assert finished.result is None
        return finished.error

    def text(self, run: str, stream: str = "stdout") -> str:
        """What the program has written so far."""
        pieces = [m.text for m in self.messages[run] if isinstance(m, Output) and m.stream == stream]
        return "".join(pieces)

    def wait_text(self, run: str, text: str) -> None:
        """Wait until the program has written ``text``."""
        end = time.monotonic() + DEADLINE
        while text not in self.text(run):
            assert not self.ended(run), self.messages[run]
            self._receive(end)

    def ended(self, run: str) -> bool:
        """Whether the run's end has been reported."""
        return any(isinstance(message, RunFinished) for message in self.messages[run])

    def wait_for(self, run: str, kind: type[Any]) -> Any:
        """The first message of that kind about the run."""
        end = time.monotonic() + DEADLINE
        while True:
            for message in self.messages[run]:
                if isinstance(message, kind):
                    return message
            self._receive(end)

    def wait_ready(self) -> WorkerReady:
        end = time.monotonic() + DEADLINE
        while self.ready is None:
            self._receive(end)
        return self.ready

    def receive_now(self, seconds: float = 0) -> None:
        """Take in what has come already, or comes within a time of silence."""
        while self._socket.poll(int(seconds * 1e3)):
            self._receive(time.monotonic() + 1)

    def _receive(self, end: float) -> None:
        if not self._socket.poll(max(int((end - time.monotonic()) * 1e3), 0)):
            pytest.fail("the worker did not say it in time")
        _, payload = self._socket.recv_multipart()
        message = self._decoder.decode(payload)
        if isinstance(message, WorkerReady):
            self.ready = message
            return
        assert isinstance(
            message, (Started, Output, Sent, Waiting, Asked, Withdrawn, Received, ResultPart, RunFinished)
        )
        if isinstance(message, (Output, Sent)) and self.takes:
            self.send(EventsTaken(message.run, 1))
        self.messages[message.run].append(message)


def start_worker(control: str, engine: FakeEngine, runner: Path) -> subprocess.Popen[bytes]:
    """A worker of that gateway."""
    launch = worker_launch(
        WorkerStart(WorkerLinks(control, engine.endpoint, "worker-1", SECRET), str(runner)), WorkerBounds()
    )
    process = subprocess.Popen(launch.command, stdin=subprocess.PIPE, env=launch.environment)
    give_order(process, launch)
    close_input(process)
    return process


@pytest.fixture(scope="session")
def runner() -> Path:
    """The compiled runner: built once on a machine, which takes about a minute."""
    return ensure_runner()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeEngine]:
    engine = FakeEngine(f"ipc://{tmp_path_factory.mktemp('e')}/e")
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def gateway(runner: Path, engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    control = f"ipc://{tmp_path_factory.mktemp('c')}/c"
    gateway = Gateway(control)
    worker = start_worker(control, engine, runner)
    try:
        gateway.wait_ready()
        yield gateway
        gateway.send(Shutdown())
        assert worker.wait(10) == 0
    finally:
        worker.kill()
        worker.wait()
        gateway.close()
