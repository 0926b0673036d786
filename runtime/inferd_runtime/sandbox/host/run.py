"""One run of a program, from its launch to its report, in a thread of its own."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq

from inferd.protocol import ErrorInfo, InferdError, InvalidRequest, LimitExceeded, ProgramError, Unavailable, Usage, cut
from inferd_runtime.sandbox.host.carried import check_json
from inferd_runtime.sandbox.host.guest_calls import GuestCalls, Report, sandbox_failure
from inferd_runtime.sandbox.host.inbox import Inbox
from inferd_runtime.sandbox.host.kept_code import KeptCode
from inferd_runtime.sandbox.host.meter import MemoryMeter, exceeded
from inferd_runtime.sandbox.messages import LaunchRun, Limits, RunFinished, RunUsage, Started
from inferd_runtime.sandbox.threads import ThreadPool
from inferd_runtime.sandbox.wasm.engine_settings import MIB, WASM_STACK_BYTES
from inferd_runtime.sandbox.wasm.loaded_runner import DoesNotFit, Guest, GuestTrap, LoadedRunner
from inferd_runtime.session.wire import EngineLink

CLOSE_SECONDS = 2.0
LONGEST_CAUSE = 4096
LONGEST_ERROR = 256 << 10
"""Characters of the JSON of an error that a program ends with: decoded, it takes many times that."""
NEARLY_FULL = 0.9
"""A guest that dies with this much of its memory used has most likely run out of it."""


@dataclass(frozen=True)
class EngineAddress:
    """Where the engine listens."""

    context: zmq.Context[Any]
    endpoint: str


@dataclass(frozen=True)
class GuestEnd:
    """How a guest ended: exactly one of ``result`` (JSON) and ``error``, and the size that its memory had."""

    result: str | None
    error: ErrorInfo | None
    memory_bytes: int


class SandboxRun:
    """A run that was launched. It sends exactly one RunFinished, whatever happens."""

    def __init__(
        self, launch: LaunchRun, runner: LoadedRunner, engine: EngineAddress, report: Report, code: KeptCode
    ) -> None:
        self._launch = launch
        self._code = code
        self._runner = runner
        self._engine = engine
        self._report = report
        self.inbox = Inbox()
        self.inbox.reports_use = launch.reports_use
        self._over = threading.Event()

    def start(self, threads: ThreadPool) -> None:
        """Start the run in a thread of its own; if there cannot be one more, the run is over at once."""
        try:
            threads.run(self._main)
        except RuntimeError as error:
            self._over.set()
            self.inbox.close()
            unavailable = Unavailable(f"the sandbox worker cannot start another thread: {error}")
            self._report(RunFinished(self._launch.run, RunUsage(), error=unavailable.to_wire()))

    def join(self, timeout: float) -> None:
        """Wait until the run has reported its end, at most ``timeout`` seconds."""
        self._over.wait(timeout)

    def _main(self) -> None:
        with ExitStack() as closing:  # nobody waits until the guest's memory is given back
            try:
                finished = self._connected(closing)
            except Exception as error:  # noqa: BLE001 - the run's boundary: a bug here costs this run and no other
                finished = RunFinished(self._launch.run, RunUsage(), error=sandbox_failure(error).to_wire().carriable())
            self.inbox.close()
            self._report(finished)
        self._over.set()

    def _connected(self, closing: ExitStack) -> RunFinished:
        link = EngineLink(self._engine.context, self._engine.endpoint)
        try:
            link.socket.setsockopt(zmq.SNDTIMEO, 0)  # an engine that takes nothing must not block this thread
            link.open(self._launch.grant, self._launch.bundle.name)
            calls = GuestCalls(self._launch, self.inbox, link, self._report, self._code)
            end = self._execute(calls, closing)
            calls.finish()
            asked = _ask_to_close(link)
            if self.inbox.error is not None and end.error is None:
                end = GuestEnd(None, self.inbox.error, end.memory_bytes)
            used = _closed_session(link, calls.session_replies, self.inbox.error) if asked else Usage()
            return self._finished(end, calls, used)
        finally:
            link.close()

    def _finished(self, end: GuestEnd, calls: GuestCalls, used: Usage) -> RunFinished:
        meter = calls.meter
        usage = RunUsage(
            tokens=used.tokens,
            steps=used.steps,
            drafted=used.drafted,
            accepted=used.accepted,
            prompt_tokens=used.prompt_tokens,
            cached_tokens=used.cached_tokens,
            wall_ms=(time.monotonic() - meter.wall_start) * 1e3,
            cpu_ms=(time.thread_time() - meter.cpu_start) * 1e3,
            peak_memory_mb=max(end.memory_bytes, calls.memory.peak_bytes) / MIB,
        )
        error = None if end.error is None else end.error.carriable()
        return RunFinished(self._launch.run, usage, end.result, error)

    def _execute(self, calls: GuestCalls, closing: ExitStack) -> GuestEnd:
        """Run the program; its guest is given back with ``closing``."""
        limits = self._launch.limits
        try:
            guest = self._runner.start(limits.memory_mb * MIB)
        except DoesNotFit as error:
            too_little = f"the sandbox itself needs more than {limits.memory_mb} MiB: {error}"
            return GuestEnd(None, exceeded("memory_mb", too_little, limits.memory_mb).to_wire(), 0)
        closing.callback(guest.close)
        self._report(Started(self._launch.run))
        return self._run_guest(guest, calls)

    def _run_guest(self, guest: Guest, calls: GuestCalls) -> GuestEnd:
        limits = self._launch.limits
        calls.memory = MemoryMeter(limits, lambda: len(guest.memory()))
        bundle = _bundle_json(self._launch)
        try:
            ok, text = guest.run(calls, bundle, self._launch.arguments)
        except GuestTrap as trap:
            size = len(guest.memory())
            return GuestEnd(None, self.inbox.error or explain_trap(str(trap), size, limits).to_wire(), size)
        size = len(guest.memory())
        error = read_error(text, limits) if not ok else check_result(text, calls)
        error = self.inbox.error or error
        return GuestEnd(text if error is None else None, error, size)


def _bundle_json(launch: LaunchRun) -> str:
    """Return the bundle as the runner reads it, with the run's seed and the names of its packages' files."""
    bundle = {**msgspec.structs.asdict(launch.bundle), "seed": launch.seed, "keeps_code": bool(launch.program)}
    bundle["packages"] = list(launch.bundle.packages)
    del bundle["lock"]  # the runner has no use for it
    return msgspec.json.encode(bundle).decode()


def check_result(text: str, calls: GuestCalls) -> ErrorInfo | None:
    """Return the error of a result that cannot be sent or is too long, else None.

    A program can reach the code that encodes it, so this may be any text.
    """
    _, too_long = calls.meter.write(len(text.encode()))
    if too_long is not None:
        return too_long.to_wire()
    try:
        check_json(text.encode(), "the program's result")
    except InvalidRequest as error:
        return ProgramError(error.message).to_wire()
    return None


def read_error(text: str, limits: Limits) -> ErrorInfo:
    """Return the error that a guest reports, which may be any text, as one that can be sent."""
    if len(text) > LONGEST_ERROR:
        return ProgramError(f"the program's error is too long: {cut(text, LONGEST_CAUSE)}").to_wire()
    try:
        info = msgspec.json.decode(text, type=ErrorInfo).carriable()
    except (ValueError, RecursionError) as error:
        return ProgramError(f"the program's error cannot be read: {error}").to_wire()
    if info.code == LimitExceeded.code and info.detail.get("limit") == "memory_mb":
        known = out_of_memory(limits)
        return ErrorInfo(info.code, known.message, {**info.detail, **known.detail})
    return info


def explain_trap(message: str, memory_bytes: int, limits: Limits) -> InferdError:
    """Return the error of a guest that stopped by itself. ``message`` is wasmtime's: a backtrace, then the cause."""
    cause = cut(message.rpartition("Caused by:")[2].strip() or message, LONGEST_CAUSE)
    if "call stack exhausted" in cause:
        depth = f"the call stack of {WASM_STACK_BYTES // MIB} MiB is used up"
        return ProgramError(f"the program nests calls or values too deeply: {depth}", trap=cause)
    if memory_bytes >= NEARLY_FULL * limits.memory_mb * MIB:
        return out_of_memory(limits)
    if "exit status" in cause:
        return ProgramError("the program ended its process, as os._exit does", trap=cause)
    if "unreachable" in cause:
        return ProgramError(f"the program ended abnormally, as os.abort does: {cause}", trap=cause)
    # CPython 3.14 calls a null pointer behind a failed `text += more`, wherever that is: the memory in use says little.
    used = f"{memory_bytes // MIB} of {limits.memory_mb} MiB in use"
    hint = "Python does so where `text += more` gets no memory for the longer text (memory_mb gives the program more)"
    return ProgramError(f"the interpreter crashed with {used}: {hint}: {cause}", trap=cause)


def out_of_memory(limits: Limits) -> LimitExceeded:
    """Return the error of a program that needs more memory than it may have."""
    return exceeded("memory_mb", f"the program needs more than {limits.memory_mb} MiB of memory", limits.memory_mb)


def _ask_to_close(link: EngineLink) -> bool:
    """Ask the engine to close the session. False if it takes no requests."""
    try:
        link.request_close()
    except zmq.Again:
        return False
    return True


def _closed_session(link: EngineLink, session_replies: int, error: ErrorInfo | None) -> Usage:
    """Wait until the session is closed. Returns what the run used there, zeros if the engine does not say within
    ``CLOSE_SECONDS``.
    """
    patience = 0.0 if error is not None and error.code == Unavailable.code else CLOSE_SECONDS
    end = time.monotonic() + patience
    while link.socket.poll(max(int((end - time.monotonic()) * 1e3), 0)):
        reply = link.receive()
        if reply is None or reply.ticket:
            continue
        session_replies += 1
        if session_replies == 2:  # the first one was to the opening
            return msgspec.msgpack.decode(reply.payload, type=Usage) if reply.ok else Usage()
    return Usage()
