"""What a front does about replicas that answer, and about those that do not."""

from __future__ import annotations

import pytest

from inferd_runtime.cluster.front.members import SILENT_ROUNDS, Member, Members
from inferd_runtime.cluster.front.start_keys import Beginning
from inferd_runtime.cluster.messages import JoinCluster, ReplicaReport

pytestmark = pytest.mark.anyio
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
