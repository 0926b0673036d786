"""One run on a server, as its client holds it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

import anyio

from inferd.client.event_cursor import Backoff, EventCursor, EventsDropped, StreamEvent
from inferd.client.http_link import ConnectionLost, HttpLink
from inferd.program.json_values import to_json_value
from inferd.protocol import ErrorInfo, Unavailable


class RunHandle:
    """A run, made by ``client.launch`` and ``client.attach``. It goes on whether anybody holds it or not."""

    def __init__(self, link: HttpLink, record: dict[str, Any]) -> None:
        self.id: str = record["id"]
        self.record = record
        """The run as the server showed it last: ``state``, ``error``, ``usage``, times; :meth:`refresh` asks again."""
        self._link = link
        self._path = f"/v1/runs/{quote(self.id, safe='')}"

    async def refresh(self) -> dict[str, Any]:
        """Ask for the run as it is now, and return it."""
        self.record = await self._link.request("GET", self._path, again=True)
        return self.record

    async def events(self, start: int = 0) -> AsyncGenerator[StreamEvent]:
        """Yield the run's events from index ``start`` on, past and to come, each once, until its last one.

        A lost connection is made again behind the event that came last. Raises EventsDropped where events are no longer kept,
        Unavailable if the server does not come back within the client's ``patience_s``.
        """
        cursor, backoff = EventCursor(start), Backoff(self._link.patience_s)
        while not cursor.finished:
            lost: Unavailable = ConnectionLost(f"the stream of {self.id} ended before the run did")
            try:
                async with aclosing(self._link.lines(f"{self._path}/events?from={cursor.next}")) as lines:
                    async for line in lines:
                        event = cursor.take(line)
                        if event is not None:
                            backoff.succeeded()
                            yield event
            except Unavailable as error:
                lost = error
            if not cursor.finished:
                await _pause(backoff, lost)

    async def messages(self, start: int = 0) -> AsyncGenerator[Any]:
        """Yield the values that the program sends with ``session.send``, until the run is over. Raises the run's error."""
        async with aclosing(self.events(start)) as events:
            async for event in events:
                if event.kind == "message":
                    yield event.message
                elif event.kind == "finished":
                    result_of(event.data)

    async def output(self, stream: str = "stdout", start: int = 0) -> AsyncGenerator[str]:
        """Yield the text that the program writes to ``stdout`` or ``stderr``, as it comes. Raises the run's error."""
        async with aclosing(self.events(start)) as events:
            async for event in events:
                if event.kind == stream:
                    yield event.text
                elif event.kind == "finished":
                    result_of(event.data)

    async def logs(self) -> list[StreamEvent]:
        """Return the events so far that are still kept, without waiting for more."""
        cursor, found = EventCursor(), list[StreamEvent]()
        end = (await self.refresh())["next_event"]
        while cursor.next < end:
            async with aclosing(self._link.lines(f"{self._path}/events?from={cursor.next}&follow=false")) as lines:
                try:
                    async for line in lines:
                        event = cursor.take(line)
                        if event is not None:
                            found.append(event)
                except EventsDropped:
                    continue
                end = cursor.next
        return found

    async def result(self) -> Any:
        """Wait until the run is over, and return what its ``main`` returned. Raises the error that it ended with."""
        record = await self.refresh()
        while record["finished_at"] is None:
            try:
                async with aclosing(self.events(record["next_event"])) as events:
                    async for event in events:
                        if event.kind == "finished":
                            self.record = {**record, **{key: event.data[key] for key in ("state", "error", "usage")}}
                            return result_of(event.data)
            except EventsDropped:
                pass  # what it said meanwhile is not asked for
            record = await self.refresh()
        return result_of(record)

    async def send(self, value: Any) -> None:
        """Hand a value to the program's ``session.receive``.

        Raises InvalidRequest once the run is over, ConnectionLost where it is not known whether the program gets it.
        """
        body = {"message": to_json_value(value, "message")}
        await self._link.request("POST", f"{self._path}/messages", body, again=False)

    async def end_messages(self) -> None:
        """Tell the program that there are no more messages: its ``session.receive`` raises EndOfMessages behind the last one."""
        await self._link.request("POST", f"{self._path}/messages", {"end": True}, again=False)

    async def cancel(self) -> None:
        """Ask the run to end. Nothing happens if it is over."""
        self.record = await self._link.request("POST", f"{self._path}/cancel", again=True)


def result_of(ended: dict[str, Any]) -> Any:
    """Return the result of a run that is over. Raises its error."""
    if ended["error"] is not None:
        error = ended["error"]
        raise ErrorInfo(error["code"], error["message"], error["detail"]).to_exception()
    return ended["result"]


async def _pause(backoff: Backoff, lost: Unavailable) -> None:
    """Wait before the next attempt. Raises ``lost`` if there is to be none."""
    pause = backoff.pause()
    if pause is None:
        raise lost
    await anyio.sleep(pause)
