"""``topic.*`` and ``queue.*``: messages between the programs and scripts of one tenant. The gateway answers them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inferd.protocol.carrying import shown
from inferd.protocol.errors import InvalidRequest
from inferd.protocol.operations import Done, operation
from inferd.protocol.ranges import check_whole

MAX_TOPIC_NAME = 128
"""Characters of the name of a topic or queue."""
MAX_VALUES = 256
"""Values of one request or reply."""
MAX_VALUE_BYTES = 256 << 10
"""Bytes of one value as JSON."""


@dataclass(frozen=True)
class Published:
    """``subscribers``: how many get the values."""

    subscribers: int


@operation("topic.publish", Published, by_gateway=True)
@dataclass(frozen=True)
class PublishValues:
    """Send JSON values, in order, to all who subscribe to the topic now.

    With ``wait`` it is answered once each subscriber has room for them; else LimitExceeded, and none is sent, if one has not.
    """

    topic: str
    values: list[Any]
    wait: bool = True


@dataclass(frozen=True)
class Subscribed:
    """A subscription's handle."""

    subscription: int


@operation("topic.subscribe", Subscribed, by_gateway=True)
@dataclass(frozen=True)
class Subscribe:
    """Get all that is published on a topic from now on."""

    topic: str


@dataclass(frozen=True)
class TopicValues:
    """The next values of a subscription, in order."""

    values: list[Any]


@operation("topic.next", TopicValues, by_gateway=True)
@dataclass(frozen=True)
class NextValues:
    """Wait for values of a subscription; ``after`` is how many of them the caller has: the reply goes on behind these.

    What it has leaves the room that publishers wait for. Raises LimitExceeded when all values are read of a subscription that was
    ended because it kept a publisher waiting for too long.
    """

    subscription: int
    after: int


@operation("topic.unsubscribe", Done, by_gateway=True)
@dataclass(frozen=True)
class Unsubscribe:
    """End a subscription. One that is not there is none any more."""

    subscription: int


@operation("queue.push", Done, by_gateway=True)
@dataclass(frozen=True)
class PushValues:
    """Put JSON values at a queue's end, in order, all or none.

    With ``wait`` it is answered once there is room; else LimitExceeded if there is none. ``durable``: the queue is one that is
    kept on disk; it is another than the one of the same name that is not.
    """

    queue: str
    values: list[Any]
    wait: bool = True
    durable: bool = False


@dataclass(frozen=True)
class Pulled:
    """Values that nobody else gets. None, if the request did not want to wait and there were none."""

    values: list[Any]


@operation("queue.pull", Pulled, by_gateway=True)
@dataclass(frozen=True)
class PullValues:
    """Take up to ``most`` values from a queue's head: as many as are there; with ``wait``, at least one."""

    queue: str
    most: int = 1
    wait: bool = True
    durable: bool = False


def check_topic_name(name: object) -> None:
    """Raise InvalidRequest unless this may be the name of a topic or queue: text of 1 to ``MAX_TOPIC_NAME`` characters."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_TOPIC_NAME:
        raise InvalidRequest(f"a name must be text of 1 to {MAX_TOPIC_NAME} characters, not {shown(name)}")


def check_values(values: list[Any]) -> None:
    """Raise InvalidRequest unless a request may have so many values."""
    if not 0 < len(values) <= MAX_VALUES:
        raise InvalidRequest(f"values: 1 to {MAX_VALUES} at a time, not {len(values)}")


def check_pull(request: PullValues) -> None:
    """Raise InvalidRequest unless the request is in range."""
    check_topic_name(request.queue)
    check_whole("most", request.most, 1, MAX_VALUES)
