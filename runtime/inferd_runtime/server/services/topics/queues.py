"""``queue.*``: each value that is pushed goes to one puller, first come, first served.

A value that was handed out and did not arrive (its puller was ended, or did not wait any more) goes back to the queue's head.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import anyio

from inferd.protocol import Done, InferdError, LimitExceeded, Unavailable
from inferd.protocol.topics import Pulled, PullValues, PushValues, check_pull, check_topic_name, check_values
from inferd_runtime.change_signal import ChangeSignal
from inferd_runtime.server.services.caller import Caller
from inferd_runtime.server.services.table import Handed, Handler
from inferd_runtime.server.services.topics.buffers import (
    HeldValue,
    MessageRoom,
    ValueBuffer,
    held_values,
    size_of,
    written_values,
)
from inferd_runtime.server.services.topics.kept_values import KeptValues


class QueueKey(NamedTuple):
    """A tenant, and a name of its: a durable queue is another than the one of the same name that is not."""

    tenant: str
    name: str
    durable: bool


@dataclass(eq=False)
class Puller:
    """A caller that waits for values."""

    most: int
    values: list[HeldValue] = field(default_factory=list)
    ready: anyio.Event = field(default_factory=anyio.Event)


@dataclass(eq=False)
class Queue:
    """A queue. Pure except for ``turn``, which pushers hold in the order in which they came.

    ``users``: callers that use it now, and replies that are not confirmed yet. ``loaded``: what is on disk is in the buffer.
    """

    key: QueueKey
    buffer: ValueBuffer = field(default_factory=ValueBuffer)
    pullers: deque[Puller] = field(default_factory=deque)
    turn: anyio.Lock = field(default_factory=anyio.Lock)
    signal: ChangeSignal = field(default_factory=ChangeSignal)
    loading: anyio.Lock = field(default_factory=anyio.Lock)
    users: int = 0
    loaded: bool = False

    def hand_out(self) -> bool:
        """Give values to those that wait, oldest first; returns whether any left."""
        left = 0
        while self.pullers and len(self.buffer):
            puller = self.pullers.popleft()
            puller.values = self.buffer.some(puller.most)
            left += self.buffer.drop(len(puller.values))
            puller.ready.set()
        return left > 0


class Queues:
    """All tenants' queues. ``kept`` has the durable ones on disk; None: there is no disk, and they are refused."""

    def __init__(self, room: MessageRoom, kept: KeptValues | None = None) -> None:
        self._room = room
        self._kept = kept
        self._queues: dict[QueueKey, Queue] = {}

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers."""
        return {"queue.push": self._push, "queue.pull": self._pull}

    def closed(self, caller: Caller) -> None:
        """Do nothing: what a caller waits for is cancelled, and what it did not get has been put back."""

    def idle(self, tenant: str) -> None:
        """Drop what is in a tenant's queues: it has no run and no script any more. The durable ones stay on disk."""
        for key, queue in list(self._queues.items()):
            if key.tenant == tenant and not queue.users:
                self._room.give(tenant, queue.buffer.size)
                self._remove(queue)

    async def _push(self, caller: Caller, request: PushValues) -> Done:
        check_topic_name(request.queue)
        check_values(request.values)
        values = held_values(request.values)
        queue = self._at(QueueKey(caller.tenant, request.queue, request.durable))
        try:
            if not request.wait and (queue.turn.locked() or not queue.buffer.has_room(values)):
                raise LimitExceeded("the queue has no room", limit="queue_room", raise_with="wait=True")
            async with queue.turn:
                await self._load(queue)
                while not queue.buffer.has_room(values):
                    await queue.signal.wait()
                await self._add(queue, values)
        finally:
            self._leave(queue)
        return Done()

    async def _pull(self, caller: Caller, request: PullValues) -> Handed:
        check_pull(request)
        queue = self._at(QueueKey(caller.tenant, request.queue, request.durable))
        puller = Puller(request.most)
        try:
            await self._load(queue)
            queue.pullers.append(puller)
            self._hand_out(queue)
            if request.wait:
                await puller.ready.wait()
        except BaseException:
            self._put_back(queue, puller.values)
            self._leave(queue)
            raise
        finally:
            if puller in queue.pullers:
                queue.pullers.remove(puller)
        return self._handed(queue, puller.values)

    def _handed(self, queue: Queue, values: Sequence[HeldValue]) -> Handed:
        """Return the reply that brings values. They count, and so does their puller, until the reply is confirmed or undone."""

        def undo() -> None:
            self._put_back(queue, values)
            self._leave(queue)

        def done() -> None:
            self._room.give(queue.key.tenant, size_of(values))
            if self._kept is not None and queue.key.durable:
                self._kept.drop([value.row for value in values])
            self._leave(queue)

        return Handed(Pulled(written_values(values)), undo, done)

    def _at(self, key: QueueKey) -> Queue:
        """Return a queue, which is there until it is left and empty. Raises LimitExceeded, Unavailable."""
        if key.durable and self._kept is None:
            raise Unavailable("durable queues need a server with a data directory")
        if key not in self._queues:
            self._room.take_name(key.tenant)
            self._queues[key] = Queue(key)
        queue = self._queues[key]
        queue.users += 1
        return queue

    def _leave(self, queue: Queue) -> None:
        queue.users -= 1
        if not queue.users and not len(queue.buffer):
            self._remove(queue)

    def _remove(self, queue: Queue) -> None:
        del self._queues[queue.key]
        self._room.give_name(queue.key.tenant)

    async def _load(self, queue: Queue) -> None:
        """Read what the disk has of a durable queue, once."""
        if self._kept is None or not queue.key.durable:
            return
        async with queue.loading:
            if not queue.loaded:
                values = await self._kept.values(queue.key.tenant, queue.key.name)
                self._room.take(queue.key.tenant, size_of(values))
                self._put(queue, values)
                queue.loaded = True

    async def _add(self, queue: Queue, values: Sequence[HeldValue]) -> None:
        """Put values into a queue that has room for them; into a durable one once they are on disk. Raises what refuses them."""
        tenant, size = queue.key.tenant, size_of(values)
        self._room.take(tenant, size)
        if self._kept is not None and queue.key.durable:
            try:
                with anyio.CancelScope(shield=True):  # what is on disk is in the queue
                    values = await self._kept.add(tenant, queue.key.name, values)
            except InferdError:
                self._room.give(tenant, size)
                raise
        self._put(queue, values)

    def _put(self, queue: Queue, values: Sequence[HeldValue]) -> None:
        """Put values, which are counted, into a queue."""
        queue.buffer.put(values)
        self._hand_out(queue)

    def _put_back(self, queue: Queue, values: Sequence[HeldValue]) -> None:
        """Put values back to the head, where they may be more than the queue has room for."""
        queue.buffer.put_back(values)
        self._hand_out(queue)

    def _hand_out(self, queue: Queue) -> None:
        if queue.hand_out():
            queue.signal.wake()
