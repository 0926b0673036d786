"""A script's connection for ``inferlet``: the WebSocket lives in a thread of its own, so that calls can block."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from types import TracebackType
from typing import Any

import inferd
from inferd.transport import Transport, restore_transport, use_transport


class ScriptConnection:
    """Made by :func:`connect`; in its ``with`` block ``inferlet`` uses it."""

    def __init__(self, url: str, token: str | None, ca: str | None) -> None:
        self._where = (url, token, ca)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="inferlet connection", daemon=True)
        self._closing = asyncio.Event()
        self._link: Transport | None = None
        self._serving: Future[None] | None = None
        self._restore: Any = None

    def __enter__(self) -> ScriptConnection:
        opened: Future[Transport] = Future()
        self._thread.start()
        self._serving = asyncio.run_coroutine_threadsafe(self._serve(opened), self._loop)
        try:
            self._link = opened.result()
        except BaseException:
            self._end()
            raise
        self._restore = use_transport(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        restore_transport(self._restore)
        self._loop.call_soon_threadsafe(self._closing.set)
        self._end()

    async def call(self, request: Any) -> Any:
        """Send a request; other tasks go on meanwhile."""
        return await asyncio.wrap_future(self._sent(request))

    def call_blocking(self, request: Any) -> Any:
        """Send a request, and block until its reply is there."""
        return self._sent(request).result()

    def _sent(self, request: Any) -> Future[Any]:
        if self._link is None:
            raise inferd.Unavailable("not connected: use `with inferlet.connect(...)`")
        return asyncio.run_coroutine_threadsafe(self._asked(self._link, request), self._loop)

    @staticmethod
    async def _asked(link: Transport, request: Any) -> Any:
        return await link.call(request)

    async def _serve(self, opened: Future[Transport]) -> None:
        """Hold the connection open. In one task, in whose context it is made and closed."""
        url, token, ca = self._where
        try:
            async with inferd.connect(url, token, ca=ca) as connection:
                opened.set_result(connection)
                await self._closing.wait()
        except inferd.InferdError as error:
            if opened.done():
                raise
            opened.set_exception(error)

    def _end(self) -> None:
        try:
            if self._serving is not None:
                self._serving.result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


def connect(url: str = inferd.DEFAULT_URL, token: str | None = None, *, ca: str | None = None) -> ScriptConnection:
    """Connect a script: ``with inferlet.connect(url, token): asyncio.run(main({}))``. (Not in Pie.)

    Arguments and errors are those of :func:`inferd.connect`.
    """
    return ScriptConnection(url, token, ca)
