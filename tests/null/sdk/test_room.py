"""Calls that wait for one another instead of being refused: in the room of a transport, and in the line of launches."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from inferd import LimitExceeded
from inferd.protocol import GATEWAY_OPERATIONS
from inferd.protocol.mcp import CallMcpTool
from inferd.protocol.topics import PublishValues, PullValues
from inferd.transport.room import MOST_AT_GATEWAY, OF_TOOL_SERVERS, SOON, CallRoom, LaunchLine


class Server:
    """Has room for some runs, each of which ends by itself after a few turns of the event loop."""

    def __init__(self, room: int, detail: Mapping[str, float] | None = None) -> None:
        self.room = room
        self.detail = {"retry_after_s": 0.0} if detail is None else detail
        self.running = self.asked = self.at_once = self.most = 0
        self.started: list[int] = []

    async def launch(self, number: int) -> int:
        self.asked += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        if self.running >= self.room:
            error = LimitExceeded("full", limit="waiting")
            error.detail.update(self.detail)
            raise error
        self.running += 1
        self.started.append(number)
        return number

    async def end_each(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.running = max(self.running - 1, 0)


async def test_three_hundred_launches_wait_in_turn_for_a_server_with_room_for_four() -> None:
    server, line = Server(4), LaunchLine()
    ends = asyncio.create_task(server.end_each())
    launches = [line.launch(lambda n=n: server.launch(n), 60.0) for n in range(300)]  # type: ignore[misc]
    assert await asyncio.gather(*launches) == list(range(300))
    ends.cancel()
    assert server.started == sorted(server.started), "in the order in which they were asked for"
    assert server.most <= MOST_AT_GATEWAY


@pytest.mark.parametrize(
    ("detail", "wait_s"), [({}, 60.0), ({"retry_after_s": 0.0}, 0.0), ({"retry_after_s": 9.0}, 1.0)]
)
async def test_what_time_does_not_mend_in_time_is_refused_at_once(detail: Mapping[str, float], wait_s: float) -> None:
    server, line = Server(0, detail), LaunchLine()
    with pytest.raises(LimitExceeded, match="full"):
        await line.launch(lambda: server.launch(1), wait_s)
    assert server.asked <= 2
    server.room = 1
    assert await line.launch(lambda: server.launch(2), wait_s) == 2


async def test_launches_without_hope_end_together_and_not_one_after_the_other() -> None:
    """Of forty children that never end, each one beyond the fifth waited out the whole time after the one before it."""
    server, line = Server(0, {"retry_after_s": 0.01}), LaunchLine(8)
    launches = [line.launch(lambda n=n: server.launch(n), 0.2) for n in range(40)]  # type: ignore[misc]
    async with asyncio.timeout(4):  # one after the other it is 8
        outcomes = await asyncio.gather(*launches, return_exceptions=True)
    assert all(isinstance(outcome, LimitExceeded) for outcome in outcomes)


async def test_a_launch_that_is_cancelled_in_the_line_leaves_it_to_the_next() -> None:
    server, line = Server(0), LaunchLine()
    first, second = (asyncio.create_task(line.launch(lambda n=n: server.launch(n), 60.0)) for n in (1, 2))  # type: ignore[misc]
    for _ in range(20):
        await asyncio.sleep(0)
    assert server.asked > 4, "the first asks again and again"
    first.cancel()
    await asyncio.wait([first])
    server.room = 1
    assert await second == 2


async def most_at_once(room: CallRoom, request: object, count: int) -> int:
    inside = most = 0

    async def call() -> None:
        nonlocal inside, most
        async with room.of(request):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(call() for _ in range(count)))
    return most


async def test_many_operations_of_the_gateway_wait_for_one_another_and_hold_nobody_up_that_waits_for_them() -> None:
    """100 values on 100 topics, and 100 calls of a tool, failed with "64 such operations are in flight already"."""
    room = CallRoom()
    assert await most_at_once(room, PublishValues("t", [1]), 100) == MOST_AT_GATEWAY
    assert await most_at_once(room, CallMcpTool("notes", "add", {}), 100) == MOST_AT_GATEWAY
    assert await most_at_once(room, PullValues("q", 1), 100) == 100, (
        "what it waits for may be what the program does next"
    )
    async with asyncio.timeout(60):
        for _ in range(MOST_AT_GATEWAY):
            await room.of(CallMcpTool("slow", "add", {})).__aenter__()
        async with room.of(CallMcpTool("quick", "add", {})), room.of(PublishValues("t", [1])):
            pass


def test_the_operations_that_wait_for_room_are_there() -> None:
    assert set(GATEWAY_OPERATIONS) >= SOON
    assert all(any(op.startswith(head) for op in GATEWAY_OPERATIONS) for head in OF_TOOL_SERVERS)
    of_servers = [kind for op, kind in GATEWAY_OPERATIONS.items() if op.startswith(OF_TOOL_SERVERS)]
    assert all("server" in kind.__dataclass_fields__ for kind in of_servers)
