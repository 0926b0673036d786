"""The devices of this machine: which there are, and how much memory a process can still take there."""

from __future__ import annotations

import torch

from inferd.protocol import InvalidRequest
from inferd_runtime.models.fitting.memory import available_host_bytes
from inferd_runtime.models.options import ModelOptions


def check_device(name: str) -> str:
    """Return the device's full name (``cuda`` is ``cuda:0``). Raises InvalidRequest, which names what there is, without it."""
    full = "cuda:0" if ModelOptions("", device=name).checked().device == "cuda" else name
    cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    there = ["cpu", *(f"cuda:{index}" for index in range(cuda))]
    if full not in there:
        raise InvalidRequest(f"device {name!r} is not there: torch sees {', '.join(there)}")
    return full


def available_bytes(device: str) -> int:
    """Return bytes of memory that a process can still take on a device."""
    if device == "cpu":
        return available_host_bytes()
    torch.cuda.empty_cache()  # what PyTorch keeps of memory that was given back can be taken as well
    return int(torch.cuda.mem_get_info(device)[0])
