"""Names to addresses, in threads of their own: the C library's resolver blocks, for as long as a hostile name server likes."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Callable

from inferd.protocol import Unavailable
from inferd_runtime.server.egress.addresses import IPAddress
from inferd_runtime.server.tenancy.shares import SharedPlaces, ShareRule

LOOKUPS = 32
"""Threads that wait for name servers. A lookup that nobody waits for any more still has its place until it ends."""
Lookup = Callable[[str], list[str]]


def system_lookup(name: str) -> list[str]:
    """Return a name's addresses as text, as the system knows them. Raises OSError, UnicodeError."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Resolver:
    """Looks names up. Belongs to one event loop."""

    def __init__(self, lookup: Lookup = system_lookup) -> None:
        self._lookup = lookup
        self._places = SharedPlaces(ShareRule(LOOKUPS, LOOKUPS // 4), "lookups", "fewer requests at a time")

    async def addresses(self, name: str, tenant: str) -> list[IPAddress]:
        """Return the addresses of a name. Raises Unavailable if there are none, LimitExceeded if too many lookups are open."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[str]] = loop.create_future()
        self._places.take(tenant)

        def settle(found: list[str], error: Exception | None) -> None:
            self._places.give_back(tenant)
            if future.done():
                return
            if error is None:
                future.set_result(found)
            else:
                future.set_exception(Unavailable(f"the name {name} cannot be looked up: {error}"))

        threading.Thread(target=_look_up, args=(self._lookup, name, loop, settle), daemon=True).start()
        return [ipaddress.ip_address(text) for text in await future]


def _look_up(
    lookup: Lookup, name: str, loop: asyncio.AbstractEventLoop, settle: Callable[[list[str], Exception | None], None]
) -> None:
    found: list[str] = []
    error: Exception | None = None
    try:
        found = lookup(name)
    except (OSError, UnicodeError) as failed:
        error = failed
    if not loop.is_closed():
        loop.call_soon_threadsafe(settle, found, error)
