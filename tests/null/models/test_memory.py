"""Available memory, from a /proc and control groups made of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferd_runtime.models.fitting.memory import available_host_bytes

MIB = 1 << 20


def write(path: Path, text: str | int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "proc/meminfo", "MemTotal: 9000 kB\nMemFree:  100 kB\nMemAvailable:    8192 kB")
    return tmp_path


def group(folder: Path, limit: str | int, used: int, cache: int) -> None:
    write(folder / "memory.max", limit)
    write(folder / "memory.current", used)
    write(folder / "memory.stat", f"anon 5\ninactive_file {cache}\nslab 9")


def test_without_groups_the_kernel_says(root: Path) -> None:
    assert available_host_bytes(root) == 8 * MIB


def test_a_group_without_a_limit_changes_nothing(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/a")
    group(root / "sys/fs/cgroup/a", "max", MIB, 0)
    assert available_host_bytes(root) == 8 * MIB


def test_the_tightest_group_on_the_way_up_counts_and_its_cache_is_free(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/a/b")
    group(root / "sys/fs/cgroup/a/b", 7 * MIB, MIB, 0)
    group(root / "sys/fs/cgroup/a", 6 * MIB, 3 * MIB, MIB)
    assert available_host_bytes(root) == 4 * MIB


def test_in_a_container_the_group_is_the_mounts_root(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/seen/from/outside")
    group(root / "sys/fs/cgroup", 3 * MIB, 2 * MIB, 0)
    assert available_host_bytes(root) == MIB


def test_version_one_groups(root: Path) -> None:
    write(root / "proc/self/cgroup", "4:cpu,cpuacct:/x\n5:memory:/x")
    folder = root / "sys/fs/cgroup/memory/x"
    write(folder / "memory.limit_in_bytes", 5 * MIB)
    write(folder / "memory.usage_in_bytes", 4 * MIB)
    write(folder / "memory.stat", f"cache 1\ntotal_inactive_file {MIB}")
    assert available_host_bytes(root) == 2 * MIB


def test_a_group_over_its_limit_leaves_nothing(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/")
    group(root / "sys/fs/cgroup", MIB, 2 * MIB, 0)
    assert available_host_bytes(root) == 0


def test_this_machine_says_something() -> None:
    assert available_host_bytes() > MIB


def test_without_proc_it_is_the_machines_memory(tmp_path: Path) -> None:
    assert available_host_bytes(tmp_path) >= available_host_bytes()
