"""A tenant's speculation as it happens, over HTTP: one event per delivered step."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager

import anyio
import msgspec

from inferd.protocol import LimitExceeded, Unavailable
from inferd_runtime.server.gateway.event_stream import PING_SECONDS
from inferd_runtime.session.wire import CyclePage, WatchedCycle

EVENT = "speculation.cycle"
POLL_SECONDS = 0.25
MOST_STREAMS = 8
"""Streams that a tenant may have open: each asks the engine four times a second."""
Read = Callable[[int], Awaitable[CyclePage]]
"""The page from an index on."""


class Watchers:
    """Counts the open streams of each tenant."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    @contextmanager
    def count(self, tenant: str) -> Iterator[None]:
        """Count one stream more while the body runs. Raises LimitExceeded if the tenant has as many as it may."""
        if self._open[tenant] >= MOST_STREAMS:
            raise LimitExceeded(
                f"{MOST_STREAMS} streams of speculation are open already: close one",
                limit="speculation_streams", value=MOST_STREAMS,
            )  # fmt: skip
        self._open[tenant] += 1
        try:
            yield
        finally:
            self._open[tenant] -= 1


async def cycle_events(
    read: Read, first: CyclePage, *, as_sse: bool, ended: Callable[[], bool], poll: float = POLL_SECONDS
) -> AsyncGenerator[bytes]:
    """Yield server-sent events or JSON lines, from the page ``first`` on, until the client leaves or the server or engine ends.

    The engine is asked rather than told to push: it then owes nothing to a watcher who is slow or gone.
    """
    page, quiet = first, 0.0
    while not ended():
        if page.missed:
            yield _encode({"missed": page.missed}, "missed", as_sse)
        for cycle in page.cycles:
            yield _encode(cycle, EVENT, as_sse)
        quiet = 0.0 if page.cycles else quiet + poll
        if quiet >= PING_SECONDS:
            quiet = 0.0
            yield b": ping\n\n" if as_sse else b"\n"
        await anyio.sleep(poll)
        try:
            page = await read(page.next)
        except Unavailable:
            return


def _encode(value: WatchedCycle | dict[str, int], event: str, as_sse: bool) -> bytes:
    payload = msgspec.json.encode(value)
    return b"event: %s\ndata: %s\n\n" % (event.encode(), payload) if as_sse else payload + b"\n"
