"""Connections to processes of the cluster, each of which has proven to be the one that is meant."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from urllib.parse import urlsplit

import anyio
import httpcore

from inferd_runtime.cluster.proof import Unproven, check_peer

PROOF_SECONDS = 10.0
"""How long the proof of a process may take that is busy."""
MOST_UNPROVEN = 64
"""Connections to one address whose proof is under way: fewer than a gateway has places for connections without a token."""


class ProvenPeers(httpcore.AsyncNetworkBackend):
    """Belongs to one event loop. A process without a name in ``names``, by URL, is the front: its name is its URL."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._tcp = httpcore.AnyIOBackend()
        self.names: dict[str, str] = {}
        self._proving: defaultdict[str, anyio.Semaphore] = defaultdict(lambda: anyio.Semaphore(MOST_UNPROVEN))

    async def connect_tcp(
        self, host: str, port: int, timeout: float | None = None,  # noqa: ASYNC109 - as httpcore calls it
        local_address: str | None = None, socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:  # fmt: skip
        """Connect. Raises httpcore's errors, ConnectError for another process too."""
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        async with self._proving[url]:
            stream = await self._tcp.connect_tcp(host, port, timeout, local_address, socket_options)
            try:
                await self._check(stream, url)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await stream.aclose()
                raise
        return stream

    async def _check(self, stream: httpcore.AsyncNetworkStream, url: str) -> None:
        try:
            with anyio.fail_after(PROOF_SECONDS):
                await check_peer(stream.write, stream.read, self._key, self.names.get(url, url))
        except TimeoutError:
            raise httpcore.ConnectTimeout from None
        except (Unproven, httpcore.NetworkError) as error:
            raise httpcore.ConnectError(str(error)) from None

    async def socket_to(self, url: str, seconds: float) -> socket.socket:
        """Return a connected socket. Raises OSError: Unproven for another process, TimeoutError after so many seconds."""
        parts, loop = urlsplit(url), asyncio.get_running_loop()
        with anyio.fail_after(seconds), contextlib.ExitStack() as failing:
            family = socket.AF_INET6 if ":" in (parts.hostname or "") else socket.AF_INET
            connected = failing.enter_context(socket.socket(family, socket.SOCK_STREAM))
            connected.setblocking(False)
            async with self._proving[url]:
                await loop.sock_connect(connected, (parts.hostname, parts.port))
                ask, hear = partial(loop.sock_sendall, connected), partial(loop.sock_recv, connected)
                await check_peer(ask, hear, self._key, self.names.get(url, url))
            failing.pop_all()
        return connected
