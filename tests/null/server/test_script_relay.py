"""The relay between a script's WebSocket and the engine: however much one script has at once, others have their turn."""

from __future__ import annotations

from collections import deque
from typing import Any, cast

import anyio
import anyio.lowlevel
import msgspec
from starlette.websockets import WebSocket

from inferd_runtime.server.gateway.request_watch import CHARGE_KEY
from inferd_runtime.server.gateway.script_session import YIELD_EVERY, ScriptSession
from inferd_runtime.server.services.caller import Caller
from inferd_runtime.server.services.table import ServiceTable
from inferd_runtime.server.supervisor.engine_session import EngineChannel
from inferd_runtime.server.supervisor.engine_supervisor import StartedEngine
from inferd_runtime.session.wire import LinkReply

CALLS = 400


class Both:
    """A script that has sent everything at once and leaves when all is answered, and an engine that answers all at once."""

    def __init__(self) -> None:
        self.asked: deque[int] = deque()
        self.answers: list[bytes] = []
        self.turns_before_answers = 0
        self.turns = 0
        self.lost = anyio.Event()
        self.charged = 0.0
        self.scope = {CHARGE_KEY: self.charge}
        self._calls = deque(range(1, CALLS + 1))
        self._all_asked, self._all_answered = anyio.Event(), anyio.Event()

    def charge(self, seconds: float) -> None:
        self.charged += seconds

    async def receive(self) -> dict[str, Any]:
        """The script's next frame."""
        if self._calls:
            call = {"t": self._calls.popleft(), "op": "model.list", "a": {}}
            return {"type": "websocket.receive", "bytes": msgspec.msgpack.encode(call)}
        await self._all_answered.wait()
        return {"type": "websocket.disconnect"}

    async def send_bytes(self, data: bytes) -> None:
        self.answers.append(data)
        if len(self.answers) == CALLS:
            self._all_answered.set()

    async def send(self, ticket: int, op: str, payload: bytes) -> None:
        self.asked.append(ticket)
        if len(self.asked) == CALLS:
            self.turns_before_answers = self.turns
            self._all_asked.set()

    async def reply(self) -> LinkReply:
        """The engine's next reply: at once, once it answers."""
        if not self._all_asked.is_set():
            await self._all_asked.wait()
        if not self.asked:
            await anyio.sleep_forever()
        return LinkReply(self.asked.popleft(), True, b"\x80")

    async def somebody_else(self) -> None:
        while True:
            self.turns += 1
            await anyio.lowlevel.checkpoint()


class Channel:
    """The engine's side of it."""

    def __init__(self, both: Both) -> None:
        self.send, self.receive = both.send, both.reply


async def test_a_burst_of_calls_or_of_replies_does_not_keep_the_loop_from_others() -> None:
    both = Both()
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            table, caller = ServiceTable(tasks), Caller("ann", "ws/1")
            session = ScriptSession(cast(WebSocket, both), cast(EngineChannel, Channel(both)), table, caller)
            tasks.start_soon(both.somebody_else)
            await session.relay(cast(StartedEngine, both))
            tasks.cancel_scope.cancel()
    assert len(both.answers) == CALLS
    assert both.charged > 0, "what it takes to pass replies on is the script's, too"
    assert both.turns_before_answers >= CALLS // YIELD_EVERY - 1
    assert both.turns - both.turns_before_answers >= CALLS // YIELD_EVERY - 1
