"""macOS can start: what can be checked of it on Linux, in a child process that looks like macOS to Python code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("sdk/inferd", "sdk/inferlet", "grammar/inferd_grammar", "runtime/inferd_runtime")


def test_every_module_and_the_command_line_start_without_what_only_linux_has() -> None:
    child = Path(__file__).with_name("as_on_macos.py")
    done = subprocess.run([sys.executable, str(child)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split("\n")
    rooms = {path.parent for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if path.name != "__init__.py"}
    missed = [room for room in rooms if not any(line.startswith(f"{_package(room)}.") for line in printed)]
    assert {_package(room) for room in missed} == {"inferd_runtime.sandbox.runner", "inferd_runtime.kernels.triton"}
    for text in ("usage: inferd COMMAND", "usage: inferd run", "usage: inferd serve"):
        assert any(line.startswith(text) for line in printed)


def _package(folder: Path) -> str:
    return ".".join(folder.relative_to(ROOT).parts[1:])
