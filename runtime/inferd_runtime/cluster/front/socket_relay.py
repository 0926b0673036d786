"""A script's session through the front: messages both ways, as they are, until one end closes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from inferd.protocol import InferdError
from inferd_runtime.cluster.front.hop_client import CONNECT_SECONDS, Failure, ReplicaGone
from inferd_runtime.cluster.front.members import Members
from inferd_runtime.cluster.front.start_keys import Beginning
from inferd_runtime.server.gateway.app import MAX_SCRIPT_MESSAGE
from inferd_runtime.server.gateway.auth import TENANT_KEY
from inferd_runtime.server.gateway.chat_routes import SESSION_HEADER
from inferd_runtime.server.gateway.replies import deny
from inferd_runtime.server.gateway.script_session import SERVICE_RESTART, close_reason
from inferd_runtime.server.tenancy.tenant_use import TenantUse

ROOM = 1 << 20
"""Bytes of a message beyond the largest that a gateway takes: an error is the replica's to tell."""
ABNORMAL = 1006
"""What a connection that broke off has instead of a code, and nobody may send (RFC 6455, 7.4.1)."""
MOST_QUEUED = 4
"""Messages of a replica that the front holds for a script that does not read; more stay at the replica, which counts them."""
GONE = "the replica of this session has ended: connect again"


async def relay_session(websocket: WebSocket, members: Members, use: TenantUse, authorization: str) -> None:
    """Serve one WebSocket. Its handshake is refused as the replica, or a quota of the cluster, refuses it."""
    tenant = websocket.scope[TENANT_KEY]
    beginning = Beginning((), (), websocket.headers.get(SESSION_HEADER))
    try:
        with use.socket(tenant):
            async with members.placed(tenant, beginning) as member:
                with members.watched(member):
                    async with _session_at(member.url, websocket, authorization) as replica:
                        await websocket.accept(replica.subprotocol)
                        await _relay(websocket, replica)
    except InferdError as error:
        await deny(error, websocket.scope, websocket.receive, websocket.send)


@asynccontextmanager
async def _session_at(url: str, websocket: WebSocket, authorization: str) -> AsyncIterator[ClientConnection]:
    """Open the session at a replica. Raises ReplicaGone, and the error that it answers."""
    query = websocket.url.query
    target = "ws" + url.removeprefix("http") + websocket.url.path + (f"?{query}" if query else "")
    offered = [Subprotocol(name) for name in websocket.scope.get("subprotocols", [])]
    connecting = connect(
        target, additional_headers={"authorization": authorization}, subprotocols=offered or None, compression=None,
        max_size=MAX_SCRIPT_MESSAGE + ROOM, open_timeout=CONNECT_SECONDS, ping_interval=None, proxy=None,
        max_queue=MOST_QUEUED,
    )  # fmt: skip
    try:
        replica = await connecting
    except InvalidStatus as refused:
        raise _error_of(bytes(refused.response.body or b"")) from None
    except (OSError, InvalidHandshake):
        raise ReplicaGone(reached=False) from None
    try:
        yield replica
    finally:
        with anyio.CancelScope(shield=True):
            await replica.close()


def _error_of(body: bytes) -> InferdError:
    try:
        return msgspec.json.decode(body, type=Failure).error.to_exception()
    except msgspec.MsgspecError:
        return ReplicaGone(reached=True)


async def _relay(websocket: WebSocket, replica: ClientConnection) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_from_script, websocket, replica, tasks.cancel_scope)
        await _from_replica(websocket, replica)
        tasks.cancel_scope.cancel()


async def _from_script(websocket: WebSocket, replica: ClientConnection, scope: anyio.CancelScope) -> None:
    with contextlib.suppress(ConnectionClosed):  # the other direction tells the script
        while (message := await websocket.receive())["type"] == "websocket.receive":
            text = message.get("text")
            await replica.send(message.get("bytes") or b"" if text is None else text)
        scope.cancel()


async def _from_replica(websocket: WebSocket, replica: ClientConnection) -> None:
    """Pass on what the replica sends, and how it closes: a replica that is lost says to connect again."""
    # The script has left, which the other direction notices, or the replica is lost, which its code tells.
    with contextlib.suppress(WebSocketDisconnect, RuntimeError, ConnectionClosed):
        async for message in replica:
            await (websocket.send_text(message) if isinstance(message, str) else websocket.send_bytes(message))
    code, reason = replica.close_code or ABNORMAL, replica.close_reason or ""
    if code == ABNORMAL:
        code, reason = SERVICE_RESTART, close_reason(GONE)
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        await websocket.close(code, reason)
