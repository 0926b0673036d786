"""A disk of a few KiB: a tmpfs of its own, where this user may mount one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs: {done.stderr.strip()}")


@contextmanager
def small_disk(folder: Path, size_kb: int) -> Iterator[Path]:
    """Yield the folder with an empty file system of this size; skips the test where there can be none."""
    if sys.platform != "linux":
        pytest.skip("a tmpfs is Linux's")
    folder.mkdir(parents=True)
    _mount("-t", "tmpfs", "-o", f"size={size_kb}k", "inferd-test", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def make_read_only(folder: Path) -> None:
    """Forbid everybody to write to a small disk, root included."""
    _mount("-o", "remount,ro", str(folder))


def make_writable(folder: Path) -> None:
    """Allow it again."""
    _mount("-o", "remount,rw", str(folder))
