"""How much linear memory an instance has, read from the process's memory map.

wasmtime's C API does not give out a component's memories. But each linear memory starts as a private, copy-on-write mapping
of the compiled runner's file (its initial data), at an address that no other instance has, followed by what it has grown by,
up to the inaccessible rest of its reservation. A WebAssembly memory never shrinks, so its size at the end is the peak, and
the figure that the memory limit counts. Only Linux has ``/proc/self/maps``; elsewhere nothing is found and 0 is reported.

The first write to each page costs a fault that copies it: these faults are most of what starting a program costs. Which pages
every program writes to is learned from one run, and a spare instance gets its own copies of these before it is needed.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAPS = Path("/proc/self/maps")
PAGEMAP = Path("/proc/self/pagemap")
PAGE = mmap.PAGESIZE
ENTRY_BYTES = 8
PRESENT, FILE_BACKED = 63, 61
"""Bits of an entry of the page map (Linux: Documentation/admin-guide/mm/pagemap.rst)."""
MADV_POPULATE_WRITE = 23
_LINE = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) (....) [0-9a-f]+ \S+ \d+ *(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Region:
    """A stretch of addresses with the same rights. ``path`` is the file behind it, if any."""

    start: int
    end: int
    writable: bool
    path: bytes


def read_map() -> bytes:
    """The text of the process's memory map; empty where there is none."""
    return MAPS.read_bytes() if MAPS.exists() else b""


def regions(text: bytes) -> Iterator[Region]:
    """The lines of a memory map, in the order of their addresses."""
    for start, end, rights, path in _LINE.findall(text):
        yield Region(int(start, 16), int(end, 16), rights[1:2] == b"w", path)


def data_addresses(text: bytes, file: Path) -> set[int]:
    """Where the runner's initial data is mapped for writing: one address for each live instance."""
    wanted = str(file).encode()
    if wanted not in text:
        return set()
    return {region.start for region in regions(text) if region.writable and region.path == wanted}


def writable_region(text: bytes, address: int) -> range:
    """The run of adjoining writable regions that holds ``address``; empty if there is none."""
    start = end = -1
    for region in regions(text):
        if not region.writable or region.start != end:
            if start <= address < end:
                break
            start = region.start
        end = region.end if region.writable else -1
    return range(start, end) if start <= address < end else range(0)


def written_pages(region: range) -> list[range]:
    """The stretches of a region that have pages of their own by now, as offsets from its start; nothing if it cannot be told."""
    try:
        with PAGEMAP.open("rb", buffering=0) as pagemap:
            pagemap.seek(region.start // PAGE * ENTRY_BYTES)
            entries = memoryview(pagemap.read(len(region) // PAGE * ENTRY_BYTES)).cast("Q")
    except OSError:
        return []
    stretches: list[range] = []
    for page, entry in enumerate(entries):
        if entry >> PRESENT & 1 and not entry >> FILE_BACKED & 1:
            offset = page * PAGE
            if stretches and stretches[-1].stop == offset:
                stretches[-1] = range(stretches[-1].start, offset + PAGE)
            else:
                stretches.append(range(offset, offset + PAGE))
    return stretches


class Populator:
    """Gives memory its own pages ahead of the first write. Does nothing where the system cannot (Linux before 5.14)."""

    def __init__(self) -> None:
        self._madvise = ctypes.CDLL(None, use_errno=True).madvise
        self._madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def populate(self, base: int, stretches: list[range]) -> None:
        """Populate these offsets from ``base``. What fails is populated by the program's own writes, as without this."""
        if sys.platform == "linux":
            for stretch in stretches:
                self._madvise(base + stretch.start, len(stretch), MADV_POPULATE_WRITE)
