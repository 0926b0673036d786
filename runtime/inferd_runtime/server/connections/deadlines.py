"""How long a client may take for each part of a request: a state machine without sockets. Times are monotonic seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class Patience:
    """Seconds that a client has. ``head``: from the first byte of a request, or the connection, to the end of its head;
    ``body``: to the end of its body; ``idle``: between two requests; ``unread``: while it does not read what it was sent.
    """

    head: float = 10.0
    body: float = 60.0
    idle: float = 15.0
    unread: float = 30.0


class Phase(Enum):
    """What a connection is waited for."""

    HEAD = "the head of a request"
    BODY = "the body of a request"
    ANSWER = "our own answer"
    IDLE = "another request"
    CLOSING = "the end of the connection"


CLOSE_SECONDS = 2.0
"""How long the last words to a client may take."""
HALF_CLOSED_SECONDS = 2.0
"""How long nothing of an answer may come for a client that has closed its sending side: most that do so have left."""


class Deadlines:
    """When to give a connection up: :attr:`due`, and why: :attr:`reason`."""

    def __init__(self, patience: Patience, now: float) -> None:
        self._patience = patience
        self._phase = Phase.HEAD
        self._phase_due = now + patience.head
        self._unread_due = math.inf
        self._gone_due = math.inf

    @property
    def due(self) -> float:
        """The time at which to give up; infinite while nothing is missing from the client."""
        return min(self._phase_due, self._unread_due, self._gone_due)

    @property
    def reason(self) -> str:
        """What the client failed to do, if :attr:`due` has come."""
        if self._gone_due < self._unread_due:
            return f"it closed its sending side, and nothing of its answer came for {HALF_CLOSED_SECONDS:g} s"
        if self._unread_due < self._phase_due:
            return "it did not read the answer"
        return f"it did not send {self._phase.value} in time"

    @property
    def may_be_told(self) -> bool:
        """Return True if the client waits for an answer of which nothing was sent, so that it can be told what was wrong."""
        return self._phase in (Phase.HEAD, Phase.BODY) and math.isinf(self._unread_due)

    def received(self, now: float) -> None:
        """Note that bytes came: after an answer they begin the next request, or go on with a body that nobody wanted."""
        if self._phase is Phase.IDLE:
            self._enter(Phase.HEAD, now + self._patience.head)

    def head_came(self, now: float, has_body: bool) -> None:
        """Note that a request's head is complete."""
        if has_body:
            self._enter(Phase.BODY, now + self._patience.body)
        else:
            self._enter(Phase.ANSWER, math.inf)

    def body_came(self) -> None:
        """Note that the body of the request is complete."""
        if self._phase is Phase.BODY:
            self._enter(Phase.ANSWER, math.inf)

    def answered(self, now: float) -> None:
        """Note that the answer was handed to the transport."""
        if self._phase is Phase.CLOSING:
            return
        self._enter(Phase.IDLE, now + self._patience.idle)

    def stalled(self, now: float) -> None:
        """Note that too much of what was sent waits for the client to read."""
        self._unread_due = min(self._unread_due, now + self._patience.unread)

    def flows(self) -> None:
        """Note that the client has read on."""
        self._unread_due = math.inf

    def half_closed(self, now: float) -> None:
        """Note that the client has closed its sending side behind a whole request."""
        self._gone_due = now + HALF_CLOSED_SECONDS

    def wrote(self, now: float) -> None:
        """Note that more of an answer was sent: to a client that is gone it ends the connection."""
        if self._gone_due < math.inf:
            self._gone_due = now + HALF_CLOSED_SECONDS

    def closing(self, now: float) -> None:
        """Note that the last words were said."""
        self._enter(Phase.CLOSING, now + CLOSE_SECONDS)

    def _enter(self, phase: Phase, due: float) -> None:
        self._phase, self._phase_due = phase, due
