"""A runtime in this process with its engine and its one worker, which the parts of a benchmark share."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferd_runtime.server.programs.bundles import Program
from inferd_runtime.server.programs.library import ProgramLibrary, open_library
from inferd_runtime.server.supervisor.runs import Run
from inferd_runtime.server.supervisor.runtime import Runtime, open_runtime
from inferd_runtime.server.tenancy.quotas import ADMIN_QUOTAS, same_for_all
from inferd_runtime.settings.settings import EngineSettings, Settings

TENANT = "default"
MOST_RUNS = 2000
WALL_SECONDS = 3600.0


@dataclass(frozen=True)
class Place:
    """Where programs are uploaded and run."""

    runtime: Runtime
    library: ProgramLibrary

    async def upload(self, name: str, source: str) -> Program:
        """Keep a program."""

        async def body() -> bytes:
            return json.dumps({"files": {"main.py": source}, "name": name}).encode()

        return (await self.library.upload(body, TENANT)).program

    def launch(self, program: Program, **arguments: object) -> Run:
        """Start a run."""
        return self.runtime.launch(program, json.dumps(arguments), TENANT)


@asynccontextmanager
async def open_place(engine: EngineSettings, **changes: Any) -> AsyncIterator[Place]:
    """Open a runtime with one worker, which may have MOST_RUNS runs at a time; ``changes`` are settings."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            data_dir=Path(folder), state_dir=Path(folder), engine=engine, workers=1, max_workers=1,
            runs_per_worker=MOST_RUNS, max_waiting=MOST_RUNS, wall_s=WALL_SECONDS, **changes,
        )  # fmt: skip
        async with (
            open_runtime(settings, spare=0) as runtime,
            open_library(settings.data_dir / "programs.sqlite3", same_for_all(ADMIN_QUOTAS)) as library,
        ):
            yield Place(runtime, library)
