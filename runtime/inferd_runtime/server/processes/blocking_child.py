"""Child processes of a process without an event loop."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from tempfile import TemporaryFile

from inferd.protocol import InferdError, Unavailable
from inferd_runtime.isolation.order import Launch
from inferd_runtime.isolation.start import close_input, give_order
from inferd_runtime.launch_marks import forget_marks
from inferd_runtime.server.processes.child_protocol import printed_error

STOP_SECONDS = 5.0
TAIL_BYTES = 1 << 14


class BlockingChild:
    """A child that ends with this process. The end of what it prints is kept for error messages.

    ``pass_fds`` are the file descriptors that it inherits.
    """

    def __init__(self, launch: Launch, pass_fds: Sequence[int] = ()) -> None:
        self._printed = TemporaryFile()  # noqa: SIM115 - closed with the child
        self.started = time.monotonic()
        self._process = subprocess.Popen(
            launch.command,
            stdin=subprocess.PIPE, stdout=self._printed, stderr=self._printed, pass_fds=pass_fds, env=launch.environment,
        )  # fmt: skip
        give_order(self._process, launch)
        close_input(self._process)

    @property
    def alive(self) -> bool:
        """True while it has not ended."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the child has ended; False when the time is up."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def error(self, name: str, **detail: object) -> InferdError:
        """Return the error that the ended child printed, else Unavailable with ``detail`` that says how ``name`` ended."""
        end = self._printed.seek(0, os.SEEK_END)
        self._printed.seek(max(0, end - TAIL_BYTES))
        printed = self._printed.read().decode(errors="replace").strip()
        ended = f"{name} ended with code {self._process.poll()}"
        return printed_error(printed) or Unavailable(f"{ended}\n{printed}".strip(), **detail)

    def wait_or_kill(self) -> None:
        """Wait for the child's end, and kill it after STOP_SECONDS."""
        if not self.wait(STOP_SECONDS):
            self._process.kill()
            self._process.wait()
            forget_marks(self.pid)

    def stop(self) -> None:
        """Ask the child to end, wait, and forget what it printed."""
        self._process.terminate()
        self.wait_or_kill()
        self._printed.close()
