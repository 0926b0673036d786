"""``http.*``: lets requests of programs through or refuses them, puts secrets in, and counts. The fetching is done by a process
of its own (:mod:`inferd_runtime.server.egress.fetcher_process`).
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any, TypeVar

import anyio

from inferd.protocol import Done, InferdError, InvalidRequest, LimitExceeded, NotFound
from inferd.protocol.http import (
    MAX_OPEN_FETCHES,
    AwaitHead,
    BeginFetch,
    BodyChunk,
    CloseFetch,
    FetchBegun,
    HeaderField,
    ReadBody,
    ResponseHead,
    StartFetch,
    WriteBody,
    check_fetch,
    check_write,
)
from inferd_runtime.server.egress.messages import FetchOrder, HeaderLine
from inferd_runtime.server.egress.origins import WebAddress, read_address, read_pattern
from inferd_runtime.server.egress.process import EgressProcess
from inferd_runtime.server.egress.rules import EgressTable
from inferd_runtime.server.services.call_log import CallLog
from inferd_runtime.server.services.caller import Caller
from inferd_runtime.server.services.table import Handler
from inferd_runtime.server.tenancy.quotas import NOTHING, QuotasOf, quota_exceeded
from inferd_runtime.server.tenancy.rates import MinuteBucket
from inferd_runtime.server.tenancy.secret_store import Secret

BYTES_PER_MINUTE = 2 << 30
"""Of one tenant, both ways: a faster one is not refused, it waits."""
PARTIAL = frozenset({"range", "if-range"})
GRACE_SECONDS = 5.0
"""After a request's time is up, its place is free, whether its program has noticed or not."""
T = TypeVar("T")
FindSecret = Callable[[str, str], Secret]
"""Returns the secret of a name that a tenant may use. Raises NotFound."""


@dataclass(eq=False)
class OpenFetch:
    """A request that was let through and is not over."""

    number: int
    caller: Caller
    method: str
    address: WebAddress
    ends_at: float
    started: float
    status: int = 0
    answered_by: str = ""
    received: int = 0
    sent: int = 0
    reads: anyio.Lock = field(default_factory=anyio.Lock)


class FetchAdmission:
    """Which requests are open, held against the limits of callers and tenants. Times are monotonic seconds. Pure state."""

    def __init__(self, quotas: QuotasOf) -> None:
        self._quotas = quotas
        self._open: dict[int, OpenFetch] = {}
        self._of: defaultdict[str, set[int]] = defaultdict(set)
        self._rates: defaultdict[str, MinuteBucket] = defaultdict(MinuteBucket)
        self._bytes: defaultdict[str, MinuteBucket] = defaultdict(MinuteBucket)

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, fetch: OpenFetch, now: float) -> None:
        """Note a request. Raises LimitExceeded if its caller or tenant has too many, or sends them too fast."""
        tenant, quotas = fetch.caller.tenant, self._quotas(fetch.caller.tenant)
        if sum(self._open[one].caller is fetch.caller for one in self._of[tenant]) >= MAX_OPEN_FETCHES:
            text = f"{MAX_OPEN_FETCHES} requests of this run are open already"
            raise LimitExceeded(text, limit="open_fetches", value=MAX_OPEN_FETCHES, raise_with="closing responses")
        if quotas.fetches and len(self._of[tenant]) >= quotas.fetches:
            raise quota_exceeded("fetches", quotas.fetches, f"the tenant may have {quotas.fetches} open requests", 1.0)
        most = quotas.fetches_per_minute
        wait = self._wait(tenant, most, now)
        if wait > 0:
            raise quota_exceeded("fetches_per_minute", most, f"the tenant may send {most} requests a minute", wait)
        if most:
            self._rates[tenant].charge(most, now)
        self._open[fetch.number] = fetch
        self._of[tenant].add(fetch.number)

    def _wait(self, tenant: str, most: int, now: float) -> float:
        if most == NOTHING:
            return 1.0
        return self._rates[tenant].wait(most, now) if most else 0.0

    def used(self, now: float) -> dict[str, dict[str, int]]:
        """Return what is used of the quotas, by quota and tenant."""
        sent = {
            tenant: rate.used(max(self._quotas(tenant).fetches_per_minute, 0), now)
            for tenant, rate in self._rates.items()
        }
        for tenant in [tenant for tenant, amount in sent.items() if not amount]:
            del self._rates[tenant]
        rates = {tenant: ceil(amount) for tenant, amount in sent.items() if amount}
        return {"fetches": {tenant: len(numbers) for tenant, numbers in self._of.items()}, "fetches_per_minute": rates}

    def find(self, caller: Caller, number: int) -> OpenFetch:
        """Return a caller's open request. Raises NotFound."""
        fetch = self._open.get(number)
        if fetch is None or fetch.caller is not caller:
            raise NotFound("there is no such request: it is over, or was given up")
        return fetch

    def over(self, fetch: OpenFetch) -> bool:
        """Forget a request. Returns False if it was over before."""
        if self._open.pop(fetch.number, None) is None:
            return False
        numbers = self._of[fetch.caller.tenant]
        numbers.discard(fetch.number)
        if not numbers:
            del self._of[fetch.caller.tenant]
        return True

    def overdue(self, tenant: str, now: float) -> list[OpenFetch]:
        """Return a tenant's requests whose time has been up for a while."""
        return [self._open[one] for one in self._of.get(tenant, ()) if self._open[one].ends_at + GRACE_SECONDS < now]

    def of_caller(self, caller: Caller) -> list[OpenFetch]:
        """Return a caller's open requests."""
        return [self._open[one] for one in self._of.get(caller.tenant, ()) if self._open[one].caller is caller]

    def pause(self, tenant: str, size: int, now: float) -> float:
        """Count bytes, and return the seconds to wait before more of them."""
        self._bytes[tenant].charge(BYTES_PER_MINUTE, now, size)
        return self._bytes[tenant].wait(BYTES_PER_MINUTE, now)


class HttpService:
    """The family ``http``. ``most_bytes``: of a response's body."""

    def __init__(
        self,
        process: EgressProcess,
        rules: EgressTable,
        find_secret: FindSecret,
        quotas: QuotasOf,
        call_log: CallLog,
        most_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._process = process
        self._rules = rules
        self._find_secret = find_secret
        self._admission = FetchAdmission(quotas)
        self._log = call_log
        self._most_bytes = most_bytes
        self._clock = clock
        self._numbers = itertools.count(1)

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers by their operations' wire names."""
        return {
            "http.fetch": self.fetch,
            "http.begin": self.begin,
            "http.write": self.write,
            "http.head": self.head,
            "http.read": self.read,
            "http.close": self.close,
        }

    def used(self) -> dict[str, dict[str, int]]:
        """Return what is used of the quotas of requests, by quota and tenant."""
        return self._admission.used(self._clock())

    def closed(self, caller: Caller) -> None:
        """Give up what a caller that is gone has left open."""
        for fetch in self._admission.of_caller(caller):
            self._over(fetch, "abandoned")

    async def fetch(self, caller: Caller, request: StartFetch) -> ResponseHead:
        """Send a request and return its response's head."""
        fetch, order = self._admit(caller, request, request.body, streams=False)
        return await self._with_head(fetch, await self._asked(fetch, "fetch", order, ResponseHead))

    async def begin(self, caller: Caller, request: BeginFetch) -> FetchBegun:
        """Begin a request whose body comes in pieces."""
        fetch, order = self._admit(caller, request, b"", streams=True)
        return await self._asked(fetch, "open", order, FetchBegun)

    async def head(self, caller: Caller, request: AwaitHead) -> ResponseHead:
        """Return the head of the response to a request that was begun."""
        fetch = self._admission.find(caller, request.fetch)
        if fetch.status:
            raise InvalidRequest("the head of this response was read already")
        return await self._with_head(fetch, await self._asked(fetch, "head", request, ResponseHead))

    async def write(self, caller: Caller, request: WriteBody) -> Done:
        """Send a piece of a request's body."""
        check_write(request)
        fetch = self._admission.find(caller, request.fetch)
        await anyio.sleep(self._admission.pause(caller.tenant, len(request.data), self._clock()))
        fetch.sent += len(request.data)
        return await self._asked(fetch, "write", request, Done)

    async def read(self, caller: Caller, request: ReadBody) -> BodyChunk:
        """Return the next piece of a response's body."""
        fetch = self._admission.find(caller, request.fetch)
        async with fetch.reads:
            chunk = await self._asked(fetch, "read", request, BodyChunk)
            await self._received(fetch, chunk.data, chunk.last)
        return chunk

    async def close(self, caller: Caller, request: CloseFetch) -> Done:
        """Give a request up; nothing happens if it is over."""
        with contextlib.suppress(NotFound):
            self._over(self._admission.find(caller, request.fetch), "closed")
        return Done()

    def _admit(
        self, caller: Caller, request: StartFetch | BeginFetch, body: bytes, *, streams: bool
    ) -> tuple[OpenFetch, FetchOrder]:
        """Let a request through. Raises what refuses it."""
        check_fetch(request)
        address = read_address(request.url)
        now = self._clock()
        fetch = OpenFetch(
            next(self._numbers), caller, request.method, address, now + request.timeout_s, now, sent=len(body)
        )
        try:
            order = self._order(fetch, request, body, streams)
            for late in self._admission.overdue(caller.tenant, now):
                self._over(late, "timed out")
            self._admission.admit(fetch, now)
        except InferdError as error:
            self._log.refused(caller, self._entry(fetch, error.code))
            raise
        return fetch, order

    def _order(self, fetch: OpenFetch, request: StartFetch | BeginFetch, body: bytes, streams: bool) -> FetchOrder:
        caller, address = fetch.caller, fetch.address
        rules = self._rules.of(caller.tenant, caller.role)
        declared = None if caller.manifest is None else caller.manifest.http
        rules.check(address.origin, None if declared is None else [read_pattern(text) for text in declared])
        headers = [self._header(caller, one, address) for one in request.headers]
        if any(line.secret for line in headers) and any(line.name.lower() in PARTIAL for line in headers):
            raise InvalidRequest(
                "a request with a secret asks for the whole answer: part of a repeated secret would pass"
            )
        return FetchOrder(
            fetch.number, caller.tenant, request.method, request.url, headers, body, streams, request.timeout_s,
            request.redirects, list(map(str, rules.patterns)), declared, list(map(str, rules.private)), self._most_bytes,
        )  # fmt: skip

    def _header(self, caller: Caller, one: HeaderField, address: WebAddress) -> HeaderLine:
        if not one.secret:
            return HeaderLine(one.name, one.value)
        secret = self._find_secret(one.secret, caller.tenant)
        secret.check(address.origin)
        return HeaderLine(one.name, one.value + secret.value, True, one.value)

    async def _with_head(self, fetch: OpenFetch, head: ResponseHead) -> ResponseHead:
        fetch.status, fetch.answered_by = head.status, read_address(head.url).origin.authority
        await self._received(fetch, head.chunk, head.last)
        return head

    async def _received(self, fetch: OpenFetch, data: bytes, last: bool) -> None:
        fetch.received += len(data)
        if last:
            self._over(fetch, "")
        await anyio.sleep(self._admission.pause(fetch.caller.tenant, len(data), self._clock()))

    async def _asked(self, fetch: OpenFetch, op: str, request: Any, kind: type[T]) -> T:
        """Ask the process. A request that failed, or whose program does not wait for it any more, is over; one that takes no more
        of its body is not: its head says why, or was there before.
        """
        try:
            return await self._process.call(op, request, kind)
        except InferdError as error:
            if op != "write":
                self._over(fetch, error.code)
            raise
        except BaseException:  # cancelled
            if op != "read":
                self._over(fetch, "abandoned")
            raise

    def _over(self, fetch: OpenFetch, outcome: str) -> None:
        if not self._admission.over(fetch):
            return
        self._process.tell("close", CloseFetch(fetch.number))
        self._log.note(fetch.caller, self._entry(fetch, outcome))

    def _entry(self, fetch: OpenFetch, outcome: str) -> dict[str, Any]:
        """Return what is told of a request: no query, no header, no body."""
        host = fetch.address.origin.authority
        entry = {
            "call": "http", "method": fetch.method, "host": host, "path": fetch.address.path[:200],
            "status": fetch.status, "sent": fetch.sent, "received": fetch.received,
            "ms": round((self._clock() - fetch.started) * 1e3, 1),
        }  # fmt: skip
        if fetch.answered_by not in ("", host):
            entry["answered_by"] = fetch.answered_by
        return {**entry, "error": outcome} if outcome else entry
