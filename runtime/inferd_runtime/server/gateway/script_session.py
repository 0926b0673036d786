"""A script's session: one WebSocket, one engine session, messages relayed with only their envelopes re-encoded.

From the script: ``{"t": ticket, "op": name, "a": arguments}``, and op ``cancel`` for an outstanding ticket. To it:
``{"t": ticket, "ok": reply}`` or ``{"t": ticket, "err": {code, message, detail}}``. Every request is answered once. A reply with
``"r": true`` brings what nobody else gets: the script says op ``received`` with its ticket once it has it, or ``cancel``.

What the gateway answers itself (:data:`~inferd.protocol.GATEWAY_OPERATIONS`) does not reach the engine.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Annotated, Any

import anyio
import anyio.lowlevel
import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from inferd.protocol import (
    GATEWAY_OPERATIONS,
    OPERATIONS,
    ErrorInfo,
    InferdError,
    InvalidRequest,
    LimitExceeded,
    ModelInfo,
    Unavailable,
    shown,
)
from inferd_runtime.change_signal import ChangeSignal
from inferd_runtime.sandbox.asked_window import FEWER, AskedWindow
from inferd_runtime.server.gateway.auth import ROLE_KEY, TENANT_KEY
from inferd_runtime.server.gateway.replies import deny
from inferd_runtime.server.gateway.request_watch import charge_of, timed
from inferd_runtime.server.services.caller import Caller
from inferd_runtime.server.services.table import Answer, ServiceTable
from inferd_runtime.server.services.wires import MSGPACK_WIRE
from inferd_runtime.server.supervisor.engine_session import EngineChannel, engine_channel
from inferd_runtime.server.supervisor.engine_supervisor import StartedEngine
from inferd_runtime.server.supervisor.runtime import Runtime
from inferd_runtime.server.tenancy.quotas import Role
from inferd_runtime.server.tenancy.rates import MinuteBucket
from inferd_runtime.server.tenancy.shares import SharedPlaces
from inferd_runtime.session.reply_sizes import LARGE_MODEL, ModelSizes, ReplySizes
from inferd_runtime.session.wire import CANCEL, MSGPACK, PRIVATE_OPERATIONS, LinkReply

SUBPROTOCOL = "inferd.v1"
RECEIVED = "received"
PROGRAM_OPERATIONS = frozenset({"session.send", "session.receive"})
MAX_OUTSTANDING = 1000
"""As many as a ZeroMQ socket queues: beyond that the engine drops replies to a script that does not read."""
MAX_OUTSTANDING_BYTES = 128 << 20
"""Bytes of outstanding calls and of the largest replies: both may wait in sockets while the script does not read."""
SMALL_BYTES = 16 << 10
"""Calls of less are bounded by their number."""
SERVICE_RESTART = 1012
INVALID_DATA = 1007
MAX_REASON = 123
"""Bytes of UTF-8 that a closing frame has room for (RFC 6455, section 5.5)."""
EMPTY_MAP = b"\x80"
MESSAGES_PER_MINUTE = 60_000
"""Of one connection. A faster one is not refused but read more slowly, so that its sending blocks."""
YIELD_EVERY = 8
"""Messages that are relayed in a row, either way, before others have their turn."""


class ScriptCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a script sends. Ticket 0 is the gateway's own."""

    t: Annotated[int, msgspec.Meta(ge=1, lt=1 << 32)]
    op: str
    a: msgspec.Raw = msgspec.Raw(EMPTY_MAP)


class OutstandingCalls:
    """Which tickets of a connection are outstanding, and which calls it may send. No sockets here.

    ``places``: the bytes that all connections of all tenants may have outstanding. ``model``: the largest one.
    """

    def __init__(
        self,
        most: int = MAX_OUTSTANDING,
        places: SharedPlaces | None = None,
        tenant: str = "",
        model: ModelSizes = LARGE_MODEL,
    ) -> None:
        self._sizes = ReplySizes(model)
        self.outstanding: set[int] = set()
        self.window = AskedWindow(MAX_OUTSTANDING_BYTES)
        self._most = most
        self._places = places
        self._tenant = tenant
        self._bytes: dict[int, int] = {}

    def admit(self, call: ScriptCall) -> None:
        """Note a call that the engine or the gateway is to answer. Raises InvalidRequest or LimitExceeded for any other."""
        _check_operation(call.op)
        size = self._checked_size(call)
        if size > SMALL_BYTES:
            if self._places is not None:
                self._places.take(self._tenant, size)
            self._bytes[call.t] = size
        if call.op in GATEWAY_OPERATIONS:
            self.window.asked(call.t, len(call.a))
        self.outstanding.add(call.t)

    def _checked_size(self, call: ScriptCall) -> int:
        """Return the bytes that a call may have outstanding, its reply included. Raises where this connection has no room."""
        if call.t in self.outstanding:
            raise InvalidRequest(f"ticket {call.t} is in use: wait for its reply first")
        if len(self.outstanding) >= self._most:
            message = f"{self._most} calls are outstanding on this connection"
            raise LimitExceeded(message, limit="outstanding_calls", value=self._most, raise_with=FEWER)
        if call.op in GATEWAY_OPERATIONS:
            self.window.check(call.op, len(call.a))
        size = len(call.a) + self._sizes.most(call.op, call.a, MSGPACK)
        if self._bytes and sum(self._bytes.values()) + size > MAX_OUTSTANDING_BYTES:
            message = f"what is outstanding on this connection takes {MAX_OUTSTANDING_BYTES} bytes"
            raise LimitExceeded(
                message, limit="outstanding_bytes", value=MAX_OUTSTANDING_BYTES, raise_with="waiting for some of it"
            )
        return size

    def frees_itself(self, call: ScriptCall) -> bool:
        """Return True if a call has to wait until the gateway has answered withdrawn calls: the script need not do anything."""
        return call.op in GATEWAY_OPERATIONS and self.window.frees_itself(len(call.a))

    def is_engines(self, ticket: int) -> bool:
        """Return True if a call of that ticket is outstanding at the engine."""
        return ticket in self.outstanding and ticket not in self.window

    def answered(self, ticket: int) -> bool:
        """Note a reply. Returns False if no call waits for it."""
        if ticket not in self.outstanding:
            return False
        self.window.answered(ticket)
        self.outstanding.discard(ticket)
        self._give_back(self._bytes.pop(ticket, 0))
        return True

    def close(self) -> None:
        """Note that the connection is over: nothing of it takes room any more."""
        self._give_back(sum(self._bytes.values()))
        self._bytes.clear()

    def _give_back(self, size: int) -> None:
        if size and self._places is not None:
            self._places.give_back(self._tenant, size)


def _check_operation(op: str) -> None:
    """Raise InvalidRequest for an operation that no script can send."""
    if op in PRIVATE_OPERATIONS:
        raise InvalidRequest(f"{op} is the runtime's own: a script cannot send it")
    if op not in OPERATIONS and op not in GATEWAY_OPERATIONS:
        raise InvalidRequest(f"there is no operation {shown(op)}")
    if op in PROGRAM_OPERATIONS:
        raise InvalidRequest(f"{op} is for launched programs: a script has nobody at its other side")


def read_call(data: bytes) -> ScriptCall:
    """Return the request in a script's message. Raises InvalidRequest for an invalid message."""
    try:
        return msgspec.msgpack.decode(data, type=ScriptCall)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"a message must be a msgpack map of t, op and a: {error}") from None


def close_reason(text: str) -> str:
    """Return as much of a text as a WebSocket's closing frame has room for."""
    return text.encode("utf-8", "replace")[:MAX_REASON].decode(errors="ignore")


def encode_reply(ticket: int, payload: bytes, ok: bool) -> bytes:
    """Return a reply's map around a payload that is msgpack already."""
    return msgspec.msgpack.encode({"t": ticket, "ok" if ok else "err": msgspec.Raw(payload)})


def encode_answer(answer: Answer) -> bytes:
    """Return the gateway's own answer."""
    key = "ok" if answer.ok else "err"
    receipt = {"r": True} if answer.receipt else {}
    return msgspec.msgpack.encode({"t": answer.ticket, key: msgspec.Raw(answer.payload), **receipt})


def encode_error(ticket: int, error: InferdError) -> bytes:
    """Return an error reply."""
    info: ErrorInfo = error.to_wire()
    return encode_reply(ticket, msgspec.msgpack.encode(info), ok=False)


class ScriptSession:
    """Relays between an accepted WebSocket and an engine channel whose session is open, and has ``services`` answer the rest."""

    def __init__(
        self,
        websocket: WebSocket,
        channel: EngineChannel,
        services: ServiceTable,
        caller: Caller,
        places: SharedPlaces | None = None,
        model: ModelSizes = LARGE_MODEL,
    ) -> None:
        self._websocket = websocket
        self._charge = charge_of(websocket.scope)
        self._channel = channel
        self._desk = services.open_desk(caller, MSGPACK_WIRE, self._answered)
        self._answers: deque[Answer] = deque()
        self._answered_more = anyio.Event()
        self._has_room = ChangeSignal()
        self._state = OutstandingCalls(places=places, tenant=caller.tenant, model=model)
        self._rate = MinuteBucket()
        self._count = 0

    async def relay(self, engine: StartedEngine) -> None:
        """Relay until the script leaves or the engine is lost, which answers what is outstanding with Unavailable."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._charged, self._from_engine)
                tasks.start_soon(self._charged, self._from_gateway)
                tasks.start_soon(self._watch, engine, tasks.cancel_scope)
                await self._from_script()
                tasks.cancel_scope.cancel()
        finally:
            self._desk.close()
            self._state.close()
        if engine.lost.is_set():
            await self._give_up()

    async def _charged(self, relay: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await timed(relay(), self._charge)

    async def _watch(self, engine: StartedEngine, scope: anyio.CancelScope) -> None:
        await engine.lost.wait()
        scope.cancel()

    async def _from_script(self) -> None:
        """Read calls until the script leaves or sends an invalid one."""
        try:
            while True:
                message = await self._websocket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                await self._pace()
                await self._forward(read_call(message.get("bytes") or b""))
        except InvalidRequest as error:
            await self._refuse(error)

    async def _pace(self) -> None:
        """Wait until the connection's next message may be read."""
        now = anyio.current_time()
        wait = self._rate.wait(MESSAGES_PER_MINUTE, now)
        self._rate.charge(MESSAGES_PER_MINUTE, now)
        self._count += 1
        if wait > 0 or self._count % YIELD_EVERY == 0:
            await anyio.sleep(wait)

    async def _forward(self, call: ScriptCall) -> None:
        if call.op == CANCEL:
            self._state.window.withdrawn(call.t)
            self._desk.withdraw(call.t)
            if self._state.is_engines(call.t):
                await self._channel.cancel(call.t)
            return
        if call.op == RECEIVED:
            self._desk.received(call.t)
            return
        while self._state.frees_itself(call):
            await self._has_room.wait()
        try:
            self._state.admit(call)
            if call.op in GATEWAY_OPERATIONS:
                self._ask(call)
                return
        except InferdError as error:
            await self._send(encode_error(call.t, error))
            return
        await self._channel.send(call.t, call.op, bytes(call.a))

    def _ask(self, call: ScriptCall) -> None:
        """Have the gateway answer a call. Raises InvalidRequest for a ticket whose earlier reply still waits for ``received``."""
        try:
            self._desk.ask(call.t, call.op, bytes(call.a))
        except InvalidRequest:
            self._state.answered(call.t)
            raise

    def _answered(self, answer: Answer) -> None:
        self._answers.append(answer)
        self._answered_more.set()

    async def _from_gateway(self) -> None:
        while True:
            await self._answered_more.wait()
            self._answered_more = anyio.Event()
            while self._answers:
                answer = self._answers.popleft()
                await self._send(encode_answer(answer))
                self._desk.sent(answer.ticket)
                self._state.answered(answer.ticket)
                self._has_room.wake()
                await anyio.lowlevel.checkpoint()

    async def _from_engine(self) -> None:
        for number in itertools.count(1):
            reply: LinkReply = await self._channel.receive()
            if self._state.answered(reply.ticket):
                await self._send(encode_reply(reply.ticket, reply.payload, reply.ok))
            if number % YIELD_EVERY == 0:
                await anyio.lowlevel.checkpoint()

    async def _give_up(self) -> None:
        """End the calls of a session whose engine is gone."""
        error = Unavailable("the engine process ended, and with it this session: connect again")
        for ticket in sorted(self._state.outstanding):
            await self._send(encode_error(ticket, error))
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await self._websocket.close(SERVICE_RESTART, close_reason(error.message))

    async def _refuse(self, error: InvalidRequest) -> None:
        await self._send(encode_error(0, error))
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await self._websocket.close(INVALID_DATA, close_reason(error.message))

    async def _send(self, data: bytes) -> None:
        """Send, unless the script has left: :meth:`_from_script` notices that too and ends the relay."""
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await self._websocket.send_bytes(data)


async def script_session(websocket: WebSocket, runtime: Runtime) -> None:
    """Serve one WebSocket. Its handshake is refused with Unavailable without an engine, with LimitExceeded by a quota."""
    tenant: str = websocket.scope[TENANT_KEY]
    name = f"ws/{secrets.token_hex(8)}"
    grant = runtime.engine.grants.issue(name, tenant)
    async with AsyncExitStack() as stack:
        stack.callback(runtime.tenant_left, tenant)
        try:
            stack.enter_context(runtime.use.socket(tenant))
            engine = runtime.engine.current
            channel = await stack.enter_async_context(
                engine_channel(runtime.context, runtime.engine.endpoint, grant, name, engine.lost)
            )
        except InferdError as error:
            await deny(error, websocket.scope, websocket.receive, websocket.send)
            return
        offered = websocket.scope.get("subprotocols", [])
        await websocket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        caller = Caller(tenant, name, websocket.scope.get(ROLE_KEY, Role.USER))
        session = ScriptSession(
            websocket, channel, runtime.services, caller, runtime.use.outstanding, _largest(engine.models.models)
        )
        await session.relay(engine)


def _largest(models: Sequence[ModelInfo]) -> ModelSizes:
    return ModelSizes(max(model.vocab_size for model in models), max(model.max_context for model in models))
