"""The command line over the fake engine and the fake worker: ``fake_cli.py VERB ...``. Nothing else is replaced.

``INFERD_FAKE_ENGINE`` and ``INFERD_FAKE_WORKER`` hold options for the fakes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from inferd_runtime.cli import main, progress
from inferd_runtime.sandbox.runner_build.component import OnProgress
from inferd_runtime.server.supervisor import runtime
from inferd_runtime.settings.settings import Settings

HERE = Path(__file__).parent


def fake_commands(settings: Settings) -> runtime.Commands:
    engine_options = os.environ.get("INFERD_FAKE_ENGINE", "").split()
    worker_options = os.environ.get("INFERD_FAKE_WORKER", "").split()

    def engine(endpoint: str) -> list[str]:
        return [str(HERE / "fake_engine.py"), "--endpoint", endpoint, *engine_options]

    def worker(control: str, engine_endpoint: str, name: str) -> list[str]:
        links = ["--control", control, "--engine", engine_endpoint, "--identity", name]
        return [str(HERE / "fake_worker.py"), *links, *worker_options]

    return runtime.Commands(engine, worker)


def no_runner(on_progress: OnProgress) -> Path:
    return HERE


if __name__ == "__main__":
    vars(runtime)["default_commands"] = fake_commands
    vars(progress)["ensure_runner"] = no_runner
    sys.exit(main())
