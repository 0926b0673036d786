"""The private directory that holds a runtime's sockets."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from inferd.protocol import Unavailable

PREFIX = "inferd-run-"
LOCK = "lock"
SOCKETS = "s"
LONGEST_FOLDER = 52
"""Bytes of the path of a folder for temporary files in which all sockets fit: 103, without this runtime's own part and the
longest name of a socket (:mod:`~inferd_runtime.server.egress.process`).
"""


@contextmanager
def run_directory(parent: Path | None = None) -> Iterator[Path]:
    """Make a directory that only this user can enter (0700), removed at the end.

    A runtime holds a lock in its directory while it lives: what a killed one left behind is removed by the next one. Short
    paths on purpose: a socket's path may have 107 bytes, 103 on macOS. Raises Unavailable where there is no folder for it.
    """
    base = parent or temporary_folder()
    _sweep(base)
    path, lock = _make(base)
    try:
        with lock:
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def temporary_folder() -> Path:
    """Return the folder for temporary files. Raises Unavailable where it cannot be written, or sockets do not fit into it."""
    try:
        folder = tempfile.gettempdir()
    except OSError as error:
        raise Unavailable(f"no folder for temporary files can be written: {error.strerror}; set TMPDIR") from None
    if len(os.fsencode(folder)) > LONGEST_FOLDER:
        most = f"at most {LONGEST_FOLDER} bytes"
        raise Unavailable(
            f"the path of {folder}, for temporary files, is too long for sockets: set TMPDIR to one of {most}"
        )
    return Path(folder)


def make_sockets_folder(directory: Path) -> None:
    """Make the folder of a run directory that children see: they may pass through it, and list nothing."""
    folder = directory / SOCKETS
    folder.mkdir()
    folder.chmod(0o711)


def let_children_connect(endpoint: str) -> None:
    """Let children that are another user connect to a socket (``ipc://FILE``) whose folder nobody else can reach."""
    os.chmod(endpoint.removeprefix("ipc://"), 0o666)


def _make(base: Path) -> tuple[Path, IO[str]]:
    """Return a new directory and its lock, held. Another process' sweep may take the lock first, and the directory with it."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        lock = open(path / LOCK, "w")  # noqa: SIM115 - held as long as the directory is wanted
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_at(lock, path / LOCK):
            return path, lock
        lock.close()


def _sweep(base: Path) -> None:
    """Remove directories whose lock is free, with the lock held: else one could be taken between the look and the removal."""
    for path in base.glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError):  # gone meanwhile, another user's, or held
            if path.parent.stat().st_uid == os.getuid():
                _remove_free(path)


def _remove_free(path: Path) -> None:
    """Remove a directory whose lock is free. Raises OSError where the lock is held or gone."""
    with open(path, "r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(lock, path):
            shutil.rmtree(path.parent, ignore_errors=True)


def _is_at(lock: IO[str], path: Path) -> bool:
    """True if the open file is still the one at this path."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), path.stat())
    except FileNotFoundError:
        return False
