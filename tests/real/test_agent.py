"""The shipped agent on the pulled model, through the command line. Skipped where it is not pulled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inferd_runtime.models.store.store import ModelStore
from inferd_runtime.sandbox.runner_build.component import ensure_runner

MODEL = "smollm2-135m"
ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(ModelStore().find(MODEL) is None, reason=f"{MODEL} is not here: inferd pull {MODEL}"),
]


def agent(folder: Path, *arguments: str) -> dict[str, Any]:
    """What the agent returned."""
    moved = {f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("STATE", "DATA", "CONFIG")}
    command = [sys.executable, "-m", "inferd_runtime.cli", "run", "inferlets/agent/main.py", "--model", MODEL, "--json"]
    done = subprocess.run(
        [*command, *arguments], env={**os.environ, **moved, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=180, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return value


def test_a_model_whose_template_knows_no_tools_calls_one_and_goes_on(tmp_path: Path) -> None:
    ensure_runner()
    asked = ("--task", "How often is r in strawberry?", "--tool-choice", "count_letter", "--max-tokens", "60")
    result = agent(tmp_path, *asked)["result"]
    name, written = result["calls"][0].split(" ", 1)
    assert name == "count_letter"
    assert set(json.loads(written.rpartition(" = ")[0])) == {"word", "letter"}
    assert result["rounds"] >= 2
