"""The application of the gateway: what its router makes of paths."""

from __future__ import annotations

import httpx
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from inferd_runtime.server.gateway.app import make_app
from inferd_runtime.server.gateway.auth import AccessTokens
from inferd_runtime.server.tenancy.tokens import TokenRights


async def hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


async def test_nobody_is_sent_elsewhere_with_a_token() -> None:
    """A path with a slash at its end was answered with a redirect to the host that the request named, by HTTP."""
    app = make_app([Route("/v1/runs", hello)], AccessTokens({"secret": TokenRights("alice")}))
    headers = {"Host": "elsewhere.example", "Authorization": "Bearer secret"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://x", headers=headers) as client:
        for path in ("/v1/runs/", "//elsewhere.example/", "/v1//runs"):
            answer = await client.get(path)
            assert answer.status_code == 404
            assert "location" not in answer.headers
        assert (await client.get("/v1/runs")).text == "hello"
