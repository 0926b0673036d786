"""Runs pip as ``python -m pip`` does, but it starts no other process: so it builds nothing, and runs nothing of a package.

``--only-binary`` does not hold for what a package requires by a URL.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

STARTS = frozenset({"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"})
ASKED_FOR_PASSWORDS = "keyring"
"""The command that pip has for those of an index, where the operator has set ``keyring-provider``."""


def refuse_processes(event: str, arguments: tuple[Any, ...]) -> None:
    """Raise PermissionError for what starts a process."""
    if event in STARTS and not _asks_for_passwords(event, arguments):
        raise PermissionError("a package would have to be built, or fetched by another program, which is not done here")


def _asks_for_passwords(event: str, arguments: tuple[Any, ...]) -> bool:
    return event == "subprocess.Popen" and Path(os.fsdecode(arguments[0])).name == ASKED_FOR_PASSWORDS


if __name__ == "__main__":
    sys.addaudithook(refuse_processes)
    runpy.run_module("pip", run_name="__main__", alter_sys=True)
