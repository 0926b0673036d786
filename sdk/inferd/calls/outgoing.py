"""Values on their way to one place: those that come while a request is under way go together with the next one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from inferd.calls.outcomes import retrieve_error
from inferd.program.json_values import is_carried, to_json_value
from inferd.protocol import InvalidRequest, LimitExceeded
from inferd.protocol.topics import MAX_VALUE_BYTES, MAX_VALUES

Send = Callable[[list[Any]], Awaitable[Any]]


class _Batch:
    def __init__(self) -> None:
        self.values: list[Any] = []
        self.size = 0
        self.task: asyncio.Task[Any] | None = None

    def takes(self, size: int) -> bool:
        return len(self.values) < MAX_VALUES and self.size + size <= MAX_VALUE_BYTES


class Outgoing:
    """Sends values in the order in which they came. ``send`` is called with some of them at a time, by one task at a time."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._under_way: asyncio.Future[Any] | None = None
        self._gathering: _Batch | None = None

    async def put(self, value: Any) -> Any:
        """Send a value; returns the reply to the request that it went with.

        Where this is cancelled, a value that others went with is sent all the same. Raises ProgramError for what JSON cannot
        hold.
        """
        plain = to_json_value(value, "value")
        size = size_in_json(plain)
        if self._under_way is None:
            return await self._sent_alone(plain)
        return await asyncio.shield(self._joined(plain, size))

    async def _sent_alone(self, value: Any) -> Any:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way = done
        try:
            return await self._send([value])
        finally:
            done.set_result(None)
            if self._under_way is done:
                self._under_way = None

    def _joined(self, value: Any, size: int) -> asyncio.Task[Any]:
        batch = self._gathering
        if batch is None or batch.task is None or not batch.takes(size):
            batch = self._gathering = _Batch()
            batch.task = asyncio.get_running_loop().create_task(self._sent_next(batch, self._under_way))
            batch.task.add_done_callback(retrieve_error)  # all who waited may have been cancelled
            self._under_way = batch.task
        assert batch.task is not None
        batch.values.append(value)
        batch.size += size
        return batch.task

    async def _sent_next(self, batch: _Batch, before: asyncio.Future[Any] | None) -> Any:
        try:
            if before is not None:
                await asyncio.wait([before])
            if self._gathering is batch:
                self._gathering = None
            return await self._send(batch.values)
        finally:
            if self._under_way is batch.task:
                self._under_way = None


def size_in_json(value: Any) -> int:
    """Return the bytes that a plain value takes as JSON. Raises LimitExceeded if these are more than it may have, InvalidRequest
    for what no message carries.
    """
    if not is_carried(value):
        raise InvalidRequest("value: an integer is beyond 64 bits, or a text has half a surrogate pair in it")
    size = len(json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode())
    if size > MAX_VALUE_BYTES:
        text = f"a value takes {size} bytes as JSON; {MAX_VALUE_BYTES} are allowed"
        raise LimitExceeded(text, limit="value_bytes", value=MAX_VALUE_BYTES, raise_with="several values")
    return size
