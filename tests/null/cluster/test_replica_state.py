"""What a replica knows of its front, which tells it again and again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio

from inferd_runtime.cluster.messages import FrontOrder
from inferd_runtime.cluster.replica.routes import ReplicaApi
from inferd_runtime.cluster.replica.state import ReplicaState
from inferd_runtime.settings.settings import Settings


async def test_a_replica_that_ends_waits_for_the_answer_to_a_request_that_overtook_an_order(tmp_path: Path) -> None:
    state = ReplicaState("0123abcd", tmp_path)
    is_idle = anyio.Event()

    async def wait() -> None:
        await state.idle()
        is_idle.set()

    async def told(in_flight: int) -> bool:
        state.ordered(FrontOrder(front="", drained=True, in_flight=in_flight))
        await anyio.wait_all_tasks_blocked()
        return is_idle.is_set()

    await told(0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        assert not await told(0), "this order may be older than the request"
        assert not await told(1)
        assert await told(0)


async def test_a_replica_tells_the_front_of_aliases_as_of_models() -> None:
    """Whether a request starts a run is decided there, before a replica is asked."""
    settings = Settings(alias=("gpt-4o=tiny",))
    for pid, names in ((1, ["tiny", "gpt-4o"]), (None, [])):
        models = SimpleNamespace(models=[SimpleNamespace(name="tiny")])
        runtime: Any = SimpleNamespace(settings=settings, models=models, engine=SimpleNamespace(pid=pid))
        unused: Any = None
        assert ReplicaApi(runtime, unused, unused, unused, unused, unused, "key")._models() == names
