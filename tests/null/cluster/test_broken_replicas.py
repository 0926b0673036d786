"""A replica whose answers are none, or whatever listens at its port by now, ends nothing at the front."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpcore
import msgspec
import pytest
import websockets
from unproven_peers import UnprovenPeers

from inferd_runtime.cluster.front import hop_client
from inferd_runtime.cluster.front.exchange import TenantExchange
from inferd_runtime.cluster.front.hop_client import HopClient, HopRequest, ReplicaGone
from inferd_runtime.cluster.front.launches import _fields
from inferd_runtime.cluster.front.members import Members
from inferd_runtime.cluster.front.messages_relay import MessagesRelay
from inferd_runtime.cluster.front.watching import Watcher
from inferd_runtime.cluster.messages import JoinCluster, ReplicaReport
from inferd_runtime.server.tenancy.quotas import Quotas, same_for_all
from inferd_runtime.server.tenancy.tenant_use import TenantUse

ODD = (b"<html>", b"[]", b'{"name":5}', b"\xff", b'{"name":' + b"[" * 100_000, b"")


class _Says(HopClient):
    """A hop to one replica, which answers as it is told."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__()
        self._status, self._said = status, body

    @asynccontextmanager
    async def stream(
        self, url: str, request: HopRequest, seconds: float | None = None
    ) -> AsyncIterator[httpcore.Response]:
        async def parts() -> AsyncIterator[bytes]:
            yield self._said

        yield httpcore.Response(self._status, content=parts())


def _members(url: str = "http://replica") -> Members:
    members = Members(lambda name: None)
    members.join(JoinCluster("one", url), ReplicaReport(name="one", ready=True))
    return members


@pytest.mark.parametrize("body", ODD)
@pytest.mark.parametrize("status", [200, 500])
async def test_a_report_that_is_none_does_not_end_the_front(status: int, body: bytes) -> None:
    """The front's process ended, and with it the whole cluster's one address."""
    members, exchange = _members(), TenantExchange(TenantUse(same_for_all(Quotas())))
    watcher = Watcher(_Says(status, body), members, "key", Path("/nowhere"), "", exchange)
    member = members.live["one"]
    for _ in range(3):
        members.missed(member)
        await watcher._poll(member)
    assert member.unheard == 3
    assert members.live == {"one": member}


async def test_an_answer_without_end_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hop_client, "MOST_ANSWER", 100)
    with pytest.raises(ReplicaGone):
        await _Says(200, b" " * 101).ask("http://replica", HopRequest(b"GET", b"/", []), 1.0)


async def test_a_frame_that_is_no_message_ends_its_connection_alone() -> None:
    async def answer(socket: Any) -> None:
        await socket.send(msgspec.msgpack.encode([["ask", "no number"]]))
        await socket.wait_closed()

    parts: Any = None
    async with websockets.serve(answer, "127.0.0.1", 0) as server, anyio.create_task_group() as tasks:
        members = _members(f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}")
        relay = MessagesRelay(members, UnprovenPeers(), "key", parts, parts, tasks)
        relay._linked.add("one")
        with anyio.fail_after(10):
            await relay._keep(members.live["one"])
        assert not relay._linked


def test_a_launch_with_fields_that_none_has_is_not_taken_apart() -> None:
    """400,000 of them held the front's loop for a quarter of a second."""
    assert _fields(b'{"program":"p",' + b",".join(b'"%x":0' % number for number in range(1000)) + b"}") == {}
    assert {name: bytes(raw) for name, raw in _fields(b'{"program":"p","seed":5,"arguments":{"a":[1]}}').items()} == {
        "program": b'"p"', "seed": b"5", "arguments": b'{"a":[1]}',
    }  # fmt: skip
