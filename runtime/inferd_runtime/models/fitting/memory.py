"""How much memory a process can still take on this machine. No torch here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from inferd_runtime.models.fitting.control_groups import group_folders

NAMES = ("memory.max", "memory.current", "inactive_file")
OLD_NAMES = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
"""Files of a control group with its limit and what is used, and of the latter the page cache; in version 2 and 1."""


def available_host_bytes(root: Path = Path("/")) -> int:
    """Return the kernel's MemAvailable, or less where a control group (version 1 or 2) allows less. ``root`` is for tests.

    Systems without /proc (macOS) do not say what is available: there it is the machine's memory.
    """
    return max(0, min([_mem_available(root), *_group_rooms(root)]))


def _mem_available(root: Path) -> int:
    meminfo = root / "proc/meminfo"
    if not meminfo.exists():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for line in meminfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise OSError("the kernel does not say how much memory is available (MemAvailable in /proc/meminfo)")


def _group_rooms(root: Path) -> Iterator[int]:
    """Yield the bytes that each control group above this process has left. Page cache that can be dropped counts as free."""
    for folder, is_new in group_folders(root, "memory"):
        limit, used, cache = NAMES if is_new else OLD_NAMES
        if (folder / limit).exists():
            most = (folder / limit).read_text().strip()
            if most != "max":
                yield int(most) - int((folder / used).read_text()) + _stat(folder, cache)


def _stat(folder: Path, name: str) -> int:
    pairs = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return next((int(value) for key, value in pairs if key == name), 0)
