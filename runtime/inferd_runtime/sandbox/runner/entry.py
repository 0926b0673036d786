"""One run from the guest's side: load the program, call its ``main``, and turn what comes out into JSON."""

from __future__ import annotations

import asyncio
import base64
import gc
import inspect
import json
import marshal
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from inferd.files import use_folder
from inferd.program.interface import coerce_arguments, to_result
from inferd.program.pie import PIE_FILE, RETURNED, imports_inferlet, input_of, takes_input
from inferd.protocol import InvalidRequest, ProgramError
from inferd.transport import current_port, restore_transport, use_transport
from inferd_runtime.sandbox.runner import failure
from inferd_runtime.sandbox.runner.completions import Completions, Host
from inferd_runtime.sandbox.runner.eventloop import GuestEventLoop, run_to_end
from inferd_runtime.sandbox.runner.program import Execute, LoadedProgram, ProgramLibrary, let_go, load, plainly
from inferd_runtime.sandbox.runner.stdio import Streams
from inferd_runtime.sandbox.runner.transport import GuestTransport, checked_text

RESERVE_BYTES = 256 << 10
"""Given back when a program has failed, perhaps because it filled the memory: saying so takes some."""


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended: the JSON of what ``main`` returned, or of an ErrorInfo."""

    ok: bool
    text: str


class RunnerHost(Host, ProgramLibrary, Protocol):
    """A host that has the program's packages, and keeps what they were compiled to, too."""

    def keep(self, code: str) -> None:
        """Keep code for later runs of the program; ``world.wit`` says in which form."""


class Runner:
    """Runs one program on a host. ``prepare`` is called with it before its own code is, ``leave`` behind its end, and ``execute``
    runs the code of each module of it and its packages.
    """

    def __init__(
        self,
        host: RunnerHost,
        prepare: Callable[[LoadedProgram], None] = lambda program: None,
        leave: Callable[[], None] = lambda: None,
        execute: Execute = plainly,
    ) -> None:
        self._host = host
        self._prepare = prepare
        self._leave = leave
        self._execute = execute
        self._reserve = bytes(RESERVE_BYTES)
        self.streams = Streams(host)
        self.completions = Completions(host, self.streams.flush)

    def new_event_loop(self) -> GuestEventLoop:
        """Return an event loop on this host."""
        return GuestEventLoop(self.completions)

    def run(self, bundle: str, arguments: str) -> RunOutcome:
        """Run a program to its end. The sandbox's boundary: every exception becomes an error to report."""
        program = LoadedProgram("", {}, "")
        try:
            program = _program(json.loads(bundle), self._host)
            outcome = RunOutcome(True, self._run(program, _decode(arguments)))
        except BaseException as error:  # noqa: BLE001 - nothing may leave but as a reported error
            self._reserve = b""
            outcome = _failed(error, program)
        if not outcome.ok:
            gc.collect()  # frees coroutines that nobody awaited, of which Python tells then
        self.streams.close()
        return outcome

    def _run(self, program: LoadedProgram, arguments: dict[str, Any]) -> str:
        before = use_transport(GuestTransport(self.completions, program.seed))
        use_folder(program)
        self._prepare(program)
        if program.seed is not None:
            random.seed(program.seed)
        try:
            main = load(program, self._execute)
            self._keep(program)
            if _is_for_pie(program) and takes_input(main):
                arguments = input_of(arguments)
            value = self._call(main, coerce_arguments(main, arguments))
            if value is None:
                value = current_port().shared.get(RETURNED)
            return _encode(to_result(value))
        finally:
            self._leave()
            self._keep(program)
            restore_transport(before)

    def _keep(self, program: LoadedProgram) -> None:
        """Have the host keep what has been compiled, where later runs get it."""
        compiled = program.compiled
        if compiled and program.keeps_code:
            texts = {path: base64.b64encode(marshal.dumps(code)).decode() for path, code in compiled.items()}
            self._host.keep(json.dumps(texts))
        compiled.clear()

    def _call(self, main: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        value = main(**arguments)
        return run_to_end(self.new_event_loop(), _awaited(value)) if inspect.isawaitable(value) else value


def _program(bundle: dict[str, Any], library: ProgramLibrary) -> LoadedProgram:
    return LoadedProgram(**{**bundle, "packages": frozenset(bundle.get("packages", ()))}, library=library)


async def _awaited(value: Any) -> Any:
    return await value


def _is_for_pie(program: LoadedProgram) -> bool:
    return PIE_FILE in program.data or imports_inferlet(program.files.get(program.entry, ""))


def _failed(error: BaseException, program: LoadedProgram) -> RunOutcome:
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return RunOutcome(True, "null")
    return RunOutcome(False, failure.to_json(error, program.files, let_go))


def _decode(arguments: str) -> dict[str, Any]:
    try:
        decoded = json.loads(arguments)
    except ValueError as error:
        raise InvalidRequest(f"the arguments are not JSON: {error}") from None
    if not isinstance(decoded, dict):
        raise InvalidRequest(f"the arguments have to be a JSON object, not {type(decoded).__name__}")
    return decoded


def _encode(value: Any) -> str:
    try:
        return checked_text(json.dumps(value, allow_nan=False, separators=(",", ":")))
    except (TypeError, ValueError) as error:
        raise ProgramError(f"main returned something that JSON cannot hold: {error}") from None


def use_everywhere(runner: Runner) -> None:
    """Make ``asyncio.run`` and its relatives use the runner's event loop."""
    asyncio.new_event_loop = asyncio.events.new_event_loop = runner.new_event_loop

    class EventLoop(GuestEventLoop):
        """The event loop of the sandbox."""

        def __init__(self) -> None:
            super().__init__(runner.completions)

    for name in ("EventLoop", "SelectorEventLoop"):
        setattr(asyncio, name, EventLoop)
