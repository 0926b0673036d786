"""What happened in a run: its states, its events, how it ended, and the newest events as they are kept. Pure."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any

import msgspec

from inferd.protocol import Cancelled, ErrorInfo
from inferd_runtime.sandbox.messages import RunUsage
from inferd_runtime.server.run_store.records import StoredEvent

EVENT_OVERHEAD = 256
"""Bytes counted per event beside its payload."""
MAX_UNREAD = 2 << 20
"""Bytes of unread events that are kept beyond a buffer's capacity: a program that waits for its followers sends no more."""


class RunState(StrEnum):
    """Where a run is. The last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Something that happened in a run. ``kind``: started | stdout | stderr | message | waiting | call | file | finished |
    dropped.

    ``index`` counts from 0 without gaps, except that ``dropped`` stands for all events that left the buffer before it was
    read: its payload is their number. Payloads: text for the streams, JSON text for ``message``, ``file`` and ``call`` (what it
    asked of the world outside), ``None`` for ``started`` and ``waiting`` (for a message),
    :class:`Ending` for ``finished``. ``time`` is in seconds since the epoch. ``end``: the bytes of all events of its buffer up to
    its own, those that have left it included.
    """

    index: int
    kind: str
    time: float
    payload: Any = None
    size: int = EVENT_OVERHEAD
    end: int = 0


@dataclass(frozen=True)
class Ending:
    """How a run ended: exactly one of ``parts``, which are its result (JSON text), and ``error``."""

    usage: RunUsage
    parts: tuple[str, ...] | None = None
    error: ErrorInfo | None = None

    @property
    def result(self) -> str | None:
        """The result as JSON text, joined anew each time; None if the run failed."""
        return None if self.parts is None else "".join(self.parts)

    @property
    def size(self) -> int:
        """The bytes that it takes, roughly."""
        error = 0 if self.error is None else len(msgspec.json.encode(self.error))
        return sum(map(len, self.parts or ())) + error

    @property
    def state(self) -> RunState:
        """The final state that this ending means."""
        if self.error is None:
            return RunState.SUCCEEDED
        return RunState.CANCELLED if self.error.code == Cancelled.code else RunState.FAILED


class EventBuffer:
    """The last event of a run, at most ``capacity`` bytes of those before it, and those that are still unread."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.size = 0
        self.next_index = 0
        self._end = 0
        self._events: deque[RunEvent] = deque()

    @property
    def first_index(self) -> int:
        """Index of the oldest event that is still here."""
        return self._events[0].index if self._events else self.next_index

    def append(
        self, kind: str, payload: Any, payload_size: int, at: float | None = None, unread: int | None = None
    ) -> RunEvent:
        """Add an event, of now or ``at`` a time; see :meth:`trim`."""
        time_of = time.time() if at is None else at
        size = payload_size + EVENT_OVERHEAD
        self._end += size
        event = RunEvent(self.next_index, kind, time_of, payload, size, self._end)
        self._events.append(event)
        self.next_index += 1
        self.size += event.size
        self.trim(unread)
        return event

    def trim(self, unread: int | None = None) -> None:
        """Drop the oldest events that do not fit; those from index ``unread`` on only beyond ``MAX_UNREAD``."""
        end = self.next_index if unread is None else unread
        while self._events and (excess := self.size - self._events[-1].size - self.capacity) > 0:
            if self._events[0].index >= end and excess <= MAX_UNREAD:
                break
            self.size -= self._events.popleft().size

    def bytes_from(self, index: int) -> int:
        """Return how many bytes the events from ``index`` on take."""
        at = bisect_left(self._events, index, key=lambda event: event.index)
        return self._end - self._events[at].end + self._events[at].size if at < len(self._events) else 0

    def restore(self, events: Iterable[StoredEvent]) -> None:
        """Take back what was stored of a run that goes on."""
        for event in events:
            self.next_index = event.index
            self.append(event.kind, event.text, len((event.text or "").encode()), event.time)

    def since(self, start: int) -> Iterator[RunEvent]:
        """Yield the events from index ``start``; what has left the buffer is reported first, as one ``dropped`` event."""
        first = self.first_index
        if start < first:
            yield RunEvent(first - 1, "dropped", time.time(), first - start)
        skip = min(max(start - first, 0), len(self._events))  # a client may ask for any number
        yield from islice(self._events, skip, None)
