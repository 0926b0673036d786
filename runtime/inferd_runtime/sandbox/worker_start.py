"""How a sandbox worker is started, and what it is told."""

from __future__ import annotations

from dataclasses import dataclass

from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.order import Launch

WORKER_MODULE = "inferd_runtime.sandbox.worker"


@dataclass(frozen=True)
class WorkerLinks:
    """The ipc endpoints of gateway and engine, the worker's name, and the secret that is its identity at the gateway."""

    control: str
    engine: str
    name: str
    secret: str


@dataclass(frozen=True)
class WorkerStart:
    """What a worker is told: its links, and the file of the compiled runner."""

    links: WorkerLinks
    runner: str


def worker_launch(start: WorkerStart) -> Launch:
    """Return how to start a worker."""
    return Launch(WORKER_MODULE, ChildKind.WORKER, settings=start)
