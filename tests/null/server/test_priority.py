"""A worker steps behind engine and gateway, with all of its threads, and where the system allows it beside them again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inferd_runtime.server.processes.priority import BEHIND, set_behind

THREADED = """
import threading
threading.Thread(target=input).start()
print("up", flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it looks at threads as Linux shows them")
def test_all_threads_of_a_child_step_behind_and_no_other_process() -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    with subprocess.Popen(
        [sys.executable, "-c", THREADED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        assert set_behind(child.pid, True)
        assert nice_values(child.pid) == {min(own + BEHIND, 19)}
        assert session_nice(child.pid) in (None, BEHIND)
        set_behind(child.pid, False)
        assert nice_values(child.pid) == {own} or os.geteuid()
        assert session_nice(child.pid) in (None, 0)
        child.stdin.write(b"\n")
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


def test_a_child_that_has_ended_is_no_error() -> None:
    with subprocess.Popen([sys.executable, "-c", ""], start_new_session=True) as child:
        pass
    assert not set_behind(child.pid, True)


def nice_values(pid: int) -> set[int]:
    """Those of a process's threads, of which there are two."""
    threads = [int(each.name) for each in Path(f"/proc/{pid}/task").iterdir()]
    assert len(threads) == 2
    return {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads}


def session_nice(pid: int) -> int | None:
    """The nice value of a process's session as a whole, None where the kernel has no such groups."""
    try:
        return int(Path(f"/proc/{pid}/autogroup").read_text().rpartition(" ")[2])
    except OSError:
        return None
