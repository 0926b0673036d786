"""What code that has taken over a process with models tries: prints what came of each attempt, as JSON."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable

from inferd_runtime.isolation.child import Child
from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.report import layers
from inferd_runtime.isolation.seccomp import MACHINES


def outcome(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except OSError as error:
        return f"refused: {error.strerror}"
    return "done"


def called(number: int) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = [ctypes.c_long(-1)] * 4
    return "refused" if libc.syscall(number, *arguments) < 0 and ctypes.get_errno() == 1 else "done"


def spoken(name: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
        ours.sendto(b"memory", "\0" + name)


def main(secret: str, parent: str, abstract: str) -> None:
    elsewhere = os.path.dirname(secret)
    forbidden = {
        "read a secret": lambda: open(secret).close(),
        "list its folder": lambda: os.listdir(elsewhere),
        "write beside it": lambda: open(f"{elsewhere}/x", "w").close(),
        "remove it": lambda: os.unlink(secret),
        "read the passwords": lambda: open("/etc/shadow").close(),
        "list home": lambda: os.listdir(os.path.expanduser("~")),
        "change the kernel": lambda: open("/proc/sys/kernel/core_pattern", "r+").close(),
        "make a file in /usr": lambda: open("/usr/x", "w").close(),
        "read the parent's environment": lambda: open(f"/proc/{parent}/environ").close(),
        "read the parent's memory": lambda: open(f"/proc/{parent}/mem", "rb").close(),
        "signal the parent": lambda: os.kill(int(parent), 0),
        "speak to the parent's abstract socket": lambda: spoken(abstract),
    }
    made = {name: outcome(attempt) for name, attempt in forbidden.items()}
    machine = MACHINES[os.uname().machine]
    made |= {name: called(number) for name, number in machine.refused.items()}
    needed = {
        "read the system's libraries": outcome(lambda: os.listdir("/usr/lib")),
        "write a temporary file": outcome(lambda: tempfile.TemporaryFile().close()),
        "run a program": outcome(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True)),
    }
    compiler = [f"{layer.name}: {layer.reason}" for layer in layers(ChildKind.COMPILER) if not layer.active]
    print(json.dumps({"made": made, "needed": needed, "compiler_lacks": compiler}))


child: Child = globals()["child"]
child.seal()
main(*sys.argv[1:])
