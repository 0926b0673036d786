"""What a front does about replicas that answer, and about those that do not."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack

import pytest

from inferd_runtime.cluster.front import hop_client
from inferd_runtime.cluster.front.members import LOST_ROUNDS, SILENT_ROUNDS, Member, Members
from inferd_runtime.cluster.front.start_keys import Beginning
from inferd_runtime.cluster.messages import JoinCluster, ReplicaReport

HUNG, OTHER = "0" * 8, "1" * 8


@pytest.fixture
def members() -> Members:
    found = Members(lambda name: None)
    for name in (HUNG, OTHER):
        found.join(JoinCluster(name, "http://nowhere"), ReplicaReport(name=name))
    return found


async def started_on(members: Members, session: str) -> str:
    async with members.placed("ann", Beginning((), (), session)) as member:
        return member.name


def falls_silent(members: Members) -> Member:
    member = members.live[HUNG]
    for _ in range(SILENT_ROUNDS):
        members.missed(member)
    return member


async def test_nothing_starts_on_a_replica_that_hangs_and_its_sessions_are_its_own_once_it_answers(
    members: Members,
) -> None:
    session, *_ = [name for name in "abc" if await started_on(members, name) == HUNG]
    silent = falls_silent(members)
    assert [one.name for one in members.usable()] == [OTHER]
    assert {await started_on(members, name) for name in "defgh"} == {OTHER}
    members.reported(silent, silent.report, 0.0)
    assert await started_on(members, session) == HUNG


@pytest.fixture
def backlog() -> Iterator[str]:
    """The URL of something that listens and has no room for one more connection."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as held:
        for _ in range(4):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


async def test_a_replica_too_busy_to_listen_is_not_taken_for_lost(
    members: Members, backlog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who sent a flood could have it taken from all tenants. One that has been silent for long may have no machine any more."""
    monkeypatch.setattr(hop_client, "CONNECT_SECONDS", 0.1)
    busy = members.live[HUNG]
    async with AsyncExitStack() as closing:
        hop = hop_client.HopClient()
        closing.push_async_callback(hop.close)

        async def ask() -> None:
            with pytest.raises(hop_client.ReplicaGone), members.watched(busy):
                await hop.ask(backlog, hop_client.own_request("key", "/cluster/report"), 1.0)

        await ask()
        assert HUNG in members.live
        busy.unheard = LOST_ROUNDS
        await ask()
    assert HUNG not in members.live
