"""An egress process's end of its link to the gateway: a task for each call, one answer for each call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import msgspec
import zmq

from inferd.protocol import Cancelled, Done, InferdError, InternalError, InvalidRequest, cut
from inferd_runtime.server.egress.messages import ALIVE, READY, EgressAnswer, EgressCall, ToEgress
from inferd_runtime.server.supervisor.loop_socket import LoopSocket

EgressHandler = Callable[[Any], Awaitable[Any]]
EgressHandlers = Mapping[str, tuple[Any, EgressHandler]]
"""By operation: the type of its requests, and what answers them."""
MAX_SHOWN = 300
_decoder: msgspec.msgpack.Decoder[ToEgress] = msgspec.msgpack.Decoder(ToEgress)


class EgressServer:
    """Answers one gateway over a socket that is connected to it."""

    def __init__(self, context: zmq.Context[Any], endpoint: str, handlers: EgressHandlers) -> None:
        socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(endpoint)
        self._socket = LoopSocket(socket)
        self._handlers = handlers
        self._scopes: dict[int, anyio.CancelScope] = {}

    async def serve(self) -> None:
        """Say that calls are taken, and take them until cancelled."""
        async with anyio.create_task_group() as tasks:
            await self._send(READY, True, Done())
            while True:
                message = _decoder.decode(b"".join(await self._socket.receive()))
                if isinstance(message, EgressCall):
                    scope = self._scopes[message.number] = anyio.CancelScope()
                    tasks.start_soon(self._answer, message, scope)
                elif message.number in self._scopes:
                    self._scopes[message.number].cancel()

    async def _answer(self, call: EgressCall, scope: anyio.CancelScope) -> None:
        reply: Any = Cancelled("nobody waits for it")
        try:
            with scope:
                reply = await self._handled(call)
        except InferdError as error:
            reply = error.with_traceback(None)  # else its frames, with the call, stay until a garbage collection
        except Exception as error:  # noqa: BLE001 - the boundary of one call: a bug costs it, and no other
            reply = InternalError(f"the egress process failed: {cut(repr(error), MAX_SHOWN)}")
        del self._scopes[call.number]
        failed = isinstance(reply, InferdError)
        await self._send(call.number, not failed, reply.to_wire() if isinstance(reply, InferdError) else reply)

    async def _handled(self, call: EgressCall) -> Any:
        found = self._handlers.get(call.op)
        if call.op == ALIVE:
            return Done()
        if found is None:
            raise InvalidRequest(f"an egress process knows no {call.op}")
        kind, handler = found
        return await handler(msgspec.msgpack.decode(call.payload, type=kind))

    async def _send(self, number: int, ok: bool, reply: Any) -> None:
        packed = EgressAnswer(number, ok, msgspec.Raw(msgspec.msgpack.encode(reply)))
        await self._socket.send([msgspec.msgpack.encode(packed)])
