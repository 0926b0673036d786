"""The control groups (version 1 or 2) that this process is in. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def group_folders(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of the groups that hold this process, innermost first, and True for those of version 2.

    In a container the path, which is as seen from outside, may not exist in its own mount; its root does.
    """
    groups = root / "proc/self/cgroup"
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")
        inner = mount / path.lstrip("/")
        for folder in (inner, *inner.parents):
            yield folder, not controllers
            if folder == mount:
                break
