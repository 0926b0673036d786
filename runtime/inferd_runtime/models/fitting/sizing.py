"""Defaults for the numbers of threads and KV pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferd_runtime.models.fitting.cores import usable_cores

if TYPE_CHECKING:
    from torch import nn

SMALL_MODEL = 30_000_000
KV_SHARE = 0.5
DEVICE_KV_SHARE = 0.9
CPU_KV_BYTES = 1 << 30
STREAMS = 64
LEAST_PAGES = 16


def default_threads(module: nn.Module) -> int:
    """Return one thread for a small model, where more of them bring little; else all but one of the usable cores.

    Threads wait for the slowest of them in every product: with a thread on every core, a busy neighbour (the gateway, a
    program) makes a step many times slower. Measured in docs/benchmarks.md; not at load, when the machine is still idle.
    """
    parameters = sum(parameter.numel() for parameter in module.parameters())
    return 1 if parameters < SMALL_MODEL else max(1, usable_cores() - 1)


def kv_budget(device: str, free: int) -> int:
    """Return the bytes for the KV pages of a device with ``free`` bytes: on the CPU half of them, at most 1 GiB.

    Elsewhere nearly all, because what steps need was measured and is not among them.
    """
    return min(int(free * KV_SHARE), CPU_KV_BYTES) if device == "cpu" else int(free * DEVICE_KV_SHARE)


def default_pages(page_bytes: int, max_context: int, page_size: int, budget: int) -> int:
    """Return pages enough for STREAMS full contexts, within ``budget`` bytes, but never fewer than LEAST_PAGES."""
    return max(LEAST_PAGES, min(STREAMS * -(-max_context // page_size), budget // page_bytes))
