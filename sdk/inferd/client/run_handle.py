"""One run on a server, as its client holds it."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio

from inferd.client.event_cursor import Backoff, EventCursor, EventsDropped, StreamEvent
from inferd.client.file_names import new_file, open_to_send
from inferd.client.http_link import ConnectionLost, HttpLink, counted
from inferd.program.json_values import to_json_value
from inferd.protocol import Unavailable
from inferd.protocol.files import ANY_TYPE, MAX_PIECE, FileHead, FilePiece, check_file
from inferd.transport.answers import NOTHING, error_in, fields_of, record_of, reply_of


class RunHandle:
    """A run, made by ``client.launch`` and ``client.attach``. It goes on whether anybody holds it or not."""

    def __init__(self, link: HttpLink, record: dict[str, Any]) -> None:
        self.record = record_of(record)
        """The run as the server showed it last: ``state``, ``error``, ``usage``, times; :meth:`refresh` asks again."""
        self.id: str = record["id"]
        self._link = link
        self._path = f"/v1/runs/{quote(self.id, safe='')}"

    async def refresh(self) -> dict[str, Any]:
        """Ask for the run as it is now, and return it."""
        self.record = record_of(await self._link.request("GET", self._path, again=True))
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
        cursor, found, size = EventCursor(), list[StreamEvent](), 0
        end = (await self.refresh())["next_event"]
        while cursor.next < end:
            async with aclosing(self._link.lines(f"{self._path}/events?from={cursor.next}&follow=false")) as lines:
                try:
                    async for line in lines:
                        event, size = cursor.take(line), counted(size, line)
                        if event is not None:
                            found.append(event)
                except EventsDropped:
                    continue
                end = cursor.next
        return found

    async def result(self) -> Any:
        """Wait until the run is over, and return what its ``main`` returned. Raises the error that it ended with."""
        record = self.record if self.record["finished_at"] is not None else await self.refresh()
        while record["finished_at"] is None:
            try:
                async with aclosing(self.events(record["next_event"])) as events:
                    async for event in events:
                        if event.kind == "started":
                            record["started_at"] = event.time
                        if event.kind == "finished":
                            ended = {key: event.data.get(key) for key in ("state", "error", "usage", "result")}
                            self.record = {**record, **ended, "finished_at": event.time, "next_event": event.index + 1}
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

    async def files(self) -> list[FileHead]:
        """Return the files that the program has sent with ``session.send_file`` and that the server still keeps."""
        answer = await self._link.request("GET", f"{self._path}/files", again=True)
        return [file_of(file) for file in fields_of(answer, files=list)["files"]]

    async def read_file(self, file: int) -> AsyncGenerator[bytes]:
        """Yield the bytes of one of :meth:`files`, by its number, in pieces. A lost connection is made again."""
        offset = 0
        while True:
            answer = await self._link.request("GET", f"{self._path}/files/{file}?offset={offset}", again=True)
            piece = reply_of(FilePiece, answer, data=str, last=bool)
            offset += len(piece.data)
            yield piece.data
            if piece.last or not piece.data:
                return

    async def save_file(self, file: FileHead, folder: str | Path) -> Path:
        """Write one of :meth:`files` into a folder; returns where it is. Nothing is overwritten: see ``new_file``.

        Raises Unavailable for a file that is not what the program sent.
        """
        return await write_new_file(file, Path(folder), self.read_file(file.file))

    async def send_file(self, path: str | Path, *, name: str = "", media_type: str = ANY_TYPE) -> None:
        """Hand a file to the program's ``session.receive_file``, in pieces; a lost connection is made again for each.

        Raises InvalidRequest for what cannot be sent and once the run is over, LimitExceeded for a file that is too large.
        """
        path = Path(path)
        file, size = await anyio.to_thread.run_sync(open_to_send, path)
        with file:
            name = name or path.name
            check_file(name, media_type, size)
            body: dict[str, Any] = {"name": name, "media_type": media_type, "size": size}
            begun = await self._link.request("POST", f"{self._path}/files", body, again=False)
            number = fields_of(begun, file=int)["file"]
            for offset in range(0, max(size, 1), MAX_PIECE):
                data = await anyio.to_thread.run_sync(file.read, min(MAX_PIECE, size - offset))
                body = {"offset": offset, "data": base64.b64encode(data).decode()}
                await self._link.request("POST", f"{self._path}/files/{number}", body, again=True)

    async def cancel(self) -> None:
        """End the run: ``record`` says how, unless that takes longer than a few seconds. Nothing happens if it is over."""
        self.record = record_of(await self._link.request("POST", f"{self._path}/cancel", again=True))


def result_of(ended: dict[str, Any]) -> Any:
    """Return the result of a run that is over. Raises its error."""
    if fields_of(ended, error=(dict, NOTHING), result=object)["error"] is not None:
        raise error_in(ended["error"])
    return ended["result"]


def file_of(told: Any) -> FileHead:
    """Return the head of a file as a server tells it. Raises InternalError."""
    head: FileHead = reply_of(FileHead, told, file=int, name=str, media_type=str, size=int, sha256=str)
    return head


async def write_new_file(file: FileHead, folder: Path, pieces: AsyncGenerator[bytes]) -> Path:
    """Write a program's file, which comes in pieces, into a folder; returns where it is. See :meth:`RunHandle.save_file`.

    Nothing stays of a file that does not come whole, or that does not end where it should.
    """
    opened = await anyio.to_thread.run_sync(new_file, folder, file.name)
    digest, left = hashlib.sha256(), file.size
    whole = False
    try:
        with opened:
            async with aclosing(pieces):
                async for piece in pieces:
                    left -= len(piece)
                    if left < 0:
                        break
                    digest.update(piece)
                    await anyio.to_thread.run_sync(opened.write, piece)
        whole = digest.hexdigest() == file.sha256 and not left
    finally:
        if not whole:
            os.unlink(opened.name)  # at once: an awaited call would not be made in a task that is cancelled
    if not whole:
        raise Unavailable(f"{file.name}: what came is not the file that the program sent")
    return Path(opened.name)


async def _pause(backoff: Backoff, lost: Unavailable) -> None:
    """Wait before the next attempt. Raises ``lost`` if there is to be none."""
    pause = backoff.pause()
    if pause is None:
        raise lost
    await anyio.sleep(pause)
