"""One distribution: what a user installs holds all three packages, the runner's sources and the embedded model."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NEEDED = (
    "inferd/__init__.py",
    "inferd/py.typed",
    "inferd_grammar/__init__.py",
    "inferd_grammar/py.typed",
    "inferd_runtime/cli/__init__.py",
    "inferd_runtime/py.typed",
    "inferd_runtime/sandbox/runner/world.wit",
    "inferd_runtime/sandbox/runner/app.py",
    "inferd_runtime/models/tiny/target/model.safetensors",
    "inferd_runtime/models/tiny/target/tokenizer.json",
    "inferd_runtime/models/tiny/draft/model.safetensors",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return zipfile.ZipFile(next(folder.glob("inferd-*.whl")))


@pytest.mark.parametrize("name", NEEDED)
def test_the_wheel_holds(wheel: zipfile.ZipFile, name: str) -> None:
    assert name in wheel.namelist()


def test_the_wheel_holds_nothing_else_at_the_top(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"inferd", "inferd_grammar", "inferd_runtime"}


def test_the_embedded_models_stay_small() -> None:
    files = (ROOT / "runtime" / "inferd_runtime" / "models" / "tiny").rglob("*")
    assert sum(file.stat().st_size for file in files if file.is_file()) < 12e6


def test_the_command_is_declared(wheel: zipfile.ZipFile) -> None:
    entry = next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert b"inferd = inferd_runtime.cli:main" in wheel.read(entry)
