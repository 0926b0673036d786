"""What runs or reads strangers' input gets what the engine and the gateway leave of the processors."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.order import Launch
from inferd_runtime.isolation.priority import BEHIND_OTHERS

WAITS = "print('up', flush=True)\ninput()\n"
STRANGERS = (ChildKind.WORKER, ChildKind.PARSER, ChildKind.COMPILER)


@pytest.mark.parametrize("kind", [*STRANGERS, ChildKind.MODEL])
def test_a_program_cannot_take_the_processors_from_the_engine(kind: ChildKind, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(WAITS)
    launch = Launch(str(script), kind)
    expected = os.getpriority(os.PRIO_PROCESS, 0) + BEHIND_OTHERS * (kind in STRANGERS)
    with subprocess.Popen(
        launch.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=launch.environment, start_new_session=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(launch.document())
        child.stdin.flush()
        assert child.stdout.readline() == b"up\n"
        assert os.getpriority(os.PRIO_PROCESS, child.pid) == min(expected, 19)
        assert session_nice(child.pid) in (None, BEHIND_OTHERS * (kind in STRANGERS))
        child.stdin.write(b"\n")


def session_nice(pid: int) -> int | None:
    """The nice value of a process's session as a whole, None where the kernel has no such groups (sched(7))."""
    try:
        text = Path(f"/proc/{pid}/autogroup").read_text()
    except OSError:
        return None
    return int(text.rpartition(" ")[2]) if text else None
