"""A draft engine in a thread of the test's process, and a proxy in front of it that delays, corrupts and cuts."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import time
from collections.abc import Callable, Coroutine
from threading import Event, Thread
from typing import Any

from inferd_runtime.draft_models.draft_host import DraftHost
from inferd_runtime.draft_models.remote.handshake import DraftTerms
from inferd_runtime.draft_models.remote.link_thread import LinkTarget
from inferd_runtime.draft_models.remote.network_drafts import NetworkDrafts
from inferd_runtime.draft_models.remote.service import DraftService
from inferd_runtime.draft_models.thread import DraftThread

KEY = b"a key that both sides of these tests know"
TERMS = DraftTerms("null", "same", 12, [], 512, 256, 64 << 10, 60.0)
SECONDS = 30.0


class LoopThread:
    """An event loop in a thread of its own, until it is closed."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._run, daemon=True)
        self._tasks: list[asyncio.Task[None]] = []
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        self.loop.run_until_complete(asyncio.sleep(0))  # closed transports let go of their sockets
        self.loop.close()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        self.loop.call_soon_threadsafe(lambda: self._tasks.append(self.loop.create_task(work)))

    def call(self, function: Callable[[], Any]) -> Any:
        """What a function returns in the loop's thread."""
        done, result = Event(), []

        def run() -> None:
            result.append(function())
            done.set()

        self.loop.call_soon_threadsafe(run)
        assert done.wait(SECONDS)
        return result[0]

    def close(self) -> None:
        def stop() -> None:
            for task in self._tasks:
                task.cancel()
            self.loop.stop()

        self.loop.call_soon_threadsafe(stop)
        self._thread.join(SECONDS)


class Engine:
    """A draft engine of ``host`` that listens; ``port`` 0: any."""

    def __init__(
        self,
        host: DraftHost,
        *,
        terms: DraftTerms = TERMS,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        **limits: Any,
    ) -> None:
        self.host = host
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", port))
        self._listener.listen(64)
        self.port: int = self._listener.getsockname()[1]
        self._drafts = DraftThread(host)
        self.service = DraftService(self._drafts, terms, KEY, tls, **limits)
        self._thread = LoopThread()
        self._thread.start(self.service.serve(self._listener))

    def close(self) -> None:
        """As if its machine went away."""
        self._thread.close()
        self._listener.close()
        self._drafts.close()


class Proxy:
    """Carries bytes between a port of its own and a draft engine's.

    ``delay``: seconds that each piece takes one way. ``corrupt``: the chance that a piece is changed. Both may be set any time.
    """

    def __init__(self, port: int, *, seed: int = 0) -> None:
        self.delay: Callable[[], float] = lambda: 0.0
        self.corrupt = 0.0
        self.carried = 0
        self.accepted = 0
        self.to = port
        self._random = random.Random(seed)
        self._pairs: list[asyncio.StreamWriter] = []
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(16)
        self.port: int = self._listener.getsockname()[1]
        self._thread = LoopThread()
        self._thread.start(self._serve())

    def cut(self) -> None:
        """Break every connection that there is."""
        self._thread.call(self._abort)

    def close(self) -> None:
        self.cut()
        self._thread.close()
        self._listener.close()

    def _abort(self) -> None:
        for writer in self._pairs:
            writer.transport.abort()
        self._pairs.clear()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._pair, sock=self._listener)
        try:
            await asyncio.Event().wait()
        finally:
            server.close()

    async def _pair(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self.to)
        except OSError:
            writer.transport.abort()
            return
        self._pairs += [writer, other_writer]
        await asyncio.gather(self._carry(reader, other_writer), self._carry(other_reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Each piece arrives in its own time, but never before the one before it."""
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                at, data = await pieces.get()
                await asyncio.sleep(max(0.0, at - time.monotonic()))
                writer.write(data)

        task = asyncio.ensure_future(deliver())
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                self.carried += 1
                pieces.put_nowait((time.monotonic() + self.delay(), self._changed(data)))
        task.cancel()
        writer.transport.abort()

    def _changed(self, data: bytes) -> bytes:
        if self._random.random() >= self.corrupt:
            return data
        at = self._random.randrange(len(data))
        return data[:at] + bytes([data[at] ^ (1 + self._random.randrange(255))]) + data[at + 1 :]


def connected(
    port: int, *, key: bytes = KEY, tls: ssl.SSLContext | None = None, known: tuple[str, ...] = ("same",)
) -> NetworkDrafts:
    """The target's end, once it has shaken hands."""
    drafts = NetworkDrafts(LinkTarget("127.0.0.1", port, key, tls, known))
    try:
        assert drafts.first_terms(SECONDS) is not None
    except BaseException:
        drafts.close()
        raise
    return drafts
