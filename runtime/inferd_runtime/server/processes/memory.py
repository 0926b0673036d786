"""What processes take of the machine's memory, with all that they have started and that started: as Linux tells in ``/proc``."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

PROC = Path("/proc")
KIB = 1024
FIELDS = ("PPid:", "RssAnon:", "RssShmem:")
"""Not what is read of files: programs and libraries count for nobody."""


def memory_of(roots: Iterable[int], proc: Path = PROC) -> Mapping[int, int]:
    """Return the bytes that each of these processes takes with its descendants; of one that is gone, or on another system, 0."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    taken: dict[int, int] = {}
    for pid, parent, size in _processes(proc):
        children[parent].append(pid)
        taken[pid] = size
    return {root: sum(taken.get(pid, 0) for pid in _descendants(root, children)) for root in roots}


def _descendants(root: int, children: Mapping[int, list[int]]) -> Iterator[int]:
    """Yield a process and all below it."""
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children.get(pid, ())


def _processes(proc: Path) -> Iterator[tuple[int, int, int]]:
    """Yield id, parent and bytes of each process."""
    for name in os.listdir(proc) if proc.is_dir() else ():
        if name.isdigit():
            try:
                text = (proc / name / "status").read_text(errors="replace")
            except OSError:  # it has just ended
                continue
            fields = dict(line.split()[:2] for line in text.splitlines() if line.startswith(FIELDS))
            yield int(name), int(fields.get("PPid:", 0)), KIB * sum(int(fields.get(one, 0)) for one in FIELDS[1:])
