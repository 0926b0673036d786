"""``inferd.http`` over a gateway that the test plays: requests wait for one another instead of being refused."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from inferd import http
from inferd.protocol import LimitExceeded, Unavailable
from inferd.protocol.http import (
    MAX_OPEN_FETCHES,
    AwaitHead,
    BeginFetch,
    BodyChunk,
    CloseFetch,
    FetchBegun,
    ReadBody,
    ResponseHead,
    StartFetch,
    WriteBody,
)
from inferd.protocol.operations import Done
from inferd.transport import restore_transport, use_transport
from inferd_runtime.sandbox.runner.http_libraries import HttpLibraries


class PlayedGateway:
    """Keeps to the gateway's limit. A body is two pieces, the second of which comes with a read; ``broken``: it does not."""

    def __init__(self, *, broken: bool = False) -> None:
        self.open: set[int] = set()
        self.most = 0
        self._broken = broken
        self._numbers = 0

    async def call(self, request: Any) -> Any:
        await asyncio.sleep(0)
        return self.answer(request)

    def answer(self, request: Any) -> Any:
        match request:
            case StartFetch():
                return self._head(self._begun(), request.url)
            case BeginFetch():
                return FetchBegun(self._begun())
            case AwaitHead():
                return self._head(request.fetch, "http://a.test")
            case ReadBody():
                self.open.remove(request.fetch)
                if self._broken:
                    raise Unavailable("the body was cut off")
                return BodyChunk(b"two", True)
            case CloseFetch():
                self.open.discard(request.fetch)
                return Done()
        assert isinstance(request, WriteBody)
        return Done()

    def _begun(self) -> int:
        self._numbers += 1
        self.open.add(self._numbers)
        self.most = max(self.most, len(self.open))
        if len(self.open) > MAX_OPEN_FETCHES:
            raise LimitExceeded("too many", limit="open_fetches", value=MAX_OPEN_FETCHES, raise_with="fewer")
        return self._numbers

    def _head(self, number: int, url: str) -> ResponseHead:
        return ResponseHead(number, 200, url, [], b"one ")


@pytest.fixture
async def gateway() -> AsyncIterator[PlayedGateway]:
    played = PlayedGateway()
    token = use_transport(played)
    yield played
    restore_transport(token)


async def text_of(number: int, body: Any = None) -> str:
    return await (await http.fetch(f"http://a.test/{number}", method="POST" if body else "GET", body=body)).text()


async def test_any_number_of_fetches_at_once_wait_for_one_another(gateway: PlayedGateway) -> None:
    """The seventeenth in one `asyncio.gather` was refused."""
    assert await asyncio.gather(*map(text_of, range(100))) == ["one two"] * 100
    assert gateway.most == MAX_OPEN_FETCHES


async def test_uploads_wait_as_fetches_do(gateway: PlayedGateway) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"abc"

    assert await asyncio.gather(*(text_of(number, pieces()) for number in range(40))) == ["one two"] * 40
    assert gateway.most == MAX_OPEN_FETCHES


async def test_responses_that_nobody_reads_make_room_for_those_that_wait(gateway: PlayedGateway) -> None:
    async def status(number: int) -> int:
        return (await http.fetch(f"http://a.test/{number}")).status

    assert await asyncio.gather(*map(status, range(60))) == [200] * 60
    gc.collect()
    assert await text_of(61) == "one two"
    assert not gateway.open


async def test_bodies_that_are_cut_off_make_room_while_their_errors_are_kept() -> None:
    token = use_transport(PlayedGateway(broken=True))
    failed = await asyncio.gather(*map(text_of, range(60)), return_exceptions=True)
    restore_transport(token)
    assert [type(error) for error in failed] == [Unavailable] * 60


async def test_fetches_that_are_cancelled_while_they_wait_take_no_place(gateway: PlayedGateway) -> None:
    held = [await http.fetch("http://a.test") for _ in range(MAX_OPEN_FETCHES)]
    waiting = [asyncio.ensure_future(text_of(number)) for number in range(5)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for response in held:
        await response.close()
    assert await asyncio.gather(*map(text_of, range(40))) == ["one two"] * 40


async def test_who_keeps_all_places_is_told_so_when_the_time_is_up(gateway: PlayedGateway) -> None:
    held = [await http.fetch("http://a.test") for _ in range(MAX_OPEN_FETCHES)]
    with pytest.raises(LimitExceeded) as refused:
        await http.fetch("http://a.test", timeout=0.01)
    assert refused.value.detail["limit"] == "open_fetches"
    assert await held[0].text() == "one two"
    assert await text_of(1) == "one two"


async def test_blocking_libraries_are_refused_instead_of_waiting_for_ever() -> None:
    libraries = HttpLibraries(PlayedGateway().answer)
    held = [libraries.send("GET", "http://a.test", [], None, None) for _ in range(MAX_OPEN_FETCHES)]
    with pytest.raises(LimitExceeded):
        libraries.send("GET", "http://a.test", [], None, None)
    assert held.pop().read(100) == b"one "
    held.clear()  # unread
    gc.collect()
    assert libraries.send("GET", "http://a.test", [], None, None).status == 200
