"""How many processors this process may use, which can be fewer than the machine has. No torch here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from inferd_runtime.models.fitting.control_groups import group_folders


def usable_cores(root: Path = Path("/")) -> int:
    """Return the processors that the system lets this process run on, fewer where a control group gives the time of fewer.

    A thread more than that would wait for time in every product. ``root`` is for tests.
    """
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([own, *_group_shares(root)]))


def _group_shares(root: Path) -> Iterator[int]:
    """Yield the whole processors whose time each control group above this process has."""
    for folder, is_new in group_folders(root, "cpu"):
        names = ("cpu.max",) if is_new else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        if all((folder / name).exists() for name in names):
            quota, period = " ".join((folder / name).read_text() for name in names).split()
            if quota not in ("max", "-1"):
                yield int(quota) // int(period)
