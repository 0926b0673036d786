"""Checks of single fields: numbers in a range, lists of the right length. Each raises InvalidRequest, which names the field."""

from __future__ import annotations

from inferd.protocol.errors import InvalidRequest


def check_number(name: str, value: float, low: float, high: float) -> None:
    """Raises InvalidRequest unless ``value`` is a number from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise InvalidRequest(f"{name} must be a number from {low:g} to {high:g}, not {value!r}")


def check_whole(name: str, value: int, low: int, high: int | None = None) -> None:
    """Raises InvalidRequest unless ``value`` is a whole number from ``low`` to ``high`` (None: without end)."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        wanted = f"a whole number of at least {low}" if high is None else f"a whole number from {low} to {high}"
        raise InvalidRequest(f"{name} must be {low if low == high else wanted}, not {value!r}")


def check_one_each(name: str, what: str, given: int, count: int) -> None:
    """Raises InvalidRequest unless ``name`` holds one of ``what`` per token."""
    if given != count:
        raise InvalidRequest(f"{name} must hold one {what} for each of the {count} tokens, not {given}")
