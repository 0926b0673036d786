"""Checks of texts that a program hands in, and what it is told that handed in something else."""

from __future__ import annotations

from collections.abc import Coroutine

from inferd.protocol.errors import InvalidRequest


def kind_of(value: object) -> str:
    """Return the name of a value's type, and what to do with what somebody forgot to await."""
    name = type(value).__name__
    is_future = hasattr(value, "add_done_callback")  # without asyncio, whose import takes longer than the protocol's
    return f"{name}: await it first" if is_future or isinstance(value, Coroutine) else name


def checked_text(name: str, value: object) -> str:
    """Return a string. Raises InvalidRequest, which names the argument, for anything else."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a string, not {kind_of(value)}")
    return value
