"""Routes of responses: what is held for who reads one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.requests import Request

from inferd.protocol import LimitExceeded
from inferd_runtime.server.gateway.auth import TENANT_KEY
from inferd_runtime.server.gateway.model_routes import ModelApi
from inferd_runtime.server.gateway.responses_routes import ResponsesApi
from inferd_runtime.server.response_store.response_store import ResponseStore
from inferd_runtime.server.tenancy.quotas import Quotas, same_for_all
from inferd_runtime.server.tenancy.tenant_use import TenantUse


class Kept:
    """A store whose responses have events of 100 MiB."""

    async def events(self, tenant: str, response_id: str, after: int) -> tuple[Any, int]:
        async def nothing() -> Any:
            yield b""

        return nothing(), 100 << 20


async def test_events_that_are_held_for_their_readers_count_until_they_are_read() -> None:
    """200 connections that asked for the events of one response, of 20 MB, and read none of them took 5 GiB of the gateway."""
    use = TenantUse(same_for_all(Quotas()))
    models = cast(ModelApi, SimpleNamespace(chat=SimpleNamespace(runtime=SimpleNamespace(use=use))))
    api = ResponsesApi(models, cast(ResponseStore, Kept()))
    scope = {
        "type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b"stream=true",
        "path_params": {"response": "resp_1"}, TENANT_KEY: "eve",
    }  # fmt: skip
    answers = [await api.get(Request(scope)) for _ in range(5)]
    assert use.outstanding.held("eve") == 500 << 20
    with pytest.raises(LimitExceeded, match="kept for others"):
        await api.get(Request(scope))

    async def quiet(*message: Any) -> Any:
        return {"type": "http.disconnect"}

    for answer in answers:
        await answer(scope, quiet, quiet)
    assert use.outstanding.used == 0
