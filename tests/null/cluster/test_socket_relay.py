"""A script's session through the front, between a script and a replica that do as they like."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import pytest
from starlette.websockets import WebSocket, WebSocketState
from unproven_peers import UnprovenPeers
from websockets.asyncio.server import ServerConnection, serve

from inferd.protocol import LimitExceeded
from inferd_runtime.cluster.front import socket_relay
from inferd_runtime.cluster.front.members import Members
from inferd_runtime.cluster.front.socket_relay import relay_session
from inferd_runtime.cluster.messages import JoinCluster, ReplicaReport
from inferd_runtime.server.connections.connection_table import TRY_AGAIN_LATER
from inferd_runtime.server.gateway.auth import TENANT_KEY
from inferd_runtime.server.gateway.request_watch import CHARGE_KEY
from inferd_runtime.server.tenancy.quotas import Quotas, same_for_all
from inferd_runtime.server.tenancy.shares import SharedPlaces, ShareRule
from inferd_runtime.server.tenancy.tenant_use import TenantUse

SCOPE = {
    "type": "websocket", "path": "/v1/session", "query_string": b"", "headers": [], "subprotocols": [], TENANT_KEY: "ann",
    "extensions": {"websocket.http.response": {}},
}  # fmt: skip


CANCEL = b'{"type": "response.cancel"}'


class _Script:
    """The script's end: it says nothing, and keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        if not any(message["type"] == "websocket.accept" for message in self.sent):
            return {"type": "websocket.connect"}
        await anyio.sleep_forever()
        raise AssertionError

    async def send(self, message: Any) -> None:
        self.sent.append(message)


def _members(port: int) -> Members:
    members = Members(lambda name: None)
    members.join(JoinCluster("replica1", f"http://127.0.0.1:{port}"), ReplicaReport(name="replica1"))
    return members


async def _relayed(port: int, use: TenantUse) -> tuple[_Script, Members]:
    """Relay a session with the replica at a port to its end."""
    script, members = _Script(), _members(port)
    websocket = WebSocket(SCOPE, script.receive, script.send)
    with anyio.fail_after(10):
        await websocket.receive()
        await relay_session(websocket, members, UnprovenPeers(), use, "Bearer x")
    return script, members


async def test_a_replica_that_shakes_hands_too_late_is_not_taken_for_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens a session while one is busy would take it from all tenants."""
    monkeypatch.setattr(socket_relay, "CONNECT_SECONDS", 0.05)
    async with _listening() as port:
        script, members = await _relayed(port, TenantUse(same_for_all(Quotas())))
    assert members.live.keys() == {"replica1"}
    assert script.sent[0]["status"] == 503


async def test_messages_that_are_passed_on_are_held_to_what_the_tenant_may_have_outstanding() -> None:
    async def send(connection: ServerConnection) -> None:
        await connection.send(b"x" * 100)
        await connection.wait_closed()

    use = TenantUse(same_for_all(Quotas()))
    use.outstanding = SharedPlaces(ShareRule(99, 0), "outstanding_bytes", "fewer")
    async with serve(send, "127.0.0.1", 0) as replica:
        script, _ = await _relayed(next(iter(replica.sockets)).getsockname()[1], use)
    assert [(one["type"], one.get("code")) for one in script.sent] == [
        ("websocket.accept", None),
        ("websocket.close", TRY_AGAIN_LATER),
    ]
    assert not use.outstanding.used


@asynccontextmanager
async def _listening() -> AsyncIterator[int]:
    """Have something listen that never answers."""

    async def never(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await anyio.sleep_forever()

    listening = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    async with listening as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, never)
        yield listener.extra(anyio.abc.SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


async def test_a_session_ends_with_its_script_though_messages_of_the_replica_are_left() -> None:
    """It counted for ten seconds more: what closes a connection came behind a message that nobody reads."""
    said = anyio.Event()

    async def send(connection: ServerConnection) -> None:
        for _ in range(3):
            await connection.send(b"x")
        said.set()
        await connection.wait_closed()

    class Leaves(_Script):
        async def receive(self) -> dict[str, Any]:
            await said.wait()
            return {"type": "websocket.disconnect", "code": 1006}

        async def send(self, message: Any) -> None:
            if message["type"] == "websocket.send":
                await anyio.sleep_forever()

    script, use = Leaves(), TenantUse(same_for_all(Quotas()))
    websocket = WebSocket(SCOPE, script.receive, script.send)
    websocket.client_state = WebSocketState.CONNECTED
    async with serve(send, "127.0.0.1", 0) as replica:
        members = _members(next(iter(replica.sockets)).getsockname()[1])
        with anyio.fail_after(5):
            await relay_session(websocket, members, UnprovenPeers(), use, "Bearer x")
    assert not use.sockets.used


async def test_a_burst_of_a_scripts_messages_is_charged_and_does_not_keep_the_front_from_others() -> None:
    """60 scripts that sent all they could left the front's loop to others once in 0.4 s, and cost their tenant nothing."""
    charged, turns = list[float](), [0]

    class Bursts(_Script):
        left = 300

        async def receive(self) -> dict[str, Any]:
            if not self.sent:
                return {"type": "websocket.connect"}
            self.left -= 1
            kind = "websocket.receive" if self.left >= 0 else "websocket.disconnect"
            return {"type": kind, "bytes": b"x", "code": 1000}

    async def others() -> None:
        while True:
            turns[0] += 1
            await anyio.lowlevel.checkpoint()

    async def read(connection: ServerConnection) -> None:
        async for _ in connection:
            pass

    async with serve(read, "127.0.0.1", 0) as replica, anyio.create_task_group() as tasks:
        script, members = Bursts(), _members(next(iter(replica.sockets)).getsockname()[1])
        websocket = WebSocket({**SCOPE, CHARGE_KEY: charged.append}, script.receive, script.send)
        await websocket.receive()
        tasks.start_soon(others)
        with anyio.fail_after(10):
            await relay_session(websocket, members, UnprovenPeers(), TenantUse(same_for_all(Quotas())), "Bearer x")
        tasks.cancel_scope.cancel()
    assert turns[0] >= 300
    assert sum(charged) > 0


async def test_a_request_of_responses_that_is_not_admitted_is_answered_by_the_front_alone() -> None:
    """Past the front a tenant would have started as many as each of the replicas let it."""
    came: list[str | bytes] = []

    async def answer(connection: ServerConnection) -> None:
        came.extend([await connection.recv(), await connection.recv()])
        await connection.send('{"type": "response.created"}')
        await connection.close()

    class Asks(_Script):
        asked = iter((b'{"number": 1}', CANCEL, b'{"number": 2}'))

        async def receive(self) -> dict[str, Any]:
            if (data := next(self.asked, None)) is None:
                await anyio.sleep_forever()
            return {"type": "websocket.receive", "bytes": data}

    async def admit(data: bytes) -> None:
        if b"2" not in data:
            raise LimitExceeded("too many", limit="launches_per_minute")

    client = Asks()
    websocket = WebSocket({**SCOPE, "path": "/v1/responses"}, client.receive, client.send)
    websocket.client_state = WebSocketState.CONNECTED
    async with serve(answer, "127.0.0.1", 0) as replica:
        members = _members(next(iter(replica.sockets)).getsockname()[1])
        with anyio.fail_after(5):
            use = TenantUse(same_for_all(Quotas()))
            await relay_session(websocket, members, UnprovenPeers(), use, "Bearer x", admit)
    assert came == [CANCEL, b'{"number": 2}']
    told = [json.loads(one["text"]) for one in client.sent if one["type"] == "websocket.send"]
    assert [(one["type"], one.get("status")) for one in told] == [("error", 429), ("response.created", None)]
