"""The command line over the fake engine and the fake worker: ``fake_cli.py VERB ...``. Nothing else is replaced.

``INFERD_FAKE_ENGINE`` and ``INFERD_FAKE_WORKER`` hold options for the fakes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from inferd_runtime.cli import main

HERE = Path(__file__).parent
WARM = "--warm"
STARTING = {"run", "serve", WARM}
"""The verbs that start an engine. The others need none of what is replaced, and would take three times as long with it."""


def replace() -> None:
    """Have the fakes started."""
    from inferd_runtime.cli import progress, warm
    from inferd_runtime.isolation.kinds import ChildKind
    from inferd_runtime.isolation.order import Launch
    from inferd_runtime.sandbox.worker_start import WorkerLinks
    from inferd_runtime.server.supervisor import runtime

    engine_options = os.environ.get("INFERD_FAKE_ENGINE", "").split()
    worker_options = os.environ.get("INFERD_FAKE_WORKER", "").split()

    def engine(endpoint: str, key: str) -> Launch:
        return Launch(str(HERE / "fake_engine.py"), ChildKind.MODEL, ("--endpoint", endpoint, *engine_options))

    def worker(links: WorkerLinks) -> Launch:
        told = ("--control", links.control, "--engine", links.engine, "--identity", links.secret)
        return Launch(str(HERE / "fake_worker.py"), ChildKind.MODEL, (*told, *worker_options))

    vars(runtime)["default_commands"] = lambda settings: runtime.Commands(engine, worker)
    vars(progress)["ensure_runner"] = lambda on_progress: HERE
    vars(warm)["CHILD"] = [sys.executable, __file__, WARM]


if __name__ == "__main__":
    if STARTING & {*sys.argv[1:2]}:
        replace()
    if sys.argv[1:] == [WARM]:
        from inferd_runtime.cli import warm_server

        sys.exit(warm_server.main())
    sys.exit(main())
