"""The tickets of one run: which operations are open, which are answered, which wait for a message. Pure state."""

from __future__ import annotations

from collections import deque
from enum import Enum

import msgspec

from inferd.protocol import EndOfMessages

MAX_OPEN = 1024
NO_MORE = b""
"""Instead of a message: there are no more."""
FIRST_TICKET = 1
"""Ticket 0 on the engine link is the session's own."""
ENTRY_BYTES = 512
"""What a ticket, an answer or a message takes beside its payload, roughly."""
END = msgspec.json.encode(EndOfMessages("the launcher sends no more messages").to_wire())
MOST_TAKEN = 1 << 20
"""Bytes of answers that one :meth:`PendingCalls.take` returns, unless the first one alone has more."""


class Waits(Enum):
    """What an open ticket waits for."""

    ENGINE = "engine"
    GATEWAY = "gateway"
    MESSAGE = "message"


class PendingCalls:
    """Hands out tickets and collects their answers. A ticket is used once; an answer for a closed one is dropped."""

    def __init__(self) -> None:
        self._next = FIRST_TICKET
        self._open: dict[int, Waits] = {}
        self._readers: deque[int] = deque()
        self._mailbox: deque[bytes] = deque()
        self._answers: dict[int, tuple[bool, bytes]] = {}
        self._delivered: dict[int, bytes] = {}
        self._arguments: dict[int, int] = {}
        self._receipts: set[int] = set()
        self._handed: list[int] = []
        self._told = self._no_more = False
        self.held_bytes = 0
        """Bytes that the host holds: arguments of open operations, answers and messages that have not been fetched."""

    @property
    def full(self) -> bool:
        """True if as many operations are open as a run may have."""
        return len(self._open) >= MAX_OPEN

    @property
    def expects(self) -> bool:
        """True if an operation is open."""
        return bool(self._open)

    @property
    def has_answers(self) -> bool:
        """True if :meth:`take` would return something."""
        return bool(self._answers)

    @property
    def unread(self) -> int:
        """Number of messages that wait for the program."""
        return len(self._mailbox)

    def open_engine(self, argument_bytes: int = 0) -> int:
        """Return a ticket for an operation that the engine answers."""
        return self._sent(Waits.ENGINE, argument_bytes)

    def open_gateway(self, argument_bytes: int = 0) -> int:
        """Return a ticket for an operation that the gateway answers."""
        return self._sent(Waits.GATEWAY, argument_bytes)

    def open_receive(self) -> int:
        """Return a ticket for the next message. Once there are no more, it is answered with EndOfMessages."""
        ticket = self._new(Waits.MESSAGE)
        self._readers.append(ticket)
        self._hand_out()
        return ticket

    def tell_waiting(self) -> bool:
        """Return True if somebody waits for a message, once until the next message comes."""
        told, self._told = self._told, self._told or bool(self._readers)
        return self._told and not told

    def answered(self, ok: bool, payload: bytes) -> int:
        """Return a ticket for an operation that is answered at once."""
        ticket = self._new(Waits.ENGINE)
        self.settle(ticket, ok, payload)
        return ticket

    def settle(self, ticket: int, ok: bool, payload: bytes, receipt: bool = False) -> None:
        """Note an operation's answer; ``payload`` is JSON. With ``receipt``, :meth:`received` tells when the guest has it."""
        if self._close(ticket) is not None:
            self._answers[ticket] = (ok, payload)
            self.held_bytes += ENTRY_BYTES + len(payload)
            if receipt:
                self._receipts.add(ticket)

    def received(self) -> list[int]:
        """Return the tickets whose answers, asked for with ``receipt``, the guest has for certain, each once.

        Call it when the guest waits again or is over: its tasks have run since the answers were handed out, and kept them.
        """
        received, self._handed = self._handed, []
        self._receipts.difference_update(received)
        return received

    def deliver(self, message: bytes) -> None:
        """Queue a message for the program, as JSON, or note that there are no more (``NO_MORE``)."""
        self._told = False
        if message == NO_MORE:
            self._no_more = True
        else:
            self._mailbox.append(message)
            self.held_bytes += ENTRY_BYTES + len(message)
        self._hand_out()

    def cancel(self, ticket: int) -> Waits | None:
        """Forget a ticket; returns what it waited for, to be told. A message that was not fetched goes back to the mailbox.

        The gateway hears of an answered ticket as well, as long as :meth:`received` has not told it.
        """
        waits = self._close(ticket)
        if ticket in self._receipts:
            self._receipts.discard(ticket)
            self._handed = [one for one in self._handed if one != ticket]
            waits = Waits.GATEWAY
        if waits is Waits.MESSAGE:
            self._readers.remove(ticket)
        if ticket in self._answers:
            self.held_bytes -= ENTRY_BYTES + len(self._answers.pop(ticket)[1])
        message = self._delivered.pop(ticket, None)
        if message is not None:
            self._mailbox.appendleft(message)
            self.held_bytes += ENTRY_BYTES + len(message)
            self._hand_out()
        return None if waits is Waits.MESSAGE else waits

    def take(self) -> bytes | None:
        """Return answers that have not been fetched, oldest first, as the guest reads them (see ``world.wit``); None if there are
        none. What is more than ``MOST_TAKEN`` bytes is left for the next call.
        """
        if not self._answers:
            return None
        entries: list[bytes] = []
        size = 0
        for ticket, (ok, payload) in list(self._answers.items()):
            size += len(payload)
            if entries and size > MOST_TAKEN:
                break
            entries.append(b"[%d,%d,%b]" % (ticket, ok, payload))
            del self._answers[ticket]
            self._delivered.pop(ticket, None)
            self.held_bytes -= ENTRY_BYTES + len(payload)
            if ticket in self._receipts:
                self._handed.append(ticket)
        return b"[" + b",".join(entries) + b"]"

    def _sent(self, to: Waits, argument_bytes: int) -> int:
        ticket = self._new(to)
        self._arguments[ticket] = argument_bytes
        self.held_bytes += argument_bytes
        return ticket

    def _close(self, ticket: int) -> Waits | None:
        waits = self._open.pop(ticket, None)
        if waits is not None:
            self.held_bytes -= ENTRY_BYTES + self._arguments.pop(ticket, 0)
        return waits

    def _new(self, waits: Waits) -> int:
        ticket = self._next
        self._next += 1
        self._open[ticket] = waits
        self.held_bytes += ENTRY_BYTES
        return ticket

    def _hand_out(self) -> None:
        while self._readers and self._mailbox:
            ticket, message = self._readers.popleft(), self._mailbox.popleft()
            self.held_bytes -= ENTRY_BYTES + len(message)
            self._delivered[ticket] = message
            self.settle(ticket, True, b'{"message":%b}' % message)
        while self._readers and self._no_more:
            self.settle(self._readers.popleft(), False, END)
