"""How much linear memory an instance has, read from the process's memory map.

wasmtime's C API does not give out a component's memories. But each linear memory starts as a private, copy-on-write mapping
of the compiled runner's file (its initial data), at an address that no other instance has, followed by what it has grown by,
up to the inaccessible rest of its reservation. A WebAssembly memory never shrinks, so its size at the end is the peak, and
the figure that the memory limit counts. Only Linux has ``/proc/self/maps``; elsewhere nothing is found and 0 is reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAPS = Path("/proc/self/maps")
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


def writable_bytes_around(text: bytes, address: int) -> int:
    """Length of the run of adjoining writable regions that holds ``address``; 0 if there is none."""
    start = end = -1
    for region in regions(text):
        if not region.writable or region.start != end:
            if start <= address < end:
                break
            start = region.start
        end = region.end if region.writable else -1
    return end - start if start <= address < end else 0
