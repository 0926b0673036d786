"""The wheel as a user installs it: into a fresh environment, with its runtime extra, where ``inferd run`` runs a program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "inferlets" / "extract" / "main.py"
KEPT = ("HOME", "PATH", "XDG_", "PIP_", "SSL_", "HTTP", "NO_PROXY", "OMP_NUM_THREADS")


def output(command: Iterable[str | Path], folder: Path) -> str:
    """What a command prints, run in a folder without any of the project's paths in its environment."""
    environment = {name: value for name, value in os.environ.items() if name.upper().startswith(KEPT)}
    done = subprocess.run(
        [str(part) for part in command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_a_fresh_environment_runs_a_program(tmp_path: Path) -> None:
    output([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT], tmp_path)
    wheel = next(tmp_path.glob("inferd-*.whl"))
    venv.create(tmp_path / "fresh", with_pip=True)
    scripts = tmp_path / "fresh" / ("Scripts" if os.name == "nt" else "bin")
    pip = [scripts / "python", "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt"]
    output([*pip, f"{wheel}[runtime]"], tmp_path)
    where = output([scripts / "python", "-c", "import inferd_runtime; print(inferd_runtime.__file__)"], tmp_path)
    assert Path(where).is_relative_to(tmp_path / "fresh")
    told = output([scripts / "inferd", "run", PROGRAM, "--text", "Ada Lovelace, 36", "--json"], tmp_path)
    assert json.loads(told)["result"] == {"name": "Ada Lovelace", "age": 36}
