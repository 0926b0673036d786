"""What the gateway decides about a program's requests, with a fetcher that does nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from inferd import Forbidden, InferdError, InvalidRequest, LimitExceeded, NotFound, Unavailable
from inferd.program.manifest import Manifest
from inferd.protocol.http import (
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
)
from inferd_runtime.server.egress.messages import FetchOrder
from inferd_runtime.server.egress.rules import read_rules
from inferd_runtime.server.services.call_log import REFUSED_PER_MINUTE, CallLog
from inferd_runtime.server.services.caller import Caller
from inferd_runtime.server.services.http import MAX_OPEN_FETCHES, HttpService
from inferd_runtime.server.tenancy.quotas import Quotas
from inferd_runtime.server.tenancy.secret_store import Secret, SecretEntry

TEXT = "s3cr3t-0123456789"
URL = "https://api.example.com/v1?key=hidden"


@dataclasses.dataclass
class StillFetcher:
    """Stands for the process: heads come at once, bodies never end, unless it ``fails``."""

    orders: list[FetchOrder] = dataclasses.field(default_factory=list)
    told: list[int] = dataclasses.field(default_factory=list)
    fails: type[InferdError] | None = None

    async def call(self, op: str, request: Any, kind: Any) -> Any:
        if self.fails is not None:
            raise self.fails("the fetcher ended")
        if op in ("open", "fetch"):
            self.orders.append(request)
        if op == "open":
            return FetchBegun(request.fetch)
        if op in ("fetch", "head"):
            return ResponseHead(request.fetch, 200, URL, [])
        return BodyChunk(b"x", False)

    def tell(self, op: str, request: CloseFetch) -> None:
        self.told.append(request.fetch)


@dataclasses.dataclass
class Gateway:
    """The family with what it hears."""

    http: HttpService
    fetcher: StillFetcher
    told: list[dict[str, Any]]
    now: list[float]


def gateway(quotas: Quotas | None = None, *rules: str) -> Gateway:
    fetcher, told, now = StillFetcher(), [], [0.0]
    secret = Secret(SecretEntry("*", "github", ["https://api.example.com"], 0.0), TEXT)

    def find(name: str, tenant: str) -> Secret:
        if name != "github":
            raise NotFound(f"no secret {name}")
        return secret

    table = read_rules(rules or ["all,api.example.com,other.example.com"])
    service = HttpService(
        fetcher, table, find, lambda tenant: quotas or Quotas(), CallLog(told.append), 1000, lambda: now[0]
    )  # type: ignore[arg-type]
    return Gateway(service, fetcher, told, now)


def program(tenant: str = "ann", *origins: str) -> Caller:
    return Caller(tenant, "run-1", manifest=Manifest("p", http=list(origins)))


SCRIPT = Caller("ann", "ws/1")


async def test_who_declares_nothing_fetches_nothing() -> None:
    at = gateway()
    with pytest.raises(Forbidden, match="manifest"):
        await at.http.fetch(program(), StartFetch("GET", URL))
    with pytest.raises(Forbidden, match="--http-allow"):
        await at.http.fetch(program("ann", "*"), StartFetch("GET", "https://elsewhere.example.com/"))
    assert (await at.http.fetch(program("ann", "*.example.com"), StartFetch("GET", URL))).status == 200
    assert (await at.http.fetch(SCRIPT, StartFetch("GET", URL))).status == 200
    assert at.fetcher.orders[0].declared == ["*.example.com"]
    assert at.fetcher.orders[1].declared is None


async def test_a_secret_is_put_in_for_its_origin_alone() -> None:
    at = gateway()
    header = [HeaderField("Authorization", "Bearer ", "github")]
    await at.http.fetch(SCRIPT, StartFetch("GET", URL, header))
    (line,) = at.fetcher.orders[0].headers
    assert (line.value, line.secret, line.prefix) == (f"Bearer {TEXT}", True, "Bearer ")
    with pytest.raises(Forbidden) as caught:
        await at.http.fetch(SCRIPT, StartFetch("GET", "https://other.example.com/", header))
    with pytest.raises(NotFound):
        await at.http.fetch(SCRIPT, StartFetch("GET", URL, [HeaderField("X", "", "gitlab")]))
    assert TEXT not in str(caught.value.to_wire()) + str(at.told)


async def test_a_request_with_a_secret_asks_for_no_part_of_an_answer() -> None:
    at = gateway()
    headers = [HeaderField("Authorization", "", "github"), HeaderField("Range", "bytes=0-3")]
    with pytest.raises(InvalidRequest):
        await at.http.fetch(SCRIPT, StartFetch("GET", URL, headers))
    assert (await at.http.fetch(SCRIPT, StartFetch("GET", URL, headers[1:]))).status == 200


async def test_every_call_is_told_of_without_its_query() -> None:
    at = gateway()
    head = await at.http.fetch(SCRIPT, StartFetch("POST", URL, [], b"12345"))
    await at.http.read(SCRIPT, ReadBody(head.fetch))
    await at.http.close(SCRIPT, CloseFetch(head.fetch))
    with pytest.raises(Forbidden):
        await at.http.fetch(SCRIPT, StartFetch("GET", "https://elsewhere.example/secret?x"))
    first, second = at.told
    assert (first["call"], first["method"], first["host"], first["path"]) == ("http", "POST", "api.example.com", "/v1")
    assert (first["status"], first["sent"], first["received"], first["error"]) == (200, 5, 1, "closed")
    assert (second["host"], second["error"], first["tenant"]) == ("elsewhere.example", "client.forbidden", "ann")
    assert "hidden" not in str(at.told)


async def test_a_flood_of_refused_calls_does_not_fill_the_log() -> None:
    at = gateway()
    for _ in range(3 * REFUSED_PER_MINUTE):
        with pytest.raises(Forbidden):
            await at.http.fetch(SCRIPT, StartFetch("GET", "https://elsewhere.example/"))
    assert len(at.told) <= REFUSED_PER_MINUTE + 1


async def test_open_requests_are_bounded_by_caller_and_tenant() -> None:
    at = gateway(Quotas(fetches=MAX_OPEN_FETCHES + 2))
    heads = [await at.http.fetch(SCRIPT, StartFetch("GET", URL)) for _ in range(MAX_OPEN_FETCHES)]
    with pytest.raises(LimitExceeded) as caught:
        await at.http.fetch(SCRIPT, StartFetch("GET", URL))
    assert caught.value.detail["limit"] == "open_fetches"
    other = Caller("ann", "ws/2")
    for _ in range(2):
        await at.http.fetch(other, StartFetch("GET", URL))
    with pytest.raises(LimitExceeded) as caught:
        await at.http.fetch(other, StartFetch("GET", URL))
    assert caught.value.detail["limit"] == "fetches"
    await at.http.fetch(Caller("bob", "ws/3"), StartFetch("GET", URL))  # another tenant's are its own
    at.http.closed(SCRIPT)
    assert sorted(at.fetcher.told) == sorted(head.fetch for head in heads)
    await at.http.fetch(other, StartFetch("GET", URL))


async def test_a_request_whose_time_is_up_gives_its_place_back() -> None:
    at = gateway(Quotas(fetches=1))
    await at.http.fetch(SCRIPT, StartFetch("GET", URL, timeout_s=10))
    with pytest.raises(LimitExceeded):
        await at.http.fetch(SCRIPT, StartFetch("GET", URL))
    at.now[0] = 60.0
    await at.http.fetch(SCRIPT, StartFetch("GET", URL))
    assert at.told[-1]["error"] == "timed out"


async def test_requests_per_minute_are_bounded() -> None:
    at = gateway(Quotas(fetches_per_minute=3))
    for _ in range(3):
        await at.http.close(SCRIPT, CloseFetch((await at.http.fetch(SCRIPT, StartFetch("GET", URL))).fetch))
    with pytest.raises(LimitExceeded) as caught:
        await at.http.fetch(SCRIPT, StartFetch("GET", URL))
    assert caught.value.detail["limit"] == "fetches_per_minute"
    assert caught.value.detail["retry_after_s"] > 0
    at.now[0] = 30.0
    await at.http.fetch(SCRIPT, StartFetch("GET", URL))


async def test_a_request_belongs_to_its_caller() -> None:
    at = gateway()
    head = await at.http.fetch(SCRIPT, StartFetch("GET", URL))
    thief = Caller("ann", "ws/2")
    for steal in (at.http.read(thief, ReadBody(head.fetch)), at.http.head(thief, AwaitHead(head.fetch))):
        with pytest.raises(NotFound):
            await steal
    await at.http.close(thief, CloseFetch(head.fetch))
    assert at.fetcher.told == []
    assert (await at.http.read(SCRIPT, ReadBody(head.fetch))).data == b"x"


@pytest.mark.parametrize("error", [Unavailable, InvalidRequest], ids=["lost", "redirected to no URL"])
async def test_a_request_that_failed_is_over(error: type[InferdError]) -> None:
    at = gateway(Quotas(fetches=1))
    at.fetcher.fails = error
    for _ in range(3):
        with pytest.raises(error):
            await at.http.fetch(SCRIPT, StartFetch("GET", URL))
    assert [entry["error"] for entry in at.told] == [error.code] * 3


WRONG = [
    StartFetch("CONNECT", URL), StartFetch("TRACE", URL), StartFetch("get", URL), StartFetch("GET / HTTP/1.1\r\nX:", URL),
    StartFetch("GET", "https://u:p@api.example.com/"), StartFetch("GET", URL, timeout_s=0), StartFetch("GET", URL, timeout_s=1e9),
    StartFetch("GET", URL, redirects=100), StartFetch("GET", URL, redirects=-1),
    *(StartFetch("GET", URL, [HeaderField(name, "x")]) for name in
      ("Host", "content-length", "Transfer-Encoding", "Connection", "Proxy-Authorization", "Upgrade", "a b", "", "X:\r\n", "Ä")),
    *(StartFetch("GET", URL, [HeaderField("X", value)]) for value in ("a\r\nHost: b", "a\nb", "a\0b", "ä", "\x7f")),
    StartFetch("GET", URL, [HeaderField("X", "", "../secret")]),
]  # fmt: skip


@pytest.mark.parametrize("request_", WRONG)
async def test_what_is_no_request_is_refused_before_anything_is_sent(request_: StartFetch) -> None:
    at = gateway()
    with pytest.raises(InvalidRequest):
        await at.http.fetch(SCRIPT, request_)
    assert at.fetcher.orders == []


@pytest.mark.parametrize(
    "request_",
    [
        StartFetch("GET", "https://api.example.com/" + "x" * 9000),
        StartFetch("GET", URL, [HeaderField("X", "y" * 20_000)]),
        StartFetch("GET", URL, [HeaderField(f"X-{number}", "y") for number in range(100)]),
        StartFetch("POST", URL, [], bytes(600 << 10)),
    ],
)
async def test_what_is_too_large_is_refused_by_its_limit(request_: StartFetch) -> None:
    with pytest.raises(LimitExceeded) as caught:
        await gateway().http.fetch(SCRIPT, request_)
    assert caught.value.detail["limit"]


async def test_a_request_that_takes_no_more_of_its_body_is_asked_for_its_head() -> None:
    at = gateway()
    begun = await at.http.begin(SCRIPT, BeginFetch("POST", URL))
    at.fetcher.fails = Unavailable
    with pytest.raises(Unavailable):
        await at.http.write(SCRIPT, WriteBody(begun.fetch, b"a"))
    at.fetcher.fails = None
    assert (await at.http.head(SCRIPT, AwaitHead(begun.fetch))).status == 200


async def test_pieces_are_counted_and_bounded() -> None:
    at = gateway()
    begun = await at.http.begin(SCRIPT, BeginFetch("POST", URL))
    assert at.fetcher.orders[0].streams
    with pytest.raises(LimitExceeded):
        await at.http.write(SCRIPT, WriteBody(begun.fetch, bytes(300 << 10)))
    assert (await at.http.head(SCRIPT, AwaitHead(begun.fetch))).status == 200
    with pytest.raises(InvalidRequest):
        await at.http.head(SCRIPT, AwaitHead(begun.fetch))
