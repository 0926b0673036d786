"""What a process takes is counted with all below it, as Linux tells it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inferd_runtime.server.processes.memory import memory_of

MIB = 1 << 20
TAKES = "import subprocess, sys; held = b'x' * (40 << 20); {more}; print('has it', flush=True); sys.stdin.read()"


def status(folder: Path, pid: int, parent: int, anonymous: int, shared: int) -> None:
    (folder / str(pid)).mkdir()
    text = f"Name:\tx y\nPPid:\t{parent}\nRssAnon:\t{anonymous} kB\nRssFile:\t900 kB\nRssShmem:\t{shared} kB\n"
    (folder / str(pid) / "status").write_text(text)


def test_children_of_children_count_and_nobody_else(tmp_path: Path) -> None:
    for pid, parent, anonymous, shared in ((7, 1, 1, 0), (8, 7, 2, 4), (9, 8, 8, 0), (10, 1, 16, 0), (11, 10, 32, 0)):
        status(tmp_path, pid, parent, anonymous, shared)
    (tmp_path / "12").mkdir()  # it has just ended
    (tmp_path / "self").mkdir()
    assert memory_of([7, 10, 99], tmp_path) == {7: 15 << 10, 10: 48 << 10, 99: 0}
    assert memory_of([7], tmp_path / "nowhere") == {7: 0}


@pytest.mark.skipif(sys.platform != "linux", reason="it is Linux that tells")
def test_a_real_process_counts_with_what_it_started() -> None:
    inner = f"subprocess.Popen([sys.executable, '-c', {TAKES.format(more='pass')!r}])"
    command = [sys.executable, "-c", TAKES.format(more=inner)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        taken = memory_of([process.pid, os.getpid()])
        assert lines == [b"has it\n"] * 2
        assert 80 * MIB < taken[process.pid] < 160 * MIB
        assert taken[os.getpid()] > taken[process.pid]
        process.communicate()
