"""Runs under load while their engine and workers are killed, the disk is full, and the clock jumps: each ends, and rightly."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import time
from typing import Any

import anyio
import pytest
from waiting import until

from inferd.protocol import Unavailable
from inferd_runtime.server.run_store.run_file import RunFile

from .conftest import Serve, Served

ASK = """
import worker
async def main(text: str):
    total = []
    for n in range(6):
        total += (await worker.call('model.tokenize', text=text))['tokens']
        print(n)
    return total
"""
TYPED = {"unavailable", "program.replay_differs"}


async def _one(served: Served, number: int) -> dict[str, Any] | None:
    """Launch a run and wait for its end; None if the launch was refused for want of an engine or of room."""
    body = {"program": "p", "arguments": {"text": f"t{number}"}, "retry_safe": number % 2 == 0}
    answer = await served.client.post("/v1/runs", json=body)
    if answer.status_code != 201:
        assert answer.json()["error"]["code"] in ("unavailable", "limit"), answer.text
        return None
    return await served.finished(answer.json())


def _judge(number: int, over: dict[str, Any]) -> None:
    if over["error"] is None:
        assert over["result"] == [ord(char) for char in f"t{number}"] * 6
    else:
        assert over["error"]["code"] in TYPED, over["error"]


async def _load(served: Served, runs: int, kills: int, seed: int) -> dict[int, dict[str, Any] | None]:
    """Launch at least so many runs, a few at a time, until so many children were killed."""
    endings: dict[int, dict[str, Any] | None] = {}
    numbers, killed = itertools.count(), anyio.Event()

    async def client() -> None:
        while len(endings) < runs or not killed.is_set():
            number = next(numbers)
            endings[number] = await _one(served, number)
            if endings[number] is None:
                await until(served.ready, 60)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_kill, served, kills, random.Random(seed), killed)
        for _ in range(6):
            tasks.start_soon(client)
    return endings


async def _kill(served: Served, kills: int, draw: random.Random, killed: anyio.Event) -> None:
    runtime = served.gateway.runtime
    while kills:
        await until(lambda: bool(runtime.runs.active and runtime.fleet.pids), 60)
        pids = [*runtime.fleet.pids.values(), *([runtime.engine.pid] if runtime.engine.pid else [])]
        with contextlib.suppress(ProcessLookupError):  # it has ended already, and is about to be noticed
            os.kill(draw.choice(pids), signal.SIGKILL)
            kills -= 1
        await until(served.ready, 60)
    killed.set()


async def _all_end_rightly(served: Served, runs: int, kills: int, seed: int) -> None:
    await served.upload(ASK)
    with anyio.fail_after(60 + kills * 10):
        endings = await _load(served, runs, kills, seed)
    for number, over in endings.items():
        if over is not None:
            _judge(number, over)
    assert any(over is not None and over["error"] is None for over in endings.values())
    assert served.gateway.runtime.runs.active == []


async def test_every_run_ends_in_its_result_or_a_typed_error_while_children_are_killed(serve: Serve) -> None:
    async with serve() as served:
        await _all_end_rightly(served, runs=24, kills=3, seed=1)


@pytest.mark.long
async def test_two_hundred_runs_with_fifty_kills(serve: Serve) -> None:
    async with serve() as served:
        await _all_end_rightly(served, runs=200, kills=50, seed=2)


async def test_a_full_disk_ends_no_run(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise Unavailable("the store of runs does not work now: the disk is full", reason="disk_full")

    async with serve() as served:
        await served.upload(ASK)
        for name in ("begin", "append", "finish"):
            monkeypatch.setattr(RunFile, name, full)
        for number in range(3):
            over = await _one(served, number)
            assert over is not None
            assert over["error"] is None
        ready = (await served.client.get("/readyz")).json()
        assert "disk is full" in ready["store"]["error"]
        assert len((await served.client.get("/v1/runs")).json()["runs"]) == 3
        monkeypatch.undo()
        await until(lambda: served.gateway.runtime.runs.finished == [])
        assert len((await served.client.get("/v1/runs")).json()["runs"]) == 3


@pytest.mark.parametrize("jump", [1e7, -1e7])
async def test_a_jump_of_the_clock_ends_no_run_and_keeps_none_waiting(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    now = time.time
    async with serve() as served:
        run = await served.launch("import worker\nasync def main(): return await worker.receive()")
        monkeypatch.setattr(time, "time", lambda: now() + jump)
        served.gateway.runtime.tick(time.monotonic())
        await served.client.post(f"/v1/runs/{run['id']}/messages", json={"message": 1})
        over = await served.finished(run)
        assert (over["state"], over["result"]) == ("succeeded", 1)
        assert over["usage"]["wall_ms"] < 1e6
