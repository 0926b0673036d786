"""The ceilings of a device: what a copy moves, and what a matrix product brings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from gpu_bench import Bench, Budget, Report
from measure import interleaved


@dataclass(frozen=True)
class Ceilings:
    """``bandwidth`` in bytes per second, read and written; ``rate`` in floating-point operations per second."""

    bandwidth: float
    rate: float


def measure_ceilings(bench: Bench, report: Report, budget: Budget) -> Ceilings:
    """A device-to-device copy of a few gigabytes, and a square product of random matrices in the model's dtype.

    On an H200: 8.6 GB read and written, 2 ms; 1.1 TFLOP, 1.4 ms: less than a second for all rounds.
    """
    sizes = bench.sizes
    source = torch.randint(2**62, (sizes.copy_bytes // 8,), device=bench.device)
    target = torch.empty_like(source)
    left, right = (torch.randn(sizes.product, sizes.product, device=bench.device).to(sizes.dtype) for _ in range(2))
    copy, product = bench.arm(lambda: target.copy_(source)), bench.arm(lambda: torch.mm(left, right))
    samples = interleaved({"copy": copy, "product": product}, bench.rounds)
    bandwidth = report.add("copy_tb_s", [2 * sizes.copy_bytes / seconds / 1e12 for seconds in samples["copy"]])
    rate = report.add("matmul_tflop_s", [2 * sizes.product**3 / seconds / 1e12 for seconds in samples["product"]])
    print(f"ceilings: copy {bandwidth} TB/s read and written; {sizes.dtype} product {rate} TFLOP/s, random data")
    return Ceilings(bandwidth.median * 1e12, rate.median * 1e12)
