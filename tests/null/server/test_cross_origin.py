"""Pages in browsers: those of the origins that an operator names may call, without and with a token; others may not."""

from __future__ import annotations

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from inferd_runtime.server.connections.connection_table import ConnectionTable
from inferd_runtime.server.gateway.app import AppMiddleware, make_app
from inferd_runtime.server.gateway.auth import AccessTokens
from inferd_runtime.server.tenancy.quotas import Quotas, same_for_all
from inferd_runtime.server.tenancy.tenant_use import TenantUse
from inferd_runtime.server.tenancy.tokens import TokenRights

PAGE = "https://app.example"
ASKS = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}


async def hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


async def bug(request: Request) -> PlainTextResponse:
    raise RuntimeError


async def ask(
    origins: tuple[str, ...], method: str, origin: str, path: str = "/v1/models", **headers: str
) -> httpx.Response:
    tokens = AccessTokens({"secret": TokenRights("alice")})
    middleware = AppMiddleware(ConnectionTable(TenantUse(same_for_all(Quotas()))), origins=origins)
    app = make_app([Route("/v1/models", hello, methods=["GET", "POST"]), Route("/v1/bug", bug)], tokens, middleware)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        return await client.request(method, path, headers={"origin": origin, **headers})


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
async def test_a_browser_asks_without_a_token_and_calls_with_one(method: str) -> None:
    asked = await ask((PAGE,), "OPTIONS", PAGE, **{**ASKS, "access-control-request-method": method})
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == PAGE
    assert method in asked.headers["access-control-allow-methods"].split(", ")
    assert "authorization" in asked.headers["access-control-allow-headers"]
    answered = await ask((PAGE,), "POST", PAGE, authorization="Bearer secret")
    assert (answered.status_code, answered.headers["access-control-allow-origin"]) == (200, PAGE)
    shown = answered.headers["access-control-expose-headers"].split(", ")
    assert {"x-request-id", "request-id", "x-inferd-run", "retry-after"} <= {*shown}  # the vendors' clients read these


async def test_a_page_of_the_internet_may_call_a_server_of_the_local_network() -> None:
    """The whole request was refused where a browser asked for this, too."""
    asked = await ask((PAGE,), "OPTIONS", PAGE, **ASKS, **{"access-control-request-private-network": "true"})
    assert (asked.status_code, asked.headers["access-control-allow-private-network"]) == (200, "true")


async def test_a_page_may_read_why_it_was_refused() -> None:
    refused = await ask((PAGE,), "POST", PAGE)
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE)


async def test_a_page_may_read_that_the_server_has_a_bug() -> None:
    """Its client was told that there was no connection, and tried again."""
    failed = await ask((PAGE,), "GET", PAGE, "/v1/bug", authorization="Bearer secret")
    assert (failed.status_code, failed.headers["access-control-allow-origin"]) == (500, PAGE)
    assert failed.json()["error"]["code"] == "internal"


@pytest.mark.parametrize("origins", [(), (PAGE,)])
async def test_other_origins_may_not(origins: tuple[str, ...]) -> None:
    for method, headers in (("OPTIONS", ASKS), ("POST", {"authorization": "Bearer secret"})):
        answer = await ask(origins, method, "https://elsewhere.example", **headers)
        assert "access-control-allow-origin" not in answer.headers
