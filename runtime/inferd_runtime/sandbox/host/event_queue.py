"""What a run tells the gateway: text merged into events, at a bounded rate, and never far ahead of what the gateway has taken."""

from __future__ import annotations

import math
from collections import deque

from inferd_runtime.sandbox.messages import Output, Sent, Waiting

MOST_MERGED = 16 << 10
"""Characters of text in one event, unless the program wrote more at once."""
MOST_EVENT = 64 << 10
"""Characters of text in one event: what a program writes at once becomes several."""
MERGE_SECONDS = 0.02
"""How long after an event further text is held, so that it becomes one event however many pieces it comes in."""
EVENTS_PER_SECOND = 500.0
BURST = 500.0
"""Events that a run may send at once after a silence: messages, and texts of alternating streams, are not merged."""
WINDOW_EVENTS = 256
WINDOW_BYTES = 256 << 10
"""What may be on the way to the gateway. It says what it has taken long before half of this (``EventsTaken``)."""


class EventQueue:
    """Decides when what a program writes and sends becomes an event. Pure state: the caller brings the clock, in seconds.

    Text goes out at once after a silence. What follows on the same stream within ``MERGE_SECONDS`` is joined, until it is
    :meth:`due`. What cannot be joined goes out all the same; if that is too much, the program waits (:meth:`pause`).
    """

    def __init__(self, run: str, now: float) -> None:
        self._run = run
        self._stream = ""
        self._pieces: list[str] = []
        self._size = 0
        self._allowance = BURST
        self._refilled_at = now
        self._next_text_at = now
        self._sizes: deque[int] = deque()
        self._bytes = 0

    def write(self, stream: str, text: str, now: float) -> list[Output]:
        """Take text; returns the events that go out now."""
        out = self.flush(now) if stream != self._stream else []
        self._stream = stream
        self._pieces.append(text)
        self._size += len(text)
        if self._size >= MOST_MERGED or self.due() <= now:
            out += self.flush(now)
        return out

    def send(self, message: str, now: float) -> list[Output | Sent]:
        """Take a message, as JSON text; returns the events that go out now."""
        out: list[Output | Sent] = [*self.flush(now), Sent(self._run, message)]
        self._count(len(message.encode()))
        return out

    def waits(self, now: float) -> list[Output | Sent | Waiting]:
        """Note that the program waits for a message; returns the events that go out now."""
        out: list[Output | Sent | Waiting] = [*self.flush(now), Waiting(self._run)]
        self._count(0)
        return out

    def flush(self, now: float) -> list[Output]:
        """Return the text that is held, as one event unless it is long; nothing if there is none."""
        if not self._pieces:
            return []
        text = "".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        self._next_text_at = now + MERGE_SECONDS
        parts = [text[start : start + MOST_EVENT] for start in range(0, len(text), MOST_EVENT)]
        for part in parts:
            self._count(len(part.encode()))
        return [Output(self._run, self._stream, part) for part in parts]

    def due(self) -> float:
        """Return when held text may go out; infinity if there is none."""
        return self._next_text_at if self._pieces else math.inf

    def pause(self, now: float) -> float:
        """Return for how many seconds the program has to wait before it goes on: infinity until the gateway has taken some."""
        if len(self._sizes) >= WINDOW_EVENTS or self._bytes >= WINDOW_BYTES:
            return math.inf
        self._refill(now)
        return max(0.0, -BURST - self._allowance) / EVENTS_PER_SECOND

    def taken(self, events: int) -> None:
        """Note that the gateway has handled so many more events."""
        for _ in range(min(events, len(self._sizes))):
            self._bytes -= self._sizes.popleft()

    def _count(self, size: int) -> None:
        self._allowance -= 1
        self._sizes.append(size)
        self._bytes += size

    def _refill(self, now: float) -> None:
        gained = (now - self._refilled_at) * EVENTS_PER_SECOND
        self._allowance = min(BURST, self._allowance + gained)
        self._refilled_at = now
