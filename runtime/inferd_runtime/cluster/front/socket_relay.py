"""WebSockets through the front, scripts' sessions and responses: messages both ways, as they are, until one end closes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from inferd.protocol import MAX_SCRIPT_MESSAGE, InferdError, LimitExceeded
from inferd_runtime.cluster.front.hop_client import CONNECT_SECONDS, Failure, ReplicaGone
from inferd_runtime.cluster.front.members import Members
from inferd_runtime.cluster.front.peers import ProvenPeers
from inferd_runtime.cluster.front.start_keys import Beginning
from inferd_runtime.server.connections.connection_table import TRY_AGAIN_LATER
from inferd_runtime.server.dialects.responses.socket_request import cancels, error_event
from inferd_runtime.server.gateway.auth import TENANT_KEY
from inferd_runtime.server.gateway.chat_routes import SESSION_HEADER
from inferd_runtime.server.gateway.replies import deny
from inferd_runtime.server.gateway.request_watch import charge_of, timed
from inferd_runtime.server.gateway.script_session import SERVICE_RESTART, SUBPROTOCOL, close_reason
from inferd_runtime.server.tenancy.tenant_use import TenantUse

ROOM = 1 << 20
"""Bytes of a message beyond the largest that a gateway takes: an error is the replica's to tell."""
ABNORMAL = 1006
"""What a connection that broke off has instead of a code, and nobody may send (RFC 6455, 7.4.1)."""
MOST_QUEUED = 0
"""Messages beyond which a replica is not read. So the front holds one for a script that does not read, beside one that is being
sent, which is counted; more stay at the replica, which counts them.
"""
CLOSE_SECONDS = 0.5
"""How long a replica may take to close: behind a message that no script reads any more its answer to that is not seen."""
GONE = "the replica of this session has ended: connect again"
Holding = Callable[[int], AbstractContextManager[None]]
"""Counts a tenant's bytes while they are passed on. Raises LimitExceeded."""
Admit = Callable[[bytes], Awaitable[object]]
"""Counts a request of responses. Raises an InferdError for one that is not passed on."""


async def relay_session(
    websocket: WebSocket,
    members: Members,
    peers: ProvenPeers,
    use: TenantUse,
    authorization: str,
    admit: Admit | None = None,
) -> None:
    """Serve one WebSocket. Its handshake is refused as the replica, or a quota of the cluster, refuses it.

    ``admit``: for responses, whose messages are texts.
    """
    tenant = websocket.scope[TENANT_KEY]
    beginning = Beginning((), (), websocket.headers.get(SESSION_HEADER))
    try:
        with use.socket(tenant):
            async with members.placed(tenant, beginning) as member:
                with members.watched(member):
                    largest = MAX_SCRIPT_MESSAGE + ROOM if admit is None else None
                    async with _session_at(peers, member.url, websocket, authorization, largest) as replica:
                        await websocket.accept(replica.subprotocol)
                        holding = partial(use.outstanding.holding, tenant)
                        relay = _ScriptRelay if admit is None else partial(_ResponsesRelay, admit=admit)
                        await _relay(relay(websocket, replica, holding))
    except InferdError as error:
        await deny(error, websocket.scope, websocket.receive, websocket.send)


@asynccontextmanager
async def _session_at(
    peers: ProvenPeers, url: str, websocket: WebSocket, authorization: str, largest: int | None
) -> AsyncIterator[ClientConnection]:
    """Open the session at a replica, whose messages may have so many bytes. Raises ReplicaGone, and the error that it answers."""
    query = websocket.url.query
    target = "ws" + url.removeprefix("http") + websocket.url.path + (f"?{query}" if query else "")
    offered = [Subprotocol(name) for name in websocket.scope.get("subprotocols", []) if name == SUBPROTOCOL]
    try:
        replica = await connect(
            target, sock=await peers.socket_to(url, CONNECT_SECONDS), additional_headers={"authorization": authorization},
            subprotocols=offered or None, compression=None, max_size=largest,
            open_timeout=CONNECT_SECONDS, ping_interval=None, proxy=None, max_queue=MOST_QUEUED,
            close_timeout=CLOSE_SECONDS,
        )  # fmt: skip
    except InvalidStatus as refused:
        raise _error_of(bytes(refused.response.body or b"")) from None
    except (TimeoutError, InvalidHandshake):  # something listens there, however slowly
        raise ReplicaGone(reached=True) from None
    except OSError:
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


@dataclass
class _ScriptRelay:
    """What is relayed between a client and its replica, each way until that is over: False where the other way tells it."""

    websocket: WebSocket
    replica: ClientConnection
    holding: Holding

    async def from_client(self) -> bool:
        """Pass on what the client sends, until it leaves."""
        with contextlib.suppress(ConnectionClosed):  # the other direction tells the client
            while (message := await self.websocket.receive())["type"] == "websocket.receive":
                data = message["bytes"]
                with self.holding(len(data)):
                    await self.pass_on(data)
                await anyio.lowlevel.checkpoint()  # nothing else here waits while messages are there already
            return True
        return False

    async def from_replica(self) -> bool:
        """Pass on what the replica sends, and how it closes: a replica that is lost says to connect again."""
        # The client has left, which the other direction notices, or the replica is lost, which its code tells.
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, ConnectionClosed):
            while True:
                message = await self.replica.recv(decode=False)
                with self.holding(len(message)):
                    await self.tell(message)
                await anyio.lowlevel.checkpoint()
        code, reason = self.replica.close_code or ABNORMAL, self.replica.close_reason or ""
        await _close(self.websocket, *((SERVICE_RESTART, GONE) if code == ABNORMAL else (code, reason)))
        return True

    async def pass_on(self, data: bytes) -> None:
        """Pass a message on to the replica; a text has become an empty one, which its gateway refuses."""
        await self.replica.send(data)

    async def tell(self, data: bytes) -> None:
        """Pass a message on to the client."""
        await self.websocket.send_bytes(data)


@dataclass
class _ResponsesRelay(_ScriptRelay):
    """The same with messages that are texts, each of which from the client is a request."""

    admit: Admit

    async def pass_on(self, data: bytes) -> None:
        """Pass a message on, or tell the client why its request is not."""
        try:
            if cancels(data, "") is None:
                await self.admit(data)
        except InferdError as error:
            await self.tell(error_event(error))
        else:
            await super().pass_on(data)

    async def tell(self, data: bytes) -> None:
        """Pass an event on."""
        await self.websocket.send_text(data.decode())


async def _relay(relay: _ScriptRelay) -> None:
    refused: list[LimitExceeded] = []
    async with anyio.create_task_group() as tasks:
        for work in (relay.from_client, relay.from_replica):
            tasks.start_soon(_until_over, work, refused, tasks.cancel_scope, charge_of(relay.websocket.scope))
    if refused:
        await _close(relay.websocket, TRY_AGAIN_LATER, refused[0].message)


async def _until_over(
    relay: Callable[[], Coroutine[Any, Any, bool]],
    refused: list[LimitExceeded],
    both: anyio.CancelScope,
    charge: Callable[[float], None],
) -> None:
    """Relay one way, which is charged; end both ways if it says so, or if the tenant's messages have no room here."""
    try:
        over = await timed(relay(), charge)
    except LimitExceeded as error:
        refused.append(error)
        over = True
    if over:
        both.cancel()


async def _close(websocket: WebSocket, code: int, reason: str) -> None:
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        await websocket.close(code, close_reason(reason))
