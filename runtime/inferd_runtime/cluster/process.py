"""The processes of a cluster: a front, or a replica. Each gets a line of JSON on its standard input, and writes one when ready.

python -P -m inferd_runtime.cluster.process
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import anyio
import msgspec

from inferd_runtime.cluster.front.serving import ClusterFront, FrontStart, serve_front
from inferd_runtime.cluster.replica.serving import Replica, ReplicaOrder, serve_replica
from inferd_runtime.interpreter import share_interpreter
from inferd_runtime.isolation.layers import end_no_sooner_than
from inferd_runtime.isolation.settings_json import decode_settings, encode_settings
from inferd_runtime.isolation.tether import die_with, outlive
from inferd_runtime.log_lines import configure_logging
from inferd_runtime.server.processes.child_protocol import exit_code
from inferd_runtime.server.supervisor.commands import Commands
from inferd_runtime.settings.settings import Settings

NOT_INHERITED = ("INFERD_", "RAY_")
"""Beginnings of variables that a process of a cluster does not get: it is told its settings, and knows nothing of Ray."""
MODULE = "inferd_runtime.cluster.process"


class Ready(msgspec.Struct, frozen=True):
    """The line that a process writes once it is ready. ``private_url``: a front's for replicas."""

    url: str
    pid: int
    private_url: str = ""


class ProcessOrder(msgspec.Struct, frozen=True):
    """What a process is told: whose child it is, and what it is to do.

    ``supervisor``: the process that started the parent, if this one is to go on where both have ended; 0: it ends with its
    parent.
    """

    parent: int
    supervisor: int = 0
    replica: ReplicaOrder | None = None
    front: FrontStart | None = None


def process_command() -> list[str]:
    """Return how to start a process; :func:`process_order` is what it is told."""
    return [sys.executable, "-P", "-m", MODULE]


def process_environment() -> dict[str, str]:
    """Return the environment to start it with."""
    return {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}


def process_order(work: ReplicaOrder | FrontStart, supervisor: int = 0) -> bytes:
    """Return what a process that this one starts is told on its standard input. It holds secrets."""
    replica, front = (work, None) if isinstance(work, ReplicaOrder) else (None, work)
    return encode_settings(ProcessOrder(os.getpid(), supervisor, replica, front)) + b"\n"


def run_process(commands: Commands | None = None) -> int:
    """Do what the order on standard input says. Returns the exit code."""
    order = decode_settings(sys.stdin.buffer.readline(), ProcessOrder)
    if order.supervisor:
        outlive(order.parent, order.supervisor)
        end_no_sooner_than(order.supervisor)
    else:
        die_with(order.parent)
    share_interpreter()
    return exit_code(lambda: anyio.run(_work, order, commands))


async def _work(order: ProcessOrder, commands: Commands | None) -> None:
    stopping = anyio.Event()
    _on_signals(stopping)
    if order.replica is not None:
        _configure(order.replica.settings)
        await serve_replica(order.replica, _replica_is_ready, stopping, commands)
    elif order.front is not None:
        _configure(order.front.settings)
        await serve_front(order.front, _front_is_ready, stopping)


def _configure(settings: Settings) -> None:
    configure_logging(settings.log_format, settings.log_level)


def _on_signals(stopping: anyio.Event) -> None:
    """Have the first SIGTERM or SIGINT end the process in order, and the second one at once."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def first() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, first)


def _replica_is_ready(replica: Replica) -> None:
    _say(Ready(replica.gateway.url, os.getpid()))


def _front_is_ready(front: ClusterFront) -> None:
    _say(Ready(front.url, os.getpid(), front.private_url))


def _say(ready: Ready) -> None:
    print(msgspec.json.encode(ready).decode(), flush=True)


if __name__ == "__main__":
    sys.exit(run_process())
