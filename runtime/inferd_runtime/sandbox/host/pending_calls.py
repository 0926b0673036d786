"""The tickets of one run: which operations are open, which are answered, who waits for a message. Pure state."""

from __future__ import annotations

from collections import deque
from enum import Enum

MAX_OPEN = 1024
FIRST_TICKET = 1
"""Ticket 0 on the engine link is the session's own."""


class Waits(Enum):
    """What an open ticket waits for."""

    ENGINE = "engine"
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

    def open_engine(self) -> int:
        """Return a ticket for an operation that the engine answers."""
        return self._new(Waits.ENGINE)

    def open_receive(self) -> int:
        """Return a ticket for the next message."""
        ticket = self._new(Waits.MESSAGE)
        self._readers.append(ticket)
        self._hand_out()
        return ticket

    def answered(self, ok: bool, payload: bytes) -> int:
        """Return a ticket for an operation that is answered at once."""
        ticket = self._new(Waits.ENGINE)
        self.settle(ticket, ok, payload)
        return ticket

    def settle(self, ticket: int, ok: bool, payload: bytes) -> None:
        """Note an operation's answer; ``payload`` is JSON."""
        if self._open.pop(ticket, None) is not None:
            self._answers[ticket] = (ok, payload)

    def deliver(self, message: bytes) -> None:
        """Queue a message for the program, as JSON."""
        self._mailbox.append(message)
        self._hand_out()

    def cancel(self, ticket: int) -> bool:
        """Forget a ticket. True if the engine has to be told. A message that was not fetched goes back to the mailbox."""
        waits = self._open.pop(ticket, None)
        if waits is Waits.MESSAGE:
            self._readers.remove(ticket)
        self._answers.pop(ticket, None)
        message = self._delivered.pop(ticket, None)
        if message is not None:
            self._mailbox.appendleft(message)
            self._hand_out()
        return waits is Waits.ENGINE

    def take(self) -> bytes | None:
        """Return all answers that have not been fetched, as the guest reads them (see ``world.wit``); None if there are none."""
        if not self._answers:
            return None
        entries = [b"[%d,%d,%b]" % (ticket, ok, payload) for ticket, (ok, payload) in self._answers.items()]
        self._answers.clear()
        self._delivered.clear()
        return b"[" + b",".join(entries) + b"]"

    def _new(self, waits: Waits) -> int:
        ticket = self._next
        self._next += 1
        self._open[ticket] = waits
        return ticket

    def _hand_out(self) -> None:
        while self._readers and self._mailbox:
            ticket, message = self._readers.popleft(), self._mailbox.popleft()
            self._delivered[ticket] = message
            self.settle(ticket, True, b'{"message":%b}' % message)
