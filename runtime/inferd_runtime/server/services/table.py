"""The table of what the gateway answers: from an operation of a program or script to its handler, and back.

    table.join(topics)                                      # a family: its operations, and who hears of callers that are gone
    desk = table.open_desk(caller, JSON_WIRE, answer)       # one for each run that asks, and for each script
    desk.ask(7, "topic.publish", b"{...}")                  # answered once: answer(Answer(7, True, b"{...}"))

Each open operation has a task, which ends with its ticket, with its caller, or with the runtime.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import anyio
import anyio.abc
import anyio.lowlevel
import msgspec

from inferd.protocol import (
    GATEWAY_OPERATIONS,
    Cancelled,
    InferdError,
    InternalError,
    InvalidRequest,
    LimitExceeded,
    shown,
)
from inferd_runtime.sandbox.messages import MAX_ASKED, MAX_REQUEST_BYTES
from inferd_runtime.server.services.caller import Caller
from inferd_runtime.server.services.pace import ServicePace, expected_seconds
from inferd_runtime.server.services.reply_room import ReplyRoom, size_of_reply
from inferd_runtime.server.services.timed import Timed
from inferd_runtime.server.services.wires import ServiceWire

MAX_TENANT_BYTES = 64 << 20
"""Bytes of requests of one tenant that are open, over all of its runs and scripts."""
MAX_UNCONFIRMED = 2 * MAX_ASKED
"""Replies whose receipt a caller has yet to confirm: of the oldest beyond these, it counts as confirmed."""
STARTED_AT_ONCE = 16
"""Operations of a tenant that had to wait, in a turn of the loop: where the machine is slow, the time that starting them takes
makes up for what they are charged, so that none waits.
"""
CANCELLED_AT_ONCE = 32
"""Operations of callers that are gone, in a turn of the loop: each takes 50 µs of the next one."""
Handler = Callable[[Caller, Any], Awaitable[Any]]
"""Answers one request: returns the reply, or :class:`Handed`. Raises an InferdError."""
log = logging.getLogger("inferd.services")


class ServiceFamily(Protocol):
    """Operations that belong together, with what they share."""

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers by their operations' wire names."""

    def closed(self, caller: Caller) -> None:
        """Note that a run (one attempt of it) or a script's session is over. Its open operations are cancelled already.

        It is told once more when the last of these has ended: one that got what it waited for in that same turn of the loop went
        on a little, and may have noted its caller again.
        """


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class Handed:
    """A reply that must reach its caller: ``undo`` is called if it did not, ``done`` once it did; exactly one of them, once."""

    reply: Any
    undo: Callable[[], None]
    done: Callable[[], None] = _nothing


@dataclass(frozen=True)
class Answer:
    """What goes back: a reply or an error, packed. ``receipt``: the caller is to confirm that it has it."""

    ticket: int
    ok: bool
    payload: bytes
    receipt: bool = False


@dataclass(eq=False)
class _OpenCall:
    desk: ServiceDesk
    ticket: int
    op: str
    payload: bytes
    size: int
    held: int = 0
    refusal: LimitExceeded | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    @property
    def is_unwanted(self) -> bool:
        """Whether nobody waits for the outcome any more."""
        return self.scope.cancel_called or self.desk.closed


class ServiceTable:
    """All families, and all callers' open operations. Belongs to one event loop; ``tasks`` runs the operations."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self.pace = ServicePace()
        self.replies = ReplyRoom()
        self.on_idle: list[Callable[[str], None]] = []
        """Who hears that a tenant has no run and no script's session any more."""
        self._tasks = tasks
        self._families: list[ServiceFamily] = []
        self._handlers: dict[str, Handler] = {}
        self._bytes: Counter[str] = Counter()
        self._backlog: defaultdict[str, deque[_OpenCall]] = defaultdict(deque)
        self._packing: defaultdict[str, anyio.Lock] = defaultdict(partial(anyio.Lock, fast_acquire=True))
        """Of a tenant's large replies one waits for room: were all woken for each that leaves, thousands would hold the loop."""
        self._gone: deque[_OpenCall] = deque()

    def join(self, family: ServiceFamily) -> None:
        """Answer a family's operations from now on."""
        operations = family.operations()
        unknown = [op for op in operations if op not in GATEWAY_OPERATIONS or op in self._handlers]
        assert not unknown, f"not operations of the gateway, or answered twice: {unknown}"
        self._families.append(family)
        self._handlers.update(operations)

    def open_desk(self, caller: Caller, wire: ServiceWire, answer: Callable[[Answer], None]) -> ServiceDesk:
        """Return the desk of a new caller; ``answer`` sends to it, and neither waits nor raises."""
        return ServiceDesk(self, caller, wire, answer)

    def begin(self, call: _OpenCall) -> None:
        """Start an operation when it is its tenant's turn. One that is too much is refused with LimitExceeded, in turn, too."""
        tenant = call.desk.caller.tenant
        try:
            self._hold(call, call.size)
        except LimitExceeded as refusal:
            call.refusal, call.payload, call.size = refusal, b"", 0
        if tenant in self._backlog:
            self._backlog[tenant].append(call)
        elif self.pace.wait(tenant, time.monotonic()) > 0 or not self.replies.may_begin(tenant):
            self._backlog[tenant].append(call)
            self._tasks.start_soon(self._catch_up, tenant)
        else:
            self._start(call)

    def _hold(self, call: _OpenCall, size: int) -> None:
        """Count that an open request takes so many bytes. Raises LimitExceeded, and counts nothing of it any more."""
        tenant = call.desk.caller.tenant
        self._bytes[tenant] -= call.held
        call.held = size if self._bytes[tenant] + size <= MAX_TENANT_BYTES else 0
        self._bytes[tenant] += call.held
        if call.held < size:
            text = f"open requests of the tenant take {MAX_TENANT_BYTES} bytes already"
            raise LimitExceeded(
                text, limit="tenant_gateway_bytes", value=MAX_TENANT_BYTES, raise_with="fewer at a time"
            )

    def open_bytes(self, tenant: str) -> int:
        """Return the bytes of a tenant's open requests."""
        return self._bytes[tenant]

    def ended(self, call: _OpenCall) -> None:
        """Note that an operation is over."""
        tenant = call.desk.caller.tenant
        self._bytes[tenant] -= call.held
        if not self._bytes[tenant]:
            del self._bytes[tenant]

    def cancel(self, calls: Iterable[_OpenCall]) -> None:
        """Cancel the operations of a caller that is gone, soon: all sessions of a tenant may end at once."""
        is_idle = not self._gone
        self._gone.extend(calls)
        if is_idle and self._gone:
            self._tasks.start_soon(self._cancel_gone)

    async def _cancel_gone(self) -> None:
        while self._gone:
            for _ in range(min(len(self._gone), CANCELLED_AT_ONCE)):
                self._gone.popleft().scope.cancel()
            await anyio.lowlevel.checkpoint()

    def closed(self, caller: Caller) -> None:
        """Tell the families that a caller is gone."""
        for family in self._families:
            try:
                family.closed(caller)
            except Exception:  # the boundary of one family: the others are told all the same
                log.exception("a family of operations failed when %s was over", caller.id)

    def idle(self, tenant: str) -> None:
        """Note that a tenant has no run and no script's session any more."""
        for forget in self.on_idle:
            forget(tenant)

    async def _catch_up(self, tenant: str) -> None:
        """Start what had to wait, in order."""
        backlog = self._backlog[tenant]
        while backlog:
            for _ in range(min(len(backlog), STARTED_AT_ONCE)):
                await self._turn(tenant, lambda: self.replies.may_begin(tenant))
                self._start(backlog.popleft())
            await anyio.lowlevel.checkpoint()
        del self._backlog[tenant]
        self.pace.forget_old(time.monotonic())

    def _start(self, call: _OpenCall) -> None:
        """Start an operation, which is charged now for what it is expected to take: others are held against that."""
        self._charge(call.desk.caller.tenant, expected_seconds(call.size))
        self._tasks.start_soon(self._serve, call)

    async def _serve(self, call: _OpenCall) -> None:
        """Answer one operation, whatever happens in its handler."""
        outcome: Any = None
        with call.scope:
            try:
                if call.is_unwanted:
                    raise Cancelled(f"{call.op} was withdrawn")
                outcome = await Timed(
                    self._handled(call), partial(self._charge, call.desk.caller.tenant), expected_seconds(call.size)
                )
                await self._turn_to_pack(call.desk.caller.tenant, outcome)
            except InferdError as error:
                # Else its frames, with the request in them, stay until a garbage collection.
                outcome = error.with_traceback(None)
            except Exception as error:  # the boundary of one operation: a bug costs this one and no other
                log.exception("%s failed", call.op)
                outcome = InternalError(f"a bug in the runtime: {type(error).__name__}")
        if call.is_unwanted:
            if isinstance(outcome, Handed):
                outcome.undo()
            outcome = Cancelled(f"{call.op} was withdrawn")
        self._finish(call, outcome)

    async def _turn_to_pack(self, tenant: str, outcome: Any) -> None:
        """Wait until a large reply may be packed: that takes time as a large request does, and memory until it is sent."""
        size = _reply_size(outcome)
        if size:
            self.replies.know(tenant, size)
            try:
                async with self._packing[tenant]:
                    await self._turn(tenant, lambda: self.replies.may_pack(tenant, size))
            finally:
                self.replies.know(tenant, -size)

    async def _turn(self, tenant: str, has_room: Callable[[], bool]) -> None:
        """Wait until there is room for a tenant, and it has not taken more than its share of the thread's time."""
        while True:
            if not has_room():
                await self.replies.changed.wait()
            elif (wait := self.pace.wait(tenant, time.monotonic())) > 0:
                await anyio.sleep(wait)
            else:
                return

    def _finish(self, call: _OpenCall, outcome: Any) -> None:
        """Answer an operation. What packing a large reply takes is charged; that of a small one is paid already."""
        started = time.thread_time()
        call.desk.finish(call, outcome)
        if _reply_size(outcome):
            self._charge(call.desk.caller.tenant, time.thread_time() - started)

    def _charge(self, tenant: str, seconds: float) -> None:
        self.pace.used(tenant, seconds, time.monotonic())

    async def _handled(self, call: _OpenCall) -> Any:
        if call.refusal is not None:
            raise call.refusal
        handler = self._handlers.get(call.op)
        if handler is None:
            raise InvalidRequest(f"{shown(call.op)} is not served here")
        request, size = call.desk.wire.request(call.op, call.payload)
        call.payload = b""
        self._hold(call, max(size, call.size))
        return await handler(call.desk.caller, request)


def _reply_size(outcome: Any) -> int:
    return size_of_reply(outcome.reply if isinstance(outcome, Handed) else outcome)


class ServiceDesk:
    """One caller's operations: which are open, and which replies it has yet to confirm."""

    def __init__(
        self, table: ServiceTable, caller: Caller, wire: ServiceWire, answer: Callable[[Answer], None]
    ) -> None:
        self.caller = caller
        self.wire = wire
        self.asked = 0
        """How many operations it has opened."""
        self._table = table
        self._answer = answer
        self._open: dict[int, _OpenCall] = {}
        self._unconfirmed: dict[int, Handed] = {}
        self._unsent: dict[int, int] = {}
        self.closed = False

    def ask(self, ticket: int, op: str, payload: bytes) -> None:
        """Open an operation. Raises InvalidRequest for what no honest end of the wire sends: it keeps to these limits itself."""
        if self.closed or ticket in self._open or ticket in self._unconfirmed:
            raise InvalidRequest(f"ticket {ticket} is in use: wait for its reply first")
        if len(self._open) >= MAX_ASKED or len(payload) > MAX_REQUEST_BYTES:
            raise InvalidRequest(f"more than {MAX_ASKED} operations, or one of more than {MAX_REQUEST_BYTES} bytes")
        if op not in GATEWAY_OPERATIONS:
            raise InvalidRequest(f"there is no operation {shown(op)}")
        self._open[ticket] = call = _OpenCall(self, ticket, op, payload, len(payload))
        self.asked += 1
        self._table.begin(call)

    def withdraw(self, ticket: int) -> None:
        """Cancel an operation; if it was answered and that was not confirmed, undo it. Nothing happens for any other ticket."""
        if ticket in self._open:
            self._open[ticket].scope.cancel()
        elif ticket in self._unconfirmed:
            self._unconfirmed.pop(ticket).undo()

    def sent(self, ticket: int) -> None:
        """Note that an answer has left the gateway."""
        size = self._unsent.pop(ticket, 0)
        if size:
            self._table.replies.pack(self.caller.tenant, -size)

    def received(self, ticket: int) -> None:
        """Note that the caller has a reply."""
        handed = self._unconfirmed.pop(ticket, None)
        if handed is not None:
            handed.done()

    def close(self) -> None:
        """Cancel what is open, undo what was not received, and tell the families. A second call does nothing."""
        if self.closed:
            return
        self.closed = True
        self._table.cancel(self._open.values())
        for handed in reversed(self._unconfirmed.values()):
            handed.undo()
        self._unconfirmed.clear()
        for ticket in list(self._unsent):
            self.sent(ticket)
        self._table.closed(self.caller)

    def finish(self, call: _OpenCall, outcome: Any) -> None:
        """Send the outcome of an operation: a reply, :class:`Handed`, or an error."""
        del self._open[call.ticket]
        self._table.ended(call)
        if self.closed:
            if not self._open:
                self._table.closed(self.caller)
            return
        answer = self._packed(call, outcome)
        size = size_of_reply(answer)
        if size:
            self._unsent[call.ticket] = size
            self._table.replies.pack(self.caller.tenant, size)
        self._answer(answer)

    def _packed(self, call: _OpenCall, outcome: Any) -> Answer:
        if isinstance(outcome, InferdError):
            return Answer(call.ticket, False, self.wire.error(outcome))
        reply = outcome.reply if isinstance(outcome, Handed) else outcome
        try:
            payload = self.wire.write(reply)
        except (msgspec.MsgspecError, OverflowError, RecursionError, TypeError, ValueError) as error:
            log.error("a reply to %s cannot be packed: %s", call.op, error)
            if isinstance(outcome, Handed):
                outcome.done()  # undone, it would come again
            return Answer(call.ticket, False, self.wire.error(InternalError(f"the reply to {call.op} cannot be sent")))
        if not isinstance(outcome, Handed):
            return Answer(call.ticket, True, payload)
        self._unconfirmed[call.ticket] = replace(outcome, reply=None)  # packed: nobody needs it twice
        if len(self._unconfirmed) > MAX_UNCONFIRMED:
            self.received(next(iter(self._unconfirmed)))
        return Answer(call.ticket, True, payload, receipt=True)
