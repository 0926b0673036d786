"""A cluster whose Ray has ended. Its front and replicas go on serving; nobody replaces them, and none can be added."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from inferd_runtime.cluster.replica.serving import FRONT_SECONDS, left_folders
from inferd_runtime.isolation.tether import is_alive
from inferd_runtime.server.processes.folder_lock import LOCK_FILE, holder_of
from inferd_runtime.settings.settings import Settings

NEEDED = ("gcs_server", "raylet")
"""The processes of Ray without which it starts nothing."""
END_SECONDS = 15.0
POLL_SECONDS = 0.1
CONNECT_SECONDS = 3.0
ADVICE = "its front and replicas go on, and nobody replaces them: `inferd cluster up` starts Ray and all of them anew"


def ray_processes(folder: str) -> list[psutil.Process]:
    """Return the processes of the Ray that was started with this folder: it is in their command lines."""
    return [one for one in psutil.process_iter(["cmdline"]) if folder in " ".join(one.info["cmdline"] or ())]


def ray_lives(folder: str) -> bool:
    """Return True if that Ray can start processes."""
    names = {" ".join(one.info["cmdline"]).partition(" ")[0].rpartition("/")[2] for one in ray_processes(folder)}
    return names.issuperset(NEEDED)


def answers(address: str) -> bool:
    """Return True if somebody listens at a Ray's address."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def left_processes(settings: Settings) -> tuple[int, int]:
    """Return the process of the front (0: none is here) and how many replicas are here, on this machine."""
    return _holder(settings.data_dir), len(_replicas(settings))


def end_left(settings: Settings) -> None:
    """End replicas in order, which needs the front, and then the front."""
    _end(_replicas(settings), settings.drain_seconds + FRONT_SECONDS + END_SECONDS)
    front = _holder(settings.data_dir)
    _end([front] if front else [], END_SECONDS)


def _replicas(settings: Settings) -> list[int]:
    return [pid for pid in map(_holder, left_folders(settings.data_dir)) if pid]


def _holder(folder: Path) -> int:
    """Return the process of this machine that holds a folder's lock, 0 if none does: the folder may be shared with others."""
    pid, lock = holder_of(folder), str(folder / LOCK_FILE)
    with contextlib.suppress(psutil.Error):
        if pid and any(file.path == lock for file in psutil.Process(pid).open_files()):
            return pid
    return 0


def _end(pids: Sequence[int], seconds: float) -> None:
    """Ask processes to end, and kill those that have not after so many seconds."""
    until, left = time.monotonic() + seconds, list(pids)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    while left and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
        left = [pid for pid in left if is_alive(pid)]
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
