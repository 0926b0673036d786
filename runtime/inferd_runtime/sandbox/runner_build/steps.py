"""The costly steps of building the runner, each in a process of its own.

``componentize FOLDER TARGET`` makes a component of the sources in a folder; ``compile COMPONENT TARGET`` makes machine code of
a component, and its objects immortal.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from inferd_runtime.isolation.child import Child
from inferd_runtime.sandbox.runner_build.component import GUEST_PACKAGE, WIT

NICENESS = 10
GUEST_APP = f"{GUEST_PACKAGE}/app".replace("/", ".")


def child_main(child: Child) -> int:
    """Run one step at low priority: a runtime that serves meanwhile goes first. Returns the exit code."""
    child.seal()
    os.nice(NICENESS)
    match child.settings(list[str]):
        case ["componentize", folder, target]:
            _componentize(Path(folder), Path(target))
        case ["compile", component, target]:
            _compile(Path(component), Path(target))
        case arguments:
            sys.exit(f"there is no step {arguments}")
    return 0


def _componentize(folder: Path, target: Path) -> None:
    import componentize_py

    with tempfile.TemporaryDirectory() as empty:
        # componentize-py adds this Python's own packages to what the guest can import, unless a virtual environment is named.
        Path(empty, "lib", "python3", "site-packages").mkdir(parents=True)
        os.environ["VIRTUAL_ENV"] = empty
        sys.argv = [
            "componentize-py", "--wit-path", str(folder / WIT), "--world", "runner",
            "componentize", "--python-path", str(folder), "--output", str(target), GUEST_APP,
        ]  # fmt: skip
        sys.exit(componentize_py.script())


def _compile(component: Path, target: Path) -> None:
    from inferd_runtime.sandbox.runner_build.immortal import make_immortal
    from inferd_runtime.sandbox.wasm.loaded_runner import compile_component

    compile_component(component, target)
    make_immortal(target)
