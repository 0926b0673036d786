"""Kernels that are watched while a model is loaded, and replaced by their references where one ended a process before."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from inferd_runtime.engine.driver import DeviceLost
from inferd_runtime.engine.drivers.accelerator import Accelerator
from inferd_runtime.kept_results import key_of
from inferd_runtime.kernels.quantized import QuantizedKernels
from inferd_runtime.kernels.suite import KernelSuite, reference_kernels
from inferd_runtime.launch_marks import LaunchMarks

RECORDING = "recorded steps"
"""The name under which recording is watched."""
QUANTIZED = "quantized"
ROOMS = ("kernels",)
logger = logging.getLogger(__name__)


class WatchedKernel:
    """A kernel under its name: while marks are written it is named there, and waited for."""

    def __init__(self, name: str, kernel: Callable[..., Any], marks: LaunchMarks, settle: Callable[[], None]) -> None:
        self._name = name
        self._kernel = kernel
        self._marks = marks
        self._settle = settle

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Launch the kernel. While marks are written: raises DeviceLost where that ended the device."""
        if not self._marks.open:
            return self._kernel(*given, **named)
        with self._marks.during(self._name):
            try:
                return self._kernel(*given, **named)
            finally:
                self._settle()


def launch_marks(device: torch.device) -> LaunchMarks:
    """Return the marks for kernels on this kind of device, as they are now, with these versions of what compiles them."""
    versions = [torch.version.cuda, torch.cuda.get_device_name(device)]
    with suppress(importlib.metadata.PackageNotFoundError):
        versions.append(importlib.metadata.version("triton"))
    return LaunchMarks(key_of(versions, ROOMS), DeviceLost)


def watched(kernels: KernelSuite, marks: LaunchMarks, accelerator: Accelerator) -> KernelSuite:
    """Return the kernels as they are watched; where one ended a process before, its reference, which is named in a warning."""
    left, spare = marks.left(), reference_kernels()

    def one(name: str, kernel: Callable[..., Any], reference: Callable[..., Any]) -> Callable[..., Any]:
        if name in left:
            _warn(name, left)
            return reference
        return WatchedKernel(name, kernel, marks, accelerator.settle)

    def each(ours: Any, others: Any) -> dict[str, Any]:
        return {
            name: one(name, getattr(ours, name), getattr(others, name)) for name in ours._fields if name != QUANTIZED
        }

    quantized = QuantizedKernels(**each(kernels.quantized, spare.quantized))
    return KernelSuite(quantized=quantized, **each(kernels, spare))


def may_record(marks: LaunchMarks) -> bool:
    """True if recording steps ended no process before."""
    left = marks.left()
    if RECORDING in left:
        _warn(RECORDING, left)
    return RECORDING not in left


def _warn(name: str, left: Mapping[str, Path]) -> None:
    logger.warning(
        "%s is not used: a process ended in it while it loaded a model. Delete %s to try it again", name, left[name]
    )
