"""What ends the process while a model is loaded: named on disk before it is tried, so that the next start does without it.

A kernel that hangs, aborts the compiler or makes an illegal access takes the process with it, and the next start would meet it
again. A process that loads writes what it is about to run into a file of its own. Such a file of
a process that is gone tells what ended it. An error leaves none: the process goes on and serves something else.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inferd.protocol import Unavailable
from inferd_runtime.file_cache import cache_folder, private_folder

FOLDER = "launches"
LONGEST_NAME = 64
log = logging.getLogger("inferd.runtime")


class LaunchMarks:
    """The file of one process, which it keeps locked while it loads; ``key`` is what a failure depends on.

    An exception of type ``lasting`` counts as a death. A folder that cannot be written to keeps nothing.
    """

    def __init__(self, key: str, lasting: type[Exception], folder: Path | None = None) -> None:
        self._folder = folder or cache_folder() / FOLDER
        self._key = key
        self._lasting = lasting
        self._name = ""
        self._path = self._folder
        self._file = -1
        self._lost = False

    @property
    def open(self) -> bool:
        """True while names are written."""
        return self._file >= 0

    def left(self) -> dict[str, Path]:
        """Return what ended processes before, each with the file that says so: without that it is tried again."""
        found = {_left_in(path): path for path in sorted(self._folder.glob(f"{self._key}-*"))}
        return {name: path for name, path in found.items() if name}

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write names until the end of the context; the file goes with it unless something lasting happened."""
        # Of a name that no other has: in a container the next process may well have the same number.
        self._path = self._folder / f"{self._key}-{os.getpgrp()}-{os.getpid()}-{time.time_ns()}"
        try:
            private_folder(self._folder)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._write("")  # takes the room of all names: where a disk is full, it is noticed here
        except (OSError, Unavailable):
            self._close()
            log.warning("%s cannot be written to: a kernel that ends the process is met again", self._folder)
        try:
            yield
        finally:
            self._close()

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            if not self._lost:
                self._path.unlink(missing_ok=True)

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        """Keep ``name`` in the file until the end of the context, then what was there before. Nothing happens between times."""
        if self._file < 0:
            yield
            return
        before = self._name
        self._write(name)
        try:
            yield
        except self._lasting as error:
            if not self._lost:
                log.error("%s ended the device, and is not used from the next start on: %s", name, error)
            self._lost = True
            raise
        finally:
            if not self._lost:
                self._write(before)

    def _write(self, name: str) -> None:
        """Replace the name. Nothing is flushed: what the system holds outlives the process."""
        self._name = name
        os.pwrite(self._file, name.encode()[:LONGEST_NAME].ljust(LONGEST_NAME), 0)


def forget_marks(pid: int) -> None:
    """Delete what a process that was ended on purpose left, and what the others of its group did, whatever they were doing."""
    for path in (cache_folder() / FOLDER).glob(f"*-{pid}-*"):
        path.unlink(missing_ok=True)


def _left_in(path: Path) -> str:
    """Return the name in the file of a process that is gone; "" if it is not, or was not trying anything."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return file.read(LONGEST_NAME).decode(errors="replace").strip()
    except OSError:
        return ""
