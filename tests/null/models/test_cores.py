"""Processors of this process, from control groups made of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inferd_runtime.models.fitting.cores import usable_cores


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen processors, eight of them for this process."""
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def test_a_process_that_is_kept_to_some_processors_does_not_count_the_others(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == 8


@pytest.mark.parametrize(("limit", "cores"), [("max 100000", 8), ("350000 100000", 3), ("50000 100000", 1)])
def test_a_container_does_not_start_threads_for_the_whole_machine(tmp_path: Path, limit: str, cores: int) -> None:
    """They would use up its time in a fraction of each period, and stand still for the rest of it."""
    write(tmp_path / "proc/self/cgroup", "0::/seen/from/outside")
    write(tmp_path / "sys/fs/cgroup/cpu.max", limit)
    assert usable_cores(tmp_path) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("200000", 2)])
def test_version_one_groups_count_too(tmp_path: Path, quota: str, cores: int) -> None:
    write(tmp_path / "proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/a/b")
    write(tmp_path / "sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "-1")
    write(tmp_path / "sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us", "100000")
    write(tmp_path / "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", quota)
    write(tmp_path / "sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000")
    assert usable_cores(tmp_path) == cores
