"""Large memory of this process: taken when it is first touched, and made better in the background once the engine serves.

Huge pages: a pass over hundreds of megabytes costs a page-table walk per 4 KiB without them. In a virtual machine, where each
walk is two, packed products of one row read 20 to 40 % faster with them (measured). But making them takes two seconds per
gigabyte there, and taking the memory of a cache half a second: a program that runs once would wait for both, and has ended
before they are of use.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path

import torch
from torch import Tensor

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
MAPS = Path("/proc/self/maps")
HUGE = 2 << 20
LEAST = 4 << 20
LARGE = 64 << 20
"""Bytes that are worth a thread."""
PART = 4 << 20
"""Bytes that are advised at a time: page faults of the step loop, and the end of the process, wait meanwhile."""
DELAY_SECONDS = 10.0
# Linux 6.1 and 5.14; Python has no names for them yet. Both take effect at once, on memory that is there already too.
MADV_COLLAPSE = 25
MADV_POPULATE_WRITE = 23
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of ``malloc.h``."""
MAPPED = 32 << 20
"""Bytes of a block that is mapped on its own: the most that glibc takes as a bound."""
KEPT = 64 << 20
"""Bytes that may stay free at the end of the heap."""
AddressRange = tuple[int, int]


def reuse_freed() -> None:
    """Keep freed memory for what is allocated next, as far as steps need it, instead of giving it back to the system each time.

    A step's temporaries are as large as batches times vocabularies. glibc maps such blocks one by one, or cuts the heap's end
    off when they are freed, depending on what lies behind them: each step then takes its pages anew, a third of its time.
    """
    change = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc
    if sys.platform == "linux" and change is not None:
        change(M_MMAP_THRESHOLD, MAPPED)
        change(M_TRIM_THRESHOLD, KEPT)


def zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return zeros whose memory is taken page by page when it is first written to; a large one's in the background, too."""
    size = prod(shape) * dtype.itemsize
    if size < LEAST:
        return torch.zeros(*shape, dtype=dtype)
    region = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(region, dtype=torch.uint8).view(dtype).view(*shape)


def populate_later(tensors: Sequence[Tensor]) -> None:
    """Take the memory of tensors soon, so that a machine without enough shows it at the start and not under load."""
    regions = [(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in tensors if tensor.nbytes >= LEAST]
    _advise_later(regions, MADV_POPULATE_WRITE)


def huge_pages_later() -> None:
    """Back the large anonymous memory that this process has now by huge pages soon, unless the operator has turned them off."""
    if sys.platform == "linux" and SETTING.exists() and "[never]" not in SETTING.read_text():
        regions = list(large_regions(MAPS.read_text()))
        _advise_later(regions, mmap.MADV_HUGEPAGE, MADV_COLLAPSE)


def large_regions(maps: str) -> Iterator[AddressRange]:
    """Yield writable private anonymous memory in the format of /proc/self/maps, cut to whole huge pages, LEAST bytes or more."""
    for line in maps.splitlines():
        span, rights, _, _, inode, *name = line.split()
        if rights != "rw-p" or inode != "0" or name not in ([], ["[heap]"]):
            continue
        first, last = (int(address, 16) for address in span.split("-"))
        start, end = -(-first // HUGE) * HUGE, last // HUGE * HUGE
        if end - start >= LEAST:
            yield start, end


def forget_file_pages(suffix: str) -> None:
    """Give back the memory of files that are mapped to be read: what is read again comes from the system's cache of files.

    ``suffix`` is the files'. Only for mappings that nobody has written to.
    """
    if sys.platform == "linux":
        lines = (line.split(maxsplit=5) for line in MAPS.read_text().splitlines() if line.endswith(suffix))
        spans = [[int(address, 16) for address in line[0].split("-")] for line in lines]
        advise([(start, end) for start, end in spans], mmap.MADV_DONTNEED)


def _advise_later(regions: Sequence[AddressRange], *advice: int) -> None:
    if sys.platform != "linux" or sum(end - start for start, end in regions) < LARGE:
        return
    timer = threading.Timer(DELAY_SECONDS, advise, (regions, *advice))
    timer.daemon = True
    timer.start()


def advise(regions: Sequence[AddressRange], *advice: int) -> None:
    """Give the kernel each advice about each part of each region.

    What it refuses stays as it was: an older kernel, memory that has been given back meanwhile.
    """
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, end in regions:
        for part in range(start, end, PART):
            for one in advice:
                madvise(part, min(PART, end - part), one)
