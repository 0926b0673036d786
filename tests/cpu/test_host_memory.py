"""Memory that is taken when it is touched; which of it is offered for huge pages; that contents stay."""

from __future__ import annotations

import mmap
import platform
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from inferd_runtime.models import host_memory
from inferd_runtime.models.host_memory import (
    HUGE,
    LARGE,
    MADV_COLLAPSE,
    MADV_POPULATE_WRITE,
    MAPS,
    SETTING,
    advise,
    forget_file_pages,
    large_regions,
    populate_later,
    zeros,
)  # fmt: skip

LISTED = """\
00400000-00a00000 r-xp 00000000 fe:00 1234 /usr/bin/python
10000000-10900000 rw-p 00000000 00:00 0
20100000-20a00000 rw-p 00000000 00:00 0 [heap]
30000000-30300000 rw-p 00000000 00:00 0
40000000-41000000 rw-s 00000000 00:00 0
50000000-51000000 r--p 00000000 00:00 0
60000000-61000000 rw-p 00000000 00:00 0 [stack]
70000000-71000000 rw-p 00000000 fe:00 77 /tmp/weights
"""


def test_large_writable_anonymous_memory_is_offered_in_whole_huge_pages() -> None:
    assert list(large_regions(LISTED)) == [(0x10000000, 0x10800000), (0x20200000, 0x20A00000)]


@pytest.mark.skipif(not SETTING.exists() or "[never]" in SETTING.read_text(), reason="no huge pages here")
def test_memory_keeps_its_contents() -> None:
    weights = torch.arange(8 * HUGE // 4, dtype=torch.float32)
    advise(list(large_regions(MAPS.read_text())), mmap.MADV_HUGEPAGE, MADV_COLLAPSE)
    assert torch.equal(weights, torch.arange(8 * HUGE // 4, dtype=torch.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("rows", [3, 1 << 21])
def test_zeros_are_zeros(dtype: torch.dtype, rows: int) -> None:
    made = zeros((rows, 2, 4), dtype)
    assert (made.shape, made.dtype, made.is_contiguous()) == ((rows, 2, 4), dtype, True)
    assert not made.view(torch.uint8).any()
    made.view(torch.uint8)[-1] = 1
    assert int(made.view(torch.uint8).sum()) == made[-1].nbytes


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_that_is_not_touched_is_not_taken() -> None:
    before = resident()
    made = zeros((LARGE * 4,), torch.uint8)
    assert resident() - before < LARGE
    made[: 2 * LARGE] = 7
    advise([(made.data_ptr(), made.data_ptr() + made.nbytes)], MADV_POPULATE_WRITE)
    assert int(made.sum()) == 7 * 2 * LARGE
    if can_populate():
        assert resident() - before > 3 * LARGE


def test_a_thread_takes_it_later(monkeypatch: pytest.MonkeyPatch) -> None:
    advised: list[object] = []
    done = threading.Event()

    def advise(regions: object, advice: int) -> None:
        advised.append((regions, advice))
        done.set()

    monkeypatch.setattr(host_memory, "DELAY_SECONDS", 0.0)
    monkeypatch.setattr(host_memory, "advise", advise)
    monkeypatch.setattr(host_memory.sys, "platform", "linux")
    made = zeros((LARGE,), torch.uint8)
    populate_later([zeros((LARGE // 2,), torch.uint8)])
    assert not advised
    populate_later([made])
    assert done.wait(30)
    assert advised == [([(made.data_ptr(), made.data_ptr() + LARGE)], MADV_POPULATE_WRITE)]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def can_populate() -> bool:
    major, minor = (int(part) for part in platform.release().split(".")[:2])
    return (major, minor) >= (5, 14)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_file_that_was_read_takes_no_memory_and_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"a": torch.arange(LARGE // 4, dtype=torch.float32)}, path)
    with safe_open(path, framework="pt") as file:
        mapped = file.get_tensor("a")
    total = float(mapped.double().sum())
    before = resident()
    forget_file_pages(".safetensors")
    assert before - resident() > LARGE // 2
    assert float(mapped.double().sum()) == total


REUSED = """
import resource
import numpy as np
from inferd_runtime.models.host_memory import reuse_freed

reuse_freed()


def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for size in (100, 300, 700, 6_000):
        rows = [np.ones(size * 1000, np.uint8) for _ in range(4)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


faults()
print(sum(faults() for _ in range(20)))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's own setting")
def test_what_a_step_has_freed_the_next_one_uses_without_asking_the_system_for_it() -> None:
    """Each draw of a row took a thousand page faults or none, as what lay behind it happened to be: a step was a third slower."""
    done = subprocess.run([sys.executable, "-c", REUSED], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) < 1000
