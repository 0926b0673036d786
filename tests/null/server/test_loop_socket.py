"""A ZeroMQ socket in an event loop loses no message and no wake-up, whoever sends and receives at the same time."""

from __future__ import annotations

import asyncio
import itertools
import select
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import zmq

from inferd_runtime.server.supervisor.loop_socket import LoopSocket

COUNT = 5000
SECONDS = 30


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    with zmq.Context() as context:
        yield context


def pair(context: zmq.Context[Any], folder: Path, most: int = 1000) -> tuple[LoopSocket, zmq.Socket[bytes]]:
    """A loop's socket and a plain one at its other end; so many messages may wait on either side."""
    ends = []
    for join in (zmq.Socket.bind, zmq.Socket.connect):
        socket: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        socket.set_hwm(most)
        socket.setsockopt(zmq.LINGER, 0)
        join(socket, f"ipc://{folder}/pair")
        ends.append(socket)
    return LoopSocket(ends[0]), ends[1]


def echo(socket: zmq.Socket[bytes], count: int) -> threading.Thread:
    """Send back so many messages, from a thread."""

    def work() -> None:
        for _ in range(count):
            socket.send_multipart(socket.recv_multipart())

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def until_full(socket: LoopSocket) -> int:
    """Send until there is no room; return how many went."""
    for sent in itertools.count():
        try:
            socket.send_now([bytes(1 << 16)])
        except zmq.Again:
            return sent
    raise AssertionError


def has_news(socket: LoopSocket, seconds: float = SECONDS) -> bool:
    """True once something has come of which the socket's loop has not heard."""
    return bool(select.select([socket._descriptor], [], [], seconds)[0])


def fill(socket: LoopSocket) -> int:
    """Send until the system takes no more, either; return how many went."""
    sent = until_full(socket)
    while has_news(socket, 0.1):
        sent += until_full(socket)
    return sent


@pytest.mark.parametrize("most", [1000, 1], ids=["room for all", "room for one"])
async def test_who_waits_for_an_answer_gets_it_while_others_send(
    context: zmq.Context[Any], tmp_path: Path, most: int
) -> None:
    here, there = pair(context, tmp_path, most)
    thread = echo(there, COUNT)
    received = []

    async def read() -> None:
        received.extend([await here.receive() for _ in range(COUNT)])

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            for number in range(COUNT):
                await here.send([b"%d" % number, b"x"])
                if number % 7 == 0:
                    await anyio.lowlevel.checkpoint()
    assert received == [[b"%d" % number, b"x"] for number in range(COUNT)]
    thread.join()
    here.close()
    there.close()


async def test_a_full_socket_is_waited_for_or_told_at_once(context: zmq.Context[Any], tmp_path: Path) -> None:
    here, there = pair(context, tmp_path, 1)
    sent = until_full(here)
    sending = asyncio.ensure_future(here.send([b"last"]))
    await anyio.lowlevel.checkpoint()
    assert not sending.done()
    for _ in range(sent):
        await anyio.to_thread.run_sync(there.recv)
    with anyio.fail_after(SECONDS):
        await sending
    assert await anyio.to_thread.run_sync(there.recv) == b"last"
    here.close()
    there.close()


async def test_who_waits_for_room_is_woken_by_somebody_who_finds_nothing_to_receive(
    context: zmq.Context[Any], tmp_path: Path
) -> None:
    here, there = pair(context, tmp_path, 1)
    sent = fill(here)
    sending = asyncio.ensure_future(here.send([b"last"]))
    await anyio.lowlevel.checkpoint()
    assert not sending.done()
    for _ in range(sent):
        there.recv()
    assert has_news(here)
    receiving = here.receive()
    receiving.send(None)
    with anyio.fail_after(SECONDS):
        await sending
    receiving.close()
    here.close()
    there.close()


async def test_who_waits_for_a_message_is_woken_by_somebody_who_finds_no_room(
    context: zmq.Context[Any], tmp_path: Path
) -> None:
    here, there = pair(context, tmp_path, 1)
    fill(here)
    receiving = asyncio.ensure_future(here.receive())
    await anyio.lowlevel.checkpoint()
    there.send(b"first")
    assert has_news(here)
    assert until_full(here) == 0
    with anyio.fail_after(SECONDS):
        assert await receiving == [b"first"]
    here.close()
    there.close()


async def test_closing_ends_who_waits_with_an_error_and_cancels_no_group_of_tasks(
    context: zmq.Context[Any], tmp_path: Path
) -> None:
    here, there = pair(context, tmp_path, 1)
    ended: list[str] = []

    async def fill() -> None:
        while True:
            await here.send([b"x"])

    async def wait(use: Callable[[], Awaitable[Any]]) -> None:
        try:
            await use()
        except zmq.ZMQError:
            ended.append("error")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait, here.receive)
        tasks.start_soon(wait, fill)
        await anyio.lowlevel.checkpoint()
        here.close()
        here.close()
    assert ended == ["error", "error"]
    assert not tasks.cancel_scope.cancel_called
    there.close()
    assert here.closed
    with pytest.raises(zmq.ZMQError):
        await here.send([b"x"])
    there.close()


async def test_messages_are_handed_on_in_order_and_received_again_afterwards(
    context: zmq.Context[Any], tmp_path: Path
) -> None:
    here, there = pair(context, tmp_path)
    thread = echo(there, COUNT + 1)
    taken: list[list[bytes]] = []
    done = asyncio.Event()

    def take(frames: list[bytes]) -> None:
        taken.append(frames)
        if len(taken) == COUNT:
            here.deliver_to(None)
            done.set()

    with anyio.fail_after(SECONDS):
        here.deliver_to(take)
        for number in range(COUNT):
            await here.send([b"%d" % number])
        await done.wait()
        await here.send([b"last"])
        assert await here.receive() == [b"last"]
    assert taken == [[b"%d" % number] for number in range(COUNT)]
    thread.join()
    here.close()
    there.close()


async def test_what_waits_already_is_handed_on_at_once(context: zmq.Context[Any], tmp_path: Path) -> None:
    here, there = pair(context, tmp_path)
    there.send(b"early")
    with anyio.fail_after(SECONDS):
        assert await here.receive() == [b"early"]
        there.send(b"a")
        there.send(b"b")
        taken: asyncio.Queue[list[bytes]] = asyncio.Queue()
        here.deliver_to(taken.put_nowait)
        assert [await taken.get(), await taken.get()] == [[b"a"], [b"b"]]
    here.close()
    there.close()
