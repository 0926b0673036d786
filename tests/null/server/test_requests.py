"""Reading bodies: what says that it is something else, and what ``curl -d`` says."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest
from starlette.requests import Request
from starlette.types import Message

from inferd.protocol import InvalidRequest
from inferd_runtime.server.gateway.auth import TENANT_KEY
from inferd_runtime.server.gateway.requests import read_bytes, unless_left
from inferd_runtime.server.tenancy.shares import SharedPlaces, ShareRule

PLACES = SharedPlaces(ShareRule(100, 50), "bytes", "a setting")
BODY = b'{"model": "tiny"}'


async def read(*headers: tuple[bytes, bytes], body: bytes = BODY) -> bytes:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {"type": "http", "method": "POST", "headers": list(headers), TENANT_KEY: "a"}
    return await read_bytes(Request(scope, receive), 100, PLACES)


@pytest.mark.parametrize("kind", [b"application/x-www-form-urlencoded", b"", b"application/json; charset=utf-8"])
async def test_a_body_that_curl_sends_without_a_header_is_not_refused(kind: bytes) -> None:
    assert await read((b"content-type", kind)) == BODY


async def test_a_body_that_says_nothing_about_itself_is_not_refused() -> None:
    assert await read() == BODY


async def test_a_body_that_begins_with_the_mark_of_windows_files_is_read() -> None:
    """It was refused as malformed, although programs and batches with it are read."""
    assert await read(body=BOM_UTF8 + BODY) == BODY


@pytest.mark.parametrize("kind", [b"multipart/form-data; boundary=x", b"application/xml", b"text/plain"])
async def test_a_body_that_says_it_is_something_else_is_refused(kind: bytes) -> None:
    with pytest.raises(InvalidRequest, match="must be JSON") as refused:
        await read((b"content-type", kind))
    assert refused.value.detail["code"] == "unsupported_content_type"


async def test_a_client_that_leaves_ends_what_it_waits_for() -> None:
    """An upload went on to look for its packages, for two minutes, when nobody was there any more."""
    steps: list[str] = []
    waits, ended = anyio.Event(), anyio.Event()

    async def receive() -> Message:
        if not steps:
            steps.append("body")
            return {"type": "http.request", "body": BODY, "more_body": False}
        await waits.wait()
        return {"type": "http.disconnect"}

    async def work(body: Callable[[], Awaitable[bytes]]) -> None:
        assert await body() == BODY
        waits.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    scope = {"type": "http", "method": "POST", "headers": [], TENANT_KEY: "a"}
    with anyio.fail_after(10):
        with pytest.raises(InvalidRequest, match="the client left"):
            await unless_left(Request(scope, receive), 100, PLACES, work)
        assert ended.is_set()


async def test_who_stays_gets_what_there_is_and_is_watched_no_more() -> None:
    left: list[str] = []

    async def receive() -> Message:
        try:
            if left:
                await anyio.sleep_forever()
            left.append("body")
            return {"type": "http.request", "body": BODY, "more_body": False}
        finally:
            left.append("back")

    async def work(body: Callable[[], Awaitable[bytes]]) -> bytes:
        read = await body()
        await anyio.lowlevel.checkpoint()
        return read

    async def fails(body: Callable[[], Awaitable[bytes]]) -> bytes:
        raise InvalidRequest("no program")

    scope = {"type": "http", "method": "POST", "headers": [], TENANT_KEY: "a"}
    assert await unless_left(Request(scope, receive), 100, PLACES, work) == BODY
    await anyio.lowlevel.checkpoint()
    assert left == ["body", "back", "back"]
    with pytest.raises(InvalidRequest, match="no program"):
        await unless_left(Request(scope, receive), 100, PLACES, fails)
