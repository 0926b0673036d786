"""``topic.*``: each value that is published goes to all who subscribe at that moment, in the order of each publisher.

A slow subscriber slows publishers down: a value is published once every subscriber has room for it. One that has kept a publisher
waiting for ``SLOW_SECONDS`` is ended; it reads what it has, and then an error says why. Nothing is dropped without a word.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import anyio

from inferd.protocol import Done, InferdError, InvalidRequest, LimitExceeded, NotFound
from inferd.protocol.topics import (
    NextValues,
    Published,
    PublishValues,
    Subscribe,
    Subscribed,
    TopicValues,
    Unsubscribe,
    check_topic_name,
    check_values,
)
from inferd_runtime.change_signal import ChangeSignal
from inferd_runtime.server.services.caller import Caller
from inferd_runtime.server.services.table import Handler
from inferd_runtime.server.services.topics.buffers import (
    HeldValue,
    MessageRoom,
    ValueBuffer,
    held_values,
    size_of,
    written_values,
)

SLOW_SECONDS = 60.0
MAX_SUBSCRIPTIONS = 64
"""Of one caller."""
MAX_SUBSCRIBERS = 256
"""Of one topic."""
Key = tuple[str, str]
"""A tenant, and a name of its."""


@dataclass(eq=False)
class Subscription:
    """One subscriber's view of a topic."""

    number: int
    topic: Topic
    buffer: ValueBuffer = field(default_factory=ValueBuffer)
    signal: ChangeSignal = field(default_factory=ChangeSignal)
    full_since: float = math.inf
    """When a publisher first had to wait for it, since it was last read."""
    error: InferdError | None = None
    reads: int = 0
    """How often it was read: of several reads at a time only the last one goes on."""

    def read(self, after: int) -> int:
        """Forget the values before index ``after``; returns their bytes. Raises InvalidRequest for what was never read."""
        count = after - self.buffer.first
        if not 0 <= count <= len(self.buffer):
            first = self.buffer.first
            raise InvalidRequest(f"after must be {first} to {first + len(self.buffer)}, not {after}")
        if count:
            self.full_since = math.inf
        return self.buffer.drop(count)


@dataclass(eq=False)
class Topic:
    """The subscribers of a name. Pure except for ``turn``, which publishers hold in the order in which they came."""

    key: Key
    subscribers: dict[int, Subscription] = field(default_factory=dict)
    turn: anyio.Lock = field(default_factory=anyio.Lock)
    signal: ChangeSignal = field(default_factory=ChangeSignal)

    def has_room(self, values: Sequence[HeldValue]) -> bool:
        """Return True if every subscriber has room."""
        return all(one.buffer.has_room(values) for one in self.subscribers.values())

    def wait_for(self, values: Sequence[HeldValue], now: float) -> None:
        """Note that a publisher begins to wait for those that have no room, unless one did before."""
        for one in self.subscribers.values():
            if not one.buffer.has_room(values):
                one.full_since = min(one.full_since, now)

    def put(self, values: Sequence[HeldValue]) -> None:
        """Give values to all subscribers."""
        for one in self.subscribers.values():
            one.buffer.put(values)
            one.signal.wake()

    def patience(self, now: float) -> float:
        """Return the seconds until the first of those that are waited for has been too slow."""
        return max(min(one.full_since for one in self.subscribers.values()) + SLOW_SECONDS - now, 0.0)

    def end_slow(self, now: float) -> None:
        """End the subscriptions that were waited for too long."""
        for one in list(self.subscribers.values()):
            if one.full_since + SLOW_SECONDS <= now:
                del self.subscribers[one.number]
                text = f"a publisher waited {SLOW_SECONDS:g} s for the subscription to be read: it was ended"
                one.error = LimitExceeded(
                    text, limit="slow_subscriber_s", value=SLOW_SECONDS, raise_with="reading faster"
                )
                one.signal.wake()


class Topics:
    """All tenants' topics."""

    def __init__(self, room: MessageRoom, clock: Callable[[], float] = time.monotonic) -> None:
        self._room = room
        self._clock = clock
        self._topics: dict[Key, Topic] = {}
        self._numbers = itertools.count(1)
        self._of_caller: defaultdict[Caller, dict[int, Subscription]] = defaultdict(dict)

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers."""
        return {
            "topic.publish": self._publish,
            "topic.subscribe": self._subscribe,
            "topic.next": self._next,
            "topic.unsubscribe": self._unsubscribe,
        }

    def closed(self, caller: Caller) -> None:
        """End a caller's subscriptions."""
        for subscription in self._of_caller.pop(caller, {}).values():
            self._end(subscription)

    async def _publish(self, caller: Caller, request: PublishValues) -> Published:
        check_topic_name(request.topic)
        check_values(request.values)
        values = held_values(request.values)
        topic = self._topics.get((caller.tenant, request.topic))
        if topic is None:
            return Published(0)
        if not request.wait and (topic.turn.locked() or not topic.has_room(values)):
            raise LimitExceeded("a subscriber has no room", limit="subscriber_room", raise_with="wait=True")
        async with topic.turn:
            while not topic.has_room(values):
                topic.wait_for(values, self._clock())
                with anyio.move_on_after(topic.patience(self._clock())):
                    await topic.signal.wait()
                topic.end_slow(self._clock())
            self._room.take(caller.tenant, size_of(values) * len(topic.subscribers))
            topic.put(values)
            return Published(len(topic.subscribers))

    async def _subscribe(self, caller: Caller, request: Subscribe) -> Subscribed:
        check_topic_name(request.topic)
        if len(self._of_caller[caller]) >= MAX_SUBSCRIPTIONS:
            text = f"{MAX_SUBSCRIPTIONS} subscriptions are open already"
            raise LimitExceeded(text, limit="subscriptions", value=MAX_SUBSCRIPTIONS, raise_with="fewer at a time")
        topic = self._opened((caller.tenant, request.topic))
        if len(topic.subscribers) >= MAX_SUBSCRIBERS:
            text = f"{MAX_SUBSCRIBERS} subscribe to the topic already"
            raise LimitExceeded(text, limit="subscribers", value=MAX_SUBSCRIBERS, raise_with="several topics")
        one = Subscription(next(self._numbers), topic)
        topic.subscribers[one.number] = self._of_caller[caller][one.number] = one
        return Subscribed(one.number)

    async def _next(self, caller: Caller, request: NextValues) -> TopicValues:
        one = self._find(caller, request.subscription)
        size = one.read(request.after)
        one.reads = this = one.reads + 1
        one.signal.wake()
        if size:
            self._room.give(caller.tenant, size)
            one.topic.signal.wake()
        while not len(one.buffer):
            if one.error is not None:
                raise one.error
            await one.signal.wait()
            self._find(caller, one.number)
            if one.reads != this:
                raise InvalidRequest("the subscription is read by another call meanwhile")
        return TopicValues(written_values(one.buffer.some()))

    async def _unsubscribe(self, caller: Caller, request: Unsubscribe) -> Done:
        one = self._of_caller[caller].pop(request.subscription, None)
        if one is not None:
            self._end(one)
        return Done()

    def _find(self, caller: Caller, number: int) -> Subscription:
        found = self._of_caller[caller].get(number)
        if found is None:
            raise NotFound(f"no subscription {number}")
        return found

    def _opened(self, key: Key) -> Topic:
        if key not in self._topics:
            self._room.take_name(key[0])
            self._topics[key] = Topic(key)
        return self._topics[key]

    def _end(self, one: Subscription) -> None:
        topic = one.topic
        topic.subscribers.pop(one.number, None)
        self._room.give(topic.key[0], one.buffer.size)
        one.signal.wake()
        topic.signal.wake()
        if not topic.subscribers and self._topics.get(topic.key) is topic:
            del self._topics[topic.key]
            self._room.give_name(topic.key[0])
