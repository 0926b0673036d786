"""What tenants use of what they share, held against their quotas."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial

import anyio
import msgspec

from inferd.protocol import Unavailable
from inferd_runtime.change_signal import ChangeSignal
from inferd_runtime.server.tenancy.quotas import QuotasOf, quota_exceeded
from inferd_runtime.server.tenancy.rates import MinuteBucket
from inferd_runtime.server.tenancy.shares import SharedPlaces, ShareRule

RETRY_SECONDS = 1.0
OUTSTANDING_RULE = ShareRule(1 << 30, 7, 64 << 20)
"""Bytes of large calls of scripts that are not answered, or whose answers nobody has read; and of what waits to be sent."""
Clock = Callable[[], float]


@dataclass(frozen=True)
class SharedSizes:
    """What the server has for all tenants together. ``body_bytes``: of requests that are being read."""

    sockets: int = 1024
    connections: int = 1024
    body_bytes: int = 64 << 20
    one_body: int = 4 << 20

    @property
    def body_rule(self) -> ShareRule:
        """A body of the allowed size is kept for each of as many tenants as half of the room holds."""
        return ShareRule(self.body_bytes, self.body_bytes // 2 // self.one_body, self.one_body)


class WaitingLine:
    """Requests of one tenant that wait for a place, in the order in which they came."""

    def __init__(self) -> None:
        self.waiting = 0
        self._first = anyio.Lock()

    async def turn(self, has_room: Callable[[], bool], freed: ChangeSignal) -> None:
        """Wait for room, behind those that came before."""
        self.waiting += 1
        try:
            async with self._first:
                while not has_room():
                    await freed.wait()
        finally:
            self.waiting -= 1


class TenantUse:
    """Admits what tenants ask for, by their quotas and by what is kept for others. Belongs to one thread."""

    def __init__(self, quotas: QuotasOf, sizes: SharedSizes | None = None, clock: Clock = time.monotonic) -> None:
        sizes = sizes or SharedSizes()
        self.quotas = quotas
        self.sockets = SharedPlaces(_half_kept(sizes.sockets), "max_sockets", "the server's --max-sockets")
        self.connections = SharedPlaces(
            _half_kept(sizes.connections), "max_connections", "the server's --max-connections"
        )
        self.bodies = SharedPlaces(sizes.body_rule, "held_body_bytes", "the server's --max-body-total")
        self.outstanding = SharedPlaces(OUTSTANDING_RULE, "outstanding_bytes", "fewer large calls at a time")
        self.unread = SharedPlaces(OUTSTANDING_RULE, "outstanding_bytes", "reading answers before more are asked for")
        self.produced: Counter[str] = Counter()
        """Tokens that were generated since the start, by tenant."""
        self.answers: Counter[int] = Counter()
        """Answers over HTTP since the start, by status."""
        self.answering = 0
        """Requests of LLM clients that are being answered, or wait for a place."""
        self._closing = False
        self._answered = ChangeSignal()
        self._clock = clock
        self._lines: defaultdict[str, WaitingLine] = defaultdict(WaitingLine)
        self._launches: defaultdict[str, MinuteBucket] = defaultdict(MinuteBucket)
        self._tokens: defaultdict[str, MinuteBucket] = defaultdict(MinuteBucket)

    def check_limits(self, tenant: str, cpu_s: float, memory_mb: int) -> None:
        """Raise LimitExceeded if a run asks for more processor time or memory than the tenant's runs may."""
        quotas = self.quotas(tenant)
        quotas.check("cpu_s", cpu_s, "seconds of processor time for a run")
        quotas.check("memory_mb", memory_mb, "MiB of memory for a run")

    def admit_launch(self, tenant: str) -> None:
        """Count a launch. Raises LimitExceeded, with when to try again, if there were too many, or too many tokens."""
        self.check_tokens(tenant)
        most = self.quotas(tenant).launches_per_minute
        if not most:
            return
        wait = self._launches[tenant].wait(most, self._clock())
        if wait > 0:
            raise quota_exceeded("launches_per_minute", most, f"the tenant may launch {most} runs a minute", wait)
        self._launches[tenant].charge(most, self._clock())

    def check_tokens(self, tenant: str) -> None:
        """Raise LimitExceeded while the tenant has generated more tokens than it may."""
        most = self.quotas(tenant).tokens_per_minute
        wait = self._tokens[tenant].wait(most, self._clock()) if most else 0.0
        if wait > 0:
            raise quota_exceeded("tokens_per_minute", most, f"the tenant may generate {most} tokens a minute", wait)

    def charge_tokens(self, tenant: str, tokens: int) -> None:
        """Count tokens that a tenant's runs and sessions have generated: it may be more than was left."""
        self.produced[tenant] += tokens
        most = self.quotas(tenant).tokens_per_minute
        if most:
            self._tokens[tenant].charge(most, self._clock(), tokens)

    @contextmanager
    def socket(self, tenant: str) -> Iterator[None]:
        """Count a session of a script while the body runs. Raises LimitExceeded."""
        self._check_count(tenant, "sockets", self.sockets, "open sessions of scripts and requests of LLM clients")
        self.check_tokens(tenant)
        with self.sockets.holding(tenant):
            yield

    @asynccontextmanager
    async def socket_in_turn(self, tenant: str, seconds: float, request: object) -> AsyncIterator[None]:
        """As :meth:`socket`, but where there is no place wait for one, for so many seconds, behind those that came before.

        ``request``: what is held meanwhile. Raises LimitExceeded where that is too much, too, and Unavailable once the server
        is to end: see :meth:`answers_over`.
        """
        if self._closing:
            raise Unavailable("the server is shutting down")
        self.answering += 1
        try:
            async with self._place_in_turn(tenant, seconds, request):
                yield
        finally:
            self.answering -= 1
            self._answered.wake()

    async def answers_over(self) -> None:
        """Admit no more requests for a place in turn, and wait until those that were admitted are over."""
        self._closing = True
        while self.answering:
            await self._answered.wait()

    @asynccontextmanager
    async def _place_in_turn(self, tenant: str, seconds: float, request: object) -> AsyncIterator[None]:
        line = self._lines[tenant]
        if line.waiting or not self._has_socket(tenant):
            size = len(msgspec.json.encode(request))
            with self.outstanding.holding(tenant, size), anyio.move_on_after(seconds):
                await line.turn(partial(self._has_socket, tenant), self.sockets.freed)
        with self.socket(tenant):
            yield

    def _has_socket(self, tenant: str) -> bool:
        most = self.quotas(tenant).sockets
        return not (most and self.sockets.held(tenant) >= most) and self.sockets.has_room(tenant)

    def add_connection(self, tenant: str) -> None:
        """Count an open connection; give it back to ``connections``. Raises LimitExceeded."""
        self._check_count(tenant, "connections", self.connections, "open connections")
        self.connections.take(tenant)

    def per_minute(self, tenant: str) -> dict[str, float]:
        """Return how much of its rates a tenant has used, by quota; nothing for what has no limit."""
        quotas, now = self.quotas(tenant), self._clock()
        rates = {"launches_per_minute": self._launches, "tokens_per_minute": self._tokens}
        limits = {name: getattr(quotas, name) for name in rates}
        return {name: rates[name][tenant].used(most, now) for name, most in limits.items() if most}

    def _check_count(self, tenant: str, quota: str, places: SharedPlaces, what: str) -> None:
        most = getattr(self.quotas(tenant), quota)
        if most and places.held(tenant) >= most:
            raise quota_exceeded(quota, most, f"the tenant may have {most} {what}", RETRY_SECONDS)


def _half_kept(capacity: int) -> ShareRule:
    return ShareRule(capacity, capacity // 2)
