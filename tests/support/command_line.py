"""``inferd`` as a process, with a home of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def own_home(folder: Path) -> dict[str, str]:
    """The environment without the machine's settings, its state, data and configuration in ``folder``. Caches are shared."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("INFERD_", "XDG_"))}
    cache = {key: os.environ[key] for key in ("INFERD_CACHE_DIR", "XDG_CACHE_HOME") if key in os.environ}
    moved = {f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("STATE", "DATA", "CONFIG")}
    return {**kept, **cache, **moved, "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class CommandLine:
    """``inferd`` in an environment, in the project's folder."""

    environment: dict[str, str]

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), env=self.environment, capture_output=True, text=True, timeout=180, cwd=ROOT
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments), env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    @contextmanager
    def serve(self, *options: str) -> Iterator[dict[str, Any]]:
        """A server: what it said when it was ready, with its process id. It must end well at SIGTERM."""
        with self.start("serve", "--port", "0", "--json", *options) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            try:
                assert line, process.stderr.read() if process.stderr else ""
                yield {**json.loads(line), "pid": process.pid}
            finally:
                process.send_signal(signal.SIGTERM)
                _, err = process.communicate(timeout=30)
        assert process.returncode == 0, err

    def json(self, *arguments: str) -> dict[str, Any]:
        """The object that a call prints, which must succeed."""
        done = self(*arguments, "--json")
        assert done.returncode == 0, done.stderr + done.stdout
        value: dict[str, Any] = json.loads(done.stdout)
        return value

    def error(self, code: int, *arguments: str) -> dict[str, Any]:
        """The error object of a call that must end with this exit code."""
        done = self(*arguments, "--json")
        assert done.returncode == code, done.stderr + done.stdout
        value: dict[str, Any] = json.loads(done.stdout)["error"]
        return value

    @staticmethod
    def command(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "inferd_runtime.cli", *arguments]
