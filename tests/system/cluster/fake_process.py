"""A process of a cluster whose replicas have the fake engine and the fake worker of tests/system/server."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from inferd_runtime.cluster.process import run_process
from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.order import Launch
from inferd_runtime.server.supervisor.commands import Commands

FAKES = Path(__file__).resolve().parents[1] / "server"


def script(name: str, *arguments: str) -> Launch:
    return Launch(str(FAKES / name), ChildKind.MODEL, arguments)


def fake_commands() -> Commands:
    return Commands(
        engine=lambda endpoint, key: script("fake_engine.py", "--endpoint", endpoint),
        worker=lambda links: script(
            "fake_worker.py", "--control", links.control, "--engine", links.engine, "--identity", links.secret
        ),
    )


def skew_clock(seconds: float) -> None:
    """Have the time of day be wrong."""
    right = time.time
    time.time = lambda: right() + seconds


if __name__ == "__main__":
    for option in sys.argv[1:]:
        skew_clock(float(option.removeprefix("--skew=")))
    sys.exit(run_process(fake_commands()))
