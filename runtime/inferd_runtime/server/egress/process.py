"""An egress process from the gateway's side: started when it is first needed, again after its end, and asked over a socket.

Its socket has a name that cannot be guessed and is told to the process alone, so what connects to it is the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
import anyio.abc
import anyio.to_thread
import msgspec
import zmq

from inferd.protocol import Done, ErrorInfo, InferdError, InternalError, Unavailable
from inferd_runtime.isolation.order import Launch
from inferd_runtime.server.egress.messages import ALIVE, READY, EgressAnswer, EgressCall, EgressDrop
from inferd_runtime.server.processes.backoff import Backoff
from inferd_runtime.server.processes.child_process import ChildProcess
from inferd_runtime.server.processes.child_protocol import printed_error
from inferd_runtime.server.supervisor.loop_socket import LoopSocket

START_SECONDS = 30.0
"""Longer than a server of tools may take to greet: its process tells why it did not, unless it hangs itself."""
LOOK_SECONDS = 10.0
HANG_SECONDS = 20.0
"""How long a process for whose answers somebody waits may be silent, looked at every LOOK_SECONDS."""
STOP_SECONDS = 2.0
STOPPED = "was stopped"
T = TypeVar("T")
log = logging.getLogger("inferd.egress")
_decoder = msgspec.msgpack.Decoder(EgressAnswer)


def _leave_all(launch: Launch) -> None:
    return None


@dataclass(frozen=True)
class EgressLaunch:
    """How one is started. ``launch``: from the endpoint that it connects to; ``endpoint``: that of a socket's name.

    ``clear``: takes away what is left of a launch that is over; called in a thread.
    """

    name: str
    launch: Callable[[str], Launch]
    endpoint: Callable[[str], str]
    context: zmq.Context[Any]
    tasks: anyio.abc.TaskGroup
    clear: Callable[[Launch], None] = _leave_all


@dataclass
class _Life:
    """One process, from its start to its end, and the calls that wait for it."""

    socket: LoopSocket
    ready: anyio.Event = field(default_factory=anyio.Event)
    ended: InferdError | None = None
    waiting: dict[int, asyncio.Future[EgressAnswer]] = field(default_factory=dict)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    child: ChildProcess | None = None


class EgressProcess:
    """One process and its successors. Belongs to the gateway's event loop."""

    def __init__(self, launch: EgressLaunch, clock: Callable[[], float] = time.monotonic) -> None:
        self.starts = 0
        self._launch = launch
        self._clock = clock
        self._numbers = itertools.count(READY + 1)
        self._backoff = Backoff()
        self._not_before = 0.0
        self._life: _Life | None = None
        self._last = ""

    @property
    def pid(self) -> int | None:
        """The process's id; None while there is none."""
        return None if self._life is None or self._life.child is None else self._life.child.pid

    @property
    def alive(self) -> bool:
        """True while there is a process, or one is being started."""
        return self._life is not None

    async def call(self, op: str, request: Any, kind: type[T]) -> T:
        """Ask the process, which is started if need be, and return its reply.

        Raises what it answers; Unavailable if it ends meanwhile, or ended too recently to be started again.
        """
        return self._decoded(await self._answer(await self._started(), op, request), kind)

    async def started(self) -> None:
        """Wait until the process takes calls; it is started if need be. Raises Unavailable."""
        await self._started()

    async def _started(self) -> _Life:
        life = self._life or self._begin()
        with anyio.move_on_after(START_SECONDS):
            await life.ready.wait()
        if life.ended is None and not life.ready.is_set():
            self.stop(Unavailable(f"{self._launch.name} did not start within {START_SECONDS:g} s, and was ended"))
            self._wait_to_begin(START_SECONDS, life)
        if life.ended is not None:
            raise self._why(life)
        return life

    def tell(self, op: str, request: Any) -> None:
        """Ask the process, if there is one, for something whose answer nobody needs."""
        life = self._life
        if life is not None and life.ready.is_set() and not life.socket.closed:
            call = EgressCall(next(self._numbers), op, msgspec.Raw(msgspec.msgpack.encode(request)))
            with contextlib.suppress(zmq.Again):  # it does not read: it has more to end than this
                life.socket.send_now([msgspec.msgpack.encode(call)])

    def kill(self) -> None:
        """End the process at once, as a fault would."""
        if self._life is not None and self._life.child is not None:
            self._life.child.kill()

    def stop(self, why: InferdError | None = None) -> None:
        """End the process; the next call starts another one. ``why``: what open calls raise, by default Unavailable."""
        life, self._life = self._life, None
        if life is not None:
            life.ended = why
            life.scope.cancel()

    async def _answer(self, life: _Life, op: str, request: Any) -> EgressAnswer:
        number = next(self._numbers)
        call = EgressCall(number, op, msgspec.Raw(msgspec.msgpack.encode(request)))
        try:
            await life.socket.send([msgspec.msgpack.encode(call)])
        except zmq.ZMQError:
            raise self._why(life) from None
        future: asyncio.Future[EgressAnswer] = asyncio.get_running_loop().create_future()
        life.waiting[number] = future  # answers are read by another task, so none has been yet
        try:
            return await future
        except asyncio.CancelledError:
            if life.ended is None and not life.socket.closed:
                with contextlib.suppress(zmq.Again):
                    life.socket.send_now([msgspec.msgpack.encode(EgressDrop(number))])
            raise
        finally:
            del life.waiting[number]

    def _why(self, life: _Life) -> InferdError:
        """Return why a life gives no answer, as an exception of its own."""
        if life.ended is None:
            return Unavailable(f"{self._launch.name} does not start, or has just ended")
        return life.ended.to_wire().to_exception()

    def _decoded(self, answer: EgressAnswer, kind: type[T]) -> T:
        if not answer.ok:
            raise msgspec.msgpack.decode(answer.payload, type=ErrorInfo).to_exception()
        try:
            return msgspec.msgpack.decode(answer.payload, type=kind)
        except msgspec.MsgspecError as error:
            raise InternalError(f"{self._launch.name} answered what cannot be read: {error}") from None

    def _begin(self) -> _Life:
        """Start a process. Raises Unavailable while it is too soon."""
        wait = self._not_before - self._clock()
        if wait > 0:
            error = Unavailable(f"{self._launch.name} is started again in {wait:.1f} s, because it ended: {self._last}")
            error.detail["retry_after_s"] = round(wait, 3)
            raise error
        endpoint = new_endpoint(self._launch.endpoint)
        socket: zmq.Socket[bytes] = self._launch.context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(endpoint)
        self.starts += 1
        self._life = life = _Life(LoopSocket(socket))
        self._launch.tasks.start_soon(self._live, life, endpoint)
        return life

    async def _live(self, life: _Life, endpoint: str) -> None:
        """Watch a process from its start to its end, and end the calls that wait for it then."""
        started = self._clock()
        ending = STOPPED
        launch: Launch | None = None
        try:
            with life.scope:
                launch = self._launch.launch(endpoint)
                life.child = await ChildProcess.start(self._launch.name, launch)
                try:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(self._read, life)
                        tasks.start_soon(self._look, life)
                        ending = await life.child.wait()
                        tasks.cancel_scope.cancel()
                finally:
                    with anyio.CancelScope(shield=True):
                        await life.child.stop(STOP_SECONDS)
        except OSError as error:
            ending = f"cannot be started: {error.strerror or error}"  # not where: tenants are told
        finally:
            self._over(life, ending, self._clock() - started)
            if launch is not None:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(self._launch.clear, launch)

    def _over(self, life: _Life, ending: str, seconds: float) -> None:
        stopped = ending == STOPPED
        said = None if life.child is None or stopped else printed_error(life.child.tail)
        life.ended = life.ended or said or Unavailable(f"{self._launch.name} {ending}")
        if self._life is life:
            self._life = None
        if not stopped:
            self._wait_to_begin(seconds, life)
            tail = "" if life.child is None else life.child.tail
            printed = tail if said is None else tail.rpartition("\n")[0]  # the last line is what was said
            why = "\n".join(filter(None, (printed, "" if said is None else said.message)))
            log.warning("%s %s: %s", self._launch.name, ending, why or life.ended.message)
        life.socket.close()
        life.ready.set()
        for future in life.waiting.values():
            if not future.done():
                future.set_exception(life.ended.to_wire().to_exception())

    def _wait_to_begin(self, lived: float, life: _Life) -> None:
        self._not_before = self._clock() + self._backoff.next(lived)
        self._last = "" if life.ended is None else life.ended.message

    async def _look(self, life: _Life) -> None:
        """Kill a process that says nothing at all, stopped or hung: what waits for it would wait for ever."""
        await life.ready.wait()
        while True:
            await anyio.sleep(LOOK_SECONDS)
            with anyio.move_on_after(HANG_SECONDS) as patience:
                if life.waiting:
                    await self._answer(life, ALIVE, Done())
            if patience.cancelled_caught and life.child is not None:
                life.ended = Unavailable(f"{self._launch.name} hung, and was ended")
                life.child.kill()
                return

    async def _read(self, life: _Life) -> None:
        """Hand answers to the calls that wait for them."""
        while True:
            try:
                answer = _decoder.decode(b"".join(await life.socket.receive()))
            except msgspec.MsgspecError:
                log.error("%s sends what is no answer: ending it", self._launch.name)
                assert life.child is not None
                life.child.kill()
                return
            if answer.number == READY:
                life.ready.set()
                continue
            future = life.waiting.get(answer.number)
            if future is not None and not future.done():
                future.set_result(answer)


def new_endpoint(named: Callable[[str], str]) -> str:
    """Return an endpoint that nobody can guess, with a name as short as that allows: a socket's path is bounded."""
    return named(f"e{secrets.token_urlsafe(16)}")
