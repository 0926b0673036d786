"""How many operations a program or a script may have asked the engine for at once."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from inferd.protocol import OPERATIONS, ReceiveMessage

MOST_AT_ONCE = 896
"""Of 1,000 or more operations of any kind: others, which may wait for what the program does next, find room beside these."""
WAITS_FOR_OTHERS = ReceiveMessage.op  # type: ignore[attr-defined]


class CallRoom:
    """Lets so many operations that the engine answers be on their way; further ones wait.

    The engine answers each by itself, so that none waits for one behind it.
    """

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(MOST_AT_ONCE)

    def of(self, request: Any) -> contextlib.AbstractAsyncContextManager[None]:
        """Return what to enter while a request is on its way."""
        op = type(request).op
        return contextlib.nullcontext() if op not in OPERATIONS or op == WAITS_FOR_OTHERS else self._room
