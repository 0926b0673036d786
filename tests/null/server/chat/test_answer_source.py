"""Events of an answer, a few at a time."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from inferd.chat import TextDelta
from inferd_runtime.server.chat.answer_source import EVENTS_AT_ONCE, in_turns

pytestmark = pytest.mark.anyio


async def test_other_tasks_have_turns_while_many_events_are_written() -> None:
    turns: list[int] = []
    written = 0

    async def other() -> None:
        while True:
            turns.append(written)
            await anyio.lowlevel.checkpoint()

    events = [TextDelta(str(number)) for number in range(4 * EVENTS_AT_ONCE + 1)]
    seen: list[TextDelta] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        async for part in in_turns(events):
            written += len(part)
            seen += [event for event in part if isinstance(event, TextDelta)]
        tasks.cancel_scope.cancel()
    assert seen == events
    assert set(turns) >= {EVENTS_AT_ONCE * number for number in range(1, 5)}
