"""The sandbox workers as processes: carries out what the pool decides and speaks to the workers over one ROUTER socket."""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import anyio
import anyio.abc
import anyio.to_thread
import msgspec
import zmq

from inferd.protocol import InferdError, Unavailable, cut
from inferd_runtime.change_signal import ChangeSignal
from inferd_runtime.isolation.order import Launch
from inferd_runtime.sandbox.messages import (
    Bundle,
    ForgetProgram,
    FromWorker,
    KeepProgram,
    LaunchRun,
    Output,
    ResultPart,
    RunFinished,
    Sent,
    ServiceReport,
    Shutdown,
    Started,
    ToWorker,
    Used,
    Waiting,
    WorkerReady,
)
from inferd_runtime.server.processes.backoff import Backoff
from inferd_runtime.server.processes.child_process import ChildProcess
from inferd_runtime.server.processes.priority import set_behind
from inferd_runtime.server.programs.bundles import Program
from inferd_runtime.server.supervisor.loop_socket import LoopSocket
from inferd_runtime.server.supervisor.worker_pool import PlaceRun, Retire, Start, WorkerPool

STOP_SECONDS = 3.0
MAX_LOGGED = 500
"""Characters of an error that a worker caused."""
SLICE_SECONDS = 0.002
"""How long the workers' reports are handled before everything else in this process has its turn, for as long as well."""
IDLE_SECONDS = 0.0002
SHARED_BYTES = 64 << 10
"""Programs of more are sent to a worker once for several runs."""
log = logging.getLogger("inferd.runtime")


@dataclass(frozen=True)
class FleetLaunch:
    """How workers are started: ``launch`` says how, from the name of one and the secret that its socket is known by.

    ``launch`` is called in a thread, because it may take long. ``tasks`` runs the workers' lives.
    """

    launch: Callable[[str, str], Launch]
    tasks: anyio.abc.TaskGroup
    start_seconds: float


RunReport = Started | Output | Sent | Waiting | ServiceReport | Used | ResultPart | RunFinished
"""What a worker reports about one of its runs."""
_decoder: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


class FleetOwner(Protocol):
    """Is told what workers report and when they end, and launches the runs that the pool places."""

    def run_placed(self, run: str, worker: str) -> None:
        """Launch a run: send its messages to this worker."""

    def worker_reported(self, worker: str, message: RunReport, size: int) -> None:
        """Take a worker's report about a run, which came in ``size`` bytes."""

    def worker_lost(self, worker: str, runs: list[str], error: Unavailable) -> None:
        """Note that a worker's process ended while it held these runs."""


@dataclass(frozen=True)
class _Member:
    child: ChildProcess
    secret: bytes
    ready: anyio.Event = field(default_factory=anyio.Event)
    programs: Counter[str] = field(default_factory=Counter)
    """How many runs of each large program it has."""


@dataclass(frozen=True)
class _WorkerExit:
    """How a worker's process ended, or that there never was one."""

    ending: str
    pid: int | None = None
    printed: str = ""
    was_ready: bool = False
    seconds: float = 0.0


class WorkerFleet:
    """Owns the workers' processes; ``socket`` is a bound ROUTER without limits, which :meth:`run` reads."""

    def __init__(self, socket: LoopSocket, pool: WorkerPool, owner: FleetOwner, launch: FleetLaunch) -> None:
        self.pool = pool
        self.restarts = 0
        self._socket = socket
        self._owner = owner
        self._launch = launch
        self._backoff = Backoff()
        self._delay = 0.0
        self._members: dict[str, _Member] = {}
        self._names: dict[bytes, str] = {}
        self._behind: set[str] = set()
        self._failure: Unavailable | None = None
        self._changed = ChangeSignal()

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the workers that live."""
        return {name: member.child.pid for name, member in self._members.items() if member.child.alive}

    def apply(self) -> None:
        """Do what the pool decides. Call it after every change to the pool."""
        for action in list(self.pool.decide()):
            match action:
                case Start(name):
                    self._launch.tasks.start_soon(self._supervise, name)
                case PlaceRun(run, name):
                    self._owner.run_placed(run, name)
                case Retire(name):
                    self.send(name, Shutdown())
                    self._launch.tasks.start_soon(self._members[name].child.stop, STOP_SECONDS)

    def send(self, worker: str, message: ToWorker) -> None:
        """Send a message to a worker; one that is gone never gets it, and its runs end as :meth:`FleetOwner` says.

        Raises what packing raises, for a message that cannot be packed.
        """
        packed = msgspec.msgpack.encode(message)
        if worker in self._members and not self._socket.closed:
            self._socket.send_now([self._members[worker].secret, packed])  # at once: its queue has no limit

    def launch(self, worker: str, launch: LaunchRun, program: Program) -> None:
        """Send a run to a worker. A large program goes there once for all runs that it has of it: else each would wait here with
        a copy.
        """
        member = self._members.get(worker)
        if member is not None and program.size > SHARED_BYTES:
            if not member.programs[program.key]:
                self.send(worker, KeepProgram(program.key, launch.bundle))
            member.programs[program.key] += 1
            launch = msgspec.structs.replace(launch, bundle=Bundle(program.name, {}), program=program.key)
        self.send(worker, launch)

    def left(self, worker: str, program: Program) -> None:
        """Note that a worker's run of a program is over."""
        member = self._members.get(worker)
        if member is not None and program.key in member.programs:
            member.programs[program.key] -= 1
            if not member.programs[program.key]:
                del member.programs[program.key]
                self.send(worker, ForgetProgram(program.key))

    def step_behind(self, behind: bool) -> None:
        """Have the workers get what engine and gateway leave of the processors, or an equal part of them again."""
        for name, pid in self.pids.items():
            if (name in self._behind) != behind and set_behind(pid, behind):
                self._behind ^= {name}

    def kill(self, worker: str) -> None:
        """End a worker at once; what it held is reported as lost."""
        if worker in self._members:
            self._members[worker].child.kill()

    async def wait_ready(self) -> None:
        """Wait until some worker takes launches. Raises Unavailable with what it printed if one dies before that."""
        while not self.pool.any_ready:
            if self._failure is not None:
                raise self._failure
            await self._changed.wait()

    async def run(self) -> None:
        """Read what workers send, until cancelled."""
        try:
            await self._read()
        finally:
            self._socket.close()

    async def _read(self) -> None:
        """Read what workers send, in slices: where a report is there already, receiving it does not give way to anything else. A
        socket whose identity is no worker's secret is not heard.
        """
        slice_end = 0.0
        while True:
            try:
                identity, *frames = self._socket.receive_now()
            except zmq.Again:
                asked = time.monotonic()
                identity, *frames = await self._socket.receive()
                now = time.monotonic()
                if now - asked > IDLE_SECONDS:
                    slice_end = now + SLICE_SECONDS
            name = self._names.get(identity)
            if name is not None:
                self._handle(name, b"".join(frames))
            if time.monotonic() > slice_end:
                await anyio.sleep(SLICE_SECONDS)
                slice_end = time.monotonic() + SLICE_SECONDS

    def _handle(self, name: str, payload: bytes) -> None:
        """Handle a worker's message. A worker that sends anything but its messages' types is killed."""
        try:
            message = _decoder.decode(payload)
            if isinstance(message, WorkerReady):
                self._ready(name)
            else:
                self._owner.worker_reported(name, message, len(payload))
        except Exception as error:  # noqa: BLE001 - the boundary of one worker: no frame of it ends the gateway
            log.error(
                "worker %s sent something that is no message (%s): killing it", name, cut(repr(error), MAX_LOGGED)
            )
            self.kill(name)

    def _ready(self, name: str) -> None:
        self._members[name].ready.set()
        self._failure = None
        self._delay = 0.0
        self.pool.ready(name)
        self.apply()
        self._changed.wake()

    async def _supervise(self, name: str) -> None:
        """Start a worker, watch it until it ends, and report what it held."""
        await anyio.sleep(self._delay)
        started = anyio.current_time()
        try:
            secret = secrets.token_hex(16)
            launch = await anyio.to_thread.run_sync(self._launch.launch, name, secret, abandon_on_cancel=True)
            child = await ChildProcess.start(name, launch)
        except (OSError, InferdError) as error:
            self._lost(name, _WorkerExit(f"cannot be started: {error}"))
            return
        self._members[name] = member = _Member(child, secret.encode())
        self._names[member.secret] = name
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._kill_if_late, member)
                ending = await child.wait()
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await child.stop(STOP_SECONDS if member.ready.is_set() else 0)
        del self._members[name], self._names[member.secret]
        self._behind.discard(name)
        lived = anyio.current_time() - started
        self._lost(name, _WorkerExit(ending, child.pid, child.tail, member.ready.is_set(), lived))

    async def _kill_if_late(self, member: _Member) -> None:
        """Kill a worker that does not become ready."""
        with anyio.move_on_after(self._launch.start_seconds) as waiting:
            await member.ready.wait()
        if waiting.cancelled_caught:
            log.error("sandbox worker %s was not ready within %g s", member.child.name, self._launch.start_seconds)
            member.child.kill()

    def _lost(self, name: str, ended: _WorkerExit) -> None:
        retired = self.pool.is_retiring(name)
        runs = self.pool.lost(name)
        if not retired:
            self.restarts += 1
            error = Unavailable(f"sandbox worker {name} {ended.ending}", process=name, pid=ended.pid)
            level = logging.ERROR if ended.was_ready else logging.WARNING  # whoever waits for it gets it anyway
            log.log(level, "%s\n%s", error.message, ended.printed)
            if not ended.was_ready:
                self._delay = self._backoff.next(ended.seconds)
                self._failure = Unavailable(f"{error.message}\n{ended.printed}".strip(), **error.detail)
                runs += [] if self.pool.any_ready else self.pool.waiting
            self._owner.worker_lost(name, runs, error)
        self.apply()
        self._changed.wake()
