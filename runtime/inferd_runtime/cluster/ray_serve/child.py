"""The process of a cluster that an actor of Ray looks after."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess

import msgspec

from inferd.protocol import Unavailable
from inferd_runtime.cluster.front.serving import FrontStart
from inferd_runtime.cluster.process import Ready, process_command, process_environment, process_order
from inferd_runtime.cluster.replica.serving import ReplicaOrder


class ClusterProcess:
    """A front or a replica as a child. It ends with this process, an actor's, unless Ray on this machine has ended as well:
    then it goes on serving.
    """

    def __init__(self, work: ReplicaOrder | FrontStart) -> None:
        self._child = subprocess.Popen(
            process_command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=process_environment(), process_group=0
        )
        assert self._child.stdin is not None
        self._child.stdin.write(process_order(work, supervisor=os.getppid()))
        self._child.stdin.close()

    async def ready(self) -> Ready:
        """Return where it listens, once it does. Raises Unavailable if it ends before."""
        assert self._child.stdout is not None
        line = await asyncio.to_thread(self._child.stdout.readline)
        if not line:
            raise Unavailable(f"the process ended with code {self._child.wait()} before it was ready: see its log")
        return msgspec.json.decode(line, type=Ready)

    def check(self) -> None:
        """Raise Unavailable if the process has ended."""
        if self._child.poll() is not None:
            raise Unavailable(f"the process has ended with code {self._child.returncode}")

    async def end(self, seconds: float) -> None:
        """Ask it to end in order; kill it after so many seconds."""
        self._child.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(self._child.wait, seconds)
        except subprocess.TimeoutExpired:
            self._child.kill()
