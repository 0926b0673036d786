"""Where a reader of a run's events stands, over as many connections as that takes. Pure state: no sockets, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inferd.protocol import ClientError
from inferd.transport.answers import fields_of, json_of

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0


class EventsDropped(ClientError):
    """Events that were asked for are no longer kept. ``detail``: ``count`` of them, and ``next``, the first that may still be
    there: ``run.events(start=error.next)`` goes on with it.
    """

    code = "client.events_dropped"

    def __init__(self, count: int, following: int) -> None:
        super().__init__(f"{count} events of the run are no longer kept", count=count, next=following)

    @property
    def next(self) -> int:
        """Index of the first event behind the gap."""
        index: int = self.detail["next"]
        return index


@dataclass(frozen=True)
class StreamEvent:
    """Something that happened in a run. ``kind``: started | stdout | stderr | message | call | waiting | waiting_file | file |
    finished.

    ``index`` counts from 0 without gaps; ``time`` is in seconds since the epoch; ``data`` is all of it, as the server sent it.
    """

    index: int
    kind: str
    time: float
    data: dict[str, Any]

    @property
    def text(self) -> str:
        """What was written, of ``stdout`` and ``stderr``; else ""."""
        return str(self.data.get("text", ""))

    @property
    def message(self) -> Any:
        """The value that was sent, of a ``message``."""
        return self.data.get("message")


class EventCursor:
    """Takes the lines of streams, each of which begins at :attr:`next`, and gives each event once."""

    def __init__(self, start: int = 0) -> None:
        self.next = start
        """Index of the next event to ask for."""
        self.finished = False
        """True behind the run's last event."""

    def take(self, line: bytes) -> StreamEvent | None:
        """Return the event of a line, None for one that says nothing new. How the run ended is new at any index: a server
        that was killed may have shown more than is kept.

        Raises EventsDropped where events are missing, InternalError for a line that is no event.
        """
        if not line.strip():
            return None
        event = _read(line)
        if event.kind == "dropped":
            count, self.next = event.index + 1 - self.next, max(self.next, event.index + 1)
            raise EventsDropped(max(count, 1), self.next)
        if event.index < self.next and event.kind != "finished":
            return None
        if event.index > self.next:
            count, self.next = event.index - self.next, event.index
            raise EventsDropped(count, self.next)
        self.next = event.index + 1
        self.finished = event.kind == "finished"
        return event


def _read(line: bytes) -> StreamEvent:
    data = fields_of(json_of(line), index=int, type=str, time=(int, float))
    return StreamEvent(data["index"], data["type"], data["time"], data)


class Backoff:
    """How long to wait before each further attempt: twice as long each time, and ``patience_s`` in all without a success."""

    def __init__(self, patience_s: float) -> None:
        self._patience = patience_s
        self._pause = FIRST_PAUSE_S
        self._waited = 0.0

    def succeeded(self) -> None:
        """Note that an attempt brought something."""
        self._pause, self._waited = FIRST_PAUSE_S, 0.0

    def pause(self) -> float | None:
        """Return the seconds to wait before the next attempt; None if there is to be none."""
        if self._waited >= self._patience:
            return None
        pause = min(self._pause, self._patience - self._waited)
        self._waited += pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE_S)
        return pause
