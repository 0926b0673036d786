"""How much linear memory an instance has, read from the process's memory map.

wasmtime's C API does not give out a component's memories. But each linear memory starts as a private, copy-on-write mapping
of the compiled runner's file (its initial data), at an address that no other instance has, and what it grows by follows, up to
the inaccessible rest of its reservation. So a new instance's memory is found in ``/proc/self/maps``, and how far it has grown
is found by asking which of its bytes can be read. A WebAssembly memory never shrinks: its size at the end is the peak, and
the figure that the memory limit counts. This is Linux only; elsewhere nothing is found and 0 is reported.

The first write to each page costs a fault that copies it: these faults are most of what starting a program costs. Which pages
every program writes to is learned from one run, and a spare instance gets its own copies of these before it is needed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
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
WASM_PAGE = 64 << 10
NEAR_BYTES = 4096
"""Of the memory map before and behind an instance's memory: several times the lines that it can have."""
_LINE = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) (....) ([0-9a-f]+) \S+ \d+ *(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Region:
    """A stretch of addresses with the same rights. ``path`` is the file behind it, if any, from ``offset`` on."""

    start: int
    end: int
    writable: bool
    path: bytes
    offset: int


def read_map() -> bytes:
    """Return the text of the process's memory map; empty where there is none."""
    return MAPS.read_bytes() if MAPS.exists() else b""


def regions(text: bytes) -> Iterator[Region]:
    """Yield the lines of a memory map, in the order of their addresses."""
    for start, end, rights, offset, path in _LINE.findall(text):
        yield Region(int(start, 16), int(end, 16), rights[1:2] == b"w", path, int(offset, 16))


def region_at(text: bytes, address: int) -> Region | None:
    """Return the line of a memory map that begins at ``address``."""
    return next((region for region in regions(text) if region.start == address), None)


def data_addresses(text: bytes, file: Path) -> set[int]:
    """Return where the runner's initial data is mapped for writing: one address for each live instance."""
    wanted = str(file).encode()
    paths = (wanted, wanted + b" (deleted)")  # an entry of the cache may have been replaced since
    lines = b"\n".join(_lines_with(text, wanted))  # few of many
    return {region.start for region in regions(lines) if region.writable and region.path in paths}


def _lines_with(text: bytes, word: bytes) -> Iterator[bytes]:
    place = text.find(word)
    while place >= 0:
        end = text.find(b"\n", place)
        end = len(text) if end < 0 else end
        yield text[text.rfind(b"\n", 0, place) + 1 : end]
        place = text.find(word, end)


def writable_region(text: bytes, address: int) -> range:
    """Return the run of adjoining writable regions that holds ``address``; empty if there is none."""
    start = end = -1
    for region in regions(_around(text, address)):
        if not region.writable or region.start != end:
            if start <= address < end:
                break
            start = region.start
        end = region.end if region.writable else -1
    return range(start, end) if start <= address < end else range(0)


def _around(text: bytes, address: int) -> bytes:
    """Return the lines near that of the region that begins at ``address``; all of them if there is none."""
    place = text.find(b"\n%08x-" % address)
    if place < 0:
        return text
    return text[text.rfind(b"\n", 0, max(0, place - NEAR_BYTES)) + 1 : place + NEAR_BYTES]


def written_pages(region: range) -> list[range]:
    """Return the parts of a region that have pages of their own, as offsets from its start; nothing if that is unknown."""
    if not region:
        return []
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


class MemoryAccess:
    """System calls on this process's own memory. Each does nothing where the system does not have it."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
        if self._libc is not None:
            self._libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        self._pid = os.getpid()

    def populate(self, base: int, stretches: list[range]) -> None:
        """Give these offsets from ``base`` pages of their own. Where that fails (Linux before 5.14), the first write does it."""
        if self._libc is not None:
            madvise = self._libc.madvise
            for stretch in stretches:
                madvise(base + stretch.start, len(stretch), MADV_POPULATE_WRITE)

    def size(self, memory: range, limit: int) -> int:
        """Return how many bytes can be read from the start of ``memory`` on, which has grown at its end: ``limit`` at most."""
        low, high = len(memory) // WASM_PAGE, limit // WASM_PAGE
        while low < high:
            middle = (low + high + 1) // 2
            if self._readable(memory.start + middle * WASM_PAGE - 1):
                low = middle
            else:
                high = middle - 1
        return low * WASM_PAGE

    def _readable(self, address: int) -> bool:
        """True if the kernel can copy a byte from there: unlike a read of our own, that fails softly."""
        if self._libc is None:
            return False
        byte = ctypes.create_string_buffer(1)
        to, source = _Span(ctypes.addressof(byte), 1), _Span(address, 1)
        one, flags = ctypes.c_ulong(1), ctypes.c_ulong(0)
        return bool(
            self._libc.process_vm_readv(self._pid, ctypes.byref(to), one, ctypes.byref(source), one, flags) == 1
        )


class _Span(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))
