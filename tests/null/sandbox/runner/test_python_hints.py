"""What a program is told that uses Python in another way than programs do."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from inferd import Context, InvalidRequest
from inferd_runtime.sandbox.runner.failure import describe


async def _text() -> str:
    return "text"


async def _async_with(call: Awaitable[str]) -> None:
    async with call:  # type: ignore[attr-defined]
        pass


async def _async_for(call: Awaitable[str]) -> None:
    async for _ in call:  # type: ignore[attr-defined]
        pass


USES: list[Callable[[Any], Any]] = [
    lambda call: call.upper(),
    lambda call: "a" + call,
    lambda call: list(call),
    lambda call: call[0],
    lambda call: len(call),
    lambda call: call > 3,
    lambda call: json.dumps(call),
]


@pytest.mark.parametrize("use", USES)
async def test_a_forgotten_await_is_told_however_its_value_is_used(use: Callable[[Any], Any]) -> None:
    call = _text()
    with pytest.raises((TypeError, AttributeError)) as caught:
        use(call)
    assert describe(caught.value, set()).message.endswith("was not awaited: write `await` before it")
    await call


@pytest.mark.parametrize("use", [lambda task: task[0], lambda task: task.upper(), lambda task: "a" + task])
async def test_a_task_that_was_not_awaited_is_told_too(use: Callable[[Any], Any]) -> None:
    task = asyncio.ensure_future(_text())
    with pytest.raises((TypeError, AttributeError)) as caught:
        use(task)
    assert describe(caught.value, set()).message.endswith("was not awaited: write `await` before it")
    await task


@pytest.mark.parametrize("use", [_async_with, _async_for])
async def test_a_forgotten_await_behind_async_is_told(use: Callable[[Awaitable[str]], Awaitable[None]]) -> None:
    call = _text()
    with pytest.raises(TypeError) as caught:
        await use(call)
    assert describe(caught.value, set()).message.endswith("what made it was not awaited: write `await` before it")
    await call


async def test_the_call_that_was_not_awaited_is_named() -> None:
    call = _text()
    with pytest.raises(AttributeError) as caught:
        call.upper()  # type: ignore[attr-defined]
    assert describe(caught.value, set()).message.endswith("; _text(...) was not awaited: write `await` before it")
    with pytest.raises(InvalidRequest, match="text must be a string, not coroutine: await it first"):
        Context().user(call)  # type: ignore[arg-type]
    await call


async def test_what_is_no_coroutine_where_one_is_wanted_is_no_forgotten_await() -> None:
    with pytest.raises(TypeError) as caught:
        await asyncio.create_task(3)  # type: ignore[arg-type]
    assert "await" not in describe(caught.value, set()).message


def test_a_program_that_looks_for_an_environment_is_told_that_it_has_none() -> None:
    with pytest.raises(KeyError) as caught:
        os.environ["INFERD_NOT_THERE"]
    assert "a program has no environment" in describe(caught.value, set()).message
    with pytest.raises(KeyError) as caught:
        dict[str, int]()["INFERD_NOT_THERE"]
    assert "environment" not in describe(caught.value, set()).message
