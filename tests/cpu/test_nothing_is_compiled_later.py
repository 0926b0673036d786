"""Nothing is compiled once a server serves: counted over a mixed soak by a launcher that launches nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOAK = Path(__file__).parents[1] / "support" / "stub_soak.py"


def soaked(*arguments: str) -> dict[str, Any]:
    """In a process where Triton does not interpret."""
    settings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    paths = [*sys.path, str(SOAK.parent)]
    settings["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    command = [sys.executable, str(SOAK), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=settings, timeout=200)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_mixed_soak_compiles_nothing_behind_the_load() -> None:
    found = soaked()
    assert found["compiled_later"] == []
    assert found["compiled_at_load"] > 20
    assert found["replays"] > found["steps"] // 2


@pytest.mark.long
def test_nor_does_one_without_recorded_steps() -> None:
    found = soaked("eager")
    assert found["compiled_later"] == []
    assert found["replays"] == 0


@pytest.mark.long
def test_what_is_not_compiled_at_load_is_found() -> None:
    assert "_adjust" in soaked("careless")["compiled_later"]
