"""The first guest of a worker: a program of ours, on a host that answers at once."""

from __future__ import annotations

import json
import traceback

from inferd_runtime.sandbox.runner.rehearsal import ASYNCIO, GENERATION, AnsweringHost
from inferd_runtime.sandbox.wasm.loaded_runner import LoadedRunner

SPARES = 4
BOTH = """
import generation
import tasks

async def main(text: str):
    return await tasks.main(text), await generation.main(text)
"""


class RehearsalCalls:
    """The runner's own rehearsal host, as the host of a real guest."""

    def __init__(self) -> None:
        self._host = AnsweringHost()
        self.ended = False

    def submit(self, op: str, arguments: bytes) -> int:
        """Answer at once."""
        return self._host.submit(op, arguments.decode())

    def wait(self, timeout_ms: int) -> bytes:
        """Return the answers."""
        return self._host.wait(timeout_ms).encode()

    def ask(self, op: str, arguments: bytes, timeout_ms: int) -> bytes:
        """Answer at once."""
        return self._host.ask(op, arguments.decode(), timeout_ms).encode()

    def cancel(self, ticket: int) -> None:
        """Do nothing: no operation is ever open."""

    def log(self, target: str, text: str) -> None:
        """Drop the text."""

    def file(self, path: str) -> bytes:
        """Return nothing: there are no packages."""
        return b""

    def code(self, path: str) -> bytes:
        """Return nothing: every module is compiled."""
        return b""

    def keep(self, code: bytes) -> None:
        """Keep nothing."""

    def tick(self) -> None:
        """Do nothing: the warm-up has no limits."""

    def blocked(self) -> None:
        """Stop the guest, which does not block on purpose."""
        self.ended = True

    def crashed(self, error: Exception) -> None:
        """Print a bug, and stop the guest, which wasmtime reports."""
        traceback.print_exception(error)
        self.ended = True


def warm_up(runner: LoadedRunner) -> None:
    """Run a program once, then keep spare instances. Raises GuestTrap if the runner does not work."""
    files = {"main.py": BOTH, "tasks.py": ASYNCIO, "generation.py": GENERATION}
    bundle = {"name": "warm-up", "files": files, "entry": "main.py"}
    runner.warm_up(RehearsalCalls(), json.dumps(bundle), json.dumps({"text": "hello"}), SPARES)
