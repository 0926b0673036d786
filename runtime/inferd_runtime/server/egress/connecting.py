"""Connections of fetches: to an address that was checked, and to no other; with every byte that comes counted.

httpcore asks this module for a connection to a *name*. The name is looked up once, every address that it has is checked, and one
of these very addresses is connected to: there is no second lookup whose answer could be another. TLS then asks for the name.
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import httpcore

from inferd.protocol import Forbidden, LimitExceeded, Unavailable
from inferd_runtime.server.egress.addresses import IPAddress, IPNetwork, refusal
from inferd_runtime.server.egress.origins import is_address
from inferd_runtime.server.egress.resolver import Resolver

MOST_HEAD_BYTES = 64 << 10
"""Of a response before its body, with everything that is not the final response."""
MOST_INTERIM = 16
"""Interim responses before it, each of which costs as much as a response: 4,000 fit into as many bytes."""
BLANK_LINE = re.compile(rb"\n\r?\n")
ADDRESSES_TRIED = 3
READ_BYTES = 64 << 10


@dataclass(frozen=True)
class ConnectRules:
    """The tenant that connects, and the addresses beside public ones that it may connect to."""

    tenant: str
    private: tuple[IPNetwork, ...] = ()


class CountingStream(httpcore.AsyncNetworkStream):
    """A connection that ends when more comes than is allowed: at first a head's worth."""

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._received = 0
        self._allowed = MOST_HEAD_BYTES
        self._limit = "http_head_bytes"
        self._ahead = b""
        self._heads: int | None = 0

    def allow_body(self, most: int) -> None:
        """Note that the head is there, and a body of so many bytes may follow, with as much again around its pieces."""
        self._allowed = self._received + 2 * most + MOST_HEAD_BYTES
        self._limit = "http_body_bytes"
        self._heads = None

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        """Return the next bytes, one head at a time. Raises LimitExceeded."""
        data = self._ahead
        if not data:
            data = await self._stream.read(min(max_bytes, READ_BYTES), timeout)
            self._received += len(data)
            if self._received > self._allowed:
                raise LimitExceeded("the server sends more than is allowed", limit=self._limit, value=self._allowed)
        end = len(data) if self._heads is None else self._end_of_head(data)
        self._ahead = data[end:]
        return data[:end]

    def _end_of_head(self, data: bytes) -> int:
        found = BLANK_LINE.search(data)
        if found is None or self._heads is None:
            return len(data)
        self._heads += 1
        if self._heads > 1 + MOST_INTERIM:
            text = f"the server sends more than {MOST_INTERIM} interim responses"
            raise LimitExceeded(text, limit="http_interim", value=MOST_INTERIM)
        return found.end()

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Send bytes."""
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        """Speak TLS from now on. What is counted is what comes out of it."""
        self._stream = await self._stream.start_tls(ssl_context, server_hostname, timeout)
        return self

    def get_extra_info(self, info: str) -> Any:
        """Return what the connection knows about itself."""
        return self._stream.get_extra_info(info)


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Opens the one connection of a request."""

    def __init__(self, resolver: Resolver, rules: ConnectRules) -> None:
        self._resolver = resolver
        self._rules = rules
        self.stream: CountingStream | None = None

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to a host. Raises Forbidden if it has an address that is refused, Unavailable if none answers."""
        if is_address(host):
            found: list[IPAddress] = [ipaddress.ip_address(host)]
        else:
            found = await self._resolver.addresses(host, self._rules.tenant)
        self._check(host, found)
        self.stream = CountingStream(await _first(found[:ADDRESSES_TRIED], port, timeout))
        return self.stream

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Raise Forbidden: nothing here is on this machine."""
        raise Forbidden("sockets of this machine are not connected to")

    async def sleep(self, seconds: float) -> None:
        """Raise Unavailable: httpcore waits only before it tries again, which it is not to do."""
        raise Unavailable("the server does not answer")

    def _check(self, host: str, found: Sequence[IPAddress]) -> None:
        if not found:
            raise Unavailable(f"the name {host} has no address")
        for address in found:
            why = refusal(address, self._rules.private)
            if why is not None:
                told = f"{host} is at an address that programs may not connect to: it is {why}"
                never = refusal(address, [ipaddress.ip_network(address)])
                raise Forbidden(told if never else f"{told}; private=RANGE in the server's --http-allow allows it")


async def _first(addresses: Sequence[IPAddress], port: int, timeout: float | None) -> httpcore.AsyncNetworkStream:  # noqa: ASYNC109
    """Return a connection to the first address that answers. Raises what httpcore raises for the last one."""
    for address in addresses[:-1]:
        try:
            return await httpcore.AnyIOBackend().connect_tcp(str(address), port, timeout)
        except (httpcore.ConnectError, httpcore.ConnectTimeout):
            continue
    return await httpcore.AnyIOBackend().connect_tcp(str(addresses[-1]), port, timeout)
