"""What several attacks by clients need: raw connections, and somebody else who comes after them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from .arena import Arena, Hostile, checked
from .attack import ended, ending

REFUSED = "ok client.invalid limit unavailable"
SLEEP = "import asyncio\nasync def main(x: str = ''):\n    print('up')\n    await asyncio.sleep(600)"
SIMPLE = "async def main(): return 'well'"


@contextmanager
def connected(arena: Arena) -> Iterator[socket.socket]:
    """A TCP connection to the gateway."""
    address = urlsplit(arena.url)
    with socket.create_connection((str(address.hostname), int(address.port or 0)), 10) as raw:
        yield raw


def request_head(hostile: Hostile, method: str, path: str, *more: str) -> bytes:
    """The head of a request with the tenant's token."""
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: {hostile.headers['Authorization']}", *more]
    return "\r\n".join([*lines, "", ""]).encode()


def others_are_served(arena: Arena, end: str) -> str:
    """``end``, if another tenant's program runs at once and its script connects; else what came of that."""
    other = arena.hostile["trudy"]
    response = other.launch(checked(other.upload(SIMPLE))["id"])
    if response.status_code >= 300:
        return f"others: {ending(response)}"
    with other.session() as session:
        session.call("model.list")
    over = other.over(response.json()["id"])
    return f"others: {ended(over['error'])}" if over["result"] != "well" else end
