"""Waiting for a condition that nothing tells of."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any

import anyio

PAUSE = 0.01


async def until(condition: Callable[[], Any], seconds: float = 15) -> None:
    """Wait for a condition, which may be async."""
    with anyio.fail_after(seconds):
        while True:
            held = condition()
            if await held if inspect.isawaitable(held) else held:
                return
            await anyio.sleep(PAUSE)


def wait_until(condition: Callable[[], bool], what: str = "it never happened", seconds: float = 30) -> None:
    """Wait for a condition in a thread that may block."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(PAUSE)
