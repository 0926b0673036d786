"""Evolution strategies over adapters: refused by name."""

from __future__ import annotations

from typing import Any, NoReturn

from inferlet.refused import refuse

REASON = "adapters are not trained here; load one that was trained elsewhere (Adapter.load)"


def adapter_seed(fwd: Any, seed: int) -> NoReturn:
    """Refuse."""
    refuse("zo.adapter_seed", REASON)


def initialize(
    adapter: Any, rank: int, alpha: float, population_size: int, mu_fraction: float, initial_sigma: float
) -> NoReturn:
    """Refuse."""
    refuse("zo.initialize", REASON)


def update(adapter: Any, scores: Any, seeds: Any, max_sigma: float) -> NoReturn:
    """Refuse."""
    refuse("zo.update", REASON)
