"""What a server of tools starts ends with it, also what has left its session and its group: what lives holds standard output."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.order import Launch
from inferd_runtime.isolation.report import layers

STANDS = next(layer.active for layer in layers(ChildKind.TOOL_SERVER) if layer.name == "processes")
needs_namespace = pytest.mark.skipif(not STANDS, reason="this system gives no namespace of process ids")
SCRIPT = """
import os, signal, subprocess, sys, threading
child.seal()
LEAVES = '''
import os, signal
if os.fork(): os._exit(0)
os.setsid()
print("out", flush=True)
signal.pause()
'''
leaves = subprocess.Popen([sys.executable, "-c", LEAVES], stdout=subprocess.PIPE)
assert leaves.stdout.readline() == b"out\\n"  # and it goes on, with the other end of this pipe
subprocess.Popen([sys.executable, "-c", LEAVES]).wait()
thread = threading.Thread(target=print, args=("threads",), kwargs={"flush": True})
thread.start()
thread.join()
print(*(name for name in os.listdir("/proc") if name.isdigit()), flush=True)
"""
ENDS = {"by_itself": "os._exit(3)", "killed": "os.kill(os.getpid(), signal.SIGKILL)"}


def launched(tmp_path: Path, last: str) -> Launch:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + last)
    return Launch(str(script), ChildKind.TOOL_SERVER)


@pytest.mark.parametrize(("way", "code"), [("by_itself", 3), ("killed", -signal.SIGKILL)])
def test_what_has_left_the_session_ends_with_a_child(tmp_path: Path, way: str, code: int) -> None:
    """Else nobody closes standard output, and the end of it never comes."""
    launch = launched(tmp_path, ENDS[way])
    done = subprocess.run(
        launch.command, input=launch.document(), env=launch.environment, stdout=subprocess.PIPE, timeout=60
    )
    assert done.returncode == code
    assert b"threads" in done.stdout


@needs_namespace
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_has_left_the_session_ends_with_whoever_waits_for_the_child(tmp_path: Path, number: int) -> None:
    launch = launched(tmp_path, "signal.pause()")
    with subprocess.Popen(
        launch.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=launch.environment, start_new_session=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None  # noqa: PT018
        process.stdin.write(launch.document())
        process.stdin.close()
        lines = sorted(process.stdout.readline() for _ in range(3))
        assert lines[1:] == [b"out\n", b"threads\n"]
        assert str(os.getpid()).encode() not in lines[0].split()  # it sees its own processes alone
        kill = os.kill if number == signal.SIGKILL else os.killpg
        kill(process.pid, number)
        assert process.stdout.read() == b""
        assert process.wait(timeout=60) == -number
