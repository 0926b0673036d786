"""A route from docs/extending in the gateway's application: the tenant's own runs, tokens and errors as for all others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from inferd_runtime.sandbox.messages import Bundle, Limits, Output
from inferd_runtime.server.gateway.app import make_app
from inferd_runtime.server.gateway.auth import AccessTokens
from inferd_runtime.server.programs.bundles import make_program
from inferd_runtime.server.programs.library import ProgramLibrary
from inferd_runtime.server.response_store.background import BackgroundResponses
from inferd_runtime.server.supervisor.run_events import EventBuffer
from inferd_runtime.server.supervisor.run_keeper import RunKeeper
from inferd_runtime.server.supervisor.runs import Run, RunStore
from inferd_runtime.server.supervisor.runtime import Runtime
from inferd_runtime.server.tenancy.quotas import Quotas, same_for_all
from inferd_runtime.server.tenancy.tokens import TokenRights

TENANTS = {"a": TokenRights("ann"), "b": TokenRights("bob")}


@pytest.fixture
def run() -> Run:
    """A run of ann's that has printed something."""
    program = make_program(Bundle("p", {"main.py": "async def main(): pass"}))
    run = Run(program, "{}", "ann", Limits(), EventBuffer(1 << 16))
    run.started()
    for stream, text in (("stdout", "one "), ("stderr", "oops"), ("stdout", "two")):
        run.wrote(Output(run.id, stream, text))
    return run


@pytest.fixture
async def client(page: dict[str, Any], run: Run) -> AsyncIterator[httpx.AsyncClient]:
    quotas = same_for_all(Quotas())
    runs = RunStore(quotas)
    runs.add(run)
    runtime = SimpleNamespace(runs=runs, keeper=RunKeeper(runs, quotas), settings=None, use=None)
    tokens = AccessTokens(TENANTS)
    api = page["ApiWithOutput"](
        cast(Runtime, runtime), cast(ProgramLibrary, None), tokens, cast(BackgroundResponses, None)
    )
    transport = httpx.ASGITransport(app=make_app(api.routes(), tokens))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        yield client


async def get(client: httpx.AsyncClient, path: str, token: str = "a") -> httpx.Response:
    return await client.get(path, headers={"Authorization": f"Bearer {token}"})


async def test_it_answers(client: httpx.AsyncClient, run: Run) -> None:
    output = await get(client, f"/v1/runs/{run.id}/output")
    assert (output.status_code, output.text) == (200, "one two")
    assert (await get(client, f"/v1/runs/{run.id}/output?stream=stderr")).text == "oops"


async def test_errors_and_tenants_are_those_of_every_route(client: httpx.AsyncClient, run: Run) -> None:
    path = f"/v1/runs/{run.id}/output"
    assert (await client.get(path)).status_code == 401
    assert (await get(client, path, "b")).status_code == 404
    refused = await get(client, path + "?stream=stdin")
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "client.not_found")


async def test_the_others_are_still_there(client: httpx.AsyncClient, run: Run) -> None:
    assert [each["id"] for each in (await get(client, "/v1/runs")).json()["runs"]] == [run.id]
