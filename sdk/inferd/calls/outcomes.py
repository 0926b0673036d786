"""Tasks whose errors somebody may not wait for."""

from __future__ import annotations

import asyncio
from typing import Any


def retrieve_error(task: asyncio.Future[Any]) -> None:
    """Retrieve the error of a task that has ended, so that asyncio does not log it. A done callback."""
    if not task.cancelled():
        task.exception()
