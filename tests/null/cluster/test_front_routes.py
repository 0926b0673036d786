"""Where the front sends what it passes on, with replicas that answer as a test says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpcore
from starlette.requests import Request

from inferd_runtime.cluster.front.hop_client import HopRequest
from inferd_runtime.cluster.front.members import SILENT_ROUNDS, Members
from inferd_runtime.cluster.front.routes import ClusterApi
from inferd_runtime.cluster.messages import JoinCluster, ReplicaReport
from inferd_runtime.server.gateway.auth import ROLE_KEY, TENANT_KEY
from inferd_runtime.server.tenancy.quotas import Quotas, Role, same_for_all
from inferd_runtime.server.tenancy.tenant_use import TenantUse

SCOPE = {
    "type": "http", "method": "GET", "path": "/v1/responses/r", "raw_path": b"/v1/responses/r", "query_string": b"",
    "headers": [], "path_params": {"response": "r"}, TENANT_KEY: "ann", ROLE_KEY: Role.USER,
}  # fmt: skip


class _OneAnswers:
    """A hop to two replicas, of which "stopped" says nothing."""

    @asynccontextmanager
    async def stream(
        self, url: str, request: HopRequest, seconds: float | None = None
    ) -> AsyncIterator[httpcore.Response]:
        if url == "http://stopped":
            await anyio.sleep_forever()
        yield httpcore.Response(200, content=_body())


async def _body() -> AsyncIterator[bytes]:
    yield b"here"


async def _unread() -> dict[str, Any]:
    raise AssertionError("the body is read")


def _members() -> Members:
    members = Members(lambda name: None)
    for name in ("stopped", "there"):
        members.join(JoinCluster(name, f"http://{name}"), ReplicaReport(name=name))
    return members


async def test_a_body_that_no_replica_reads_is_not_held_in_the_front() -> None:
    parts: Any = None
    api = ClusterApi(parts, _members(), parts, parts, "key", TenantUse(same_for_all(Quotas())), 100)
    for path in (api.of_response, api.of_run, api.anything):
        scope = {**SCOPE, "path_params": {"response": "r", "run": "run-1"}}
        await path(Request(scope, _unread))


async def test_a_replica_that_is_stopped_holds_up_no_response_of_another_one() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    parts: Any = None  # no launch is made
    hop: Any = _OneAnswers()
    api = ClusterApi(hop, _members(), parts, parts, "key", TenantUse(same_for_all(Quotas())), 100)
    with anyio.fail_after(5):
        answer = await api.of_response(Request(SCOPE, _unread))
        await answer(SCOPE, anyio.sleep_forever, send)  # type: ignore[arg-type]
    assert sent[1]["body"] == b"here"


def test_what_any_replica_can_answer_is_not_asked_of_a_silent_one() -> None:
    members = _members()
    for _ in range(SILENT_ROUNDS):
        members.missed(members.live["stopped"])
    assert members.any().name == "there"
