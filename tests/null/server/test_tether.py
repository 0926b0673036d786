"""A tethered process ends with its parent, by the kernel's word on Linux and by looking at the parent's pid elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

CHILD = """
import os, sys, time
sys.platform = {platform!r}
from inferd_runtime.isolation import tether
tether.POLL_SECONDS = 0.01
tether.die_with({parent})
print(os.getpid(), flush=True)
time.sleep(60)
"""
PARENT = """
import os, subprocess, sys
code = os.environ["CHILD"].replace("PARENT", str(os.getpid()))
subprocess.run([sys.executable, "-c", code])
"""


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_it_ends_when_its_parent_is_killed(platform: str) -> None:
    environment = {**os.environ, "CHILD": CHILD.format(platform=platform, parent="PARENT")}
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        assert int(parent.stdout.readline())  # the child is tied
        parent.send_signal(signal.SIGKILL)
        assert parent.stdout.read() == b""  # the last one that holds the pipe has ended


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_it_does_not_start_when_its_parent_is_gone(platform: str) -> None:
    code = CHILD.format(platform=platform, parent=os.getpid() + 1)
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"")
