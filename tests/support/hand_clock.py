"""A clock that stands until a test moves it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class HandClock:
    """Returns ``now``."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now
