"""The example of a client of runs, on a real server."""

from __future__ import annotations

import subprocess
import sys

from .conftest import ROOT, TOKEN, LiveServer


def test_the_example_talks_to_its_program(server: LiveServer) -> None:
    command = [sys.executable, str(ROOT / "examples" / "run_client.py"), "--url", server.url, "--token", TOKEN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["Who is there?", "Hello, Ann!", "Hello, Bob!", "greeted: 2"]
