"""The time that answers take of the event loop: a few events at a time, in turns."""

from __future__ import annotations

import threading
from functools import partial
from itertools import pairwise

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from inferd.chat import ChatEvent, PromptScores, TextDelta, TokenScore, ToolArguments
from inferd_runtime.server.chat.answer_pace import (
    EVENT_SECONDS,
    LOOP_SHARE,
    SCORE_SECONDS,
    TURN_SECONDS,
    AnswerPace,
    in_turns,
    seconds_of,
)
from inferd_runtime.server.connections.loop_shares import ALLOWED_DEBT

SCORE = TokenScore(1, "a", [97], -1.0, [TokenScore(2, "b", [98], -1.5, [], 1)] * 20, 1)


@pytest.mark.parametrize(
    "event", [TextDelta("x"), TextDelta("x", scores=[SCORE] * 8), PromptScores([SCORE] * 8), ToolArguments(0, "{}")]
)
async def test_every_part_is_paid_before_it_is_written_and_none_is_longer_than_a_turn(event: ChatEvent) -> None:
    paid: list[float] = []

    async def turn(seconds: float) -> None:
        paid.append(seconds)

    events = [event] * (3 * int(TURN_SECONDS / EVENT_SECONDS) + 1)
    seen: list[ChatEvent] = []
    async for part in in_turns(events, turn):
        assert paid[-1] == pytest.approx(sum(map(seconds_of, part)))
        seen += part
    assert seen == events
    assert max(paid) <= TURN_SECONDS
    assert len(paid) >= 3


async def test_between_two_parts_others_have_their_turn_though_nothing_has_to_wait() -> None:
    """On a slow machine a part takes longer than is counted: a whole answer of megabytes was handled in one turn of the loop."""
    others = [0]

    async def turn(seconds: float) -> None:
        return None

    async def somebody_else() -> None:
        while True:
            others[0] += 1
            await anyio.lowlevel.checkpoint()

    events = [TextDelta("x")] * (8 * int(TURN_SECONDS / EVENT_SECONDS))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(somebody_else)
        parts = [part async for part in in_turns(events, turn)]
        tasks.cancel_scope.cancel()
    assert others[0] >= len(parts) - 1 >= 7


async def test_an_event_that_is_longer_than_a_turn_is_a_part_of_its_own() -> None:
    large, paid = PromptScores([SCORE] * 128), list[float]()

    async def turn(seconds: float) -> None:
        paid.append(seconds)

    assert [part async for part in in_turns([TextDelta("x"), large, TextDelta("x")], turn)] == [
        [TextDelta("x")],
        [large],
        [TextDelta("x")],
    ]
    assert paid[1] == pytest.approx(EVENT_SECONDS + 128 * 21 * SCORE_SECONDS)


async def test_parts_of_many_answers_at_once_have_turns_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each alone is short; handled in one round of the loop, 64 of them would hold it for a quarter of a second."""
    pace, waits = AnswerPace(), list[float]()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(anyio, "current_time", lambda: 0.0)
    monkeypatch.setattr(anyio, "sleep", sleep)
    for _ in range(64):
        await pace.turn("mallory", TURN_SECONDS)
    apart = TURN_SECONDS / LOOP_SHARE
    assert 64 - len(waits) <= ALLOWED_DEBT / apart + 1
    assert [later - earlier for earlier, later in pairwise(waits)] == pytest.approx([apart] * (len(waits) - 1))


async def test_long_work_of_many_requests_is_done_in_one_thread_in_which_tenants_take_turns() -> None:
    """With a thread for each of 40 large bodies, the event loop stood still until all of them were read."""
    pace, done, begun, hold = AnswerPace(), list[str](), threading.Event(), threading.Event()

    def work(tenant: str) -> None:
        begun.set()
        assert hold.wait(10)
        done.append(tenant)

    async with anyio.create_task_group() as tasks:
        for tenant in ("mallory", "mallory", "mallory", "trudy"):
            tasks.start_soon(pace.beside, tenant, partial(work, tenant))
        assert await anyio.to_thread.run_sync(begun.wait, 10)
        assert pace._thread.statistics().tasks_waiting == 1, "one of a tenant at a time"
        hold.set()
    assert done == ["mallory", "trudy", "mallory", "mallory"]
