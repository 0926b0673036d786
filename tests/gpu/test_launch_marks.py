"""A kernel that ends the device while a model is loaded is known by name to the next start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from inferd_runtime.engine.driver import DeviceLost
from inferd_runtime.launch_marks import LaunchMarks

STRAY = Path(__file__).with_name("stray_kernel.py")


def test_an_illegal_access_leaves_the_kernels_name(tmp_path: Path) -> None:
    """In a process of its own: its device is gone afterwards."""
    done = subprocess.run([sys.executable, STRAY, tmp_path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 3, done.stdout + done.stderr
    assert list(LaunchMarks("device", DeviceLost, tmp_path).left()) == ["silu_mul"]
