"""How many replicas a cluster should have, by what waits in them and how full their KV caches are. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

JOBS, KV_USE = "jobs", "kv_use"


@dataclass(frozen=True)
class ScalingTarget:
    """What one replica should have on average: so many runs and jobs, waiting ones included, and so full a cache (0 to 1)."""

    jobs: float = 16.0
    kv_use: float = 0.7


@dataclass(frozen=True)
class ReplicaDemand:
    """What one replica has now."""

    jobs: float = 0.0
    kv_use: float = 0.0


def wanted_replicas(demands: Collection[ReplicaDemand], target: ScalingTarget, least: int, most: int) -> int:
    """Return how many replicas would bring the average to the target, between ``least`` and ``most``."""
    by_jobs = sum(one.jobs for one in demands) / target.jobs
    by_cache = sum(one.kv_use for one in demands) / target.kv_use
    return min(max(ceil(max(by_jobs, by_cache) - 1e-9), least), most)


class LoadPolicy:
    """The policy that Ray Serve asks. Its arguments are a target's fields."""

    def __init__(self, jobs: float, kv_use: float) -> None:
        self._target = ScalingTarget(jobs, kv_use)

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Return how many replicas there should be, and what to remember: nothing."""
        figures: Mapping[str, Mapping[Any, float]] = context.aggregated_metrics or {}
        jobs, kv_use = figures.get(JOBS, {}), figures.get(KV_USE, {})
        demands = [ReplicaDemand(jobs.get(one, 0.0), kv_use.get(one, 0.0)) for one in context.running_replicas]
        least, most = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
        if len(demands) < context.current_num_replicas or not jobs:
            return context.target_num_replicas, {}
        return wanted_replicas(demands, self._target, least, most), {}
