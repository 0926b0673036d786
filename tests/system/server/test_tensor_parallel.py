"""A killed rank under the supervisor: the runs that used the engine hear of it, and the next engine has all its ranks."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import psutil
import pytest
from waiting import until

from inferd_runtime.sandbox.messages import Bundle
from inferd_runtime.sandbox.runner_build.component import ensure_runner
from inferd_runtime.server.programs.bundles import make_program
from inferd_runtime.server.supervisor.run_events import Ending
from inferd_runtime.server.supervisor.runs import Run
from inferd_runtime.server.supervisor.runtime import open_runtime

from .conftest import settings_in

pytestmark = pytest.mark.long
FOLLOWER = "inferd_runtime.server.engine_process.follower_process"
GENERATE = """
from inferd import Context, Sampler

async def main(max_tokens: int) -> int:
    count = 0
    while count < max_tokens:
        async for step in Context().user("Hello").generate(Sampler.multinomial(seed=count), max_tokens=max_tokens):
            count += len(step.tokens)
            print("alive", flush=True)
    return count
"""
FEW = json.dumps({"max_tokens": 8})
PROGRAM = make_program(Bundle("p", {"main.py": GENERATE}))


def ranks(engine: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(engine).children() if FOLLOWER in child.cmdline()]


async def ended(run: Run) -> Ending:
    with anyio.fail_after(120):
        return await run.wait()


async def test_a_killed_rank_ends_its_runs_and_the_engine_comes_back(tmp_path: Path) -> None:
    ensure_runner()
    async with open_runtime(settings_in(tmp_path, threads=1, tensor_parallel=2)) as runtime:
        first = runtime.engine.pid
        assert first is not None
        assert (await ended(runtime.launch(PROGRAM, FEW))).error is None
        run = runtime.launch(PROGRAM, json.dumps({"max_tokens": 10**6}))
        (rank,) = ranks(first)
        with anyio.fail_after(60):
            await run.next_batch(1)
        rank.kill()
        over = await ended(run)
        assert over.error is not None
        assert over.error.code == "unavailable"
        assert "the engine exited with code 2" in over.error.message
        await until(lambda: runtime.engine.pid is not None, seconds=120)
        second = runtime.engine.pid
        assert second not in (None, first)
        (rank,) = ranks(runtime.engine.pid or 0)
        assert (await ended(runtime.launch(PROGRAM, FEW))).error is None
    assert not rank.is_running() or rank.status() == psutil.STATUS_ZOMBIE
