"""Reading bodies: what says that it is something else, and what ``curl -d`` says."""

from __future__ import annotations

import pytest
from starlette.requests import Request
from starlette.types import Message

from inferd.protocol import InvalidRequest
from inferd_runtime.server.gateway.auth import TENANT_KEY
from inferd_runtime.server.gateway.requests import read_bytes
from inferd_runtime.server.tenancy.shares import SharedPlaces, ShareRule

pytestmark = pytest.mark.anyio
BODY = b'{"model": "tiny"}'


async def read(*headers: tuple[bytes, bytes]) -> bytes:
    async def receive() -> Message:
        return {"type": "http.request", "body": BODY, "more_body": False}

    scope = {"type": "http", "method": "POST", "headers": list(headers), TENANT_KEY: "a"}
    return await read_bytes(Request(scope, receive), 100, SharedPlaces(ShareRule(100, 50), "bytes", "a setting"))


@pytest.mark.parametrize("kind", [b"application/x-www-form-urlencoded", b"", b"application/json; charset=utf-8"])
async def test_a_body_that_curl_sends_without_a_header_is_not_refused(kind: bytes) -> None:
    assert await read((b"content-type", kind)) == BODY


async def test_a_body_that_says_nothing_about_itself_is_not_refused() -> None:
    assert await read() == BODY


@pytest.mark.parametrize("kind", [b"multipart/form-data; boundary=x", b"application/xml", b"text/plain"])
async def test_a_body_that_says_it_is_something_else_is_refused(kind: bytes) -> None:
    with pytest.raises(InvalidRequest, match="must be JSON") as refused:
        await read((b"content-type", kind))
    assert refused.value.detail["code"] == "unsupported_content_type"
