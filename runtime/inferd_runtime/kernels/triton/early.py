"""Kernels that are launched before the one in front of them is done (programmatic dependent launch, from capability 9.0 on).

Such a kernel's programs begin while the last ones of the kernel in front still run: what they do before :func:`wait` must neither
read nor write what any kernel writes. Each program waits, whatever it does afterwards: that a kernel is done tells the next one
that all in front of it are done as well. Which Triton has it is asked by name.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

from inferd_runtime.kernels.triton.interpreted import INTERPRETED

HERE: bool = not INTERPRETED and all(hasattr(tl.extra.cuda, name) for name in ("gdc_wait", "gdc_launch_dependents"))
LEAST_CAPABILITY = 90


@triton.jit
def wait(early: tl.constexpr):
    """Wait until all kernels in front are done, where this one was launched early; then let the one behind begin."""
    if early:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@cache
def starts_early(device: torch.device) -> bool:
    """True if kernels on this device are launched before the one in front is done."""
    return device.type == "cuda" and early_from(torch.cuda.get_device_capability(device)[0] * 10)


def early_from(capability: int) -> bool:
    """True if they are on devices of a compute capability, times ten."""
    return HERE and capability >= LEAST_CAPABILITY


def launched(early: bool) -> dict[str, bool]:
    """Return the options of a launch."""
    return {"launch_pdl": True} if early else {}
