"""What the parts of a runtime share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio.abc
import zmq

from inferd_runtime.server.processes.rundir import SOCKETS
from inferd_runtime.server.run_store.archive import RunArchive


@dataclass(frozen=True)
class Wiring:
    """The ZeroMQ context, private directory, task group, and store of runs (None: they are kept in memory) of a runtime."""

    context: zmq.Context[Any]
    directory: Path
    tasks: anyio.abc.TaskGroup
    archive: RunArchive | None = None

    def endpoint(self, name: str) -> str:
        """Return an ipc endpoint in the private directory."""
        return f"ipc://{self.directory}/{SOCKETS}/{name}.sock"
