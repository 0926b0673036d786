"""How children start: nothing is imported from a folder of somebody else, and nothing secret is where others can read it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from inferd_runtime.isolation import order as order_module
from inferd_runtime.isolation.environment import ALLOCATOR, UNLESS_SET, order_environment, start_environment
from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.launcher import extended_path
from inferd_runtime.isolation.order import Launch, import_path

TRAPS = (
    "bisect", "json", "sitecustomize", "usercustomize", "inferd", "inferd_runtime", "msgspec", "zmq", "runpy", "ctypes",
)  # fmt: skip
TRAP = "import os, pathlib; pathlib.Path(os.environ.get('SPRUNG', {path!r})).touch()\n"
SCRIPT = """
import bisect, json, sys, runpy, ctypes
import inferd, inferd_runtime, msgspec
print(json.dumps({"path": sys.path, "environment": dict(__import__("os").environ), "flags": sys.flags.isolated}))
"""


@pytest.fixture
def trapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory full of modules that leave a trace when they run; returns the trace's path."""
    folder, sprung = tmp_path / "program", tmp_path / "sprung"
    folder.mkdir()
    for name in TRAPS:
        (folder / f"{name}.py").write_text(TRAP.format(path=str(sprung)))
    (folder / "trap.pth").write_text(f"import pathlib; pathlib.Path({str(sprung)!r}).touch()\n")
    monkeypatch.chdir(folder)
    for name in ("PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "PYTHONUSERBASE"):
        monkeypatch.setenv(name, str(folder))
    return sprung


@pytest.mark.parametrize("kind", ChildKind)
def test_nothing_is_imported_from_the_working_directory_or_the_environment(
    trapped: Path, kind: ChildKind, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    launch = Launch(str(script), kind)
    done = subprocess.run(
        launch.command, input=launch.document(), env=launch.environment, stdout=subprocess.PIPE, timeout=60, check=True
    )
    told = json.loads(done.stdout)
    assert not trapped.exists()
    assert told["flags"] == 1
    assert str(Path.cwd()) not in told["path"]
    assert "" not in told["path"]
    assert not [name for name in told["environment"] if name.startswith("PYTHON")]


def test_the_command_line_imports_nothing_from_the_working_directory(trapped: Path) -> None:
    roots = order_module.import_path()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    for name in ("inferd", "inferd_runtime", "msgspec", "runpy"):  # what -m itself takes from there is not ours to say
        Path(f"{name}.py").unlink()
    done = subprocess.run(
        [sys.executable, "-m", "inferd_runtime.cli", "serve", "--help"],
        env=environment | {"PYTHONPATH": os.pathsep.join(roots)}, stdout=subprocess.PIPE, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert b"--require-isolation" in done.stdout
    assert not trapped.exists()


def test_our_own_packages_are_found_where_this_process_has_them() -> None:
    for package in (sys.modules["inferd"], sys.modules["inferd_runtime"]):
        assert str(Path(package.__file__ or "").parents[1]) in import_path()


def test_the_standard_library_comes_first_and_other_packages_last() -> None:
    own = ["/python/lib", "/python/lib-dynload", "/venv/site-packages", "/editable"]
    assert extended_path(own, ["/ours", "/python/lib"]) == [*own[:2], "/ours", *own[2:]]
    assert extended_path(["/python/lib"], ["/ours"]) == ["/python/lib", "/ours"]


SECRETS = {
    "HF_TOKEN": "s", "INFERD_TOKEN": "s", "AWS_SECRET_ACCESS_KEY": "s", "HTTPS_PROXY": "http://user:pw@proxy",
    "SSH_AUTH_SOCK": "s", "PYTHONPATH": "s", "LD_PRELOAD": "s", "LANG": "C.UTF-8", "HOME": "/home/me",
    "CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "2", "CC": "/opt/cc",
}  # fmt: skip


@pytest.mark.parametrize("kind", ChildKind)
def test_the_environment_that_others_can_read_holds_no_secret(kind: ChildKind) -> None:
    ours = ALLOCATOR.get(kind, {})
    assert start_environment(kind, SECRETS) == {"LANG": "C.UTF-8", **ours}


@pytest.mark.parametrize("kind", [ChildKind.WORKER, ChildKind.PARSER])
def test_what_runs_and_reads_strangers_text_gets_nothing_of_the_environment(kind: ChildKind) -> None:
    assert order_environment(kind, SECRETS) == {"LANG": "C.UTF-8"}


def test_what_loads_models_gets_what_its_libraries_read() -> None:
    """Triton compiles its launcher by what CC names: there may be no other compiler."""
    wanted = {"HF_TOKEN", "HTTPS_PROXY", "LANG", "HOME", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "CC"}
    assert order_environment(ChildKind.MODEL, SECRETS).keys() == wanted | UNLESS_SET[ChildKind.MODEL].keys()


def test_threads_that_wait_for_one_without_a_processor_sleep() -> None:
    """They spun for milliseconds at each of a step's barriers: two threads beside a busy process made 2 tokens a second."""
    assert int(order_environment(ChildKind.MODEL, {})["GOMP_SPINCOUNT"]) < 10_000
    assert order_environment(ChildKind.MODEL, {"GOMP_SPINCOUNT": "7"})["GOMP_SPINCOUNT"] == "7"


@pytest.mark.parametrize("kind", [ChildKind.MODEL, ChildKind.BUILDER])
def test_what_keeps_results_keeps_them_where_the_operator_says(kind: ChildKind) -> None:
    assert order_environment(kind, {"INFERD_CACHE_DIR": "/own"})["INFERD_CACHE_DIR"] == "/own"


def test_the_order_is_not_on_the_command_line() -> None:
    launch = Launch("some.module", ChildKind.WORKER, ("argument",), settings={"secret": "hidden"})
    assert "argument" not in launch.command
    assert b"hidden" in launch.document()
    assert "hidden" not in " ".join([*launch.command, *launch.environment.values()])
