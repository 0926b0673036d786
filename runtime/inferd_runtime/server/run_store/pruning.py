"""What a store of finished runs, or of responses, forgets of a tenant's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inferd_runtime.server.tenancy.quotas import Quotas


@dataclass(frozen=True)
class Pruned:
    """The keys of what goes, with its bytes, and how much stays."""

    forgotten: list[Any]
    forgotten_size: int
    count: int
    size: int


def split_kept(rows: Sequence[tuple[Any, int]], quotas: Quotas, oldest: int = 0) -> Pruned:
    """Return what of a tenant's goes: the ``oldest`` so many, and what is beyond its quotas, except its newest.

    ``rows``: key and size of each, newest first.
    """
    total, stays = 0, 0
    for place, (_, size) in enumerate(rows):
        total += size
        too_many = quotas.kept_runs and place >= quotas.kept_runs
        too_large = quotas.kept_bytes and total > quotas.kept_bytes
        if place >= len(rows) - oldest or (place and (too_many or too_large)):
            break
        stays = place + 1
    kept = sum(size for _, size in rows[:stays])
    gone = rows[stays:]
    return Pruned([key for key, _ in gone], sum(size for _, size in gone), stays, kept)
