"""Memory maps: a text from Linux, and this process's own."""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

import pytest

from inferd_runtime.sandbox.wasm.linear_memory import (
    PAGE,
    WASM_PAGE,
    MemoryAccess,
    data_addresses,
    read_map,
    writable_region,
    written_pages,
)

FILE = Path("/c/runner.cwasm")
MAP = b"""\
562df658d000-562df6a86000 rw-p 00000000 00:00 0                          [heap]
7f53a9000000-7f53a9100000 r-xp 00000000 fe:00 2146394                    /c/runner.cwasm
7f53a9e00000-7f53abe00000 ---p 00000000 00:00 0
7f53abe00000-7f53abeef000 rw-p 00000000 00:00 0
7f53abeef000-7f53adff0000 rw-p 01412000 fe:00 2146394                    /c/runner.cwasm
7f53adff0000-7f53ae000000 rw-p 00000000 00:00 0
7f53ae000000-7f54ade00000 ---p 00000000 00:00 0
7f54b3108000-7f54b3248000 rw-p 00000000 00:00 0
7f54c3108000-7f54c3248000 rw-p 01412000 fe:00 2146394                    /c/runner.cwasm (deleted)
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="the memory map is Linux's")


def test_instances_are_found_by_their_data() -> None:
    assert data_addresses(MAP, FILE) == {0x7F53ABEEF000, 0x7F54C3108000}
    assert data_addresses(MAP, Path("/c/other")) == set()


def test_a_memory_is_all_that_adjoins_its_data() -> None:
    assert writable_region(MAP, 0x7F53ABEEF000) == range(0x7F53ABE00000, 0x7F53AE000000)
    assert writable_region(MAP, 0x7F54C3108000) == range(0x7F54C3108000, 0x7F54C3248000)
    assert not writable_region(MAP, 0x7F53AA000000)
    assert not writable_region(MAP, 1)


@linux
def test_how_far_a_memory_has_grown_is_found() -> None:
    reserved, grown = 64, 23
    libc = ctypes.CDLL(None)
    with mmap.mmap(-1, reserved * WASM_PAGE) as memory:
        holder = ctypes.c_char.from_buffer(memory)
        base = ctypes.addressof(holder)
        rest = ctypes.c_void_p(base + grown * WASM_PAGE)
        assert libc.mprotect(rest, ctypes.c_size_t((reserved - grown) * WASM_PAGE), 0) == 0
        access = MemoryAccess()
        initial = range(base, base + 10 * WASM_PAGE)
        assert access.size(initial, reserved * WASM_PAGE) == grown * WASM_PAGE
        assert access.size(initial, 12 * WASM_PAGE) == 12 * WASM_PAGE
        del holder


@linux
def test_written_pages_are_found_and_can_be_made_ahead(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b"x" * 16 * PAGE)
    with file.open("r+b") as handle, mmap.mmap(handle.fileno(), 16 * PAGE, flags=mmap.MAP_PRIVATE) as memory:
        holder = ctypes.c_char.from_buffer(memory)
        base = ctypes.addressof(holder)
        region = range(base, base + 16 * PAGE)
        assert memory[5 * PAGE] == ord("x")
        assert written_pages(region) == []
        memory[2 * PAGE] = memory[3 * PAGE] = memory[9 * PAGE] = 1
        written = written_pages(region)
        assert written == [range(2 * PAGE, 4 * PAGE), range(9 * PAGE, 10 * PAGE)]
        MemoryAccess().populate(base, [range(12 * PAGE, 14 * PAGE)])
        assert written_pages(region) == [*written, range(12 * PAGE, 14 * PAGE)]
        assert memory[12 * PAGE] == ord("x")
        assert data_addresses(read_map(), file.resolve())
        assert base in writable_region(read_map(), base)
        del holder


def test_an_unknown_memory_has_no_pages() -> None:
    assert written_pages(range(0)) == []
