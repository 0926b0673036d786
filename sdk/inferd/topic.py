"""Broadcast between the programs and scripts of a tenant.

async with topic.subscribe("news") as news:     # from here on nothing is missed
    async for value in news:
        ...

await topic.publish("news", {"any": "JSON value"})
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from typing import Any, Self

from inferd.calls.outgoing import Outgoing
from inferd.protocol import NotFound
from inferd.protocol.topics import NextValues, PublishValues, Subscribe, Unsubscribe, check_topic_name
from inferd.transport import current_port

__all__ = ["Subscription", "publish", "subscribe"]


async def publish(name: str, value: Any, *, wait: bool = True) -> int:
    """Send a JSON value to all who subscribe to ``name`` at this moment; returns how many they are.

    Values of one program arrive in the order in which it publishes them. Returns once every subscriber has room for the
    value; with ``wait=False`` LimitExceeded is raised where one has none, and nobody gets it. What several tasks publish at a
    time goes out together.
    """
    check_topic_name(name)
    port = current_port()

    async def send(values: list[Any]) -> int:
        subscribers: int = (await port.transport.call(PublishValues(name, values, wait))).subscribers
        return subscribers

    count: int = await port.shared.setdefault(("topic", name, wait), Outgoing(send)).put(value)
    return count


def subscribe(name: str) -> Subscription:
    """Return a subscription: an async iterator over what is published on ``name`` while it is open.

    It opens with ``async with``, or with the first value that is asked for, and is closed at the end of the block. Read it: it
    holds about a thousand values, or 1 MiB, and then whoever publishes has to wait; after a minute of that it is ended, and
    raises LimitExceeded behind what it holds.
    """
    check_topic_name(name)
    return Subscription(name)


class Subscription:
    """Made by :func:`subscribe`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._port = current_port()
        self._number: int | None = None
        self._closed = False
        self._read = 0
        self._values: deque[Any] = deque()
        self._turn = asyncio.Lock()
        self._finalizer: Any = None

    async def __aenter__(self) -> Self:
        async with self._turn:
            await self._opened()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        """Return the next value, once there is one. A cancelled call loses none."""
        async with self._turn:
            while not self._values:
                if self._closed:
                    raise StopAsyncIteration
                values = await self._next_values()
                self._read += len(values)
                self._values.extend(values)
            return self._values.popleft()

    async def _next_values(self) -> list[Any]:
        number = await self._opened()
        try:
            values: list[Any] = (await self._port.transport.call(NextValues(number, self._read))).values
        except NotFound:
            if not self._closed:
                raise
            raise StopAsyncIteration from None  # closed by another task meanwhile
        return values

    async def aclose(self) -> None:
        """End the subscription. What it has received and nobody has read is dropped."""
        self._closed = True
        self._values.clear()
        if self._number is not None:
            number, self._number = self._number, None
            self._finalizer.detach()
            await self._port.transport.call(Unsubscribe(number))

    async def _opened(self) -> int:
        if self._number is None:
            await self._port.release_abandoned()
            self._number = (await self._port.transport.call(Subscribe(self.name))).subscription
            self._finalizer = weakref.finalize(self, self._port.abandon, [Unsubscribe(self._number)])
        return self._number
