"""How many operations a program or a script may have on their way at once, so that further ones wait instead of being refused."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from inferd.protocol import OPERATIONS, InferdError, LimitExceeded, ReceiveMessage
from inferd.protocol.ranges import check_number

T = TypeVar("T")
MOST_AT_ONCE = 896
"""Of 1,000 or more operations of any kind: others, which may wait for what the program does next, find room beside these."""
WAITS_FOR_OTHERS = ReceiveMessage.op  # type: ignore[attr-defined]
MOST_PAUSE_S = 86_400.0
MOST_AT_GATEWAY = 16
"""Of 64, and 8 MiB: so many of the largest ones leave room for others. A server of tools takes no more, either."""
SOON = frozenset((
    "note.put", "note.get", "note.delete", "topic.publish", "topic.subscribe", "topic.unsubscribe", "launch.send",
    "launch.cancel", "file.begin", "file.write", "file.read", "mcp.servers",
))  # fmt: skip
"""Operations of the gateway that wait neither for the program nor for others."""
OF_TOOL_SERVERS = ("mcp.connect", "mcp.list_", "mcp.call_", "mcp.read_", "mcp.get_")


class CallRoom:
    """Lets so many operations that are answered by themselves be on their way; further ones wait.

    None of them waits for one behind it, nor for what the program does meanwhile.
    """

    def __init__(self) -> None:
        self._rooms: dict[str, asyncio.Semaphore] = {}

    def of(self, request: Any) -> contextlib.AbstractAsyncContextManager[None]:
        """Return what to enter while a request is on its way."""
        op = type(request).op
        if op in OPERATIONS:
            return contextlib.nullcontext() if op == WAITS_FOR_OTHERS else self._room("", MOST_AT_ONCE)
        if op in SOON:
            return self._room("gateway", MOST_AT_GATEWAY)
        if op.startswith(OF_TOOL_SERVERS):
            return self._room(f"mcp {request.server}", MOST_AT_GATEWAY)
        return contextlib.nullcontext()

    def _room(self, name: str, most: int) -> asyncio.Semaphore:
        if name not in self._rooms:
            self._rooms[name] = asyncio.Semaphore(most)
        return self._rooms[name]


class LaunchLine:
    """Launches, some at a time. One that is refused for now waits for room, behind those that were refused before."""

    def __init__(self, most: int = MOST_AT_GATEWAY) -> None:
        self._room = asyncio.Semaphore(most)
        self._first = asyncio.Lock()
        self._last = -math.inf  # when one was started, in monotonic seconds

    async def launch(self, ask: Callable[[], Awaitable[T]], wait_s: float) -> T:
        """Return what ``ask`` returns. Where it raises LimitExceeded with ``retry_after_s``, ask again after so long, until for
        ``wait_s`` seconds no launch of the line has found room; then raise that.
        """
        check_number("wait_s", wait_s, 0, math.inf)
        called = time.monotonic()
        async with self._room:
            try:
                if wait_s <= 0 or not self._first.locked():
                    return await self._asked(ask)
            except LimitExceeded as error:
                if wait_s <= 0 or pause_of(error) is None:
                    raise
            async with self._first:
                return await self._in_turn(ask, called, wait_s)

    async def _in_turn(self, ask: Callable[[], Awaitable[T]], called: float, wait_s: float) -> T:
        while True:
            try:
                return await self._asked(ask)
            except LimitExceeded as error:
                pause = pause_of(error)
                if pause is None or time.monotonic() + pause > max(called, self._last) + wait_s:
                    raise
            await asyncio.sleep(pause)

    async def _asked(self, ask: Callable[[], Awaitable[T]]) -> T:
        started = await ask()
        self._last = time.monotonic()
        return started


def pause_of(error: InferdError) -> float | None:
    """Return after how many seconds to ask again; None where the error does not say so in any number that makes sense."""
    seconds = error.detail.get("retry_after_s")
    return float(seconds) if isinstance(seconds, (int, float)) and 0 <= seconds <= MOST_PAUSE_S else None
