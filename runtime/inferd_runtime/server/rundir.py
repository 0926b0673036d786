"""The private directory that holds a runtime's sockets."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "inferd-run-"
LOCK = "lock"


@contextmanager
def run_directory(parent: Path | None = None) -> Iterator[Path]:
    """A new directory that only this user can enter (0700), removed at the end.

    A runtime holds a lock in its directory while it lives: what a killed one left behind is removed by the next one. Short
    paths on purpose: a socket's path may have 107 bytes.
    """
    base = parent or Path(tempfile.gettempdir())
    _sweep(base)
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    try:
        with open(path / LOCK, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _sweep(base: Path) -> None:
    for path in base.glob(f"{PREFIX}*/{LOCK}"):
        if path.parent.stat().st_uid == os.getuid() and _is_free(path):
            shutil.rmtree(path.parent, ignore_errors=True)


def _is_free(lock: Path) -> bool:
    try:
        with open(lock, "r+") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
