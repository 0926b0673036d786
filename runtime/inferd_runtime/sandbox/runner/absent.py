"""What the sandbox's Python has not, refused with what to do instead: threads, processes, sockets."""

from __future__ import annotations

import _thread
import concurrent.futures.process
import errno
import http.client
import multiprocessing.process
import os
import socket
import subprocess
import sys
import threading
from types import ModuleType
from typing import Any, NoReturn

import inferd
from inferd.protocol import ProgramError

NO_THREADS = (
    "can't start new thread: a program has one. Tasks of asyncio run side by side, and asyncio.to_thread(function) runs a "
    "function at once"
)
NO_PROCESSES = (
    "a program starts no processes: `await inferd.launch(...)` starts another program, and a server of tools (inferd.mcp) "
    "does what has to be done outside"
)
NO_SOCKETS = (
    "a program has no sockets: `await inferd.http.fetch(url)` reaches what its manifest and the operator name "
    "(docs/guides/network.md)"
)
CONNECTED = "a program is connected: leave inferd.connect out, as in `async def main(): ctx = inferd.Context()`"
NO_CLIENT = "a program has no client of runs: `await inferd.launch(...)` starts another program"
NO_COMPRESSION = "the sandbox has no C libraries, and so neither bz2 nor lzma: zlib and gzip are there"
STARTERS = ("start_new_thread", "start_joinable_thread", "_start_new_thread", "_start_joinable_thread")
COMMANDS = ("system", "popen", "fork", "execv", "execve", "execvp", "spawnv", "posix_spawn")
NAMES_AND_SOCKETS = ("getaddrinfo", "gethostbyname", "create_connection", "create_server")


def install() -> None:
    """Replace what would fail without saying what to do."""
    for module in (_thread, threading):
        _replace(module, [name for name in STARTERS if hasattr(module, name)], RuntimeError(NO_THREADS))
    no_processes = OSError(errno.ENOTSUP, NO_PROCESSES)
    _replace(subprocess.Popen, ["__init__"], no_processes)
    _replace(multiprocessing.process.BaseProcess, ["start"], no_processes)
    _replace(concurrent.futures.process.ProcessPoolExecutor, ["__init__"], no_processes)
    _replace(os, COMMANDS, no_processes)
    no_sockets = OSError(errno.ENOTSUP, NO_SOCKETS)
    _replace(socket.socket, ["__init__"], no_sockets)
    _replace(socket, NAMES_AND_SOCKETS, no_sockets)
    _replace(http.client, ["HTTPSConnection"], no_sockets)
    _replace(inferd, ["connect"], ProgramError(CONNECTED))
    _replace(inferd, ["Client", "SyncClient"], ProgramError(NO_CLIENT))
    for name in ("bz2", "lzma"):
        sys.modules[name] = RefusingModule(name, NO_COMPRESSION)


def _replace(owner: Any, names: list[str] | tuple[str, ...], error: Exception) -> None:
    def refuse(*positional: Any, **named: Any) -> NoReturn:
        raise type(error)(*error.args)

    for name in names:
        setattr(owner, name, refuse)


class RefusingModule(ModuleType):
    """A module that packages import and mostly do not use: its names are there, and calling one raises OSError with a reason."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name)
        self.__reason = reason

    def __getattr__(self, name: str) -> type[OSError]:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

        def refuse(*positional: Any, **named: Any) -> NoReturn:
            raise OSError(errno.ENOTSUP, self.__reason)

        return type(name, (OSError,), {"__new__": refuse})  # a class can be inherited from, and one of errors excepted
