"""One run from the guest's side: load the program, call its ``main``, and turn what comes out into JSON."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from inferd.interface import coerce_arguments, to_result
from inferd.protocol import ProgramError
from inferd.transport import use_transport
from inferd_runtime.sandbox.runner import failure, stdio
from inferd_runtime.sandbox.runner.completions import Completions, Host
from inferd_runtime.sandbox.runner.eventloop import GuestEventLoop, run_to_end
from inferd_runtime.sandbox.runner.program import Program, load
from inferd_runtime.sandbox.runner.transport import GuestTransport


@dataclass(frozen=True)
class Outcome:
    """How a run ended: the JSON of what ``main`` returned, or of an ErrorInfo."""

    ok: bool
    text: str


class Runner:
    """Runs one program on a host."""

    def __init__(self, host: Host) -> None:
        self.completions = Completions(host, stdio.flush)

    def new_event_loop(self) -> GuestEventLoop:
        """An event loop on this host."""
        return GuestEventLoop(self.completions)

    def run(self, bundle: str, arguments: str) -> Outcome:
        """Run a program to its end. The sandbox's boundary: every exception becomes an error to report."""
        program = Program("", {}, "")
        try:
            program = Program(**json.loads(bundle))
            outcome = Outcome(True, self._run(program, json.loads(arguments)))
        except BaseException as error:  # noqa: BLE001 - nothing may leave but as a reported error
            outcome = _failed(error, program)
        stdio.flush()
        return outcome

    def _run(self, program: Program, arguments: dict[str, Any]) -> str:
        use_transport(GuestTransport(self.completions))
        main = load(program)
        value = self._call(main, coerce_arguments(main, arguments))
        return _encode(to_result(value))

    def _call(self, main: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        value = main(**arguments)
        return run_to_end(self.new_event_loop(), _awaited(value)) if inspect.isawaitable(value) else value


async def _awaited(value: Any) -> Any:
    return await value


def _failed(error: BaseException, program: Program) -> Outcome:
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return Outcome(True, "null")
    return Outcome(False, failure.to_json(error, program.sources))


def _encode(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
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
