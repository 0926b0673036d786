"""Pie's market for pages. Here time is shared between tenants by its own rules, and nothing is bought."""

from __future__ import annotations

from inferlet.context import Context
from inferlet.model import Model

BALANCE = 1e9
"""Credits that never become fewer."""


def balance(model: Model | None = None) -> float:
    """Return BALANCE: nothing is ever paid."""
    return BALANCE


def rent(ctx: Context) -> float:
    """Return 0: pages cost nothing."""
    return 0.0


def dividend(model: Model | None = None) -> float:
    """Return 0: nothing is paid out."""
    return 0.0


def latency(ctx: Context) -> float:
    """Return 0: the runtime tells no estimate."""
    return 0.0


def price() -> float:
    """Return 0: pages cost nothing."""
    return 0.0
