"""Where files of runs lie: a folder for each run, with the bytes by number, and a list of those that are whole.

Blocking: what calls this does so in a thread.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec

TEMPORARY = "run-files-"
KEPT = "run-files"
LIST = "whole.jsonl"
log = logging.getLogger("inferd.runs")


class WholeFile(msgspec.Struct, frozen=True):
    """A line of the list: a file that was sent whole. ``by_program``: else by the launcher."""

    tenant: str
    number: int
    name: str
    media_type: str
    size: int
    sha256: str
    by_program: bool


_line = msgspec.json.Decoder(WholeFile)


def kept_folder(parent: Path) -> Path:
    """Return the folder that outlives the server."""
    folder = parent / KEPT
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def temporary_folder(parent: Path) -> Path:
    """Return a new folder. Those of servers that ended without removing theirs go first."""
    parent.mkdir(parents=True, exist_ok=True)
    for old in parent.glob(f"{TEMPORARY}*"):
        pid = old.name.split("-")[2]
        if pid.isdigit() and not Path("/proc", pid).exists() and os.path.isdir("/proc/self"):
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{TEMPORARY}{os.getpid()}-", dir=parent))


def note_whole(folder: Path, file: WholeFile) -> None:
    """Add a file to the list of its run, in whose folder it is."""
    append_whole(folder / LIST, msgspec.json.encode(file) + b"\n")


def append_whole(path: Path, data: bytes) -> None:
    """Append bytes to a file: all, or none of them. Raises OSError where the disk does not take all."""
    with path.open("ab", buffering=0) as file:
        before, rest = file.tell(), memoryview(data)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            file.truncate(before)
            raise


def names_in(folder: Path) -> list[str]:
    """Return the runs that have files in a folder, those that got theirs first before others."""
    found = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)] if folder.is_dir() else []
    return [entry.name for entry in sorted(found, key=lambda entry: entry.stat().st_mtime_ns)]


def whole_files(folder: Path) -> list[WholeFile]:
    """Return the files of a run that are whole and there, in the order in which they became so. What is not whole is removed."""
    try:
        lines = (folder / LIST).read_bytes().splitlines()
    except OSError:
        lines = []
    found: dict[int, WholeFile] = {}
    for line in lines:
        try:
            file = _line.decode(line)
            if (folder / str(file.number)).stat().st_size == file.size:
                found[file.number] = file
        except (msgspec.MsgspecError, OSError):  # it was not written to its end, or the file was forgotten
            continue
    for path in folder.iterdir():
        if path.name != LIST and path.name not in map(str, found):
            path.unlink(missing_ok=True)
    return list(found.values())


def remove_runs(folder: Path, names: Iterable[str]) -> None:
    """Remove the files of runs."""
    for name in names:
        shutil.rmtree(folder / name, ignore_errors=True)


def move_runs(source: Path, target: Path) -> list[str]:
    """Move the files of runs from the folder of a server that has ended, except runs that have files here. Returns which."""
    moved = [name for name in names_in(source) if not (target / name).exists()]
    for name in moved:
        shutil.move(source / name, target / name)
    return moved
