"""What crosses a wall about drawing a token."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sampling:
    """How one token is drawn. Processors run in field order: temperature, top_k, top_p, min_p.

    ``temperature == 0`` is argmax. ``top_k == 0``, ``top_p == 1`` and ``min_p == 0`` are off. The same ``seed``
    draws the same tokens, whatever speculation or batching does; ``None`` lets the engine pick one.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
