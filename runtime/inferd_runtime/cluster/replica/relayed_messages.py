"""``topic.*`` and ``queue.*`` at a replica: passed on to the front, which has all topics and queues of the cluster.

If the connection to the front is lost, the front drops this replica's subscriptions, and gives values that were not received
to others; if the front itself is lost, so is what it held, except durable queues. So every caller that used messages before
hears of it, once.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from inferd.protocol import ErrorInfo, InferdError, Unavailable
from inferd_runtime.change_signal import ChangeSignal
from inferd_runtime.cluster.hop import require_cluster
from inferd_runtime.cluster.relayed import ADMIT_LAUNCH, Answered, Ask, FrameOutbox, Gone, Received, Withdraw
from inferd_runtime.server.gateway.replies import deny
from inferd_runtime.server.processes.background import background_tasks
from inferd_runtime.server.services.caller import Caller
from inferd_runtime.server.services.table import Handed, Handler
from inferd_runtime.server.services.topics.families import MESSAGE_OPERATIONS
from inferd_runtime.server.services.wires import JSON_WIRE, JsonText

LINK_SECONDS = 5.0
"""How long an operation waits for the front to be there."""
NOT_THERE = "the cluster's front is not there: messages between programs wait for it"
LOST = "the cluster's front was lost: subscriptions and offers ended, and values not yet pulled are gone, except durable queues'"
ANSWERS = msgspec.msgpack.Decoder(list[Answered])


@dataclass(eq=False)
class _Known:
    """A caller that the front knows. ``loses``: it used what is lost with the front."""

    number: int
    link: FrameOutbox
    loses: bool = False
    open: set[int] = field(default_factory=set)


@dataclass(eq=False)
class _Open:
    caller: Caller
    done: anyio.Event = field(default_factory=anyio.Event)
    answer: Answered | None = None


class RelayedMessages:
    """Belongs to the replica's event loop."""

    def __init__(self) -> None:
        self._link: FrameOutbox | None = None
        self._linked = ChangeSignal()
        self._numbers = itertools.count(1)
        self._callers: dict[Caller, _Known] = {}
        self._open: dict[int, _Open] = {}

    # The family -----------------------------------------------------------------------------------------------------

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers."""
        return {op: partial(self._relay, op) for op in MESSAGE_OPERATIONS}

    def closed(self, caller: Caller) -> None:
        """Tell the front that a caller is over: it undoes and answers nothing more of it."""
        known = self._callers.pop(caller, None)
        if known is not None and known.link is self._link:
            known.link.put(Gone(known.number))
            for ticket in known.open:
                self._open.pop(ticket).done.set()

    async def admit_launch(self, caller: Caller) -> None:
        """Count a launch of a program's own at the front. Raises LimitExceeded, Unavailable."""
        await self._ask(ADMIT_LAUNCH, caller, b"{}", loses=False)

    async def ask(self, op: str, caller: Caller, request: Any, *, loses: bool = False) -> Any:
        """Return the front's reply to an operation of its. Raises its error, and Unavailable.

        ``loses``: the caller has something there now that a lost front loses, of which it hears.
        """
        return await self._ask(op, caller, JSON_WIRE.write(request), loses=loses)

    async def _relay(self, op: str, caller: Caller, request: Any) -> Any:
        """Return the front's reply. Raises its error, and Unavailable."""
        return await self.ask(op, caller, request, loses=not getattr(request, "durable", False))

    async def _ask(self, op: str, caller: Caller, payload: bytes, *, loses: bool) -> Any:
        link = await self._there()
        known, ticket = self._known(caller, link, loses), next(self._numbers)
        waiting = self._open[ticket] = _Open(caller)
        known.open.add(ticket)
        link.put(Ask(known.number, ticket, caller.tenant, caller.id, op, payload, caller.offer_key))
        try:
            await waiting.done.wait()
        except BaseException:
            link.put(Withdraw(known.number, ticket))
            with anyio.CancelScope(shield=True):  # until then it counts, there and here
                await waiting.done.wait()
            raise
        return self._outcome(waiting.answer, link)

    def _outcome(self, answer: Answered | None, link: FrameOutbox) -> Any:
        if answer is None:
            raise Unavailable(LOST)
        if not answer.ok:
            raise msgspec.json.decode(answer.payload, type=ErrorInfo).to_exception()
        reply = JsonText(answer.payload)
        if not answer.receipt:
            return reply
        undo, done = Withdraw(answer.caller, answer.ticket), Received(answer.caller, answer.ticket)
        return Handed(reply, partial(link.put, undo), partial(link.put, done))

    async def _there(self) -> FrameOutbox:
        with anyio.move_on_after(LINK_SECONDS):
            while self._link is None:
                await self._linked.wait()
        if self._link is None:
            raise Unavailable(NOT_THERE, retry_after_s=1.0)
        return self._link

    def _known(self, caller: Caller, link: FrameOutbox, loses: bool) -> _Known:
        """Return a caller as the front knows it. Raises Unavailable, once, where the front that knew it is lost."""
        known = self._callers.get(caller)
        if known is None or known.link is not link:
            self._callers[caller] = _Known(next(self._numbers), link)
            if known is not None and known.loses:
                raise Unavailable(LOST)
        self._callers[caller].loses |= loses
        return self._callers[caller]

    # The front ------------------------------------------------------------------------------------------------------

    async def serve(self, websocket: WebSocket) -> None:
        """Serve the front's connection until it ends. A newer one takes its place."""
        try:
            require_cluster(websocket.scope)
        except InferdError as error:
            return await deny(error, websocket.scope, websocket.receive, websocket.send)
        await websocket.accept()
        self._lose()
        link = self._link = FrameOutbox()
        self._linked.wake()
        try:
            await self._exchange(websocket, link)
        finally:
            if self._link is link:
                self._lose()

    async def _exchange(self, websocket: WebSocket, link: FrameOutbox) -> None:
        async with background_tasks() as tasks:
            tasks.start_soon(_send_all, websocket, link)
            while (message := await websocket.receive())["type"] == "websocket.receive" and self._link is link:
                for answer in ANSWERS.decode(message["bytes"]):
                    self._answered(answer)
                    await anyio.lowlevel.checkpoint()  # as at the front: a frame has hundreds

    def _answered(self, answer: Answered) -> None:
        waiting = self._open.pop(answer.ticket, None)
        if waiting is not None:
            self._callers[waiting.caller].open.discard(answer.ticket)
            waiting.answer = answer
            waiting.done.set()

    def _lose(self) -> None:
        """Fail what is open. Callers that hear of it in this way are not told again."""
        self._link = None
        lost, self._open = self._open, {}
        for waiting in lost.values():
            self._callers.pop(waiting.caller, None)
            waiting.done.set()


async def _send_all(websocket: WebSocket, link: FrameOutbox) -> None:
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # it is closed, which the other direction notices
        await link.send_all(websocket.send_bytes)
