"""A runtime's private directory: nobody's sweep takes it away, and what a killed runtime left goes."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferd.protocol import Unavailable
from inferd_runtime.server.egress.process import new_endpoint
from inferd_runtime.server.processes import rundir
from inferd_runtime.server.processes.rundir import LOCK, PREFIX, run_directory

MANY = """
import sys
from pathlib import Path
from inferd_runtime.server.processes.rundir import LOCK, run_directory

for _ in range(100):
    with run_directory(Path(sys.argv[1])) as path:
        (path / "socket").touch()
        assert (path / LOCK).exists()
"""

KILLED = """
import os, signal
from inferd_runtime.server.engine_process import draft_link
from inferd_runtime.settings.settings import EngineSettings

draft_link.BlockingChild = lambda launch: print(launch.settings.endpoint, flush=True)
link = draft_link.ProcessDrafts(EngineSettings())
os.kill(os.getpid(), signal.SIGKILL)
"""


class Flock:
    """Takes locks for real; before the first one that is waited for, ``meanwhile`` happens."""

    def __init__(self, meanwhile: Callable[[], Any]) -> None:
        self._meanwhile: list[Callable[[], Any]] = [meanwhile]
        self._flock = fcntl.flock

    def __call__(self, lock: Any, operation: int) -> None:
        if operation == fcntl.LOCK_EX and self._meanwhile:
            self._meanwhile.pop()()
        self._flock(lock, operation)


def test_a_sweep_before_the_lock_is_held_takes_no_directory_that_is_handed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[Path]] = []

    def swept() -> None:
        seen.append(list(tmp_path.iterdir()))
        rundir._sweep(tmp_path)
        seen.append(list(tmp_path.iterdir()))

    monkeypatch.setattr(rundir.fcntl, "flock", Flock(swept))
    with run_directory(tmp_path) as path:
        assert len(seen[0]) == 1
        assert seen[1] == [], "the sweep was there first"
        (path / "socket").touch()
        rundir._sweep(tmp_path)
        assert (path / "socket").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_keeps_the_lock_until_the_directory_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its owner could take the lock in between, find all in place, and lose it."""
    left = tmp_path / f"{PREFIX}left"
    left.mkdir()
    (left / LOCK).touch()
    remove = shutil.rmtree

    def removed(path: Path, **options: Any) -> None:
        with open(path / LOCK) as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove(path, **options)

    monkeypatch.setattr(rundir.shutil, "rmtree", removed)
    rundir._sweep(tmp_path)
    assert not left.exists()


def test_a_directory_that_goes_during_a_sweep_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "glob", lambda base, pattern: iter([base / f"{PREFIX}gone" / LOCK]))
    with run_directory(tmp_path) as path:
        assert path.exists()


def test_many_processes_at_once_keep_their_directories(tmp_path: Path) -> None:
    each = [
        subprocess.Popen([sys.executable, "-c", MANY, str(tmp_path)], stderr=subprocess.PIPE, env=dict(os.environ))
        for _ in range(4)
    ]
    for process in each:
        _, told = process.communicate(timeout=60)
        assert process.returncode == 0, told.decode()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_engine_had_for_its_draft_model_goes_with_the_next_one() -> None:
    with tempfile.TemporaryDirectory() as base:  # short enough for sockets
        temporary = Path(base)
        environment = {**os.environ, "TMPDIR": base}
        killed = subprocess.run([sys.executable, "-c", KILLED], env=environment, stdout=subprocess.PIPE, timeout=60)
        assert killed.returncode == -signal.SIGKILL
        folder = Path(killed.stdout.decode().strip().removeprefix("ipc://")).parent
        assert list(temporary.iterdir()) == [folder]
        with run_directory(temporary):
            assert not folder.exists()
        assert list(temporary.iterdir()) == []


def test_every_socket_fits_into_a_folder_for_temporary_files_that_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fetches failed by a bug where the sockets of engine and workers had just fitted."""
    short, long = ("/tmp/" + "x" * (length - 5) for length in (rundir.LONGEST_FOLDER, rundir.LONGEST_FOLDER + 1))
    monkeypatch.setattr(tempfile, "tempdir", short)
    name = new_endpoint(lambda name: f"{rundir.temporary_folder()}/{PREFIX}12345678/{rundir.SOCKETS}/{name}.sock")
    assert len(name) == 103
    monkeypatch.setattr(tempfile, "tempdir", long)
    with pytest.raises(Unavailable, match="too long for sockets: set TMPDIR"), run_directory():
        raise AssertionError
