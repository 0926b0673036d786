"""Answering is timed turn by turn, and whatever is awaited in it goes on as if it were not."""

from __future__ import annotations

import asyncio
import time

import anyio
import pytest

from inferd_runtime.server.gateway.request_watch import timed

pytestmark = pytest.mark.anyio
BUSY = 0.02


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def compute() -> None:
    end = time.perf_counter() + BUSY
    while time.perf_counter() < end:
        pass


async def test_what_an_answer_computes_is_charged_and_what_it_waits_for_is_not() -> None:
    turns: list[float] = []

    async def work() -> None:
        for _ in range(3):
            compute()
            await anyio.sleep(5 * BUSY)

    await timed(work(), turns.append)
    assert len(turns) == 4
    assert all(turn >= BUSY for turn in turns[:3])
    assert turns[3] < BUSY


async def test_errors_and_cancellations_pass_through_and_are_charged() -> None:
    turns: list[float] = []
    ended = []

    async def fails() -> None:
        await anyio.sleep(0.001)
        raise ValueError("x")

    async def waits() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("cancelled")

    with pytest.raises(ValueError, match="x"):
        await timed(fails(), turns.append)
    with anyio.move_on_after(0.01):
        await timed(waits(), turns.append)
    assert ended == ["cancelled"]
    assert len(turns) == 4


async def test_what_is_awaited_brings_its_value() -> None:
    found = []

    async def work() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, 7)
        found.append(await future)

    await timed(work(), lambda seconds: None)
    assert found == [7]
