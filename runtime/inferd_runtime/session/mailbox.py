"""Requests that have arrived and wait to be handled: by tenant in the order of the fairness clock, by session in their own."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from inferd import protocol as p
from inferd_runtime.engine.scheduling.fairness import FairClock
from inferd_runtime.session.wire import CANCEL, CLOSE, OPEN, TICKET

MAX_WAITING = 16_384
"""Requests of one tenant that may wait, over all of its sessions."""
MAX_WAITING_BYTES = 128 << 20
"""Bytes of them. One request alone may have more."""
IMMEDIATE = frozenset({OPEN.encode(), CLOSE.encode(), CANCEL.encode()})

Frames = Sequence[bytes]
"""A request: ticket, operation, format, payload."""


class RequestHandler(Protocol):
    """What requests are for: :class:`~inferd_runtime.session.hub.SessionHub`. Nothing here raises."""

    def receive(self, identity: bytes, frames: Frames) -> None:
        """Carry out a request."""

    def refuse(self, identity: bytes, frames: Frames, error: p.InferdError) -> None:
        """Answer a request with an error."""

    def tenant_of(self, identity: bytes) -> str | None:
        """Return the tenant of a session; None where there is no such session."""

    def held(self, identity: bytes) -> bool:
        """True while the session can take no further request."""


@dataclass
class _TenantMail:
    """One tenant's requests: by session, the session first whose turn it is; by ticket in each, oldest first."""

    sessions: OrderedDict[bytes, OrderedDict[bytes, Frames]] = field(default_factory=OrderedDict)
    count: int = 0
    size: int = 0

    def add(self, identity: bytes, frames: Frames) -> None:
        self.sessions.setdefault(identity, OrderedDict())[frames[0]] = frames
        self.count += 1
        self.size += _size(frames)

    def remove(self, identity: bytes, ticket: bytes) -> Frames | None:
        waiting = self.sessions.get(identity, OrderedDict())
        frames = waiting.pop(ticket, None)
        if frames is None:
            return None
        if not waiting:
            del self.sessions[identity]
        self.count -= 1
        self.size -= _size(frames)
        return frames

    def take(self, held: Callable[[bytes], bool]) -> tuple[bytes, Frames] | None:
        """Remove the oldest request of the first session that can take one, and put the session behind the others."""
        identity = next((each for each in self.sessions if not held(each)), None)
        if identity is None:
            return None
        frames = self.remove(identity, next(iter(self.sessions[identity])))
        assert frames is not None
        if identity in self.sessions:
            self.sessions.move_to_end(identity)
        return identity, frames


class Mailbox:
    """The engine process's queue of requests, in the thread of the step loop.

    Each tenant pays for the time that its requests take; where that puts it far ahead of others who want something, its
    requests wait, as its jobs do. What a tenant may have waiting is bounded: more is refused. Opening, closing and cancelling
    do not wait; a session that closes takes its requests with it.
    """

    def __init__(
        self, handler: RequestHandler, clock: FairClock[str], seconds: Callable[[], float] = time.perf_counter
    ) -> None:
        self._handler = handler
        self._clock = clock
        self._seconds = seconds
        self._tenants: dict[str, _TenantMail] = {}

    def __len__(self) -> int:
        """Return the number of requests that wait."""
        return sum(mail.count for mail in self._tenants.values())

    @property
    def ready(self) -> bool:
        """True if a request could be handled now."""
        return bool(self._ready())

    def wants(self, tenant: str) -> bool:
        """True if a request of a tenant waits."""
        return tenant in self._tenants and self._tenants[tenant].count > 0

    def put(self, identity: bytes, frames: Frames) -> None:
        """Take a request that has arrived: it is queued, carried out at once, or refused."""
        tenant = self._handler.tenant_of(identity)
        if tenant is None or len(frames) != 4 or len(frames[0]) != TICKET.size:
            return self._handler.receive(identity, frames)  # which answers or drops it
        if frames[1] in IMMEDIATE:
            return self._at_once(tenant, identity, frames)
        mail = self._tenants.setdefault(tenant, _TenantMail())
        full = mail.count >= MAX_WAITING or (mail.count and mail.size + _size(frames) > MAX_WAITING_BYTES)
        if full:
            self._handler.refuse(identity, frames, _too_many(mail))
        elif frames[0] in mail.sessions.get(identity, ()):
            self._handler.refuse(identity, frames, p.InvalidRequest("a request with this ticket waits already"))
        else:
            mail.add(identity, frames)

    def work(self, seconds: float) -> None:
        """Handle requests, the tenant's first that is furthest behind, until none may be handled or ``seconds`` have passed.

        It also ends with the last request of a tenant: :class:`~inferd_runtime.session.anticipation.Anticipation` decides then
        whether to wait for its next one.
        """
        end = self._seconds() + seconds
        while fair := self._clock.next_round(self._ready(), self):
            for tenant in fair:
                self._handle(tenant)
                if self._seconds() >= end:
                    return
            if not all(map(self.wants, fair)):
                return

    def accept(self, identity: bytes, frames: Frames, since: float) -> float:
        """Put a request that has been received since ``since``, and charge its tenant for that and what is done at once.

        Returns the time.
        """
        before = self._handler.tenant_of(identity)
        self.put(identity, frames)
        tenant = before or self._handler.tenant_of(identity)  # what opens or closes a session is paid, too
        now = self._seconds()
        if tenant is not None:
            self._clock.charge(tenant, now - since)
        return now

    def charge_tenants(self, tenants: Sequence[str], seconds: float) -> None:
        """Charge tenants, in equal parts, for time in which all others waited for them."""
        for tenant in tenants:
            self._clock.charge(tenant, seconds / len(tenants))

    def _ready(self) -> list[str]:
        held = self._handler.held
        for tenant in [tenant for tenant, mail in self._tenants.items() if not mail.count]:
            del self._tenants[tenant]
        return [
            tenant for tenant, mail in self._tenants.items() if any(not held(identity) for identity in mail.sessions)
        ]

    def _handle(self, tenant: str) -> None:
        taken = self._tenants[tenant].take(self._handler.held)
        if taken is not None:
            started = self._seconds()
            self._handler.receive(*taken)
            self._clock.charge(tenant, self._seconds() - started)

    def _at_once(self, tenant: str, identity: bytes, frames: Frames) -> None:
        """Carry out what does not wait. What waits of a session that closes is dropped, and what is cancelled is answered."""
        mail = self._tenants.get(tenant, _TenantMail())
        if frames[1] == CANCEL.encode():
            waiting = mail.remove(identity, frames[0])
            if waiting is not None:
                return self._handler.refuse(identity, waiting, p.Cancelled("the operation was cancelled"))
        else:
            for ticket in list(mail.sessions.get(identity, ())):
                mail.remove(identity, ticket)
        self._handler.receive(identity, frames)


def _size(frames: Frames) -> int:
    return sum(map(len, frames))


def _too_many(mail: _TenantMail) -> p.LimitExceeded:
    most = ("requests", MAX_WAITING) if mail.count >= MAX_WAITING else ("request_bytes", MAX_WAITING_BYTES)
    return p.LimitExceeded(
        f"{mail.count} requests of this tenant, {mail.size} bytes, wait to be handled", limit=most[0], value=most[1],
        raise_with="waiting for some of them",
    )  # fmt: skip
