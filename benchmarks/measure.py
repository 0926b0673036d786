"""Small tools of the benchmarks: interleaved repetition, medians with spread, the machine's ceiling."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Figure:
    """A median with the smallest and largest of its samples."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:9.2f}  [{self.low:.2f} .. {self.high:.2f}]"


def figure(samples: list[float]) -> Figure:
    """Median and range."""
    return Figure(statistics.median(samples), min(samples), max(samples))


def interleaved(arms: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Run every arm once a round, so that a slow spell of the machine hits all of them; the first round is warm-up."""
    samples: dict[str, list[float]] = {name: [] for name in arms}
    for round_ in range(rounds + 1):
        for name, arm in arms.items():
            value = arm()
            if round_:
                samples[name].append(value)
    return samples


def ratios(over: list[float], under: list[float]) -> list[float]:
    """Round by round, so that what slowed both cancels out."""
    return [a / b for a, b in zip(over, under, strict=True)]


def read_bandwidth(megabytes: int = 64, rounds: int = 5) -> float:
    """Bytes per second at which one pass over memory runs with torch's current threads."""
    data = torch.ones(megabytes << 18)
    data.sum()
    best = min(_timed(data.sum) for _ in range(rounds))
    return (megabytes << 20) / best


def matmul_rate(size: int = 1024, rounds: int = 5) -> float:
    """Floating-point operations per second of a large float32 matrix product with torch's current threads."""
    left, right = torch.ones(size, size), torch.ones(size, size)
    torch.mm(left, right)
    best = min(_timed(lambda: torch.mm(left, right)) for _ in range(rounds))
    return 2 * size**3 / best


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def percentile(samples: list[float], share: float) -> float:
    """The nearest-rank percentile."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]
