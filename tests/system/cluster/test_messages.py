"""Messages between programs and scripts on two replicas, which the front has; launches that programs make, which it counts."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest
from waiting import until
from websockets.asyncio.client import ClientConnection, connect

from inferd import mcp
from inferd.transport.websocket import Connection
from inferd_runtime.cluster.hop import hop_authorization
from inferd_runtime.server.tenancy.tokens import TokenRights

from .conftest import ANN, BOB, EVE, KEY, Cluster, Process

pytestmark = pytest.mark.usefixtures("two_replicas")
WAITS = "import worker\nasync def main():\n    return await worker.receive()\n"


class Script:
    """A script's session. ``at`` is its replica."""

    def __init__(self, socket: ClientConnection, at: Process) -> None:
        self.at = at
        self._socket = socket
        self._tickets = itertools.count(1)

    async def ask(self, op: str, *, confirm: bool = True, **arguments: Any) -> Any:
        """The reply to an operation, or the code of its error and what limit it says."""
        await self.send(op, **arguments)
        return await self.answer(confirm=confirm)

    async def send(self, op: str, **arguments: Any) -> None:
        await self._socket.send(msgspec.msgpack.encode({"t": next(self._tickets), "op": op, "a": arguments}))

    async def answer(self, *, confirm: bool = True) -> Any:
        with anyio.fail_after(20):
            said = msgspec.msgpack.decode(await self._socket.recv())
        if said.get("r") and confirm:
            await self._socket.send(msgspec.msgpack.encode({"t": said["t"], "op": "received", "a": {}}))
        return said["ok"] if "ok" in said else (said["err"]["code"], said["err"]["detail"].get("limit"))


@asynccontextmanager
async def script(cluster: Cluster, token: str = ANN) -> AsyncIterator[Script]:
    assert cluster.front is not None
    before = await cluster.starts()
    url = "ws" + cluster.front.url.removeprefix("http") + "/v1/session"
    async with connect(url, additional_headers={"Authorization": f"Bearer {token}"}, proxy=None) as socket:
        after = await cluster.starts()
        at = max(before, key=lambda name: after[name] - before[name])
        yield Script(socket, cluster.replicas[at])


@asynccontextmanager
async def two(cluster: Cluster, token: str = ANN) -> AsyncIterator[tuple[Script, Script]]:
    """Scripts on two replicas. Those of one tenant go to one replica, until it has some more than the other."""
    async with AsyncExitStack() as held:
        one = other = await held.enter_async_context(script(cluster, token))
        while other.at is one.at:
            other = await held.enter_async_context(script(cluster, token))
        yield one, other


async def test_who_subscribes_on_one_replica_gets_what_is_published_on_the_other(cluster: Cluster) -> None:
    async with two(cluster) as (reader, writer), script(cluster, BOB) as stranger:
        number = (await reader.ask("topic.subscribe", topic="t"))["subscription"]
        for at in range(20):
            assert await writer.ask("topic.publish", topic="t", values=[at, {"n": at}]) == {"subscribers": 1}
        assert await stranger.ask("topic.publish", topic="t", values=["x"]) == {"subscribers": 0}
        assert (await stranger.ask("topic.next", subscription=number, after=0))[0] == "client.not_found"
        got: list[Any] = []
        while len(got) < 40:
            got += (await reader.ask("topic.next", subscription=number, after=len(got)))["values"]
        assert got == [value for at in range(20) for value in (at, {"n": at})]
        assert (await writer.ask("queue.push", queue="", values=[1]))[0] == "client.invalid"


async def test_a_value_goes_to_one_puller_and_comes_again_if_that_one_is_lost(cluster: Cluster) -> None:
    async with two(cluster) as (pusher, puller):
        await puller.send("queue.pull", queue="q")
        await pusher.ask("queue.push", queue="q", values=["a", "b"])
        assert (await puller.answer(confirm=False))["values"] == ["a"]
        await cluster.kill(puller.at)
        got = [await pusher.ask("queue.pull", queue="q") for _ in range(2)]
        assert [value for one in got for value in one["values"]] == ["a", "b"]
        assert (await pusher.ask("queue.pull", queue="q", wait=False))["values"] == []


async def test_one_who_does_not_wait_any_more_gets_nothing_for_good(cluster: Cluster) -> None:
    async with two(cluster) as (pusher, puller):
        await puller.send("queue.pull", queue="w")
        await puller._socket.send(msgspec.msgpack.encode({"t": 1, "op": "cancel", "a": {}}))
        assert (await puller.answer())[0] == "cancelled"
        await pusher.ask("queue.push", queue="w", values=[1])
        assert (await pusher.ask("queue.pull", queue="w"))["values"] == [1]


async def test_a_front_that_was_killed_has_the_durable_values_and_says_that_others_are_lost(cluster: Cluster) -> None:
    assert cluster.front is not None
    await cluster.upload(WAITS, "waits")
    run = await cluster.launch("waits")
    async with script(cluster) as one:
        await one.ask("queue.push", queue="kept", values=[1, 2], durable=True)
    await cluster.front.kill()
    await cluster.start_front()
    async with two(cluster) as (one, other):
        assert (await one.ask("queue.pull", queue="kept", durable=True, most=9))["values"] == [1, 2]
        assert (await other.ask("queue.pull", queue="kept", durable=True, wait=False))["values"] == []
    await cluster.client.post(f"/v1/runs/{run['id']}/messages", json={"message": 5})
    assert (await cluster.finished(run["id"]))["result"] == 5


async def test_what_nobody_pulled_is_gone_with_the_tenants_last_run_or_script(cluster: Cluster) -> None:
    async with script(cluster, BOB) as one:
        await one.ask("queue.push", queue="left", values=[1])

    async def is_empty() -> bool:
        async with script(cluster, BOB) as later:
            found = await later.ask("queue.pull", queue="left", wait=False, confirm=False)
            return bool(found["values"] == [])  # what it found goes back when it leaves

    await until(is_empty)


async def test_tools_that_a_script_offers_are_found_and_called_from_the_other_replica(cluster: Cluster) -> None:
    async with two(cluster) as (owner, user), script(cluster, BOB) as stranger:
        await owner.ask("mcp.offer", server="desk")
        await owner.ask("mcp.offer", server="own", run="run-1")
        assert (await user.ask("mcp.servers"))["servers"] == ["desk"]
        assert (await stranger.ask("mcp.servers"))["servers"] == []
        assert (await user.ask("mcp.offer", server="desk"))[0] == "client.invalid"
        for caller, server in ((stranger, "desk"), (user, "own"), (user, "none")):
            assert (await caller.ask("mcp.list_tools", server=server))[0] == "client.not_found"
        await user.send("mcp.call_tool", server="desk", tool="add", arguments={"a": [1, {}]}, timeout_s=20.0)
        call = await owner.ask("mcp.next_call", server="desk")
        assert (call["op"], call["request"]["arguments"]) == ("mcp.call_tool", {"a": [1, {}]})
        reply = {"content": [], "structured": 3, "is_error": False}
        await owner.ask("mcp.answer", server="desk", number=call["number"], reply=reply)
        assert await user.answer() == reply
        await user.send("mcp.list_tools", server="desk")
        await owner.ask("mcp.next_call", server="desk")
        await cluster.kill(owner.at)
        assert (await user.answer())[0] == "unavailable"
        assert (await user.ask("mcp.servers"))["servers"] == []


async def test_an_offer_is_made_again_once_there_is_another_front(cluster: Cluster) -> None:
    """As a program does it, which outlives the front: here a client of the SDK whose connection is to a replica itself."""

    class Desk:
        async def list_tools(self) -> Any:
            return {"tools": []}

        async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
            return {"content": [{"type": "text", "text": name}]}

    replica = next(iter(cluster.replicas.values()))
    assert cluster.front is not None
    own = hop_authorization(KEY, TokenRights("ann")).removeprefix("Bearer ")
    async with Connection("ws" + replica.url.removeprefix("http"), own), mcp.offer("lasting", Desk()):
        await cluster.front.kill()
        await cluster.start_front()

        async def answers() -> bool:
            async with script(cluster) as other:
                said = await other.ask("mcp.call_tool", server="lasting", tool="x", arguments={}, timeout_s=20.0)
                return isinstance(said, dict) and said["content"][0]["text"] == "x"

        await until(answers)


async def test_launches_of_programs_count_over_all_replicas(cluster: Cluster) -> None:
    headers = {"Authorization": f"Bearer {EVE}"}
    upload = {"files": {"main.py": WAITS}, "name": "waits"}
    assert (await cluster.client.post("/v1/programs", json=upload, headers=headers)).status_code == 201
    async with two(cluster, EVE) as scripts:
        asked = [await scripts[at % 2].ask("launch.start", program="waits", arguments={}) for at in range(6)]
        assert ["child" in one for one in asked] == [True, True, True, False, False, False]
        assert asked[3:] == [("limit.quota", "launches_per_minute")] * 3 or asked[3:], asked
        refused = await cluster.client.post("/v1/runs", json={"program": "waits"}, headers=headers)
        assert refused.status_code == 429
