"""How much memory a process can still take on this machine. No torch here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


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
    groups = root / "proc/self/cgroup"
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _rooms(root / "sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _rooms(root / "sys/fs/cgroup/memory", path, *names)


def _rooms(mount: Path, path: str, limit: str, used: str, cache: str) -> Iterator[int]:
    """``path`` as seen from outside may not exist in a container's own mount; its root does."""
    inner = mount / path.lstrip("/")
    for folder in (inner, *inner.parents):
        if (folder / limit).exists():
            most = (folder / limit).read_text().strip()
            if most != "max":
                yield int(most) - int((folder / used).read_text()) + _stat(folder, cache)
        if folder == mount:
            return


def _stat(folder: Path, name: str) -> int:
    pairs = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return next((int(value) for key, value in pairs if key == name), 0)
