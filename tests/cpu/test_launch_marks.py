"""A kernel that ends the process at load is named on disk before it is tried, and the next start does without it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from inferd_runtime.engine.driver import DeviceLost
from inferd_runtime.engine.drivers.build import DriverOptions, fast_driver, proven_driver, trial_batch
from inferd_runtime.engine.drivers.watched_kernels import RECORDING, watched
from inferd_runtime.kernels.suite import KernelSuite, reference_kernels
from inferd_runtime.launch_marks import LaunchMarks, forget_marks
from inferd_runtime.models.loading import load
from inferd_runtime.testing.recorded_host import RecordedHost

DIES = """
import os, signal, sys
from pathlib import Path
from inferd_runtime.launch_marks import LaunchMarks
marks = LaunchMarks("device", RuntimeError, Path(sys.argv[1]))
with marks.writing():
    with marks.during("sample"):
        pass
    if len(sys.argv) > 2:
        with marks.during("recorded steps"):
            with marks.during(sys.argv[2]):
                os.kill(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
"""
OPTIONS = DriverOptions(pages=40, page_size=16, most_rows=32)


def marks_in(folder: Path) -> LaunchMarks:
    return LaunchMarks("device", DeviceLost, folder)


def died(folder: Path, *kernel: str) -> None:
    done = subprocess.run([sys.executable, "-c", DIES, folder, *kernel], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL


def test_what_a_process_died_in_is_known_and_nothing_else_is(tmp_path: Path) -> None:
    died(tmp_path)
    assert marks_in(tmp_path).left() == {}
    died(tmp_path, "agree")
    left = marks_in(tmp_path).left()
    assert list(left) == ["agree"]
    assert LaunchMarks("another device", DeviceLost, tmp_path).left() == {}
    left["agree"].unlink()
    assert marks_in(tmp_path).left() == {}


def test_errors_leave_nothing_and_a_lost_device_does(tmp_path: Path) -> None:
    marks = marks_in(tmp_path)
    with pytest.raises(RuntimeError, match="does not compile"), marks.writing(), marks.during("sample"):
        raise RuntimeError("does not compile")
    assert list(tmp_path.iterdir()) == []
    seen = []

    def lose() -> None:
        seen.append(marks_in(tmp_path).left())
        raise DeviceLost("an illegal access")

    with pytest.raises(DeviceLost), marks.writing(), marks.during(RECORDING), marks.during("sample"):
        lose()
    assert seen == [{}], "its process lived"
    assert list(marks_in(tmp_path).left()) == ["sample"]


def test_a_process_that_was_ended_on_purpose_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do those that it started: a draft model's process is ended with the engine's, and loads at the same time."""
    monkeypatch.setenv("INFERD_CACHE_DIR", str(tmp_path))
    folder = tmp_path / "launches"
    folder.mkdir()
    marking = [
        subprocess.Popen([sys.executable, "-c", DIES, folder, "sample"], process_group=group) for group in (0, None)
    ]
    for process in marking:
        assert process.wait(60) == -signal.SIGKILL
    forget_marks(marking[0].pid)
    assert list(marks_in(folder).left()) == ["sample"]
    forget_marks(os.getpgrp())
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    marks = marks_in(tmp_path / "file" / "folder")
    with marks.writing(), marks.during("sample"):
        assert not marks.open
    assert "cannot be written to" in caplog.text


def test_a_full_disk_costs_a_warning_and_no_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    marks = marks_in(tmp_path)
    with marks.writing(), marks.during("sample"):
        assert not marks.open
    assert "cannot be written to" in caplog.text


class CountingHost(RecordedHost):
    """Counts waits, and loses its device in one."""

    def __init__(self, *, lost: bool = False) -> None:
        super().__init__()
        self.settled = 0
        self.lost = lost

    def settle(self) -> None:
        self.settled += 1
        if self.lost:
            raise DeviceLost("an illegal access")


def refused(*given: object) -> None:
    raise AssertionError("it ended a process before")


@pytest.fixture(scope="module")
def all_refused() -> KernelSuite:
    kernels = reference_kernels()
    nested = kernels.quantized._replace(unpacked=refused)
    return kernels._replace(sample=refused, paged_attention=refused, quantized=nested)


def test_kernels_that_ended_a_process_are_replaced_by_name(
    tmp_path: Path, all_refused: KernelSuite, caplog: pytest.LogCaptureFixture
) -> None:
    """The model is served all the same, and steps are not recorded where that was it."""
    for name in ("sample", "paged_attention", "unpacked", RECORDING):
        (tmp_path / f"device-{name}").write_text(name)
    marks, host = marks_in(tmp_path), CountingHost()
    with marks.writing():
        driver = fast_driver(load("tiny"), None, OPTIONS, all_refused, host, marks)
        driver.forward(trial_batch(np.zeros(3, np.int64), 0, OPTIONS.page_size))
    assert host.recordings == 0
    for name in ("sample", "paged_attention", "unpacked", RECORDING):
        assert f"{name} is not used: a process ended in it" in caplog.text
    kernels = watched(all_refused, marks, host)
    assert kernels.sample is reference_kernels().sample
    assert kernels.quantized.unpacked is reference_kernels().quantized.unpacked
    assert len(list(tmp_path.iterdir())) == 4, "nothing of its own is left"


def test_kernels_are_waited_for_while_a_model_is_loaded_only(tmp_path: Path) -> None:
    marks, host = marks_in(tmp_path), CountingHost()
    with marks.writing():
        driver = fast_driver(load("tiny"), None, OPTIONS, reference_kernels(), host, marks)
        driver.forward(trial_batch(np.zeros(3, np.int64), 0, OPTIONS.page_size))
    waited = host.settled
    assert waited > 5
    driver.forward(trial_batch(np.zeros(5, np.int64), 0, OPTIONS.page_size))
    assert host.settled == waited


def test_a_device_that_is_lost_at_load_ends_the_start_and_the_next_one_does_without(tmp_path: Path) -> None:
    marks, loaded = marks_in(tmp_path), load("tiny")
    with pytest.raises(DeviceLost), marks.writing():
        proven_driver(loaded, None, OPTIONS, reference_kernels(), CountingHost(lost=True), marks)
    (name,) = marks_in(tmp_path).left()
    assert name in KernelSuite._fields
