"""Runs pip as ``python -m pip`` does, but it starts no other process, so it builds nothing, and finds nothing that a package
requires by a URL: pip would fetch that from wherever it is, this machine too, and unpack it. ``--only-binary`` is not about it.
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


def refuse_urls(requirement: type[Any]) -> None:
    """Have a class of ``packaging`` read a requirement by a URL as one that no version meets, which keeps its marker."""
    read = requirement.__init__

    def read_without_url(self: Any, text: str) -> None:
        read(self, text)
        if self.url:
            read(self, f"{self.name}===required-by-URL" + (f" ; {self.marker}" if self.marker else ""))

    requirement.__init__ = read_without_url


if __name__ == "__main__":
    from pip._vendor.packaging.requirements import Requirement

    refuse_urls(Requirement)
    sys.addaudithook(refuse_processes)
    runpy.run_module("pip", run_name="__main__", alter_sys=True)
