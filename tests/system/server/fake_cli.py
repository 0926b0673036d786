"""The command line over the fake engine and the fake worker: ``fake_cli.py VERB ...``. Nothing else is replaced.

``INFERD_FAKE_ENGINE`` and ``INFERD_FAKE_WORKER`` hold options for the fakes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from inferd_runtime.cli import main, progress, warm, warm_server
from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.order import Launch
from inferd_runtime.sandbox.runner_build.component import OnProgress
from inferd_runtime.sandbox.worker_start import WorkerLinks
from inferd_runtime.server.supervisor import runtime
from inferd_runtime.settings.settings import Settings

HERE = Path(__file__).parent
WARM = "--warm"


def fake_commands(settings: Settings) -> runtime.Commands:
    engine_options = os.environ.get("INFERD_FAKE_ENGINE", "").split()
    worker_options = os.environ.get("INFERD_FAKE_WORKER", "").split()

    def engine(endpoint: str, key: str) -> Launch:
        return Launch(str(HERE / "fake_engine.py"), ChildKind.MODEL, ("--endpoint", endpoint, *engine_options))

    def worker(links: WorkerLinks) -> Launch:
        told = ("--control", links.control, "--engine", links.engine, "--identity", links.secret)
        return Launch(str(HERE / "fake_worker.py"), ChildKind.MODEL, (*told, *worker_options))

    return runtime.Commands(engine, worker)


def no_runner(on_progress: OnProgress) -> Path:
    return HERE


if __name__ == "__main__":
    vars(runtime)["default_commands"] = fake_commands
    vars(progress)["ensure_runner"] = no_runner
    vars(warm)["CHILD"] = [sys.executable, __file__, WARM]
    sys.exit(warm_server.main() if sys.argv[1:] == [WARM] else main())
