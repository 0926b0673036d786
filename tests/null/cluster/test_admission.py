"""What programs launch themselves is held to what the tenant may have in the whole cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from inferd.protocol import LimitExceeded
from inferd_runtime.cluster.active_runs import ActiveRuns
from inferd_runtime.cluster.front import admission
from inferd_runtime.cluster.front.admission import Admission
from inferd_runtime.cluster.front.members import Members
from inferd_runtime.server.tenancy.quotas import Quotas, same_for_all
from inferd_runtime.server.tenancy.tenant_use import TenantUse


@pytest.fixture
def admitting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Admission:
    monkeypatch.setattr(admission, "HEARD_SECONDS", 0)
    programs: Any = None  # a child's program is its replica's to find
    use = TenantUse(same_for_all(Quotas(runs=2, waiting=1)))
    return Admission(use, ActiveRuns(), Members(lambda name: None), programs)


async def test_programs_on_several_replicas_launch_no_more_than_their_tenant_may(admitting: Admission) -> None:
    """Two run and one waits, wherever: each replica alone would admit as many."""
    for replica in ("x", "y", "x"):
        await admitting.child("ann", replica)
    for replica in ("x", "y"):
        with pytest.raises(LimitExceeded) as refused:
            await admitting.child("ann", replica)
        assert refused.value.detail["limit"] == "waiting"
    await admitting.child("bob", "x")


async def test_a_program_may_launch_right_behind_a_run_that_is_over(admitting: Admission) -> None:
    """Its replica has yet to say so."""
    for _ in range(3):
        await admitting.child("ann", "x")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(admitting.child, "ann", "x")
        await anyio.lowlevel.checkpoint()
        admitting.active.heard("x", {"run-1": "ann", "run-2": "ann"}, {}, asked_at=float("inf"))
    assert admitting.active.count("ann") == 3


async def test_a_name_that_stands_for_a_model_on_the_replicas_starts_no_run(admitting: Admission) -> None:
    """An alias is a model's name, also for a tenant that has a program of that name."""

    class Programs:
        async def resolve(self, reference: str, tenant: str) -> str:
            return reference

    programs: Any = Programs()
    members: Any = SimpleNamespace(live={"x": SimpleNamespace(report=SimpleNamespace(models=["tiny", "gpt-4o"]))})
    knowing = replace(admitting, programs=programs, members=members)
    assert [await knowing._starts_run("ann", b'{"model": "%s"}' % name) for name in (b"gpt-4o", b"mine")] == [
        False,
        True,
    ]
