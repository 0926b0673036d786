"""What the gateway and its egress processes say to each other: msgpack-tagged structs over a ZeroMQ socket of their own."""

from __future__ import annotations

import msgspec


class EgressCall(msgspec.Struct, frozen=True, tag=True):
    """Do something, and answer under this number. ``payload`` is the request, packed."""

    number: int
    op: str
    payload: msgspec.Raw


class EgressDrop(msgspec.Struct, frozen=True, tag=True):
    """Nobody waits for this answer any more."""

    number: int


class EgressAnswer(msgspec.Struct, frozen=True):
    """What came of a call: a reply, or an :class:`~inferd.protocol.ErrorInfo`, packed."""

    number: int
    ok: bool
    payload: msgspec.Raw


ToEgress = EgressCall | EgressDrop
READY = 0
"""The number of the answer that a process gives unasked, once it takes calls."""
ALIVE = "alive"
"""The operation that every process answers at once."""


class HeaderLine(msgspec.Struct, frozen=True):
    """A header as it is sent. A ``secret`` one stays behind when another origin is asked, and its secret is blacked out in all
    that comes back; ``value`` is then ``prefix`` and the secret's text.
    """

    name: str
    value: str
    secret: bool = False
    prefix: str = ""


class FetchOrder(msgspec.Struct, frozen=True):
    """A request that the gateway has let through, with everything that is needed to check where redirects and DNS lead.

    ``allowed`` are the operator's patterns, ``declared`` the manifest's (None: there is no manifest), ``private`` ranges of
    addresses. ``streams``: the body comes in pieces. ``most_bytes``: of the response's body.
    """

    fetch: int
    tenant: str
    method: str
    url: str
    headers: list[HeaderLine]
    body: bytes
    streams: bool
    timeout_s: float
    redirects: int
    allowed: list[str]
    declared: list[str] | None
    private: list[str]
    most_bytes: int
