"""A process that loads kernels one of which writes where nothing is. ``stray_kernel.py FOLDER``: where launches are marked.

Exits with 3 if that ended the device.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import triton
import triton.language as tl

from inferd_runtime.engine.driver import DeviceLost
from inferd_runtime.engine.drivers.accelerator import CudaAccelerator
from inferd_runtime.engine.drivers.watched_kernels import watched
from inferd_runtime.kernels.suite import reference_kernels
from inferd_runtime.launch_marks import LaunchMarks

AWAY = 1 << 44


@triton.jit
def stray(numbers: tl.tensor, away: tl.tensor):
    """Write far behind a tensor."""
    tl.store(numbers + away, 1.0)


def silu_mul(rows: torch.Tensor) -> torch.Tensor:
    """Return nothing that anybody should read."""
    stray[(1,)](rows, AWAY)
    return rows


def main() -> int:
    device = torch.device("cuda", 0)
    accelerator, marks = CudaAccelerator(device), LaunchMarks("device", DeviceLost, Path(sys.argv[1]))
    kernels = watched(reference_kernels()._replace(silu_mul=silu_mul), marks, accelerator)
    rows = torch.ones(4, 8, device=device)
    try:
        with marks.writing(), accelerator.active():
            kernels.silu_mul(rows)
    except DeviceLost as error:
        print(error)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
