"""Clients of runs: upload programs, launch them, follow what they say, and talk to them. For scripts and tools, not for programs.

    async with Client("http://127.0.0.1:7070", token) as client:
        program = await client.upload("greet.py")
        run = await client.launch(program, {"name": "Ann"})
        async for message in run.messages(): ...
        print(await run.result())

:class:`SyncClient` is the same without ``await``.
"""

from __future__ import annotations

from inferd.client.client import Client, ServerProgram
from inferd.client.event_cursor import EventsDropped, StreamEvent
from inferd.client.run_handle import RunHandle
from inferd.client.sync import SyncClient, SyncRunHandle

__all__ = ["Client", "EventsDropped", "RunHandle", "ServerProgram", "StreamEvent", "SyncClient", "SyncRunHandle"]
