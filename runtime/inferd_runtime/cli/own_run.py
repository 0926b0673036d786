"""A run in a runtime of this process's own, with the methods of a client's run that a conversation needs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec

from inferd.client import StreamEvent
from inferd.client.file_names import open_to_send
from inferd.client.run_handle import write_new_file
from inferd.protocol import NotFound
from inferd.protocol.files import ANY_TYPE, MAX_PIECE, BeginFile, FileHead, WriteFile
from inferd_runtime.server.gateway.replies import event_json
from inferd_runtime.server.services.run_files import LAUNCHER, RunFileStore
from inferd_runtime.server.supervisor.runs import Run


class OwnRun:
    """See :class:`inferd.client.RunHandle`, whose methods these are. Nobody else can talk to the run."""

    def __init__(self, run: Run, files: RunFileStore) -> None:
        self.id = run.id
        self._run = run
        self._files = files

    @property
    def record(self) -> dict[str, Any]:
        """The run as it is now."""
        return msgspec.structs.asdict(self._run.record())

    async def refresh(self) -> dict[str, Any]:
        """Return the run as it is now."""
        return self.record

    async def events(self, start: int = 0) -> AsyncGenerator[StreamEvent]:
        """Yield the run's events from index ``start`` on, until its last one."""
        async for event in self._run.follow(start):
            data = msgspec.json.decode(msgspec.json.encode(event_json(event)))
            if event.kind == "finished":
                data["result"] = self._run.result
            yield StreamEvent(event.index, event.kind, event.time, data)

    async def send(self, value: Any) -> None:
        """Hand a value to the program's ``session.receive``."""
        self._run.deliver(value)

    async def end_messages(self) -> None:
        """Tell the program that there are no more messages, and no more files."""
        self._run.end_messages()

    async def send_file(self, path: Path) -> None:
        """Hand a file to the program's ``session.receive_file``."""
        file, size = await anyio.to_thread.run_sync(open_to_send, path)
        with file:
            number = (await self._files.begin(self._run, BeginFile(path.name, ANY_TYPE, size), LAUNCHER)).number
            for offset in range(0, max(size, 1), MAX_PIECE):
                data = await anyio.to_thread.run_sync(file.read, min(MAX_PIECE, size - offset))
                await self._files.write(self._run, LAUNCHER, WriteFile(number, offset, data))

    async def save_file(self, file: FileHead, folder: Path) -> Path:
        """Write a file that the program has sent into a folder; returns where it is."""
        return await write_new_file(file, folder, self._pieces(file.file))

    async def _pieces(self, number: int) -> AsyncGenerator[bytes]:
        files, offset = self._files.of(self._run.id, self._run.tenant), 0
        if files is None:
            raise NotFound("the run has sent no files")
        read = partial(self._files.read, files, LAUNCHER, number)
        while True:
            piece = await read(offset)
            offset += len(piece.data)
            yield piece.data
            if piece.last:
                return

    async def cancel(self) -> None:
        """Ask the run to end."""
        self._run.cancel()
