"""Messages between the programs of a tenant: queues and topics. They are text in Pie; here any JSON value goes."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from inferd import queue
from inferd.program.json_values import to_json_value
from inferd.protocol.topics import NextValues, PublishValues, PushValues, Subscribe, Unsubscribe, check_topic_name
from inferd.transport import current_port
from inferlet.blocking import call, open_handle


def push(topic: str, message: Any) -> None:
    """Put a message at a queue's end: one program pulls it. Raises LimitExceeded where the queue is full."""
    check_topic_name(topic)
    call(current_port(), PushValues(topic, [to_json_value(message, "message")], wait=False))


async def pull(topic: str) -> Any:
    """Take the next message from a queue, once there is one."""
    return await queue.pull(topic)


def broadcast(topic: str, message: Any) -> None:
    """Send a message to all who subscribe at this moment.

    Raises LimitExceeded where one of them has no room; nobody gets it then.
    """
    check_topic_name(topic)
    call(current_port(), PublishValues(topic, [to_json_value(message, "message")], wait=False))


def subscribe(topic: str) -> Subscription:
    """Subscribe to a topic: from here on nothing is missed."""
    check_topic_name(topic)
    return Subscription(topic)


class Subscription:
    """An async iterator over what is broadcast. Made by :func:`subscribe`; ``with`` ends it."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._port = current_port()
        self._number: int | None = open_handle(self._port, Subscribe(topic)).subscription
        self._read = 0
        self._values: list[Any] = []

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Any:
        if not self._values:
            if self._number is None:
                raise StopAsyncIteration
            values = (await self._port.transport.call(NextValues(self._number, self._read))).values
            self._read += len(values)
            self._values += values
        return self._values.pop(0)

    def unsubscribe(self) -> None:
        """End the subscription. Safe to call twice."""
        self._values.clear()
        if self._number is not None:
            number, self._number = self._number, None
            call(self._port, Unsubscribe(number))

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unsubscribe()

    def __del__(self) -> None:
        number = getattr(self, "_number", None)
        if number is not None:
            self._port.abandon([Unsubscribe(number)])
