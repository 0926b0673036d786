"""How a sandbox worker is started, and what it is told."""

from __future__ import annotations

import os
from dataclasses import dataclass

from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.order import Access, Launch, ResourceLimits
from inferd_runtime.sandbox.wasm.engine_settings import MIB

WORKER_MODULE = "inferd_runtime.sandbox.worker"
ADDRESS_BYTES = 16 << 30
"""Addresses that an instance reserves, with room to spare: 4 GiB for each of its linear memories, and guards."""
IDLE_RUN_BYTES = 96 * MIB
"""What a run that waits has mapped for writing, with room to spare: its instance's memory and its thread's stack, 66 MiB."""
BASE_FILES, FILES_OF_RUN = 256, 16
BASE_THREADS = 64
SPARE_INSTANCES = 8


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


@dataclass(frozen=True)
class WorkerBounds:
    """What all runs of a worker may take together: so many at a time, and so many MiB that they may write to.

    An instance's whole memory counts, though it shares most of its pages with the others: hence twice what the machine has, or
    what so many idle runs need if that is more: a worker that may not have it would end with all of its runs.
    """

    runs: int = 64
    memory_mb: int | None = None

    @property
    def limits(self) -> ResourceLimits:
        """What the kernel is to hold the worker's process to."""
        default = max(2 * physical_bytes(), self.runs * IDLE_RUN_BYTES)
        memory = default if self.memory_mb is None else self.memory_mb * MIB
        return ResourceLimits(
            memory_bytes=memory,
            address_bytes=(self.runs + SPARE_INSTANCES) * ADDRESS_BYTES,
            threads=self.runs + BASE_THREADS,
            open_files=BASE_FILES + FILES_OF_RUN * self.runs,
        )


def physical_bytes() -> int:
    """Return the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def worker_launch(start: WorkerStart, bounds: WorkerBounds, *, require_all: bool = False) -> Launch:
    """Return how to start a worker. It reads the runner's file and connects to its links' sockets, and no more."""
    folders = {
        endpoint.removeprefix("ipc://").rpartition("/")[0] for endpoint in (start.links.control, start.links.engine)
    }
    access = Access(read=(start.runner,), sockets=tuple(sorted(folders)))
    return Launch(
        WORKER_MODULE, ChildKind.WORKER, settings=start, access=access, limits=bounds.limits, require_all=require_all
    )
