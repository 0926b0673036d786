"""Odd frames from a worker that was taken over end that worker alone."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random

import msgspec
import pytest
from fuzzing import worker_frame

from inferd_runtime.sandbox.messages import RunFinished, RunUsage
from inferd_runtime.server.gateway.replies import event_json, run_summary
from inferd_runtime.server.supervisor.runtime import open_runtime

from .conftest import fake_commands, settings_in
from .test_failures import SLEEP, program


async def fuzz_gateway(folder: Path, patch: pytest.MonkeyPatch, rounds: int, each: int) -> int:
    """Send what a worker that was taken over may send; returns for how many frames the gateway would have killed it."""
    killed: list[str] = []
    async with open_runtime(settings_in(folder), fake_commands()) as runtime:
        patch.setattr(runtime.fleet, "kill", killed.append)
        handle = partial(vars(type(runtime.fleet))["_handle"], runtime.fleet)
        for seed in range(rounds):
            random, runs = Random(seed), [runtime.launch(program(SLEEP), "{}") for _ in range(3)]
            for run in runs:
                await run.next_batch(1)
            holder = runtime.fleet.pool.worker_of(runs[0].id)
            assert holder is not None
            for _ in range(each):
                frame = worker_frame(random, [run.id for run in runs])
                handle(holder, frame)
            for run in runs:
                handle(holder, msgspec.msgpack.encode(RunFinished(run.id, RunUsage(), result="1")))
                assert (await run.wait()).usage is not None
                msgspec.json.encode([run_summary(run.record()), [event_json(event) for event in run.buffer.since(0)]])
    return len(killed)


async def test_odd_frames_of_a_worker_end_that_worker_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await fuzz_gateway(tmp_path, monkeypatch, rounds=10, each=200) > 100


@pytest.mark.long
async def test_two_hundred_thousand_odd_frames_of_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await fuzz_gateway(tmp_path, monkeypatch, rounds=200, each=1000) > 10_000
