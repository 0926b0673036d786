"""How many threads and KV pages to use when nobody says."""

from __future__ import annotations

import os

import torch
from torch import nn

from inferd_runtime.models.shape import KvShape

SMALL_MODEL = 30_000_000
KV_SHARE = 0.5
CPU_KV_BYTES = 1 << 30
STREAMS = 64


def default_threads(module: nn.Module) -> int:
    """One thread for a small model, where more of them only wait for each other; else every core but one."""
    parameters = sum(parameter.numel() for parameter in module.parameters())
    return 1 if parameters < SMALL_MODEL else max(1, (os.cpu_count() or 2) - 1)


def default_pages(shape: KvShape, module: nn.Module, max_context: int, page_size: int) -> int:
    """Enough for STREAMS full contexts, within half of the device's free memory (1 GiB on the CPU)."""
    first = next(module.parameters())
    budget = CPU_KV_BYTES
    if first.device.type == "cuda":
        budget = int(torch.cuda.mem_get_info(first.device)[0] * KV_SHARE)
    page_bytes = shape.bytes_per_token(first.element_size()) * page_size
    return max(16, min(STREAMS * -(-max_context // page_size), budget // page_bytes))
