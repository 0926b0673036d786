"""Files that are costly to make, kept for this user: written whole or not at all, and checked before they are used."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import platform
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from inferd.protocol import Unavailable

POLL_SECONDS = 0.1
CHECKSUM = ".sha256"
UNFINISHED = "tmp-"
ABANDONED_SECONDS = 6 * 3600.0
"""Younger folders may not be held yet by who has just made them."""


def cache_folder() -> Path:
    """Return ``$INFERD_CACHE_DIR``, else ``inferd`` in ``$XDG_CACHE_HOME``, else in ``~/.cache``."""
    own = os.environ.get("INFERD_CACHE_DIR")
    shared = os.environ.get("XDG_CACHE_HOME")
    return Path(own) if own else Path(shared or Path.home() / ".cache") / "inferd"


def private_folder(path: Path) -> Path:
    """Make a folder that only this user can write to. Raises Unavailable if another user owns it or can write to it."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = path.stat()
    except OSError as error:
        raise Unavailable(f"the cache folder {path} cannot be used: {error.strerror}; set INFERD_CACHE_DIR") from error
    if info.st_uid != os.getuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Unavailable(
            f"the cache folder {path} holds machine code, so it has to belong to this user, and nobody else may write to it; "
            "change that or set INFERD_CACHE_DIR"
        )
    return path


def code_folder(path: Path) -> Path:
    """Make a folder as :func:`private_folder` does, for machine code. Raises Unavailable, also where none may be run from it."""
    refuse_noexec(private_folder(path))
    return path


def refuse_noexec(path: Path) -> None:
    """Raise Unavailable if no machine code may be run from a folder that is there."""
    if os.statvfs(path).f_flag & getattr(os, "ST_NOEXEC", 0):
        raise Unavailable(
            f"the cache folder {path} holds machine code, and its file system is mounted noexec; set INFERD_CACHE_DIR"
        )


@functools.cache
def processor() -> str:
    """Return what tells one kind of processor from another: the system's name and the first processor's list of features.

    Where there is no /proc/cpuinfo, the processor's name stands for its features.
    """
    info = Path("/proc/cpuinfo")
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return f"{sys.platform} {platform.machine()} {found[1] if found else platform.processor()}"


@dataclass(frozen=True)
class CacheEntry:
    """A file with its checksum in a second one beside it."""

    path: Path

    @property
    def checksum_path(self) -> Path:
        """The file that holds the checksum."""
        return self.path.with_name(self.path.name + CHECKSUM)

    def is_whole(self) -> bool:
        """True if the file is there and its checksum fits."""
        try:
            return self.checksum_path.read_text() == _checksum(self.path)
        except (OSError, UnicodeDecodeError):
            return False

    def put(self, write: Callable[[Path], None]) -> None:
        """Replace the file by what ``write`` makes of a path. A reader sees the old one or the new one, never a part."""
        self.checksum_path.unlink(missing_ok=True)
        _drop_abandoned(self.path.parent)
        with tempfile.TemporaryDirectory(dir=self.path.parent, prefix=UNFINISHED) as folder, _held(Path(folder)):
            made, checksum = Path(folder) / "entry", Path(folder) / "checksum"
            write(made)
            checksum.write_text(_checksum(made))
            made.replace(self.path)
            checksum.replace(self.checksum_path)

    def touch(self) -> None:
        """Note that the file is in use, so that it is not the first one to be dropped."""
        self.path.touch()


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which goes with the process, however that ends."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _drop_abandoned(folder: Path) -> None:
    """Delete what processes left behind that were killed while they wrote: gigabytes, of packed weights."""
    for path in folder.glob(f"{UNFINISHED}*"):
        with contextlib.suppress(OSError):  # gone meanwhile
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if time.time() - path.stat().st_mtime > ABANDONED_SECONDS and _try_lock(handle):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(handle)


def drop_oldest(folder: Path, pattern: str, keep: int, most_bytes: int | None = None) -> None:
    """Delete all but the ``keep`` most recently used entries, fewer if they are of more than ``most_bytes`` together.

    A deleted file that is mapped into memory stays usable.
    """
    entries = sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True)
    totals = accumulate(path.stat().st_size for path in entries)
    fit = sum(1 for total in totals if most_bytes is None or total <= most_bytes)
    for path in entries[min(keep, fit) :]:
        CacheEntry(path).checksum_path.unlink(missing_ok=True)
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold a lock that one process on this machine has at a time; ``on_wait`` is called while another one holds it."""
    with path.open("w") as handle:
        while not _try_lock(handle.fileno()):
            on_wait()
            time.sleep(POLL_SECONDS)
        yield


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _checksum(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
