"""Child processes: started tied to this one, with the end of what they print kept for error messages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections import deque

import anyio

from inferd_runtime.isolation.order import Launch
from inferd_runtime.log_lines import relay_child_line

TAIL_LINES = 40
DRAIN_SECONDS = 1.0
GONE = (ProcessLookupError, PermissionError)
"""What signalling an ended process group raises; the second on macOS, before its processes are waited for."""


class ChildProcess(asyncio.SubprocessProtocol):
    """A child in a session of its own. Only the event loop that started it may use it.

    Its own session keeps a Ctrl+C in the terminal from reaching it: this process decides what ends, and in which order. It
    is also a process group of its own, so what the child started ends with it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.exited = anyio.Event()
        """Set when the child has ended."""
        self._drained = anyio.Event()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._rest = ""
        self._log = logging.getLogger(f"inferd.{name}")
        self._transport: asyncio.SubprocessTransport | None = None

    @classmethod
    async def start(cls, name: str, launch: Launch) -> ChildProcess:
        """Start a child and give it its order. A cancellation takes effect afterwards: asyncio would lose the child else."""
        with anyio.CancelScope(shield=True):
            transport, child = await asyncio.get_running_loop().subprocess_exec(
                lambda: cls(name),
                *launch.command,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
                start_new_session=True, env=launch.environment,
            )  # fmt: skip
        order = transport.get_pipe_transport(0)
        assert isinstance(order, asyncio.WriteTransport)
        order.write(launch.document())
        order.close()  # once all is written
        return child

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._transport is not None
        return self._transport.get_pid()

    @property
    def tail(self) -> str:
        """The last lines that the child printed."""
        return "\n".join([*self._tail, self._rest]).strip()

    @property
    def alive(self) -> bool:
        """True if the child has not ended."""
        return not self.exited.is_set()

    async def wait(self) -> str:
        """Wait until the child has ended. Returns how, in words."""
        assert self._transport is not None
        await self.exited.wait()
        with anyio.move_on_after(DRAIN_SECONDS):
            await self._drained.wait()
        code = self._transport.get_returncode()
        assert code is not None
        return describe_exit(code)

    async def stop(self, grace: float) -> None:
        """Ask the child to end; kill it after ``grace`` seconds. Returns when it has ended."""
        self._signal(signal.SIGTERM)
        with anyio.move_on_after(grace):
            await self.exited.wait()
        self.kill()
        await self.exited.wait()
        assert self._transport is not None
        self._transport.close()

    def kill(self) -> None:
        """End the child at once."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.alive:
            with contextlib.suppress(*GONE):
                os.killpg(self.pid, number)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport of the child, which runs."""
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Log what the child printed, and keep its end."""
        *lines, self._rest = (self._rest + data.decode(errors="replace"))[-(1 << 16) :].split("\n")
        for line in lines:
            self._tail.append(line)
            relay_child_line(self._log, line)

    def process_exited(self) -> None:
        """Note that the child ended, and end what it started and left in its group."""
        with contextlib.suppress(*GONE):
            os.killpg(self.pid, signal.SIGKILL)
        self.exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that all the child printed has been read."""
        self._drained.set()


def describe_exit(code: int) -> str:
    """Return an exit code in words."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
