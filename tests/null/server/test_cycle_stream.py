"""The stream of speculation over HTTP: events in both forms, and when it ends."""

from __future__ import annotations

import contextlib
import json
from collections.abc import MutableMapping, Sequence
from typing import Any, cast

import anyio
import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from inferd.protocol import LimitExceeded, Unavailable
from inferd_runtime.server.gateway.app import make_app
from inferd_runtime.server.gateway.auth import TENANT_KEY, AccessTokens
from inferd_runtime.server.gateway.cycle_stream import MOST_STREAMS, Watchers, cycle_events
from inferd_runtime.server.gateway.routes import Api
from inferd_runtime.server.supervisor.runtime import Runtime
from inferd_runtime.server.tenancy.tokens import TokenRights
from inferd_runtime.session.wire import CyclePage, GetCycles, WatchedCycle

FIRST = WatchedCycle(4, "run", 1, 1, "ngram", 4, 2, 3)
SECOND = WatchedCycle(5, "run", 1, 2, "", 0, 0, 1)


class Pages:
    """An engine that has some pages to give, then ends, or has been asked for all of them."""

    def __init__(self, pages: Sequence[CyclePage], *, dies: bool = False) -> None:
        self.pages = list(pages)
        self.dies = dies
        self.asked: list[int] = []

    async def read(self, after: int) -> CyclePage:
        self.asked.append(after)
        if not self.pages and self.dies:
            raise Unavailable("the engine is gone")
        return self.pages.pop(0)

    def ended(self) -> bool:
        return not self.pages and not self.dies and bool(self.asked)

    async def collect(self, as_sse: bool) -> list[bytes]:
        first = self.pages.pop(0)
        return [line async for line in cycle_events(self.read, first, as_sse=as_sse, ended=self.ended, poll=0.0)]


async def test_lines_go_on_where_the_last_page_ended() -> None:
    pages = Pages([CyclePage([FIRST], 5), CyclePage([SECOND], 6), CyclePage([], 9, 3)], dies=True)
    lines = [json.loads(line) for line in await pages.collect(as_sse=False)]
    assert lines[0] == {
        "index": 4, "session": "run", "generation": 1,
        "step": 1, "source": "ngram", "drafted": 4, "accepted": 2, "emitted": 3,
    }  # fmt: skip
    assert [line.get("step") for line in lines] == [1, 2, None]
    assert lines[2] == {"missed": 3}
    assert pages.asked == [5, 6, 9]


async def test_server_sent_events_are_named() -> None:
    (event,) = await Pages([CyclePage([FIRST], 5)], dies=True).collect(as_sse=True)
    name, data, *rest = event.split(b"\n")
    assert name == b"event: speculation.cycle"
    assert json.loads(data.removeprefix(b"data: "))["step"] == 1
    assert rest == [b"", b""]


async def test_it_ends_with_the_server() -> None:
    pages = Pages([CyclePage([FIRST], 5), CyclePage([SECOND], 6)])
    assert len(await pages.collect(as_sse=False)) == 1
    assert pages.asked == [5]


def test_a_tenant_has_so_many_streams_at_most() -> None:
    watchers = Watchers()
    with contextlib.ExitStack() as streams:
        for _ in range(MOST_STREAMS):
            streams.enter_context(watchers.count("a"))
        with pytest.raises(LimitExceeded, match="8 streams"), watchers.count("a"):
            pass
        with watchers.count("b"):
            pass
    with watchers.count("a"):
        pass


class Stub:
    """As much of a runtime as the route needs. It closes when its pages are told."""

    def __init__(self, pages: list[CyclePage]) -> None:
        self.pages = pages
        self.asked: list[GetCycles] = []
        self.engine = self
        self.settings = self.use = None

    @property
    def closing(self) -> bool:
        return not self.pages and len(self.asked) > 2

    async def call(self, request: GetCycles, reply_type: type[CyclePage]) -> CyclePage:
        self.asked.append(request)
        return self.pages.pop(0) if self.pages else CyclePage([], 6)


async def test_the_route_tells_a_tenant_its_own() -> None:
    stub = Stub([CyclePage([], 4), CyclePage([FIRST, SECOND], 6)])
    app = make_app(watched(stub).routes(), AccessTokens({"secret": TokenRights("alice")}))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://x") as client:
        path = "/v1/speculation/cycles"
        assert (await client.get(path)).status_code == 401
        answer = await client.get(path, headers={"Authorization": "Bearer secret"})
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert [json.loads(line)["step"] for line in answer.text.splitlines() if line] == [1, 2]
    assert {request.tenant for request in stub.asked} == {"alice"}
    assert [request.after for request in stub.asked[:3]] == [-1, 4, 6]


class Slow(Stub):
    """An engine that answers when it is told to, or not at all."""

    def __init__(self, *, dies: bool = False) -> None:
        super().__init__([CyclePage([], 4)] * (MOST_STREAMS + 5))
        self.go = anyio.Event()
        self.dies = dies

    async def call(self, request: GetCycles, reply_type: type[CyclePage]) -> CyclePage:
        self.asked.append(request)
        await self.go.wait()
        if self.dies:
            raise Unavailable("the engine is gone")
        return self.pages.pop(0)


def watching(tenant: str = "a") -> Request:
    return Request({"type": "http", "method": "GET", "headers": [], TENANT_KEY: tenant})


def watched(stub: Stub) -> Api:
    nobody = cast(Any, None)
    return Api(cast(Runtime, stub), nobody, nobody, nobody)


async def test_streams_that_open_at_once_do_not_pass_the_limit() -> None:
    stub, opened, refused = Slow(), list[Response](), list[LimitExceeded]()
    api = watched(stub)

    async def open_one() -> None:
        try:
            opened.append(await api.cycles(watching()))
        except LimitExceeded as error:
            refused.append(error)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for _ in range(MOST_STREAMS + 3):
                tasks.start_soon(open_one)
            await anyio.wait_all_tasks_blocked()
            assert (len(stub.asked), len(refused)) == (MOST_STREAMS, 3)
            stub.go.set()
    assert len(opened) == MOST_STREAMS
    with pytest.raises(LimitExceeded):
        await api.cycles(watching())
    await api.cycles(watching("b"))


async def test_a_stream_that_ends_in_any_way_makes_room_for_another() -> None:
    stub = Slow(dies=True)
    stub.go.set()
    api = watched(stub)
    for _ in range(MOST_STREAMS + 1):
        with pytest.raises(Unavailable):
            await watched_once(api)
    api = watched(Stub([CyclePage([], 4)] * 99))
    for _ in range(MOST_STREAMS + 1):
        with pytest.raises(ConnectionResetError):
            await watched_once(api)


async def watched_once(api: Api) -> None:
    """One stream, whose client is gone before the first byte."""

    async def receive() -> dict[str, Any]:
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: MutableMapping[str, Any]) -> None:
        raise ConnectionResetError

    request = watching()
    response = await api.cycles(request)
    await response(request.scope, receive, send)
