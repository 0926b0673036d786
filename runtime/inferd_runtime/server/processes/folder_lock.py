"""One server for each folder: a second one is refused before it touches anything."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inferd.protocol import Unavailable

LOCK_FILE = "server.lock"


@contextmanager
def locked_folders(*folders: Path) -> Iterator[None]:
    """Hold the locks of folders, which are made if need be, while the body runs. Raises Unavailable that names the holder.

    The lock goes with the process, however that ends. The file stays: to remove it would let two servers in.
    """
    with contextlib.ExitStack() as stack:
        for folder in dict.fromkeys(folder.resolve() for folder in folders):
            stack.enter_context(_locked(folder))
        yield


def holder_of(folder: Path) -> int:
    """Return the process that holds a folder's lock, 0 if none does."""
    try:
        handle = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(os.read(handle, 32).decode().strip() or 0)
    finally:
        os.close(handle)
    return 0


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 32).decode(errors="replace").strip() or "?"
            text = f"a server runs on the folder {folder} already (process {holder}): stop it, or choose another folder"
            raise Unavailable(text, folder=str(folder), pid=holder) from None
        except OSError as error:
            text = f"the folder {folder} cannot be locked ({error.strerror}): its file system needs locks (flock)"
            raise Unavailable(text, folder=str(folder)) from None
        os.truncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
