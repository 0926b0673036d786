"""A process that ends with its parent, unless the parent's own parent has ended, too: a cluster's front and replicas on Ray."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from waiting import wait_until

from inferd_runtime.isolation.tether import is_alive

CHILD = """
import os, pathlib, sys, threading, time
from inferd_runtime.isolation import tether
tether.LOOK_SECONDS, tether.SUPERVISOR_SECONDS = 0.02, 0.2
tether.outlive(os.getppid(), int(sys.argv[1]))
print(os.getpid(), flush=True)
(watch,) = [one for one in threading.enumerate() if one is not threading.main_thread()]
watch.join()
pathlib.Path(sys.argv[2]).touch()
time.sleep(60)
"""
PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], stdout=subprocess.PIPE, text=True)
print(child.stdout.readline(), flush=True)
child.wait()
"""


@dataclass
class Family:
    """A supervisor, the parent that it started, as far as the child knows, and the child.

    ``goes_on``: a file that the child makes once it has seen that both have ended.
    """

    supervisor: subprocess.Popen[bytes]
    parent: subprocess.Popen[str]
    child: int
    goes_on: Path


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    supervisor = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    goes_on = tmp_path / "goes-on"
    command = [sys.executable, "-c", PARENT, CHILD, str(supervisor.pid), str(goes_on)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    yield Family(supervisor, parent, child, goes_on)
    for process in (supervisor, parent):
        process.kill()
        process.wait()
    parent.stdout.close()
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)


def test_a_child_ends_with_its_parent(family: Family) -> None:
    assert is_alive(family.child)
    family.parent.kill()
    family.parent.wait()
    wait_until(lambda: not is_alive(family.child))
    assert not family.goes_on.exists()


def test_a_child_goes_on_where_the_supervisor_has_ended_before(family: Family) -> None:
    family.supervisor.kill()  # and nobody waits for it: a zombie is not alive
    wait_until(lambda: not is_alive(family.supervisor.pid))
    family.parent.kill()
    family.parent.wait()
    wait_until(family.goes_on.exists)
    assert is_alive(family.child)
