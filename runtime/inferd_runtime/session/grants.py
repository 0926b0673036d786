"""Who may open a session: the gateway says so in a grant, which the engine can check and nobody else can make.

Gateway and engine share a key that no other process has. A worker gets the grants of its own runs, one for each, and so can
open no session of another tenant, nor one that may ask for what is the gateway's alone.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from inferd.protocol import Unauthorized

KEY_BYTES = 32
VALID_SECONDS = 300.0
"""How long a grant opens a session: as long as an engine may take to hear of it. An open session does not end with it."""
SIGNATURE_BYTES = 32


@dataclass(frozen=True)
class Grant:
    """Leave to open the session of this name for a tenant, until ``expires`` (the machine's monotonic clock, in seconds).

    ``gateway``: the session is the gateway's own, which may ask for figures of all tenants and close sessions of others.
    """

    session: str
    tenant: str
    gateway: bool
    expires: float


def new_key() -> bytes:
    """Return a key for :class:`SessionGrants`."""
    return secrets.token_bytes(KEY_BYTES)


class SessionGrants:
    """Makes and checks grants with one key. A grant opens one session, once."""

    def __init__(self, key: bytes, clock: Callable[[], float] = time.monotonic) -> None:
        self._key = key
        self._clock = clock
        self._used: dict[bytes, float] = {}

    def issue(self, session: str, tenant: str, *, gateway: bool = False) -> bytes:
        """Return a grant for the session of this name."""
        body = msgspec.msgpack.encode(Grant(session, tenant, gateway, self._clock() + VALID_SECONDS))
        return self._signature(body) + body

    def redeem(self, sealed: bytes) -> Grant:
        """Return what a grant says. Raises Unauthorized if it is not one of this key, too old, or used already."""
        signature, body = sealed[:SIGNATURE_BYTES], sealed[SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._signature(body)):
            raise Unauthorized("this session was not granted by the gateway")
        grant = msgspec.msgpack.decode(body, type=Grant)
        now = self._clock()
        if grant.expires < now:
            raise Unauthorized(f"the grant of session {grant.session} is older than {VALID_SECONDS:g} s")
        if signature in self._used:
            raise Unauthorized(f"the grant of session {grant.session} has been used already")
        self._used[signature] = grant.expires
        self._forget_expired(now)
        return grant

    def _forget_expired(self, now: float) -> None:
        """Forget the grants that were redeemed first, as far as none of them is valid any more."""
        while (oldest := next(iter(self._used))) and self._used[oldest] < now:
            del self._used[oldest]

    def _signature(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, "sha256")
