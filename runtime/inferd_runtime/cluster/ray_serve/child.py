"""The process of a cluster that an actor of Ray looks after."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable

import msgspec

from inferd.protocol import InferdError, Unavailable
from inferd_runtime.cluster.front.hop_client import HopClient, HopRequest, ReplicaGone
from inferd_runtime.cluster.front.serving import FrontStart
from inferd_runtime.cluster.process import Ready, process_command, process_environment, process_order
from inferd_runtime.cluster.replica.serving import ReplicaOrder
from inferd_runtime.isolation.layers import end_no_sooner_than

LIVE_PATH = b"/livez"
ANSWER_SECONDS, LOOK_SECONDS = 10.0, 2.0
END_LOOK_SECONDS = 0.1
HUNG_SECONDS = 60.0
"""How long a process may not answer even that it is alive."""
log = logging.getLogger("ray.serve")


async def kill_if_hung(
    child: subprocess.Popen[bytes], answers: Callable[[], Awaitable[bool]],
    seconds: float = HUNG_SECONDS, pause: float = LOOK_SECONDS,
) -> None:  # fmt: skip
    """Ask a process again and again, until it has ended; kill it once it has not answered for so many seconds."""
    since = time.monotonic()
    while child.poll() is None:
        if await answers():
            since = time.monotonic()
        elif time.monotonic() - since > seconds:
            log.error("the process %d does not answer: it is killed", child.pid)
            child.kill()
        await asyncio.sleep(pause)


async def _answers(hop: HopClient, url: str) -> bool:
    """Return whether a process answers anything."""
    try:
        await hop.ask(url, HopRequest(b"GET", LIVE_PATH, []), ANSWER_SECONDS)
    except ReplicaGone:
        return False
    except InferdError:  # it has no such route
        return True
    return True


async def _end_of(child: subprocess.Popen[bytes]) -> None:
    """Wait until a process has ended. No thread waits for it: an actor could not end before that thread."""
    while True:
        if child.poll() is not None:
            return
        await asyncio.sleep(END_LOOK_SECONDS)


class ClusterProcess:
    """A front or a replica as a child. It ends with this process, an actor's, unless Ray on this machine has ended as well:
    then it goes on serving.
    """

    def __init__(self, work: ReplicaOrder | FrontStart) -> None:
        end_no_sooner_than(os.getppid())  # Ray has its actors ended first
        inherited = [work.listener] if isinstance(work, FrontStart) and work.listener >= 0 else []
        self._child = subprocess.Popen(
            process_command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=process_environment(), process_group=0,
            pass_fds=inherited,
        )  # fmt: skip
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

    async def watch(self, url: str) -> float:
        """Wait until the process has ended, and return how many seconds it was watched. It is killed when it has not answered at
        ``url`` for HUNG_SECONDS, as it may hang: another one is started then.
        """
        hop, since = HopClient(), time.monotonic()
        asking = asyncio.get_running_loop().create_task(kill_if_hung(self._child, lambda: _answers(hop, url)))
        try:
            await _end_of(self._child)
        finally:
            asking.cancel()
            await hop.close()
        return time.monotonic() - since

    async def end(self, seconds: float) -> None:
        """Ask it to end in order; kill it after so many seconds."""
        self._child.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(self._child.wait, seconds)
        except subprocess.TimeoutExpired:
            self._child.kill()
