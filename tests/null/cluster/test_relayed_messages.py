"""A replica's end of the messages that the front has: what callers hear when the front is lost, and what it hears of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, cast

import anyio
import anyio.abc
import anyio.lowlevel
import msgspec
import pytest

from inferd.protocol import GATEWAY_OPERATIONS, LimitExceeded, Unavailable
from inferd.protocol.topics import PullValues, PushValues, Subscribe
from inferd_runtime.change_signal import ChangeSignal
from inferd_runtime.cluster.front.messages_relay import _ReplicaLink
from inferd_runtime.cluster.hop import FRONT_TENANT
from inferd_runtime.cluster.relayed import Answered, Ask, FrameOutbox, FromReplica, Gone, Received, Withdraw
from inferd_runtime.cluster.replica.relayed_messages import RelayedMessages
from inferd_runtime.server.gateway.auth import TENANT_KEY
from inferd_runtime.server.services.caller import Caller
from inferd_runtime.server.services.table import Handed
from inferd_runtime.server.services.topics.families import MESSAGE_OPERATIONS
from inferd_runtime.server.services.wires import JSON_WIRE

ANN = Caller("ann", "run-1")


class Front:
    """The front's end of a connection: the test reads what comes, and answers."""

    def __init__(self, relayed: RelayedMessages) -> None:
        self.scope = {"type": "websocket", TENANT_KEY: FRONT_TENANT}
        self._relayed = relayed
        self._said: deque[dict[str, Any]] = deque()
        self._heard: deque[FromReplica] = deque()
        self._changed = ChangeSignal()

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        self._accepted = task_status.started
        await self._relayed.serve(self)  # type: ignore[arg-type]

    async def accept(self) -> None:
        self._accepted()

    async def receive(self) -> dict[str, Any]:
        while not self._said:
            await self._changed.wait()
        return self._said.popleft()

    async def send_bytes(self, data: bytes) -> None:
        self._heard += msgspec.msgpack.decode(data, type=list[FromReplica])
        self._changed.wake()

    async def next(self) -> FromReplica:
        with anyio.fail_after(5):
            while not self._heard:
                await self._changed.wait()
        return self._heard.popleft()

    def answer(self, ask: FromReplica, payload: bytes = b"{}", *, ok: bool = True, receipt: bool = False) -> None:
        assert isinstance(ask, Ask)
        data = msgspec.msgpack.encode([Answered(ask.caller, ask.ticket, ok, payload, receipt)])
        self._say({"type": "websocket.receive", "bytes": data})

    def leave(self) -> None:
        self._say({"type": "websocket.disconnect"})

    def _say(self, message: dict[str, Any]) -> None:
        self._said.append(message)
        self._changed.wake()


class Asking:
    """An operation in a task of its own."""

    def __init__(
        self, tasks: anyio.abc.TaskGroup, relayed: RelayedMessages, request: Any, caller: Caller = ANN
    ) -> None:
        self.outcome: Any = None
        self.scope = anyio.CancelScope()
        self._call = relayed.operations()[request.op](caller, request)
        self._done = anyio.Event()
        tasks.start_soon(self._run)

    async def _run(self) -> None:
        with self.scope:
            try:
                self.outcome = await self._call
            except (Unavailable, LimitExceeded) as error:
                self.outcome = error
        self._done.set()

    async def result(self) -> Any:
        with anyio.fail_after(5):
            await self._done.wait()
        return self.outcome


async def in_a_group(body: Callable[[anyio.abc.TaskGroup, RelayedMessages], Any]) -> None:
    async with anyio.create_task_group() as tasks:
        await body(tasks, RelayedMessages())
        tasks.cancel_scope.cancel()


async def connected(tasks: anyio.abc.TaskGroup, relayed: RelayedMessages) -> Front:
    front = Front(relayed)
    await tasks.start(front.run)
    return front


def test_every_operation_of_topics_queues_and_notes_is_passed_on() -> None:
    shared = ("topic.", "queue.", "note.")
    assert set(MESSAGE_OPERATIONS) == {op for op in GATEWAY_OPERATIONS if op.startswith(shared)}


async def test_a_lost_front_is_told_once_to_who_had_something_there() -> None:
    async def body(tasks: anyio.abc.TaskGroup, relayed: RelayedMessages) -> None:
        front = await connected(tasks, relayed)
        subscribing = Asking(tasks, relayed, Subscribe("t"))
        front.answer(await front.next(), b'{"subscription":1}')
        assert JSON_WIRE.write(await subscribing.result()) == b'{"subscription":1}'
        durable, other = PushValues("q", [1], durable=True), Caller("ann", "run-2")
        pushing = Asking(tasks, relayed, durable, other)
        front.answer(await front.next())
        await pushing.result()
        front.leave()
        later = await connected(tasks, relayed)
        assert isinstance(await Asking(tasks, relayed, Subscribe("t")).result(), Unavailable)
        for request, caller in ((Subscribe("t"), ANN), (durable, other)):
            asking = Asking(tasks, relayed, request, caller)
            later.answer(await later.next())
            assert not isinstance(await asking.result(), Exception)

    await in_a_group(body)


async def test_what_is_open_when_the_front_is_lost_fails_and_that_is_all() -> None:
    async def body(tasks: anyio.abc.TaskGroup, relayed: RelayedMessages) -> None:
        front = await connected(tasks, relayed)
        pulling = Asking(tasks, relayed, PullValues("q"))
        await front.next()
        front.leave()
        assert isinstance(await pulling.result(), Unavailable)
        later = await connected(tasks, relayed)
        again = Asking(tasks, relayed, PullValues("q"))
        later.answer(await later.next(), b'{"values":[1]}', receipt=True)
        handed = await again.result()
        assert isinstance(handed, Handed)
        handed.done()
        assert isinstance(await later.next(), Received)

    await in_a_group(body)


async def test_a_caller_that_is_over_is_told_and_nothing_of_it_stays() -> None:
    async def body(tasks: anyio.abc.TaskGroup, relayed: RelayedMessages) -> None:
        front = await connected(tasks, relayed)
        pulling = Asking(tasks, relayed, PullValues("q"))
        ask = await front.next()
        pulling.scope.cancel()
        relayed.closed(ANN)
        assert await pulling.result() is None
        assert {type(await front.next()), type(await front.next())} == {Gone, Withdraw}
        front.answer(ask)
        refused = Asking(tasks, relayed, PullValues("q"), Caller("ann", "run-3"))
        error = LimitExceeded("too many", limit="topics")
        front.answer(await front.next(), JSON_WIRE.error(error), ok=False)
        assert (await refused.result()).detail["limit"] == "topics"
        assert not relayed._open

    await in_a_group(body)


async def test_without_a_front_operations_wait_and_then_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferd_runtime.cluster.replica.relayed_messages.LINK_SECONDS", 0.01)

    async def body(tasks: anyio.abc.TaskGroup, relayed: RelayedMessages) -> None:
        assert isinstance(await Asking(tasks, relayed, Subscribe("t")).result(), Unavailable)

    await in_a_group(body)


class Burst:
    """A connection on which one frame with many messages has come; at either end of it."""

    def __init__(self, messages: list[Any]) -> None:
        self._frame = msgspec.msgpack.encode(messages)
        self._next = anyio.Event()

    async def send(self, data: bytes) -> None:
        raise AssertionError("nothing is answered")

    send_bytes = send

    async def recv(self, *, decode: bool) -> bytes:
        data: bytes = (await self.receive())["bytes"]
        return data

    async def receive(self) -> Any:
        if self._next.is_set():
            raise EOFError
        self._next.set()
        return {"type": "websocket.receive", "bytes": self._frame}


@pytest.mark.parametrize("at_front", [True, False])
async def test_between_the_messages_of_a_frame_others_have_their_turn(at_front: bool) -> None:
    """Sessions of scripts that end together leave thousands in a few frames, which held the front's loop."""
    many, others = 300, [0]

    async def somebody_else() -> None:
        while True:
            others[0] += 1
            await anyio.lowlevel.checkpoint()

    async def serve() -> None:
        if at_front:
            await _ReplicaLink(cast(Any, None), "r", cast(Any, Burst([Gone(number) for number in range(many)]))).serve()
        else:
            link, relayed = FrameOutbox(), RelayedMessages()
            relayed._link = link
            await relayed._exchange(cast(Any, Burst([Answered(1, at, True, b"") for at in range(many)])), link)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(somebody_else)
        with pytest.raises(EOFError):
            await serve()
        tasks.cancel_scope.cancel()
    assert others[0] >= many
