"""A change signal wakes the tasks that wait, and is not remembered for those that come later."""

from __future__ import annotations

import anyio

from inferd_runtime.change_signal import ChangeSignal


async def test_one_change_wakes_all_that_wait_and_none_that_come_later() -> None:
    signal, woken = ChangeSignal(), list[str]()

    async def wait(name: str) -> None:
        await signal.wait()
        woken.append(name)

    signal.wake()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait, "first")
        tasks.start_soon(wait, "second")
        await anyio.wait_all_tasks_blocked()
        assert woken == [], "a change before they waited is none"
        signal.wake()
        tasks.start_soon(wait, "late")
        await anyio.wait_all_tasks_blocked()
        assert sorted(woken) == ["first", "second"]
        tasks.cancel_scope.cancel()
