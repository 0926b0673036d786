"""Rank 1 of the tests' pair: follows rank 0 with one model after another. ``parallel_rank.py CHANNEL STORE``

Before each model comes its folder; an empty name is the end. Behind ``kernels:`` it runs over the kernels' twins.
"""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection
from pathlib import Path

from inferd.protocol import InferdError
from inferd_runtime.engine.drivers.build import DeviceDriver, DriverOptions, proven_driver
from inferd_runtime.engine.drivers.parallel_parts import follow_with
from inferd_runtime.kernels.suite import reference_kernels
from inferd_runtime.launch_marks import LaunchMarks
from inferd_runtime.models.loaded import LoadedModel
from inferd_runtime.models.loading import load
from inferd_runtime.models.parallel import join, leave, use_threads
from inferd_runtime.models.passes.plain import ModelPass
from inferd_runtime.testing.recorded_host import RecordedHost

KERNELS = "kernels:"


def build_with_twins(loaded: LoadedModel, run: ModelPass | None, options: DriverOptions) -> DeviceDriver:
    """What is built on a GPU, with twins of the kernels, and steps that are recorded on the CPU."""
    marks = LaunchMarks("none", RuntimeError, Path("/dev/null"))
    return proven_driver(loaded, run, options, reference_kernels(), RecordedHost(), marks)


def with_kernels(loaded: LoadedModel, options: DriverOptions) -> DeviceDriver:
    """Return the driver of a rank's part."""
    return build_with_twins(loaded, loaded.part, options)


def main() -> None:
    _, channel, store = sys.argv
    use_threads(1)
    with Connection(int(channel)) as link:
        join(1, 2, "cpu", Path(store), timeout_s=60.0)
        while folder := link.recv_bytes().decode():
            build = with_kernels if folder.startswith(KERNELS) else None
            try:
                loaded = load(folder.removeprefix(KERNELS), ranks=2)
            except InferdError:
                continue  # rank 0 has the same reason
            follow_with(loaded, link, 0, build)
        leave()


if __name__ == "__main__":
    main()
