"""The host's answers to one guest: what ``world.wit`` imports, for one run, in the thread that runs it."""

from __future__ import annotations

import base64
import contextlib
import math
import time
import traceback
from collections.abc import Callable, Sequence

import msgspec
import zmq

from inferd.protocol import (
    GATEWAY_OPERATIONS,
    OPERATIONS,
    Cancelled,
    ErrorInfo,
    InferdError,
    InternalError,
    InvalidRequest,
    LimitExceeded,
    ProgramError,
    ReceiveMessage,
    SendMessage,
    Unavailable,
    shown,
)
from inferd_runtime.known_fields import known_fields
from inferd_runtime.sandbox.asked_window import FEWER, AskedWindow
from inferd_runtime.sandbox.host.argument_window import REPLY_WINDOW_BYTES, ArgumentWindow
from inferd_runtime.sandbox.host.carried import check_json
from inferd_runtime.sandbox.host.event_queue import MOST_EVENT, EventQueue
from inferd_runtime.sandbox.host.inbox import MAX_MESSAGES, Inbox, too_many_messages
from inferd_runtime.sandbox.host.kept_code import KeptCode
from inferd_runtime.sandbox.host.meter import MemoryMeter, Meter
from inferd_runtime.sandbox.host.pending_calls import MAX_OPEN, PendingCalls, Waits
from inferd_runtime.sandbox.host.use_reports import UseReports
from inferd_runtime.sandbox.messages import (
    Asked,
    FromWorker,
    LaunchRun,
    Output,
    Received,
    Sent,
    Used,
    Waiting,
    Withdrawn,
)
from inferd_runtime.sandbox.wasm.engine_settings import MIB
from inferd_runtime.session.reply_sizes import ReplySizes
from inferd_runtime.session.wire import JSON, EngineLink, LinkReply

FOR_EVER_MS = 0xFFFFFFFF
MAX_POLL_SECONDS = 60.0
MAX_ARGUMENTS = 16 << 20
MAX_SENT = 1 << 20
"""Bytes of one message to the launcher."""
STREAMS = frozenset({"stdout", "stderr"})
DONE = b"{}"
Report = Callable[[FromWorker], None]


class _Sent(msgspec.Struct, forbid_unknown_fields=True):
    message: msgspec.Raw


class GuestCalls:
    """Answers one guest. Made and used in the run's thread, whose processor time it charges; nothing here raises on purpose."""

    def __init__(self, launch: LaunchRun, inbox: Inbox, link: EngineLink, report: Report, code: KeptCode) -> None:
        self.meter = Meter(launch.limits, time.monotonic(), time.thread_time())
        self.memory = MemoryMeter(launch.limits, lambda: 0)
        self.session_replies = 0
        self._run = launch.run
        self._launch = launch
        self._code = code
        self._launched_bytes = len(launch.arguments) + launch.bundle.size
        self._inbox = inbox
        self._link = link
        self._report = report
        self._pending = PendingCalls()
        self._window = ArgumentWindow()
        self._replies = ArgumentWindow(REPLY_WINDOW_BYTES)
        self._sizes = ReplySizes()
        self._asked = AskedWindow()
        self._use = UseReports(launch.run)
        self._events = EventQueue(launch.run, time.monotonic())
        self._poller = zmq.Poller()
        self._poller.register(link.socket, zmq.POLLIN)
        self._poller.register(inbox.fileno(), zmq.POLLIN)

    @property
    def ended(self) -> bool:
        """True if the guest is to be stopped now."""
        return self._inbox.error is not None

    def submit(self, op: str, arguments: bytes) -> int:
        """Start an operation; what is refused is answered at once, with an error."""
        try:
            ticket = self._submit(op, arguments)
        except InferdError as error:
            ticket = self._pending.answered(False, msgspec.json.encode(error.to_wire().carriable()))
        self._charge_memory()
        return ticket

    def wait(self, timeout_ms: int) -> bytes:
        """Return finished operations. Sleeps until there is one, the time is up, or the run has to end."""
        self._report_received()
        now = time.monotonic()
        end = math.inf if timeout_ms == FOR_EVER_MS else now + timeout_ms / 1e3
        while True:
            self._flush_due(now)
            patience = min(end, self._events.due()) - now
            idle = not (self._pending.has_answers or self.ended)
            self._collect(min(patience, self.meter.wall_left(now)) if idle else 0.0)
            self._charge()
            answers = self._pending.take()
            now = time.monotonic()
            if answers is not None or self.ended or now >= end:
                return answers or b"[]"

    def ask(self, op: str, arguments: bytes, timeout_ms: int) -> bytes:
        """Start an operation, then wait: :meth:`submit` and :meth:`wait` for the price of one crossing."""
        ticket = self.submit(op, arguments)
        return b"[%d,%b]" % (ticket, self.wait(timeout_ms))

    def cancel(self, ticket: int) -> None:
        """Drop an operation."""
        waits = self._pending.cancel(ticket)
        if waits is Waits.GATEWAY:
            self._asked.withdrawn(ticket)
            self._report(Withdrawn(self._run, ticket))
        elif waits is Waits.ENGINE:
            with contextlib.suppress(zmq.Again):  # the engine is not reading: it will not answer either
                self._link.cancel(ticket)

    def log(self, target: str, text: str) -> None:
        """Pass on what the program wrote, as far as the limit lets it."""
        stream = target if target in STREAMS else "stdout"
        data = text.encode()
        allowed, error = self.meter.write(len(data))
        if allowed:
            written = text if error is None else data[:allowed].decode(errors="ignore")
            for start in range(0, len(written), MOST_EVENT):  # the program waits between the pieces of a long text
                self._pass_on(self._events.write(stream, written[start : start + MOST_EVENT], time.monotonic()))
                if self.ended:
                    break
        if error is not None:
            self._end(error)

    def file(self, path: str) -> bytes:
        """Return a file of the program's packages in Base64; empty for one that is not there."""
        return base64.b64encode(self._launch.bundle.packages.get(path, b""))

    def code(self, path: str) -> bytes:
        """Return what an earlier run compiled a module of the program to; empty where none did."""
        return self._code.of(self._launch.program, path)

    def keep(self, code: bytes) -> None:
        """Keep what the program's modules were compiled to, for its later runs here."""
        self._code.add(self._launch.program, self._launch.bundle, code)

    def finish(self) -> None:
        """Pass on what is held back, at the program's end."""
        self._report_received()
        self._pass_on(self._events.flush(time.monotonic()))
        if self._inbox.reports_use:
            self._report(self._used())

    def tick(self) -> None:
        """Charge the guest, which has computed for a while."""
        self._flush_due(time.monotonic())
        self._charge()

    def blocked(self) -> None:
        """End a guest that made a system call that would block it outside of :meth:`wait`."""
        self._end(ProgramError("the program made a blocking system call; use asyncio.sleep or time.sleep to wait"))

    def crashed(self, error: Exception) -> None:
        """End this run, and no other, because of a bug: one of these methods failed."""
        self._end(sandbox_failure(error))

    def _submit(self, op: str, arguments: bytes) -> int:
        if op not in OPERATIONS and op not in GATEWAY_OPERATIONS:
            raise InvalidRequest(f"there is no operation {shown(op)}")
        if len(arguments) > MAX_ARGUMENTS:
            raise InvalidRequest(f"{op}: the arguments take {len(arguments)} bytes; {MAX_ARGUMENTS} are allowed")
        if self._pending.full:
            raise LimitExceeded(
                f"{MAX_OPEN} operations are in flight already", limit="operations", value=MAX_OPEN, raise_with=FEWER
            )
        if op == ReceiveMessage.op:  # type: ignore[attr-defined]
            return self._receive_message(arguments)
        if op == SendMessage.op:  # type: ignore[attr-defined]
            return self._send_message(arguments)
        if op in GATEWAY_OPERATIONS:
            return self._ask(op, arguments)
        replied = self._sizes.most(op, arguments, JSON)
        self._wait_while(lambda: not (self._window.has_room(len(arguments)) and self._replies.has_room(replied)))
        ticket = self._pending.open_engine(len(arguments))
        try:
            self._link.send(ticket, op, arguments)
            self._window.sent(ticket, len(arguments))
            self._replies.sent(ticket, replied)
        except zmq.Again:
            error = Unavailable("the engine does not take requests").to_wire()
            self._pending.settle(ticket, False, msgspec.json.encode(error))
        return ticket

    def _wait_while(self, full: Callable[[], bool]) -> None:
        """Wait until enough of what was sent has been answered. Raises Cancelled if the run ends before."""
        while full() and not self.ended:
            now = time.monotonic()
            self._flush_due(now)
            self._collect(min(self._events.due() - now, self.meter.wall_left(now)))
            self._charge()
        if self.ended:
            raise Cancelled("the run is over")

    def _send_message(self, arguments: bytes) -> int:
        if len(arguments) > MAX_SENT:
            text = f"a message to the launcher may have {MAX_SENT} bytes, this one has {len(arguments)}"
            raise LimitExceeded(text, limit="message_bytes", value=MAX_SENT, raise_with="several messages")
        op: str = SendMessage.op  # type: ignore[attr-defined]
        check_json(arguments, op)
        try:
            message = msgspec.json.decode(arguments, type=_Sent).message
        except msgspec.MsgspecError as error:
            raise InvalidRequest(f"{op}: {error}") from None
        _, exceeded = self.meter.write(len(arguments))
        if exceeded is not None:
            self._end(exceeded)
        else:
            self._pass_on(self._events.send(bytes(message).decode(), time.monotonic()))
        return self._pending.answered(True, DONE)

    def _receive_message(self, arguments: bytes) -> int:
        """Open a ticket for the next message, and tell the launcher if the program has to wait for it."""
        try:
            msgspec.json.decode(arguments, type=known_fields(ReceiveMessage))
        except msgspec.MsgspecError as error:
            raise InvalidRequest(f"{ReceiveMessage.op}: {error}") from None  # type: ignore[attr-defined]
        ticket = self._pending.open_receive()
        self._receive_messages()
        if self._pending.tell_waiting():
            self._pass_on(self._events.waits(time.monotonic()))
        return ticket

    def _ask(self, op: str, arguments: bytes) -> int:
        """Have the gateway answer."""
        self._wait_while(lambda: self._asked.frees_itself(len(arguments)))
        self._asked.check(op, len(arguments))
        check_json(arguments, op)
        ticket = self._pending.open_gateway(len(arguments))
        self._asked.asked(ticket, len(arguments))
        self._report(Asked(self._run, ticket, op, arguments.decode()))
        return ticket

    def _report_received(self) -> None:
        for ticket in self._pending.received():
            self._report(Received(self._run, ticket))

    def _flush_due(self, now: float) -> None:
        """Report held text whose time has come."""
        if self._events.due() <= now:
            self._pass_on(self._events.flush(time.monotonic()))

    def _pass_on(self, events: Sequence[Output | Sent | Waiting]) -> None:
        """Report events, then wait while the gateway has not taken enough of them, or they come too fast."""
        for event in events:
            exceeded = self.meter.count_event()
            if exceeded is not None:
                self._end(exceeded)
                return
            self._report(event)
        while not self.ended:
            now = time.monotonic()
            pause = min(self._events.pause(now), self.meter.wall_left(now))
            if pause <= 0.0:
                break
            self._inbox.wait(min(pause, MAX_POLL_SECONDS))
            self._receive_messages()
            self._charge()

    def _collect(self, patience: float) -> None:
        """Receive all that has come from the engine and the gateway; wait for something at most ``patience`` seconds."""
        ready = self._poller.poll(_poll_ms(patience))
        while ready:
            for source, _ in ready:
                if source is self._link.socket:
                    self._receive_reply()
                else:
                    self._receive_messages()
            ready = self._poller.poll(0) if self._pending.expects else []

    def _receive_reply(self) -> None:
        reply = self._link.receive()
        if reply is None:
            return
        if reply.ticket:
            self._window.answered(reply.ticket)
            self._replies.answered(reply.ticket)
            self._pending.settle(reply.ticket, reply.ok, reply.payload)
        else:
            self._session_reply(reply)

    def _receive_messages(self) -> None:
        for message in self._inbox.take():
            self._pending.deliver(message)
        for answer in self._inbox.take_answers():
            self._asked.answered(answer.ticket)
            self._pending.settle(answer.ticket, answer.ok, answer.json.encode(), answer.receipt)
        self._events.taken(self._inbox.take_receipts())
        if self._pending.unread > MAX_MESSAGES:
            self._end(too_many_messages())

    def _session_reply(self, reply: LinkReply) -> None:
        """Note that the engine has opened the session, or end the run because it refused to."""
        self.session_replies += 1
        if not reply.ok:
            self._inbox.end(msgspec.msgpack.decode(reply.payload, type=ErrorInfo))

    def _end(self, error: InferdError) -> None:
        self._inbox.end(error.to_wire())

    def _charge(self) -> None:
        error = self.meter.check(time.monotonic(), time.thread_time())
        if error is not None:
            self._end(error)
        if self._inbox.reports_use:
            self._tell_use()
        self._charge_memory(look=True)

    def _tell_use(self) -> None:
        cpu = time.thread_time() - self.meter.cpu_start
        if self._use.looks(cpu) and self._use.due(used := self._used()):
            self._report(used)

    def _used(self) -> Used:
        memory = (self.memory.linear_bytes() + self._pending.held_bytes) / MIB
        cpu = time.thread_time() - self.meter.cpu_start
        return Used(self._run, cpu, memory, self.meter.output, self.meter.events)

    def _charge_memory(self, look: bool = False) -> None:
        error = self.memory.check(self._launched_bytes + self._pending.held_bytes, look)
        if error is not None:
            self._end(error)


def sandbox_failure(error: Exception) -> InternalError:
    """Return the error of a run that met a bug of the sandbox."""
    trace = "".join(traceback.format_exception(error))
    return InternalError(f"the sandbox failed: {error!r}", traceback=trace)


def _poll_ms(seconds: float) -> int:
    """Return milliseconds for a poll, rounded up so that it does not end just before its time."""
    return math.ceil(min(seconds, MAX_POLL_SECONDS) * 1e3) if seconds > 0 else 0
